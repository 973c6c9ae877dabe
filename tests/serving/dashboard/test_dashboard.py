"""Facts of the lineage and of the running service; what is not known to be well is not well."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from starlette.testclient import TestClient
from tests.support.dashboards import make_lineage, publish, quality, serve
from tests.support.lineages import lineage_of
from tests.support.lineages import publish as publish_next_version
from tests.support.running_service import Running, http_of

from evergram.errors import IntegrityError
from evergram.lineage.canary_check import diagnose_lineage
from evergram.lineage.consumers.record import Baseline, Consumer, Probe
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.backfilling.backfill_progress import UNREADABLE
from evergram.retrieval.fill import fill
from evergram.serving.dashboard import traffic
from evergram.serving.dashboard.data import dashboard_data, health, published_facts
from evergram.serving.dashboard.schemas import (
    BackfillFacts,
    ConsumerFacts,
    DashboardData,
    DriftFacts,
    Health,
    Live,
    PastFacts,
    ProbeFacts,
    VersionFacts,
)
from evergram.serving.dashboard.traffic import TrafficLog
from evergram.serving.metrics import Metrics
from evergram.serving.settings import ServiceSettings
from evergram.stores.open_store import open_store
from evergram.stores.snapshot.snapshot_store import SnapshotStore


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    """Four versions that tests only read."""
    return make_lineage(tmp_path_factory.mktemp("films") / "lineage")


@pytest.fixture
def lineage(films: Lineage, tmp_path: Path) -> Lineage:
    shutil.copytree(films.path, tmp_path / "lineage")
    return Lineage.open(tmp_path / "lineage")


def test_facts_of_versions_are_those_of_the_lineage(films: Lineage) -> None:
    data = dashboard_data(films, [], Live())
    assert (data.lineage, data.newest, data.production) == ("films", 3, 3)
    assert data.live.model_dump() == dict.fromkeys(Live.model_fields)
    assert [v.dim for v in data.versions] == [12, 14, 13, 15]
    for version in data.versions:
        assert version.quality == films.metrics(version.version)["metrics"]
        assert (version.name, version.encoder) == (f"films@v{version.version}", "file")
    for reading in diagnose_lineage(films):
        past = data.versions[reading.version].past
        measured, certificate = reading.measured, reading.certificate
        assert past is not None
        assert measured is not None
        assert certificate is not None
        assert past.canaries == measured.objects == 20
        figures = (past.measured, past.error, past.cosine, past.estimate, past.bound, past.history)
        assert figures == (
            *(measured.relative, reading.error, measured.cosine, certificate.relative),
            *(certificate.relative_bound, reading.history),
        )
    assert data.versions[3].past is None
    assert data.versions[0].step is None
    step = data.versions[2].step
    assert step is not None
    assert step.kind == "linear"
    amplification = torch.linalg.svdvals(films.chain.matrix(2, 1))[0]
    assert step.amplification == pytest.approx(float(amplification))
    check_step(films, data, 2, 1)


def check_step(lineage: Lineage, data: DashboardData, version: int, before: int) -> None:
    """Compare a step with the error on canaries, the objects that its Σ was taken on."""
    step = data.versions[version].step
    assert step is not None
    past, now = (lineage.canaries(n)["object"][1].double() for n in (before, version))
    back = lineage.chain.apply(now, version, before)
    error = ((back - past).square().sum() / past.square().sum()).sqrt()
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
    check_step(lineage, data, 5, 3)
    check_step(lineage, data, 2, 1)
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


def test_a_diagnosis_is_made_once(lineage: Lineage) -> None:
    known = published_facts(lineage)
    reused = dashboard_data(lineage, [], Live(), known)
    made = dashboard_data(lineage, [], Live())
    assert reused.versions == made.versions
    (lineage.path / "versions" / "0" / "canary.parquet").write_bytes(b"")
    assert dashboard_data(lineage, [], Live(), known).versions == made.versions
    with pytest.raises(IntegrityError, match=r"canary\.parquet"):
        dashboard_data(lineage, [], Live())


def test_a_lineage_that_contradicts_itself_is_not_well(lineage: Lineage) -> None:
    older = (lineage.path / "lineage.json").read_bytes()
    publish(lineage, 12, quality(4), promote=False)
    (lineage.path / "lineage.json").write_bytes(older)
    data = dashboard_data(Lineage.open(lineage.path), [], Live())
    assert data.health.state == "not well"
    reason = data.health.reasons[0]
    assert (reason.kind, reason.part) == ("broken", "versions")
    assert "version 4" in reason.sentence
    assert data.checked <= data.at


PAST = PastFacts(
    unseen=20, error=0.1, cosine=0.9, canaries=20, measured=0.1, estimate=0.1, bound=0.2,
    amplification=1.0, history={},
)  # fmt: skip
VERSION = VersionFacts(
    version=0, name="films@v0", created="2026-02-01", dim=8, encoder="file", fingerprint="a",
    labels=[], retired=False, withdrawn=None, quality={}, step=None, past=PAST,
)  # fmt: skip
NEWEST = VERSION.model_copy(update={"version": 2, "past": None})
WITHDRAWN = VERSION.model_copy(update={"version": 1, "past": None, "withdrawn": "wrong day"})
PROBE = ProbeFacts(
    metric="auc", limit=0.8, less_is_better=False, values={2: 0.9}, last=0.9, holds=True
)
CONSUMER = ConsumerFacts(name="ads", pinned="v0", version=0, since="2026-02-01", probe=PROBE)
LIVE = Live(
    rows={"object": {0: 3, 2: 17}},
    drift=[DriftFacts(side="object", version=2, relative=0.5, vectors=9, limit=0.5)],
    backfill=[BackfillFacts(side="object", version=2, done=17, total=20, state="under way")],
    failed=0,
    problems=[],
)


def judged(
    live: dict[str, Any] | None = None,
    consumer: dict[str, Any] | None = None,
    probe: dict[str, Any] | None = None,
    past: dict[str, Any] | None = None,
) -> Health:
    """Judge facts that are all well but for these."""
    changed = VERSION.model_copy(update={"past": PAST.model_copy(update=past or {})})
    probed = {"probe": PROBE.model_copy(update=probe)} if probe else {}
    reader = CONSUMER.model_copy(update={**probed, **(consumer or {})})
    return health(
        [changed, WITHDRAWN, NEWEST], [reader], 2, LIVE.model_copy(update=live or {})
    )  # fmt: skip


def test_all_is_well_where_all_was_measured_and_holds() -> None:
    assert judged() == Health(state="well", reasons=[])
    # Who reads the newest version loses nothing, with or without a probe.
    assert judged(consumer={"version": 2, "probe": None}).state == "well"


def drift(**facts: Any) -> dict[str, Any]:
    return {"drift": [DriftFacts(**{"side": "object", "relative": 0.1, "limit": 0.5, **facts})]}


def backfill(state: str) -> dict[str, Any]:
    return {"backfill": [BackfillFacts(side="object", version=2, done=1, total=9, state=state)]}


BROKEN: list[tuple[dict[str, Any], str, str]] = [
    ({"probe": {"holds": False, "last": 0.7}}, "consumers", "auc is 0.7, and at least 0.8"),
    ({"probe": {"failed": True, "holds": False}}, "consumers", "could not be run"),
    ({"consumer": {"version": None}}, "consumers", "v0"),
    ({"past": {"belied": "The certificate is belied."}}, "certificate", "belied"),
    ({"live": {"rows": {"object": {1: 5, 2: 5}}}}, "store", "the withdrawn version 1"),
    ({"live": {"rows": {"object": {7: 5, 2: 5}}}}, "store", "the unknown version 7"),
    ({"live": {"rows": {"object": {}}}}, "store", "has no rows"),
    ({"live": drift(relative=0.6)}, "drift", "is 0.6, and its limit is 0.5"),
    ({"live": backfill("stalled")}, "store", "stalled"),
    ({"live": backfill(UNREADABLE)}, "store", "plan again"),
    ({"live": {"failed": 1}}, "requests", "1 request failed"),
    ({"live": {"problems": ["The store does not answer."]}}, "requests", "does not answer"),
]
NOT_KNOWN: list[tuple[dict[str, Any], str, str]] = [
    ({"consumer": {"probe": None}}, "consumers", "has no probe"),
    ({"probe": {"limit": None, "holds": None}}, "consumers", "has no limit"),
    ({"probe": {"holds": None, "last": None}}, "consumers", "was not run on version 2"),
    ({"past": {"bound": None}}, "certificate", "has no certificate"),
    ({"past": {"canaries": 0}}, "certificate", "has no canaries"),
    ({"live": {"rows": None}}, "store", "could not be counted"),
    ({"live": {"drift": None}}, "drift", "nothing was served"),
    ({"live": {"drift": [], "rows": {"object": {2: 1}}}}, "drift", "nothing was served"),
    ({"live": drift(relative=None)}, "drift", "no moments were published"),
    ({"live": drift(relative=float("nan"))}, "drift", "no moments were published"),
    ({"live": drift(limit=None)}, "drift", "has no limit"),
    ({"live": {"backfill": None}}, "store", "backfill"),
    ({"live": {"failed": None}}, "requests", "requests fail"),
    ({"live": {"problems": None}}, "requests", "load what changed"),
]


def test_what_is_broken_or_not_measured_is_not_well() -> None:
    for kind, cases in (("broken", BROKEN), ("not known", NOT_KNOWN)):
        for facts, part, words in cases:
            found = judged(**facts)
            assert found.state == ("not well" if kind == "broken" else "not known"), facts
            (reason,) = found.reasons
            assert (reason.kind, reason.part) == (kind, part)
            assert words in reason.sentence
    # The broken come first.
    found = judged(live={"failed": 2, "drift": None}, consumer={"probe": None})
    assert found.state == "not well"
    assert [r.kind for r in found.reasons] == ["broken", "not known", "not known"]


def test_the_page_and_its_files_are_sent_with_strict_headers(films: Lineage) -> None:
    data = dashboard_data(films, [], Live())
    with serve(data) as service, httpx.Client(base_url=service.url) as client:
        for path, kind in (
            ("/", "text/html"),
            ("/dashboard/dashboard.css", "text/css"),
            ("/dashboard/chain.js", "text/javascript"),
        ):
            answer = client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
            policy = answer.headers["content-security-policy"]
            rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
            assert rules["default-src"] == "'none'"
            assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
            assert rules["img-src"] == "'self' data:"
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
        for path in ("/dashboard/nothing.js", "/dashboard/../dashboard.py", "/dashboard/%2e%2e/x"):
            assert client.get(path).status_code == 404
        answer = client.get("/v1/dashboard")
        assert answer.json() == data.model_dump(mode="json")
        assert answer.headers["cache-control"] == "no-store"
        service.token = "secret"
        assert client.get("/v1/dashboard").status_code == 401
        assert client.get("/").status_code == 200


def test_the_python_of_the_document_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[3] / "docs" / "dashboard.md").read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    make_lineage(tmp_path / "lineages" / "films", 2)
    monkeypatch.chdir(tmp_path)
    exec(compile(block[1], "dashboard.md", "exec"), {})
    printed = DashboardData.model_validate_json(capsys.readouterr().out)
    assert [v.version for v in printed.versions] == [0, 1]


def shown(http: TestClient) -> list[dict[str, Any]]:
    answer = http.get("/v1/dashboard")
    assert answer.status_code == 200, answer.text
    backfills: list[dict[str, Any]] = answer.json()["live"]["backfill"]
    return backfills


def test_a_backfill_is_shown_as_it_goes(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    with (
        open_store(str(tmp_path / "store"), create="int64") as store,
        http_of(lineage.path, settings=ServiceSettings(poll=0.05)) as http,
    ):
        fill(lineage, store, "object")
        publish_next_version(lineage, 1)
        backfill = Backfill(lineage, store, "object")
        while http.get("/readyz").json()["version"] == 0:
            time.sleep(0.01)
        assert shown(http) == []
        steps: tuple[tuple[Callable[[], Any], int, str], ...] = (
            (lambda: backfill.plan(batch=50), 0, "planned"),
            (lambda: backfill.apply(rows=100), 100, "paused"),
            (backfill.apply, 300, "applied"),
            (backfill.rollback, 0, "rolled back"),
        )
        for step, done, state in steps:
            step()
            expected = {"side": "object", "version": 1, "done": done, "total": 300, "state": state}
            (facts,) = shown(http)
            assert expected.items() <= facts.items()
            assert (facts["per_minute"] is not None) == (state in ("paused", "applied"))


def test_the_services_own_filling_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    written, go = threading.Event(), threading.Event()
    load = SnapshotStore.load

    def slowly(self: SnapshotStore, space: Any, blocks: Any) -> int:
        rows = list(blocks)
        written.set()
        assert go.wait(60)
        return load(self, space, rows)

    with http_of(lineage.path, settings=ServiceSettings(poll=0.05)) as http:
        monkeypatch.setattr(SnapshotStore, "load", slowly)
        publish_next_version(lineage, 1)
        assert written.wait(60)
        expected = {
            "side": "object", "version": 1, "done": 300, "total": 300, "state": "being filled",
            "per_minute": None, "left": None, "idle": None,
        }  # fmt: skip
        assert shown(http) == [expected]
        go.set()
        while http.get("/readyz").json()["version"] == 0:
            time.sleep(0.01)
        assert shown(http) == []


def test_rates_are_those_of_each_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("evergram.serving.dashboard.traffic.monotonic", lambda: now)
    latest = TrafficLog()
    reader: Any = type("Reader", (), {"sides": (), "lineage": type("L", (), {"path": Path("/no")})})

    def rates() -> list[tuple[float, float]]:
        rates = latest.live(reader, Metrics(), {}).rates
        assert rates is not None
        return [(rate.ago, rate.per_minute) for rate in rates]

    for seconds, requests in ((0.5, 3), (4.0, 2), (12.0, 4)):
        now = 1000.0 + seconds
        for _ in range(requests):
            latest.answered("", 0, 200, 0.001)
    # 5 in 5 s, none in 5 s, 4 in the 2 s that the last step has lasted.
    assert rates() == [(7.0, 60.0), (2.0, 0.0), (0.0, 120.0)]
    now = 1000.0 + 10_000
    latest.answered("", 0, 200, 0.001)
    # Ten minutes of them, and no more is remembered.
    assert len(rates()) == 120
    assert rates()[-1] == (0.0, 60.0)
    assert sum(rate for _, rate in rates()[:-1]) == 0
    assert len(latest._steps) == 1


def test_rows_are_not_counted_at_every_look(
    fresh: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "COUNTED_FOR", 3600.0)
    for _ in range(3):
        assert fresh.get("/v1/dashboard").json()["live"]["rows"] == {"object": {"2": 300}}
        monkeypatch.setattr(type(fresh.service.shared.reader.store()), "count", None)
