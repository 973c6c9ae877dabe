"""The power of counts that selection chooses: that of a slow loop over queries and candidates."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pyarrow as pa
import pytest
import torch
from tests.support.thread_processes import Threads, in_threads

from evergram.data.corpus import Corpus
from evergram.data.row_pairs import RowPairs
from evergram.data.split import Split
from evergram.encoders.encoder import Encoder
from evergram.encoders.factory import build_encoder, publish_by_popularity
from evergram.encoders.features import Schema
from evergram.errors import DataError
from evergram.training.corpora import load_corpus, split_for
from evergram.training.monitors.early_stopping import SelectionMetric
from evergram.training.monitors.popularity_choice import (
    EXPONENTS,
    PopularityChoice,
    choose_popularity,
    refuse_unchoosable,
)
from evergram.training.recipe import Recipe

METRIC = "recall@5"


@pytest.fixture(scope="module")
def split() -> Split:
    data = {"kind": "synthetic", "queries": 80, "candidates": 50, "interactions": 1500}
    recipe = Recipe.of({"data": data})
    return split_for(recipe, load_corpus(recipe), 0)


def unit_rows(corpus: Corpus, seed: int) -> Encoder:
    """Untrained vectors: some seeds want popularity more than others."""
    options = {"dim": 3, "normalize": True}
    schema, draw = Schema.of(corpus, features=False), torch.Generator().manual_seed(seed)
    encoder = build_encoder("factorization", options, schema, draw).eval()
    publish_by_popularity(encoder, 0.0, corpus)
    return encoder


def slow_recall(encoder: Encoder, split: Split, exponent: float, k: int) -> float:
    """Score one pair at a time in float64, sort, and count; a tie is lost."""
    corpus = split.training
    vectors = {s: v.double() for s, v in encoder.embed_all(corpus).items()}
    counts = corpus.counts("candidate").tolist()
    seen, held = (
        {(int(q), int(c)) for q, c in zip(query, candidate, strict=True)}
        for query, candidate in (
            (corpus.column("query"), corpus.column("candidate")),
            (split.selection.query, split.selection.candidate),
        )
    )
    recalls = []
    for query in sorted({q for q, _ in held}):
        targets = [c for q, c in held if q == query]
        scores = {
            c: float(vectors["query"][query] @ vectors["candidate"][c]) * max(n, 1) ** exponent
            for c, n in enumerate(counts)
            if (query, c) not in seen
        }
        listed = sorted(scores, key=lambda c: (-scores[c], c in targets))[:k]
        recalls.append(len(set(listed) & set(targets)) / len(targets))
    return sum(recalls) / len(recalls)


@pytest.mark.parametrize("seed", range(4))
def test_it_is_what_a_slow_loop_picks(split: Split, seed: int) -> None:
    encoder = unit_rows(split.training, seed)
    slow = [slow_recall(encoder, split, exponent, 5) for exponent in EXPONENTS]
    metric = SelectionMetric(METRIC, split)
    choice = choose_popularity(encoder, split.training, metric)
    assert [record["exponent"] for record in choice.tried] == list(EXPONENTS)
    assert [record[METRIC] for record in choice.tried] == pytest.approx(slow, abs=1e-9)
    assert choice.exponent == EXPONENTS[slow.index(max(slow))]
    assert encoder.popularity_option == {"popularity": choice.exponent}
    held_out = f"best {METRIC} of {len(metric.relevance)} queries held out for selection"
    at_the_end = choice.exponent == EXPONENTS[-1]
    assert (
        choice.reason
        == held_out + "; it is the largest that was tried, and more may be better" * (at_the_end)
    )
    assert choice.as_json()["tried"] == list(choice.tried)


def test_the_seeds_above_choose_more_than_one_power(split: Split) -> None:
    metric = SelectionMetric(METRIC, split)
    chosen = {
        choose_popularity(unit_rows(split.training, seed), split.training, metric).exponent
        for seed in range(4)
    }
    assert len(chosen) > 1


def test_of_equal_powers_it_is_the_smallest() -> None:
    """Every candidate is met twice, so that no power changes the order."""
    pairs = {"query": [0, 0, 1, 1, 2, 2], "candidate": [0, 1, 1, 2, 2, 0]}
    corpus = Corpus.from_tables(pa.table(pairs))
    held = RowPairs(torch.tensor([0, 1, 2]), torch.tensor([2, 0, 1]))
    split = Split(corpus, held, RowPairs.none(), unknown_queries=0)
    encoder = unit_rows(corpus, 0)
    choice = choose_popularity(encoder, corpus, SelectionMetric("recall@1", split))
    assert choice.exponent == EXPONENTS[0] == 0
    assert {record["recall@1"] for record in choice.tried} == {1.0}


def test_a_sample_of_queries_decides_where_the_selection_has_one(split: Split) -> None:
    metric = SelectionMetric(METRIC, split, queries=10, seed=1)
    choice = choose_popularity(unit_rows(split.training, 1), split.training, metric)
    assert "of 10 queries" in choice.reason
    kept = torch.isin(split.selection.query, metric.relevance.queries)
    part = replace(split, selection=split.selection.where(kept))
    same = choose_popularity(
        unit_rows(split.training, 1), split.training, SelectionMetric(METRIC, part)
    )
    assert [r[METRIC] for r in choice.tried] == pytest.approx([r[METRIC] for r in same.tried])


def test_several_processes_choose_alike(split: Split) -> None:
    encoder, metric = unit_rows(split.training, 2), SelectionMetric(METRIC, split)
    copies = [deepcopy(encoder) for _ in range(3)]
    alone = choose_popularity(encoder, split.training, metric)

    def chosen(process: Threads) -> PopularityChoice:
        return choose_popularity(copies[process.rank], split.training, metric, process)

    for choice in in_threads(3, chosen)[0]:
        assert choice.exponent == alone.exponent
        for one, other in zip(choice.tried, alone.tried, strict=True):
            assert one == pytest.approx(other)


def test_without_selection_pairs_nothing_is_chosen(split: Split) -> None:
    refuse_unchoosable(split)
    with pytest.raises(DataError, match="there are none; hold some out, or give a number"):
        refuse_unchoosable(replace(split, selection=RowPairs.none()))


def test_a_number_has_no_record_of_others() -> None:
    choice = PopularityChoice(0.1, "model.popularity")
    assert choice.as_json() == {"exponent": 0.1, "reason": "model.popularity"}
