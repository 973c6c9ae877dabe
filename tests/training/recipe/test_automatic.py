"""λ and l2 that scale with the data."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import torch

from evergram.data.corpus import Corpus
from evergram.training.recipe import Recipe
from evergram.training.recipe.automatic import TABLE_RATE, batch_size_of, rate_of, strengths_of
from evergram.training.recipe.fit_settings import FitSettings


def corpus(queries: int, candidates: int, each: int, **columns: float) -> Corpus:
    """Every query has met `each` candidates."""
    pairs = [(q, (q * 7 + i) % candidates) for q in range(queries) for i in range(each)]
    extra = {name: [value] * len(pairs) for name, value in columns.items()}
    query, candidate = zip(*pairs, strict=True)
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate, **extra}))


def recipe(*overrides: str) -> Recipe:
    return Recipe.of({"data": {"kind": "synthetic"}}, overrides)


def test_by_hand() -> None:
    # 800 pairs of 100 queries and 64 candidates: an eighth of all, ten for each entity.
    strengths = strengths_of(recipe(), corpus(100, 64, 8))
    assert strengths.penalty == pytest.approx([66 / 8**0.25])
    assert strengths.l2 == pytest.approx(0.5 / 10)
    assert strengths.l2_measure == "penalty"


def test_repeats_and_strangers_change_nothing() -> None:
    once = corpus(100, 64, 8)
    twice = once.restrict(torch.arange(1600) % 800)
    assert strengths_of(recipe(), twice) == strengths_of(recipe(), once)
    # Pages are queries and candidates under one vocabulary; not all of them are both.
    query, candidate = once.column("query"), once.column("candidate")
    table = pa.table({"query": query.numpy() + 1000, "candidate": candidate.numpy()})
    shared = Corpus.from_tables(table, shared_ids=True)
    assert len(shared.queries) == 164
    assert strengths_of(recipe(), shared) == strengths_of(recipe(), once)


def test_numbers_win_and_keep_their_measure() -> None:
    data = corpus(100, 64, 8)
    given = strengths_of(recipe("task.penalty=[3, 4]", *TWO, "task.l2=0.5"), data)
    assert (given.penalty, given.l2, given.l2_measure) == ([3.0, 4.0], 0.5, "examples")
    measured = recipe("task.l2=0.5", "task.l2_measure=penalty")
    assert strengths_of(measured, data).l2_measure == "penalty"
    assert strengths_of(recipe("task.l2_measure=examples"), data).l2_measure == "examples"


TWO = ("task.query_measure=[0, 1]", "task.candidate_measure=[0, 1]")


@pytest.mark.parametrize("kind", ["bpr", "softmax", "second_order"])
def test_what_has_negatives_of_its_own_gets_neither(kind: str) -> None:
    strengths = strengths_of(recipe(f"task.kind={kind}"), corpus(100, 64, 8))
    assert (strengths.penalty, strengths.l2) == ([0.0], 0.0)


def test_l2_grows_with_the_values_to_reach() -> None:
    """Twice the values have twice the scores, of vectors √2 as long: l2 doubles with them."""
    one, two = (
        strengths_of(recipe("task.target=value"), corpus(100, 64, 8, value=value))
        for value in (2.0, 4.0)
    )
    assert two.l2 == pytest.approx(2 * one.l2)
    assert two.penalty == one.penalty


@pytest.mark.parametrize(("pairs", "batch"), [(3, 256), (16_384, 512), (300_000, 4096)])
def test_small_data_has_small_batches(pairs: int, batch: int) -> None:
    rows = torch.arange(pairs) % 800
    data = corpus(100, 64, 8).restrict(rows)
    assert batch_size_of(recipe(), data) == batch
    assert batch_size_of(recipe("training.batch_size=77"), data) == 77
    assert batch_size_of(recipe("model.kind=graphsage"), data) == 4096


def test_a_sweep_has_all_pairs_and_no_rate() -> None:
    sweeping = recipe("training.optimizer=als")
    assert batch_size_of(sweeping, corpus(100, 64, 8)) == 800
    assert rate_of(sweeping) == 0
    assert FitSettings.of(sweeping, corpus(100, 64, 8), 0).rates == {}


CORPUS = Corpus.from_tables(pa.table({"query": ["a", "b"], "candidate": ["x", "y"]}))


VALUES: dict[str, Any] = {"data": {"kind": "synthetic"}, "seed": 7}


def test_each_version_has_a_seed_of_its_own_and_the_first_has_the_recipes() -> None:
    seeds = [FitSettings.of(Recipe.of(VALUES), CORPUS, v).version_seed for v in range(50)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 50


def test_an_encoder_has_the_rates_of_its_parameters_and_no_others() -> None:
    def rates(kind: str) -> dict[str, float]:
        overrides = [f"model.kind={kind}"]
        return FitSettings.of(Recipe.of(VALUES, overrides), CORPUS, 0).rates

    assert rates("factorization") == {"table_rate": TABLE_RATE}
    assert rates("lightgcn") == {"layer_rate": 2e-4}
    assert rates("module") == {"table_rate": TABLE_RATE, "layer_rate": 2e-4}
