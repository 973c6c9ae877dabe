"""What an index with stale rows loses, next to slow oracles."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.support.lineages import lineage_of
from tests.support.publishing import copy_of

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import DataError, DegradationError, LineageError
from evergram.lineage.artefact import Artefact
from evergram.lineage.consumers import ConsumerRegistry, Probe
from evergram.lineage.lineage import Lineage
from evergram.releasing import publish as publish_version
from evergram.releasing import skew
from evergram.releasing.skew import CHAIN, WORST, SkewReport, _Index, _index, _scored
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import load_corpus, split_for
from evergram.training.checkpoint import load_encoder
from evergram.training.recipe import Recipe


def recipe_of(small: Recipe) -> Recipe:
    overrides = ["model.dim=8", "upgrade.alone=false", "training.metric=recall@5"]
    return Recipe.of(small.model_dump(), [*overrides, 'metrics=["recall@5"]'])


@pytest.fixture
def grown(small: Recipe, tmp_path: Path) -> Lineage:
    """Three versions of 8 dims of a corpus that grows; version 1 has a label."""
    recipe = recipe_of(small)

    def publish_all(folder: Path) -> None:
        lineage = Lineage.create(folder, "grown")
        lineage.publish(train(recipe, progress=False))
        lineage.publish(upgrade(recipe, lineage, progress=False))
        lineage.label("before", 1)
        lineage.publish(upgrade(recipe, lineage, progress=False))

    return copy_of("grown-8", publish_all, tmp_path / "grown")


def of(report: SkewReport, read: str, stale: dict[int, float]) -> Any:
    (found,) = [r for r in report.readings if (r.read, r.stale) == (read, stale)]
    return found


def recall_by_hand(lineage: Lineage, candidates: dict[Any, np.ndarray]) -> list[float]:
    """Recall@5 of each test query over vectors by id, by a loop over scores as Python has them."""
    recipe = Recipe.stored(lineage.recipe(lineage.newest))
    split = split_for(recipe, load_corpus(recipe), lineage.newest, lineage.pair_history)
    ids, rows = lineage.embeddings("query", lineage.newest)
    of_query = dict(zip(ids.to_pylist(), rows.double().numpy(), strict=True))
    names = split.training.queries.vocabulary.keys.to_pylist()
    others = split.training.candidates.vocabulary.keys.to_pylist()
    seen: dict[int, set[int]] = {}
    of_selection = split.selection.query, split.selection.candidate
    for query, candidate in (of_selection, split.training.pairs_of(split.test.query)):
        for a, b in zip(query.tolist(), candidate.tolist(), strict=True):
            seen.setdefault(a, set()).add(b)
    targets: dict[int, set[int]] = {}
    for a, b in zip(split.test.query.tolist(), split.test.candidate.tolist(), strict=True):
        targets.setdefault(a, set()).add(b)
    values = []
    for asking in sorted(targets):
        scores = sorted(
            (-float(of_query[names[asking]] @ candidates[name]), row)
            for row, name in enumerate(others)
            if row not in seen.get(asking, ())
        )
        hits = {row for _, row in scores[:5]} & targets[asking]
        values.append(len(hits) / len(targets[asking]))
    return values


def test_the_loss_of_stale_rows_is_that_of_a_slow_oracle(grown: Lineage) -> None:
    """All rows that version 1 or 0 had are stale, so that no draw decides."""
    report = skew(grown, [{1: 1.0}, {2: 1.0}])
    ids, rows = grown.embeddings("candidate", 2)
    new = dict(zip(ids.to_pylist(), rows.double().numpy(), strict=True))
    fresh = np.mean(recall_by_hand(grown, new))
    assert report.fresh == pytest.approx(fresh, abs=1e-9)
    assert report.metric == "recall@5"
    for age, version in ((1, 1), (2, 0)):
        keys, vectors = grown.embeddings("candidate", 1)
        if version == 0:  # not stored any more
            encoder = load_encoder(grown, 0)
            corpus = load_corpus(Recipe.stored(grown.recipe(2)))
            scene = encoder.read(corpus)
            known = encoder.known("candidate", scene)
            keys = corpus.candidates.vocabulary.keys.filter(pa.array(known.numpy()))
            vectors = encoder.embed_all(scene)["candidate"][known]
        weight, offset = (part.numpy() for part in grown.forward(version, 2) or ())
        old = dict(zip(keys.to_pylist(), vectors.double().numpy(), strict=True))
        for read in ("chain", "raw"):
            mapped = {i: z if read == "raw" else weight @ z + offset for i, z in old.items()}
            expected = 100 * (1 - np.mean(recall_by_hand(grown, {**new, **mapped})) / fresh)
            reading = of(report, read, {age: 1.0})
            assert reading.loss == pytest.approx(expected, abs=1e-6)
            assert reading.low == reading.loss == reading.high
        assert reading.drawn == {age: pytest.approx(len(old.keys() & new.keys()) / len(new))}
        assert of(report, "raw", {age: 1.0}).loss > of(report, "chain", {age: 1.0}).loss


def test_draws_take_their_shares_of_the_rows_that_a_version_had() -> None:
    @given(st.integers(1, 60), st.floats(0.01, 0.6), st.floats(0.01, 0.4), st.integers(0, 99))
    def check(count: int, one: float, two: float, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        known = {1: torch.rand(count, generator=draw) < 0.9}
        known[0] = known[1] & (torch.rand(count, generator=draw) < 0.5)
        whole = torch.zeros(count, 2)
        rows = {2: whole, **{v: whole.masked_fill(~k[:, None], math.nan) for v, k in known.items()}}
        index: Any = SimpleNamespace(lineage=SimpleNamespace(newest=2), past=[1, 0], seed=seed)
        drawn = _Index.drawn(index, rows, {1: one, 2: two})
        assert all(bool(known[v][drawn == v].all()) for v in known)
        oldest = min(round(two * count), int(known[0].sum()))
        assert int((drawn == 0).sum()) == oldest
        free = int(known[1].sum()) - oldest
        assert int((drawn == 1).sum()) == min(round(one * count), free)

    check()


def turned(folder: Path, noise: float = 0.0, turn: bool = True) -> tuple[Lineage, Artefact]:
    """A lineage of 400 vectors, and a version of the same ones after a rotation, with noise, which
    its transform turns back."""
    draw = torch.Generator().manual_seed(1)
    vectors, ids = torch.randn(400, 6, generator=draw), pa.array([f"i{n}" for n in range(400)])
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=draw)).Q if turn else torch.eye(6)
    new = vectors @ rotation.T + noise * torch.randn(400, 6, generator=draw)
    lineage = Lineage.create(folder, "turned")
    common: dict[str, Any] = {"metrics": {"metrics": {"model": {}}}, "recipe": {}}
    lineage.publish(Artefact(6, {"object": (ids, vectors)}, None, **common))
    back = LinearTransform.from_matrix(rotation.T.contiguous())
    follows = lineage.manifest(0).fingerprint
    return lineage, Artefact(6, {"object": (ids, new)}, back, follows=follows, **common)


def exact(folder: Path, turn: bool = True) -> Lineage:
    lineage, artefact = turned(folder, turn=turn)
    lineage.publish(artefact)
    return lineage


def test_exact_maps_lose_nothing_where_raw_vectors_do(tmp_path: Path) -> None:
    report = skew(exact(tmp_path / "l"))
    assert (report.metric, report.fresh, report.queries) == ("overlap@10", 1.0, 80)
    readings: list[Any] = list(report.readings)
    for one in readings:
        if one.read in ("chain", "worst first"):
            assert one.loss == pytest.approx(0, abs=0.2)
            assert one.above == pytest.approx(1, abs=0.02)
            assert one.calibration == pytest.approx(0, abs=1e-4)
        elif one.read == "raw":
            assert one.loss > 10
            assert one.calibration > 0.05
        else:
            assert (one.loss, one.above) == (None, pytest.approx(1, abs=0.15))
    assert report.past_limit(1) == []
    # The same vectors in the same space lose nothing either way, to the last bit of a rank.
    same = skew(exact(tmp_path / "same", turn=False), [{1: 0.5}])
    assert of(same, "raw", {1: 0.5}).loss == 0


def test_scores_are_compared_on_stale_and_new_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package binds the function to the module's name.
    monkeypatch.setattr(sys.modules["evergram.releasing.skew"], "SCORED", (80, 100))
    monkeypatch.setattr(sys.modules["evergram.releasing.skew"], "ABOVE", 0.2)
    index = _index(exact(tmp_path / "l"), [0], (None, None, 0, 0), [])
    versions = index.drawn(index.rows, {1: 0.5})
    emptied = index.new * (versions == 1)[:, None]
    # Of the pairs above the threshold, those of new rows stay.
    assert 0.3 < _scored(index, versions, emptied, CHAIN)["above"] < 0.7


def test_a_backfill_leaves_the_rows_with_the_smallest_errors(tmp_path: Path) -> None:
    lineage, noisy = turned(tmp_path / "l", noise=0.3)
    lineage.publish(noisy)
    index = _index(lineage, [0], (None, None, 0, 0), [])
    stale = index.drawn(index.rows, {1: 0.4}, WORST) == 0
    errors = (index.read(index.rows, torch.zeros(320).long(), 1) - index.new).norm(dim=1)
    assert errors[stale].max() <= errors[~stale].min()
    assert int(stale.sum()) == round(0.4 * len(stale))


def test_more_queries_are_ranked_where_that_costs_little(
    grown: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["evergram.releasing.skew"], "QUERIES", 10)
    few = _index(grown, [1], (None, None, 0, 0), [])
    for scores, ranked in ((20 * len(few.new), 20), (10**9, few.population)):
        assert len(_index(grown, [1], (None, None, 0, scores), []).relevance) == ranked
    assert len(few.relevance) == 10 < 20 < few.population


def test_every_draw_is_of_its_seed(tmp_path: Path) -> None:
    lineage, done = exact(tmp_path / "l"), list[tuple[int, int]]()
    each: dict[str, Any] = {"progress": lambda *counts: done.append(counts)}
    reports = [skew(lineage, [{1: 0.5}], seed=seed, **each) for seed in (3, 3, 4)]
    assert reports[0] == reports[1] != reports[2]
    assert done == [(0, 1), (1, 1)] * 3


def test_dims_that_differ_and_vectors_that_are_gone_are_said(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "l", canaries=2)
    report = skew(lineage, [{1: 0.5}])
    raw = of(report, "raw", {1: 0.5})
    assert raw.loss is None
    assert "version 1 cannot be compared: they have 8 dims" in raw.problem
    assert "Version 1 was measured on its canaries, because it is not stored." in report.notes
    assert report.rows == 120
    silent = lineage_of(tmp_path / "none")
    report = skew(silent, [{1: 0.5}])
    (sentence,) = report.past_limit(100)
    assert "With 50% of rows 1 old, the loss is unknown: " in sentence
    with pytest.raises(LineageError, match="has only one version"):
        skew(lineage_of(tmp_path / "one", versions=1))


@pytest.mark.parametrize(
    "stale", [{}, {1: 0.0}, {1: 0.7, 2: 0.4}, {3: 0.5}, {0: 0.5}, {1: math.nan}, {1: -0.1}]
)
def test_mixtures_that_cannot_be_are_refused(tmp_path: Path, stale: dict[int, float]) -> None:
    with pytest.raises(
        DataError, match="positive shares that add up to at most 1, for ages from 1 to 2"
    ):
        skew(lineage_of(tmp_path / "l", canaries=2), [stale])


def test_a_publication_that_loses_more_is_refused(tmp_path: Path) -> None:
    lineage, noisy = turned(tmp_path / "l", noise=0.3)
    before = sorted(path for path in lineage.path.rglob("*") if path.is_file())
    with pytest.raises(
        DegradationError, match=r"With 50% of rows 1 old, .* loses .*; the limit is 5 %"
    ):
        publish_version(lineage, noisy, max_loss=5)
    with pytest.raises(DataError, match="max_loss is -1"):
        publish_version(lineage, noisy, max_loss=-1)
    assert sorted(path for path in lineage.path.rglob("*") if path.is_file()) == before
    assert publish_version(lineage, noisy, max_loss=90).version == 1
    measured = lineage.metrics(1)["skew"]
    again = skew(Lineage.open(lineage.path), [{1: 0.5}]).as_json()
    # Only canaries of version 0 are left; at the gate its vectors were.
    assert measured["rows"] == again["rows"] == 320
    assert 5 < measured["readings"][0]["loss"] < measured["readings"][0]["high"] < 90
    other, good = turned(tmp_path / "other")
    assert publish_version(other, good, max_loss=0.5).version == 1
    assert other.labels == {}
    first = Lineage.create(tmp_path / "first", "first")
    with pytest.raises(DegradationError, match="first version has no stale rows"):
        publish_version(first, replace(good, transform=None, follows=None), max_loss=1)


def test_what_was_not_measured_passes_no_gate(tmp_path: Path) -> None:
    lineage, artefact = turned(tmp_path / "l")
    few = pa.array([f"i{n}" for n in range(100)])
    _, vectors = artefact.block("object")
    some = replace(artefact, embeddings={"object": (few, vectors[:100])})
    with pytest.raises(DegradationError, match="unknown: only 20 queries were ranked; 30"):
        publish_version(lineage, some, max_loss=100)
    assert lineage.newest == 0


def test_a_consumer_reads_stale_rows_from_their_own_version(tmp_path: Path) -> None:
    """A consumer at version 0 reads old rows as they are, and its metric is that of new ones."""
    lineage = exact(tmp_path / "l")
    ids, vectors = lineage.embeddings("object")
    as_first = lineage.view(0).transform(vectors)
    save_file({"weight": torch.eye(6)[:1].clone()}, tmp_path / "m.safetensors")
    labels = pa.table({"id": ids, "label": (as_first[:, 0] > 0).tolist()})
    pq.write_table(labels, tmp_path / "d.parquet")
    probe = Probe(
        model=str(tmp_path / "m.safetensors"),
        data=str(tmp_path / "d.parquet"),
        side="object",
        metric="auc",
    )
    ConsumerRegistry.open(lineage.path).add("ads", "v0", lineage.resolve, probe=probe)
    report = skew(lineage, [{1: 0.5}])
    assert report.probes == {"ads": pytest.approx(1, abs=1e-3)}
    assert of(report, CHAIN, {1: 0.5}).probes == {"ads": pytest.approx(1, abs=1e-3)}
    assert of(report, "raw", {1: 0.5}).probes["ads"] < 0.95
