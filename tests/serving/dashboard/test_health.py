"""Whether all is well: only what was measured and holds is, and every gate fails closed."""

from __future__ import annotations

from typing import Any

import pytest

from evergram.retrieval.backfilling.backfill_progress import UNREADABLE
from evergram.serving.dashboard.health import health
from evergram.serving.dashboard.schemas import (
    BackfillFacts,
    ConsumerFacts,
    DriftFacts,
    Health,
    Live,
    PastFacts,
    ProbeFacts,
    VersionFacts,
)

PAST = PastFacts(
    unseen=20,
    error=0.1,
    cosine=0.9,
    canaries=20,
    measured=0.1,
    estimate=0.1,
    bound=0.2,
    amplification=1.0,
    history={},
)
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


@pytest.mark.parametrize(
    ("facts", "part", "words"),
    [
        ({"probe": {"holds": False, "last": 0.7}}, "consumers", "auc is 0.7, and at least 0.8"),
        ({"probe": {"failed": True, "holds": False}}, "consumers", "could not be run"),
        ({"consumer": {"version": None}}, "consumers", "pinned to v0, which is no more"),
        ({"past": {"belied": "The certificate is belied."}}, "certificate", "belied"),
        ({"live": {"rows": {"object": {1: 5, 2: 5}}}}, "store", "the withdrawn version 1"),
        ({"live": {"rows": {"object": {7: 5, 2: 5}}}}, "store", "the unknown version 7"),
        ({"live": {"rows": {"object": {}}}}, "store", "has no rows"),
        ({"live": drift(relative=0.6)}, "drift", "is 0.6, and its limit is 0.5"),
        ({"live": backfill("stalled")}, "store", "stalled or died"),
        ({"live": backfill(UNREADABLE)}, "store", "plan again"),
        ({"live": {"failed": 1}}, "requests", "1 request failed in the last ten minutes"),
        ({"live": {"problems": ["The store does not answer."]}}, "requests", "does not answer"),
    ],
)
def test_what_is_broken_is_not_well(facts: dict[str, Any], part: str, words: str) -> None:
    found = judged(**facts)
    assert found.state == "not well"
    (reason,) = found.reasons
    assert (reason.kind, reason.part) == ("broken", part)
    assert words in reason.sentence


@pytest.mark.parametrize(
    ("facts", "part", "words"),
    [
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
        ({"live": {"failed": None}}, "requests", "Whether requests fail"),
        ({"live": {"problems": None}}, "requests", "load what changed"),
    ],
)
def test_what_is_not_measured_is_not_well_either(
    facts: dict[str, Any], part: str, words: str
) -> None:
    found = judged(**facts)
    assert found.state == "not known"
    (reason,) = found.reasons
    assert (reason.kind, reason.part) == ("not known", part)
    assert words in reason.sentence


def test_a_service_that_says_nothing_is_not_known_to_be_well() -> None:
    found = health([NEWEST], [], 2, Live())
    assert found.state == "not known"
    assert {r.part for r in found.reasons} == {"store", "drift", "requests"}


def test_drift_of_each_version_counts() -> None:
    facts = [drift(version=v, relative=r)["drift"][0] for v, r in ((1, 0.7), (2, 0.1))]
    (reason,) = judged(live={"drift": facts}).reasons
    assert reason.sentence == "Drift of side object at version 1 is 0.7, and its limit is 0.5."


def test_the_broken_come_first() -> None:
    found = judged(live={"failed": 2, "drift": None}, consumer={"probe": None})
    assert found.state == "not well"
    assert [r.kind for r in found.reasons] == ["broken", "not known", "not known"]
