"""The dashboard's facts of a lineage and its consumers, and the rule that says whether all is well.

The rule fails closed: what nobody measured is not well, it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from evergram.errors import LineageError
from evergram.lineage.canary_check import (
    CompatibilityLimits,
    Reading,
    diagnose_lineage,
    past_limits,
    read_versions,
)
from evergram.lineage.consumers import Consumer, Probe
from evergram.lineage.lineage import Lineage
from evergram.lineage.version_warnings import contradictions, sample_sentence, standard_errors
from evergram.retrieval.backfilling.backfill_files import UNREADABLE
from evergram.serving.dashboard.schemas import (
    ConsumerFacts,
    DashboardData,
    Health,
    Live,
    PastFacts,
    ProbeFacts,
    Reason,
    StepFacts,
    VersionFacts,
)

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
        belied=next(iter(past_limits([reading], CompatibilityLimits())), None),
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
