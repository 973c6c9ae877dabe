"""The dashboard's facts of a lineage, its consumers and the running service, and the rule that says
whether all is well.

The rule fails closed: what nobody measured is not well, it is not known.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from time import monotonic
from typing import Any

import numpy as np

from evergram.errors import EvergramError, LineageError
from evergram.lineage.consumers import Consumer, Probe
from evergram.lineage.diagnosis import (
    Reading,
    contradictions,
    diagnose_lineage,
    read_versions,
    sample_sentence,
    standard_errors,
)
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfilling.backfill_files import UNREADABLE, backfill_progress
from evergram.retrieval.reader import Reader
from evergram.serving.dashboard.schemas import (
    BackfillFacts,
    ConsumerFacts,
    DashboardData,
    DriftFacts,
    Health,
    Live,
    PastFacts,
    ProbeFacts,
    Rate,
    Reason,
    StepFacts,
    Traffic,
    VersionFacts,
)
from evergram.serving.metrics import Metrics

# Digits of a fingerprint that are shown.
DIGITS = 12


@dataclass(frozen=True)
class PublishedFacts:
    """Facts that are slow to read, and stay as they are until the next publication.

    Args:
        metrics: the published metrics, by version.
        steps: the backward transform of each version from the second on, by version.
        past: how well each past version is read, by version.
        contradictions: what the lineage's files say of each other that cannot be.
        checked: when all of this was read, ISO 8601.
    """

    metrics: Mapping[int, Mapping[str, Any]]
    steps: Mapping[int, StepFacts]
    past: Mapping[int, PastFacts]
    contradictions: Sequence[str]
    checked: str


def published_facts(lineage: Lineage) -> PublishedFacts:
    """Read the facts of a lineage from its published files, each compared with its hash.

    Raises: UnknownVersionError: nothing is published. IntegrityError: a file is damaged.
    """
    past = {r.version: _past(r) for r in diagnose_lineage(lineage)}
    numbers = [m.version for m in lineage.versions]
    steps = {n: StepFacts(kind="identity") for n in lineage.withdrawn}
    for before, n in pairwise(numbers):
        steps[n] = _step(lineage, n, before)
    metrics = {n: lineage.metrics(n) for n in numbers}
    return PublishedFacts(metrics, steps, past, contradictions(lineage), _now())


def dashboard_data(
    lineage: Lineage,
    consumers: Sequence[Consumer],
    live: Live,
    published: PublishedFacts | None = None,
) -> DashboardData:
    """Return everything that the page shows.

    Args:
        published: the facts of this lineage where they were read before, so that no file is read.
    Raises: UnknownVersionError: nothing is published. IntegrityError: a file is damaged.
    """
    facts = published_facts(lineage) if published is None else published
    versions = [_version(lineage, n, facts) for n in range(lineage.next_version)]
    shown = sorted((_consumer(lineage, c, facts) for c in consumers), key=lambda c: c.name)
    return DashboardData(
        lineage=lineage.name,
        at=_now(),
        checked=facts.checked,
        health=health(versions, shown, lineage.newest, live, facts.contradictions),
        newest=lineage.newest,
        production=lineage.production,
        versions=versions,
        consumers=shown,
        live=live,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _version(lineage: Lineage, version: int, published: PublishedFacts) -> VersionFacts:
    facts: dict[str, Any] = {
        "version": version,
        "name": f"{lineage.name}@v{version}",
        "dim": lineage.chain.dim(version),
        "labels": sorted(name for name, n in lineage.labels.items() if n == version),
        "retired": version in lineage.retired,
        "step": published.steps.get(version),
        "past": published.past.get(version),
    }
    withdrawal = lineage.withdrawn.get(version)
    if withdrawal is not None:
        facts |= {"created": withdrawal.when, "withdrawn": withdrawal.reason, "encoder": None}
        return VersionFacts(fingerprint=_short(withdrawal.fingerprint), quality={}, **facts)
    manifest, metrics = lineage.manifest(version), published.metrics[version]
    return VersionFacts(
        created=manifest.created,
        encoder="file" if manifest.encoder is None else manifest.encoder.kind,
        fingerprint=_short(manifest.fingerprint),
        withdrawn=None,
        quality=_quality(metrics),
        errors=_errors(metrics),
        sample=sample_sentence(metrics.get("sampled")),
        **facts,
    )


def _short(fingerprint: str) -> str:
    return fingerprint.removeprefix("sha256:")[:DIGITS]


def _quality(metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    by_model = metrics.get("metrics", {})
    return {
        model: {k: float(v) for k, v in by_model[model].items() if _finite(v) is not None}
        for model in ("model", "popularity", "alone")
        if model in by_model
    }


def _errors(metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the standard errors of metrics of a sample of queries, by model."""
    models = _quality(metrics)
    errors = {model: standard_errors(metrics.get("sampled"), model) for model in models}
    return {model: each for model, each in errors.items() if each}


def _step(lineage: Lineage, version: int, before: int) -> StepFacts:
    """Return the facts of the transform to the version before that is not withdrawn."""
    chain = lineage.chain
    (reading,) = read_versions(lineage, [before], version)
    certificate = reading.certificate
    return StepFacts(
        kind=chain.transforms[version - 1].kind,
        error=_finite(reading.error),
        estimate=None if certificate is None else _finite(certificate.relative),
        amplification=_finite(reading.amplification),
    )


def _past(reading: Reading) -> PastFacts:
    measured, certificate = reading.measured, reading.certificate
    witness = reading.unseen or measured
    return PastFacts(
        unseen=0 if reading.unseen is None else reading.unseen.objects,
        error=_finite(reading.error),
        cosine=None if witness is None else _finite(witness.cosine),
        canaries=0 if measured is None else measured.objects,
        measured=None if measured is None else _finite(measured.relative),
        estimate=None if certificate is None else _finite(certificate.relative),
        bound=None if certificate is None else _finite(certificate.relative_bound),
        amplification=None if certificate is None else _finite(certificate.amplification),
        history={k: v for k, v in reading.history.items() if _finite(v) is not None},
        belied=reading.belied,
    )


def _consumer(lineage: Lineage, consumer: Consumer, published: PublishedFacts) -> ConsumerFacts:
    version = None
    with suppress(LineageError):
        version = lineage.resolve(consumer.pinned)
    probe = None if consumer.probe is None else _probe(lineage, consumer, consumer.probe, published)
    facts: dict[str, Any] = {n: getattr(consumer, n) for n in ("name", "pinned", "since")}
    return ConsumerFacts(version=version, probe=probe, **facts)


def _probe(
    lineage: Lineage, consumer: Consumer, probe: Probe, published: PublishedFacts
) -> ProbeFacts:
    """Return the probe's values at publications since the consumer was pinned as it is now."""
    values: dict[int, float] = {}
    if probe.baseline is not None:
        values[probe.baseline.version] = probe.baseline.value
    failed = False
    for n, metrics in published.metrics.items():
        for reading in metrics.get("probes", ()):
            of = [reading["consumer"], reading["pinned"], reading["metric"]]
            if of != [consumer.name, consumer.pinned, probe.metric]:
                continue
            if _finite(reading["value"]) is not None:
                values[n] = reading["value"]
            # The reason is left out: it may name files of the machine.
            failed = n == lineage.newest and n not in values
    less = probe.metric == "rmse"
    limit = probe.max if less else probe.min
    last = values.get(lineage.newest)
    holds = False if failed else None
    if last is not None and limit is not None:
        holds = last <= limit if less else last >= limit
    return ProbeFacts(
        metric=probe.metric,
        limit=limit,
        less_is_better=less,
        values=dict(sorted(values.items())),
        last=last,
        holds=holds,
        failed=failed,
    )


def _finite(value: float | None) -> float | None:
    """Return a finite value, and None for NaN and infinity, which JSON cannot hold."""
    return value if value is not None and math.isfinite(value) else None


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
            sentence = f"{name} is pinned to {consumer.pinned}, which does not exist."
            yield _broken("consumers", sentence)
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


# Requests that are remembered one by one, and the seconds that latency and rates look back.
REMEMBERED = 20_000
RECENT = 60.0
# Seconds of one rate, and seconds that all rates together look back.
STEP, WINDOW = 5.0, 600.0
# Seconds for which a count of a store's rows is kept: some stores look at each row to count them.
COUNTED_FOR = 5.0
# Facts of a backfill that are shown as they are.
_SHOWN = ("side", "version", "done", "total", "state", "left", "idle")
# Relative distance past which served vectors are no longer like the stored ones.
DRIFT_LIMIT = 0.5


class TrafficLog:
    """Counts of all requests, and the latest ones by themselves."""

    def __init__(self) -> None:
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._begun = monotonic()
        # Requests in each step of STEP seconds since then.
        self._steps: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()
        self._counted = -COUNTED_FOR
        self._rows: dict[str, dict[int, int]] | None = None
        self._latest: deque[tuple[float, str, int | None, float]] = deque(maxlen=REMEMBERED)
        self._requests: Counter[tuple[str, int | None]] = Counter()
        self._errors: Counter[tuple[str, int | None]] = Counter()

    def answered(self, consumer: str, version: int | None, status: int, seconds: float) -> None:
        """Record one request; called from the event loop alone."""
        now = monotonic()
        self._latest.append((now, consumer, version, seconds))
        self._count(now, status >= 500)
        self._requests[consumer, version] += 1
        if status >= 400:
            self._errors[consumer, version] += 1

    def _count(self, now: float, failed: bool) -> None:
        step = int((now - self._begun) / STEP)
        if step not in self._steps:
            for old in [n for n in self._steps if n < step - WINDOW / STEP]:
                del self._steps[old], self._failed[old]
        self._steps[step] += 1
        self._failed[step] += failed

    def live(
        self, reader: Reader, metrics: Metrics, filling: Mapping[str, tuple[int, int, int]]
    ) -> Live:
        """Return the facts as they are now; counts the rows of each store and reads its backfills.

        Args:
            filling: side to the version that its store is being filled with, the rows written and
                the rows in all.
        """
        now = monotonic()
        recent = [request for request in list(self._latest) if request[0] > now - RECENT]
        # More requests than are remembered came in less time.
        full = len(recent) == REMEMBERED
        minutes = max(now - recent[0][0], 1.0) / 60 if full else RECENT / 60
        rates = Counter((consumer, version) for _, consumer, version, _ in recent)
        traffic = [
            Traffic(
                consumer=consumer,
                version=version,
                requests=requests,
                errors=self._errors[consumer, version],
                per_minute=rates[consumer, version] / minutes,
            )
            for (consumer, version), requests in sorted(self._requests.copy().items(), key=_order)
        ]
        seconds = [request[3] for request in recent]
        latency = {
            name: float(np.percentile(seconds, share)) * 1000
            for name, share in (("p50", 50), ("p99", 99))
            if seconds
        }
        drift = [
            DriftFacts(
                side=side, version=version, relative=relative, vectors=count, limit=DRIFT_LIMIT
            )
            for (side, version), (relative, count) in metrics.drift.measured().items()
        ]
        return Live(
            started=self._started,
            traffic=traffic,
            rates=self._rates(now),
            failed=self._failed_lately(now),
            latency_ms=latency or None,
            drift=drift or None,
            rows=self._rows_of(reader, now),
            backfill=_backfill_facts(reader, filling),
        )

    def _rates(self, now: float) -> list[Rate]:
        """Return the rate of each step, oldest first; the last step is under way."""
        elapsed = now - self._begun
        last = int(elapsed / STEP)
        steps = self._steps.copy()
        rates = []
        for step in range(max(0, last - int(WINDOW / STEP) + 1), last + 1):
            seconds = STEP if step < last else max(elapsed - step * STEP, 1.0)
            ago = max(0.0, elapsed - (step + 1) * STEP)
            rates.append(Rate(ago=round(ago, 3), per_minute=steps[step] / seconds * 60))
        return rates

    def _failed_lately(self, now: float) -> int:
        first = int((now - self._begun - WINDOW) / STEP)
        return sum(n for step, n in self._failed.copy().items() if step > first)

    def _rows_of(self, reader: Reader, now: float) -> dict[str, dict[int, int]] | None:
        if now - self._counted >= COUNTED_FOR:
            self._rows, self._counted = _counted_rows(reader), now
        return self._rows


def _order(item: tuple[tuple[str, int | None], int]) -> tuple[str, int]:
    """Sort by consumer, requests that were refused before their version was known first."""
    (consumer, version), _ = item
    return consumer, -1 if version is None else version


def _backfill_facts(
    reader: Reader, filling: Mapping[str, tuple[int, int, int]]
) -> list[BackfillFacts]:
    own = [
        BackfillFacts(side=side, version=version, done=done, total=total, state="being filled")
        for side, (version, done, total) in sorted(dict(filling).items())
    ]
    return own + [
        BackfillFacts(
            per_minute=None if backfill.rate is None else backfill.rate * 60,
            **{name: getattr(backfill, name) for name in _SHOWN},
        )
        for backfill in backfill_progress(reader.lineage.path)
    ]


def _counted_rows(reader: Reader) -> dict[str, dict[int, int]] | None:
    try:
        return {side: reader.store(side).count() for side in reader.sides}
    except EvergramError:
        return None
