"""The rule that says whether all is well.

It fails closed: what nobody measured is not well, it is not known. Every check yields a reason
unless it has seen what it needs to see.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from evergram.retrieval.backfilling.backfill_progress import UNREADABLE
from evergram.serving.dashboard.schemas import (
    ConsumerFacts,
    Health,
    Live,
    Reason,
    VersionFacts,
)


def health(
    versions: Sequence[VersionFacts],
    consumers: Sequence[ConsumerFacts],
    newest: int,
    live: Live,
    contradictions: Sequence[str] = (),
) -> Health:
    """Return whether all is well, and the reasons where it is not.

    Broken are: a consumer's probe beyond its limit or one that could not be run, a pin to a label
    that is gone, a lineage that contradicts itself, a certificate that the canaries belie, rows of
    unknown or withdrawn versions, an empty store, drift above its limit, a backfill that stalled,
    requests that failed in the last ten minutes, and whatever the service could not load or reach.

    Args:
        newest: the version that past ones are read from.
        contradictions: of the lineage, a sentence each.
    """
    reasons = [
        *_consumers(consumers, newest),
        *(_broken("versions", sentence) for sentence in contradictions),
        *_certificates(versions),
        *_rows(versions, live),
        *_drift(live),
        *_backfills(live),
        *_requests(live),
    ]
    reasons.sort(key=lambda reason: reason.kind != "broken")
    if not reasons:
        return Health(state="well", reasons=[])
    broken = reasons[0].kind == "broken"
    return Health(state="not well" if broken else "not known", reasons=reasons)


def _broken(part: str, sentence: str) -> Reason:
    return Reason(kind="broken", part=part, sentence=sentence)


def _unknown(part: str, sentence: str) -> Reason:
    return Reason(kind="not known", part=part, sentence=sentence)


def _consumers(consumers: Sequence[ConsumerFacts], newest: int) -> Iterator[Reason]:
    for consumer in consumers:
        name, probe = f"Consumer {consumer.name}", consumer.probe
        if consumer.version is None:
            yield _broken("consumers", f"{name} is pinned to {consumer.pinned}, which is no more.")
        elif probe is None:
            # Who reads the newest version reads it as it was published: nothing can be lost.
            if consumer.version != newest:
                yield _unknown("consumers", f"{name} has no probe: what it keeps is not measured.")
        elif probe.failed:
            yield _broken("consumers", f"The probe of {consumer.name} could not be run.")
        elif probe.holds is False:
            yield _broken(
                "consumers",
                f"The probe of {consumer.name} is beyond its limit: {probe.metric} is "
                f"{_value(probe.last)}, and {'at most' if probe.less_is_better else 'at least'} "
                f"{_value(probe.limit)} is asked for.",
            )
        elif probe.limit is None:
            yield _unknown("consumers", f"The probe of {consumer.name} has no limit.")
        elif probe.holds is None:
            sentence = f"The probe of {consumer.name} was not run on version {newest}."
            yield _unknown("consumers", sentence)


def _certificates(versions: Sequence[VersionFacts]) -> Iterator[Reason]:
    for version, past in ((v.version, v.past) for v in versions):
        if past is None:  # the newest, or one that is no longer read
            continue
        if past.belied is not None:
            yield _broken("certificate", past.belied)
        elif past.bound is None:
            yield _unknown("certificate", f"Version {version} has no certificate.")
        elif not past.canaries:
            sentence = f"Version {version} has no canaries: its certificate cannot be checked."
            yield _unknown("certificate", sentence)


def _rows(versions: Sequence[VersionFacts], live: Live) -> Iterator[Reason]:
    if not live.rows:
        yield _unknown("store", "The rows of the stores could not be counted.")
        return
    withdrawn = {v.version for v in versions if v.withdrawn is not None}
    known = {v.version for v in versions}
    for side, rows in live.rows.items():
        if not any(rows.values()):
            yield _broken("store", f"The store of side {side} has no rows.")
        for version, count in rows.items():
            if count and (version not in known or version in withdrawn):
                what = "withdrawn" if version in withdrawn else "unknown"
                sentence = f"The store of side {side} has rows of the {what} version {version}."
                yield _broken("store", sentence)


def _drift(live: Live) -> Iterator[Reason]:
    drift = live.drift or []
    # A side that is served and was never measured is not known, and neither is no side at all.
    unmeasured = sorted({*(live.rows or {})} - {facts.side for facts in drift})
    if not drift and not unmeasured:
        yield _unknown("drift", "Drift is not measured.")
    for side in unmeasured:
        yield _unknown("drift", f"Drift of side {side} is not measured: nothing was served.")
    for facts in drift:
        version = "" if facts.version is None else f" at version {facts.version}"
        what = f"Drift of side {facts.side}{version}"
        if facts.relative is None or not math.isfinite(facts.relative):
            yield _unknown("drift", f"{what} is not measured: no moments were published.")
        elif facts.limit is None:
            yield _unknown("drift", f"{what} has no limit.")
        elif facts.relative > facts.limit:
            value, limit = _value(facts.relative), _value(facts.limit)
            yield _broken("drift", f"{what} is {value}, and its limit is {limit}.")


def _backfills(live: Live) -> Iterator[Reason]:
    if live.backfill is None:
        yield _unknown("store", "Whether a backfill is under way is not known.")
    for backfill in live.backfill or ():
        name = f"The backfill of side {backfill.side}"
        if backfill.state == UNREADABLE:
            yield _broken("store", f"{name} {UNREADABLE}.")
        elif backfill.state == "stalled":
            idle = "a while" if backfill.idle is None else f"{abs(backfill.idle):,.0f} seconds"
            yield _broken(
                "store",
                f"{name} stalled or died: nothing was written for {idle}, with {backfill.done:,} "
                f"of {backfill.total:,} rows done; 'evergram store backfill apply' resumes it.",
            )


def _requests(live: Live) -> Iterator[Reason]:
    if live.problems is None:
        yield _unknown("requests", "Whether the service can load what changed is not known.")
    for problem in live.problems or ():
        yield _broken("requests", problem)
    if live.failed is None:
        yield _unknown("requests", "Whether requests fail is not known.")
    elif live.failed:
        count = "1 request" if live.failed == 1 else f"{live.failed:,} requests"
        yield _broken("requests", f"{count} failed in the last ten minutes.")


def _value(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3g}"
