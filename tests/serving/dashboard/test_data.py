"""The dashboard's facts are those of the lineage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.dashboards import make_lineage, publish, quality

from evergram.errors import IntegrityError, UnknownVersionError
from evergram.lineage.canary_check import diagnose_lineage
from evergram.lineage.consumers.record import Baseline, Consumer, Probe
from evergram.lineage.lineage import Lineage
from evergram.serving.dashboard.data import dashboard_data, published_facts
from evergram.serving.dashboard.schemas import Live


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return make_lineage(tmp_path / "lineage")


def test_facts_of_versions_are_those_of_the_lineage(lineage: Lineage) -> None:
    data = dashboard_data(lineage, [], Live())
    assert (data.lineage, data.newest, data.production) == ("films", 3, 3)
    assert [v.dim for v in data.versions] == [12, 14, 13, 15]
    assert {v.encoder for v in data.versions} == {"file"}
    for version in data.versions:
        metrics = lineage.metrics(version.version)["metrics"]
        assert version.quality == metrics
        assert version.name == f"films@v{version.version}"
    for reading in diagnose_lineage(lineage):
        past = data.versions[reading.version].past
        assert past is not None
        assert reading.measured is not None
        assert reading.certificate is not None
        assert past.canaries == reading.measured.objects == 20
        assert past.measured == reading.measured.relative
        assert past.error == reading.error
        assert past.cosine == reading.measured.cosine
        assert past.estimate == reading.certificate.relative
        assert past.bound == reading.certificate.relative_bound
        assert past.history == reading.history
    assert data.versions[3].past is None


def test_a_step_is_measured_on_its_own(lineage: Lineage) -> None:
    versions = dashboard_data(lineage, [], Live()).versions
    assert versions[0].step is None
    step = versions[2].step
    assert step is not None
    weight = lineage.chain.matrix(2, 1)
    assert step.kind == "linear"
    assert step.amplification == pytest.approx(float(torch.linalg.svdvals(weight)[0]))
    # The canaries of version 2 are the objects its Σ was taken on: what is seen is the estimate.
    past, now = (lineage.canaries(n)["object"][1].double() for n in (1, 2))
    error = ((now @ weight.T - past).square().sum() / past.square().sum()).sqrt()
    assert step.error == pytest.approx(float(error), rel=1e-5)
    assert step.estimate == pytest.approx(float(error), rel=1e-5)


def test_labels_retired_and_withdrawn(lineage: Lineage) -> None:
    lineage.label("stable", 3)
    lineage.retire(1)
    publish(lineage, 16, quality(4), promote=False)
    lineage.withdraw(4, "trained on the wrong day")
    publish(lineage, 11, quality(5), promote=False)
    data = dashboard_data(lineage, [], Live())
    assert (data.newest, data.production) == (5, 3)
    assert [v.labels for v in data.versions] == [[], [], [], ["stable"], [], []]
    assert [v.retired for v in data.versions] == [False, True, False, False, False, False]
    assert [v.past is not None for v in data.versions] == [True, False, True, True, False, False]
    gone = data.versions[4]
    assert gone.withdrawn == "trained on the wrong day"
    assert gone.fingerprint == lineage.withdrawn[4].fingerprint[7:19]
    assert (gone.dim, gone.encoder, gone.quality) == (15, None, {})
    assert gone.step is not None
    assert gone.step.model_dump() == {
        "kind": "identity", "error": None, "estimate": None, "amplification": None,
    }  # fmt: skip
    # Version 5 leads to version 3, and version 2 to the retired one: both are measured.
    for n, before in ((5, 3), (2, 1)):
        step = data.versions[n].step
        assert step is not None
        past, now = (lineage.canaries(k)["object"][1].double() for k in (before, n))
        back = lineage.chain.apply(now, n, before)
        error = ((back - past).square().sum() / past.square().sum()).sqrt()
        assert step.error == pytest.approx(float(error), rel=1e-5)
        assert step.estimate == pytest.approx(float(error), rel=1e-5)
    for version in data.versions:
        if version.withdrawn is None:
            whole = lineage.manifest(version.version).fingerprint
            assert whole.startswith(f"sha256:{version.fingerprint}")


def reading(consumer: str, value: float | None, **other: str) -> dict[str, Any]:
    """Return the reading of a probe as an upgrade writes it."""
    facts = {"consumer": consumer, "pinned": "v0", "metric": "auc", "value": value}
    return {**facts, "problem": None if value is not None else "/home/somebody/x: damaged", **other}


def consumer(name: str, pinned: str, **probe: Any) -> Consumer:
    made = Probe(model="m", data="d", side="object", **probe) if probe else None
    return Consumer(name=name, pinned=pinned, allowed=(pinned,), since="2026-02-01", probe=made)


def test_consumers_and_their_probes(lineage: Lineage) -> None:
    readings = [
        reading("good", 0.75),
        reading("bad", 0.75),
        reading("failed", None),
        reading("far", 0.75, metric="rmse"),
        reading("moved", 0.75, pinned="v1"),
    ]
    publish(lineage, 11, quality(4), probes=readings)
    lineage.label("stable", 4)
    baseline = Baseline(version=3, value=0.5, objects=9)
    data = dashboard_data(
        lineage,
        [
            consumer("stays", "stable"),
            consumer("lost", "canary"),
            consumer("good", "v0", metric="auc", min=0.75, baseline=baseline),
            consumer("bad", "v0", metric="auc", min=0.76),
            consumer("failed", "v0", metric="auc"),
            consumer("far", "v0", metric="rmse", max=0.7),
            consumer("moved", "v0", metric="auc", min=0.1),
        ],
        Live(),
    )
    consumers = {c.name: c for c in data.consumers}
    assert list(consumers) == ["bad", "failed", "far", "good", "lost", "moved", "stays"]
    assert (consumers["stays"].version, consumers["stays"].probe) == (4, None)
    assert (consumers["lost"].pinned, consumers["lost"].version) == ("canary", None)
    probes = {name: c.probe for name, c in consumers.items() if c.probe is not None}
    assert {name: p.holds for name, p in probes.items()} == {
        "bad": False, "failed": False, "far": False, "good": True, "moved": None,
    }  # fmt: skip
    assert probes["good"].values == {3: 0.5, 4: 0.75}
    assert (probes["failed"].failed, probes["failed"].last) == (True, None)
    assert (probes["far"].less_is_better, probes["far"].limit) == (True, 0.7)
    # What was said of another pin is not of this one.
    assert probes["moved"].values == {}
    assert "somebody" not in data.model_dump_json()


def test_unknown_figures_are_none(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    for dim in (3, 4):
        publish(lineage, dim, {"model": {"recall@20": float("nan")}}, known=False)
    data = dashboard_data(lineage, [], Live())
    past, step = data.versions[0].past, data.versions[1].step
    assert past is not None
    assert step is not None
    assert (past.canaries, past.error, past.estimate, past.bound) == (0, None, None, None)
    assert (step.error, step.estimate) == (None, None)
    assert data.versions[0].quality == {"model": {}}
    assert data.live.model_dump() == dict.fromkeys(Live.model_fields)


def test_a_diagnosis_is_made_once(lineage: Lineage) -> None:
    known = published_facts(lineage)
    reused = dashboard_data(lineage, [], Live(), known)
    made = dashboard_data(lineage, [], Live())
    assert reused.versions == made.versions
    (lineage.path / "versions" / "0" / "canary.parquet").write_bytes(b"")
    assert dashboard_data(lineage, [], Live(), known).versions == made.versions
    with pytest.raises(IntegrityError, match=r"canary\.parquet"):
        dashboard_data(lineage, [], Live())


def test_a_lineage_without_versions(tmp_path: Path) -> None:
    with pytest.raises(UnknownVersionError, match="no version yet"):
        dashboard_data(Lineage.create(tmp_path / "lineage"), [], Live())


def test_metrics_of_a_sample_have_their_errors_and_its_size(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = lineage.metrics
    sampled = {"queries": 50, "of": 900, "errors": {"model": {"recall@20": 0.01}, "other": {}}}

    def metrics(version: int) -> dict[str, Any]:
        return {**whole(version), **({"sampled": sampled} if version == 1 else {})}

    monkeypatch.setattr(lineage, "metrics", metrics)
    data = dashboard_data(lineage, [], Live())
    assert data.versions[1].errors == {"model": {"recall@20": 0.01}}
    assert "50 of 900 test queries" in (data.versions[1].sample or "")
    assert (data.versions[0].errors, data.versions[0].sample) == ({}, None)
