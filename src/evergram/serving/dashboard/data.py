"""The dashboard's facts of a lineage and its consumers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from evergram.lineage.consumers.record import Consumer, Probe
from evergram.lineage.contradictions import contradictions
from evergram.lineage.lineage import Lineage
from evergram.lineage.version_warnings import sample_sentence, standard_errors
from evergram.serving.dashboard.health import health
from evergram.serving.dashboard.schemas import (
    ConsumerFacts,
    DashboardData,
    Live,
    PastFacts,
    ProbeFacts,
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
    versions = [
        _withdrawn(lineage, n, facts) if n in lineage.withdrawn else _version(lineage, n, facts)
        for n in range(lineage.next_version)
    ]
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
    manifest = lineage.manifest(version)
    return VersionFacts(
        version=version,
        name=manifest.name,
        created=manifest.created,
        dim=manifest.dim,
        encoder="file" if manifest.encoder is None else manifest.encoder.kind,
        fingerprint=_short(manifest.fingerprint),
        labels=sorted(name for name, n in lineage.labels.items() if n == version),
        retired=version in lineage.retired,
        withdrawn=None,
        quality=_quality(published.metrics[version]),
        errors=_errors(published.metrics[version]),
        sample=sample_sentence(published.metrics[version].get("sampled")),
        step=published.steps.get(version),
        past=published.past.get(version),
    )


def _withdrawn(lineage: Lineage, version: int, published: PublishedFacts) -> VersionFacts:
    withdrawal = lineage.withdrawn[version]
    return VersionFacts(
        version=version,
        name=f"{lineage.name}@v{version}",
        created=withdrawal.when,
        dim=lineage.chain.dim(version),
        encoder=None,
        fingerprint=_short(withdrawal.fingerprint),
        labels=[],
        retired=False,
        withdrawn=withdrawal.reason,
        quality={},
        step=published.steps.get(version),
        past=None,
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
    probe = consumer.probe
    return ConsumerFacts(
        name=consumer.name,
        pinned=consumer.pinned,
        version=version,
        since=consumer.since,
        probe=None if probe is None else _probe(lineage, consumer, probe, published),
    )


def _probe(
    lineage: Lineage, consumer: Consumer, probe: Probe, published: PublishedFacts
) -> ProbeFacts:
    """Return the probe's values at publications since the consumer was pinned as it is now."""
    values: dict[int, float] = {}
    tried: set[int] = set()
    if probe.baseline is not None:
        values[probe.baseline.version] = probe.baseline.value
    for n, metrics in published.metrics.items():
        for reading in metrics.get("probes", ()):
            of = [reading["consumer"], reading["pinned"], reading["metric"]]
            if of == [consumer.name, consumer.pinned, probe.metric]:
                tried.add(n)
                if _finite(reading["value"]) is not None:
                    values[n] = reading["value"]
    less = probe.metric == "rmse"
    limit = probe.max if less else probe.min
    last = values.get(lineage.newest)
    # The reason is left out: it may name files of the machine.
    failed = last is None and lineage.newest in tried
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
