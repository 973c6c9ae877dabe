"""A stored version measured as it is read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.lineages import lineage_of
from tests.support.tiny_training import tiny_lineage, tiny_recipe
from torch import nn

from evergram.data.corpus import Corpus
from evergram.data.split import RowPairs, Split
from evergram.data.synthetic import generate
from evergram.encoders.encoder import SIDES
from evergram.errors import DataError, LineageError, UnknownVersionError
from evergram.evaluation.ranking import query_metrics
from evergram.lineage.lineage import Lineage, PairHistory
from evergram.releasing.evaluate import evaluate
from evergram.releasing.past_versions import (
    PastReading,
    StoredModel,
    held_out_rows,
    known_relevance,
    reading_report,
)
from evergram.releasing.upgrade import train, upgrade, version_report
from evergram.training.build import load_corpus, split_for
from evergram.training.diagnose import diagnose
from evergram.training.fit import Trained

ROWS = 40


def split_of(pairs: list[tuple[int, int]], test: list[tuple[int, int]]) -> Split:
    """Training and test pairs of rows; no selection."""
    query, candidate = zip(*pairs, strict=True)
    corpus = Corpus.of(pa.table({"query": query, "candidate": candidate}))
    tested = RowPairs(*(torch.tensor(rows) for rows in zip(*test, strict=True)))
    return Split(corpus, RowPairs.none(), tested, 0)


def test_only_queries_and_candidates_that_the_past_version_knew_are_ranked() -> None:
    training = [(0, 0), (1, 1), (2, 2), (0, 3), (2, 1)]
    split = split_of(training, [(0, 1), (0, 2), (1, 3), (2, -1), (2, 0)])
    known = {
        "query": torch.tensor([True, False, True]),
        "candidate": torch.tensor([True, False, True, True]),
    }
    relevance, population = known_relevance(split, known)
    assert population == len(relevance)
    # Query 1 and candidate 1 were not known; -1 is in no catalogue. Rows 0, 2, 3 become 0, 1, 2.
    assert relevance.queries.tolist() == [0, 2]
    assert relevance.targets.tolist() == [1, 0]
    assert relevance.seen.tolist() == [0, 2, 1]


@pytest.mark.parametrize("drifts", [False, True])
def test_a_chain_that_leads_back_exactly_keeps_everything(tmp_path: Path, drifts: bool) -> None:
    """The chain shifts by 0.1: the new vectors either allow for that or do not."""
    chain = lineage_of(tmp_path / "l", 2).chain
    draw = torch.Generator().manual_seed(0)
    corpus = split_of([(i, (3 * i + 1) % ROWS) for i in range(ROWS)], [(0, 1)]).training
    past, new = {}, {}
    stored = {}
    for side, entities in zip(SIDES, (corpus.queries, corpus.candidates), strict=True):
        past[side] = torch.randn(len(entities), chain.dim(0), generator=draw)
        # The inverse of version 1's transform: half of the first coordinates, and 0.1.
        exact = 2 * (past[side] - 0.1)
        more = torch.randn(len(entities), chain.dim(1) - chain.dim(0), generator=draw)
        new[side] = torch.cat([exact + (0.5 if drifts else 0.0), more], dim=1)
        stored[side] = (entities.vocabulary.keys, past[side])
    rows = torch.arange(ROWS)
    split = Split(corpus, RowPairs.none(), RowPairs(rows, (rows + 7) % ROWS), 0)
    reading = PastReading(chain, 0, StoredModel(chain.dim(0), stored))
    report = reading_report(reading, new, split, 0.5, ["recall@5"])
    held = held_out_rows(corpus, 0.5)
    assert report["drift"]["held_out"]["objects"] == sum(int(held[s].sum()) for s in SIDES)
    assert report["drift"]["known"]["objects"] == 2 * ROWS
    ranking = report["ranking"]
    if drifts:
        shift = 0.25 * chain.dim(0) ** 0.5
        assert report["drift"]["known"]["l2"] == pytest.approx(shift, rel=1e-4)
        assert ranking["raw"] != ranking["past"]
    else:
        assert report["drift"]["known"]["l2"] == pytest.approx(0, abs=1e-5)
        assert report["overlap@10"] == 1
        assert ranking["chain"] == ranking["chain_candidates"] == ranking["past"]


def trained() -> Trained:
    history = [{"epoch": 3, "seconds": 1.0, "objective": 0.5, "recall@20": 0.1}]
    values: dict[str, Any] = {"history": history, "best_epoch": 3, "seconds": 1.23456}
    vectors = torch.ones(2, 7), torch.ones(3, 7)
    return Trained(nn.Identity(), *vectors, {"model": {}}, penalty=(2.0,), **values)  # type: ignore[arg-type]


def test_what_was_not_asked_for_is_left_out_and_a_missing_test_is_said() -> None:
    split = split_for(tiny_recipe(), load_corpus(tiny_recipe()), 0)
    report = version_report(4, split, trained())
    assert (report["version"], report["dim"]) == (4, 7)
    assert (report["training"]["seconds"], report["training"]["epochs"]) == (1.235, 3)
    assert not {"pilots", "untested"} & (set(report["training"]) | set(report))
    json.dumps(report)
    report = version_report(0, split.without_test("No test figure: why."), trained())
    assert report["untested"] == "No test figure: why."
    assert report["data"]["test_pairs"] == report["data"]["test_queries"] == 0
    assert report["data"]["interactions"] == len(split.training)


def test_the_newest_version_has_its_published_metrics_and_an_older_one_its_own(
    tmp_path: Path,
) -> None:
    lineage, recipe = tiny_lineage(tmp_path / "l"), tiny_recipe("upgrade.alone=false")
    lineage.publish(upgrade(recipe, lineage, progress=False))
    published = lineage.metrics(1)
    metrics = evaluate(recipe, lineage)
    assert metrics["model"] == pytest.approx(published["metrics"]["model"])
    assert metrics["popularity"] == pytest.approx(published["metrics"]["popularity"])
    read_as_first = evaluate(recipe, lineage, 0)["model"]
    chain = published["compatibility"]["0"]["ranking"]["chain"]
    assert read_as_first == pytest.approx(chain)


def test_without_a_version_or_held_out_pairs_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownVersionError, match="no version yet"):
        evaluate(tiny_recipe(), Lineage.create(tmp_path / "none"))
    lineage = tiny_lineage(tmp_path / "l")
    untested = PairHistory("tiny", untested="No test figure: why.")
    monkeypatch.setattr(Lineage, "pair_history", untested)
    with pytest.raises(LineageError, match="No test figure: why"):
        evaluate(tiny_recipe(), lineage)


def test_a_corpus_that_was_passed_is_needed_again_and_never_taken_from_the_recipe(
    tmp_path: Path,
) -> None:
    recipe, lineage = tiny_recipe("upgrade.alone=false"), Lineage.create(tmp_path / "l", "tiny")
    corpus = generate(queries=50, candidates=30, interactions=700, seed=9).corpus
    lineage.publish(train(recipe, corpus, progress=False))
    for needs_it in (
        lambda: evaluate(recipe, lineage),
        lambda: diagnose(recipe, lineage, progress=False),
        lambda: upgrade(recipe, lineage, progress=False),
    ):
        with pytest.raises(DataError, match="Version 0 was trained on a corpus that was passed in"):
            needs_it()
    published = lineage.metrics(0)["metrics"]["model"]
    assert evaluate(recipe, lineage, corpus=corpus)["model"] == pytest.approx(published)
    lineage.publish(upgrade(recipe, lineage, corpus, progress=False))
    assert lineage.recipe(1)["data"]["kind"] == "python"


def test_objects_without_a_stored_vector_are_counted_and_change_no_metric(tmp_path: Path) -> None:
    recipe, lineage = tiny_recipe(), Lineage.create(tmp_path / "l", "tiny")
    pairs = generate(queries=50, candidates=30, interactions=700, seed=9).corpus.interactions
    query, candidate = (pairs[side].to_numpy() for side in ("query", "candidate"))

    def corpus_of(queries: Sequence[int] = (), candidates: Sequence[int] = ()) -> Corpus:
        both = np.append(query, queries), np.append(candidate, candidates)
        named = zip(("query", "candidate"), both, strict=True)
        return Corpus.of(pa.table({side: ids.astype(np.int64) for side, ids in named}))

    lineage.publish(train(recipe, corpus_of(), progress=False))
    whole = evaluate(recipe, lineage, corpus=corpus_of())
    assert set(whole) == {"model", "popularity"}
    known = lineage.embeddings("candidate")[0].to_pylist()
    part = evaluate(recipe, lineage, corpus=corpus_of([500] * len(known), known))
    assert part["unknown"] == {"query": 1, "candidate": 0}
    assert part["model"] == pytest.approx(whole["model"])
    part = evaluate(recipe, lineage, corpus=corpus_of([*range(50)], [900] * 50))
    assert part["unknown"] == {"query": 0, "candidate": 1}
    # Some of its pairs are held out, and are misses.
    assert part["model"]["recall@20"] < whole["model"]["recall@20"]
    query = query + 1000
    with pytest.raises(LineageError, match="No query of the test pairs has a stored vector"):
        evaluate(recipe, lineage, corpus=corpus_of())


def test_a_sample_says_so(tmp_path: Path) -> None:
    lineage, recipe = tiny_lineage(tmp_path / "l"), tiny_recipe()
    whole = evaluate(recipe, lineage)
    assert set(whole) == {"model", "popularity"}
    assert evaluate(recipe, lineage, queries=10**6) == whole
    part = evaluate(recipe, lineage, queries=4)
    assert part["sampled"]["queries"] == 4 < part["sampled"]["of"]


def test_the_device_ranks_a_sample_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lineage, recipe = tiny_lineage(tmp_path / "l"), tiny_recipe()
    devices: list[torch.device | None] = []

    def ranked(*arguments: Any, device: torch.device | None = None, **more: Any) -> Any:
        devices.append(device)
        return query_metrics(*arguments, **more)

    monkeypatch.setattr(sys.modules[evaluate.__module__], "query_metrics", ranked)
    monkeypatch.setattr(
        sys.modules[evaluate.__module__], "pick_device", lambda name: torch.device(name)
    )
    evaluate(recipe, lineage, device="meta", queries=4)
    # Popularity is of one dim: it is not worth a copy.
    assert devices == [torch.device("meta"), None]
