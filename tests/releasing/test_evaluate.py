"""Stored embeddings are measured as they are read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.tiny_training import tiny_lineage, tiny_recipe

from evergram.data.corpus import Corpus
from evergram.data.synthetic import generate
from evergram.errors import DataError, LineageError, UnknownVersionError
from evergram.evaluation.ranking import query_metrics
from evergram.lineage.catalog import PairHistory
from evergram.lineage.lineage import Lineage
from evergram.releasing.demo import rated_above_median
from evergram.releasing.evaluate import Ranking, evaluate
from evergram.releasing.upgrade import train, upgrade
from evergram.training.diagnose import diagnose


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


def test_a_sample_and_an_index_say_so(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    lineage, recipe = tiny_lineage(tmp_path / "l"), tiny_recipe()
    whole = evaluate(recipe, lineage)
    assert set(whole) == {"model", "popularity"}
    assert evaluate(recipe, lineage, ranking=Ranking(10**6)) == whole
    part = evaluate(recipe, lineage, ranking=Ranking(4))
    assert part["sampled"]["queries"] == 4 < part["sampled"]["of"]
    by_index = evaluate(recipe, lineage, ranking=Ranking(index="ivf"))
    assert set(by_index) == {"model", "popularity", "index"}
    assert 0.95 <= by_index["index"]["recall"] <= 1
    assert by_index["popularity"] == pytest.approx(whole["popularity"])


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
    evaluate(recipe, lineage, device="meta", ranking=Ranking(4))
    # Popularity is of one dim: it is not worth a copy.
    assert devices == [torch.device("meta"), None]


def rated(means: list[float], ratings: int = 5) -> Corpus:
    """Candidates c0, c1, … with so many ratings of these means."""
    rows = [(f"q{j}", f"c{i}", mean) for i, mean in enumerate(means) for j in range(ratings)]
    query, candidate, value = zip(*rows, strict=True)
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate, "value": value}))


def test_candidates_with_few_ratings_are_left_out_and_20_are_needed() -> None:
    corpus = rated([float(i) for i in range(20)])
    assert len(rated_above_median(corpus)[0]) == 20
    with pytest.raises(DataError, match="Only 0 candidates have 6 ratings; the consumer needs 20"):
        rated_above_median(corpus, minimum=6)
    with pytest.raises(DataError, match="value"):
        rated_above_median(Corpus.from_tables(pa.table({"query": ["a"], "candidate": ["x"]})))
