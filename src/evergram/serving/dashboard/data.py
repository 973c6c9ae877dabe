"""What a lineage and its consumers say to the dashboard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import torch

from evergram.compatibility.certificate import certify
from evergram.errors import LineageError
from evergram.lineage.canary_check import Reading, diagnose_lineage, measure_canaries
from evergram.lineage.consumers.record import Consumer, Probe
from evergram.lineage.lineage import Lineage
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
class Diagnosis:
    """What stays as it is until the next publication, and takes long to find.

    Args:
        metrics: of each version, as they were published.
        steps: by version, from the second on.
        past: by past version that is read.
    """

    metrics: Mapping[int, Mapping[str, Any]]
    steps: Mapping[int, StepFacts]
    past: Mapping[int, PastFacts]


def diagnose(lineage: Lineage) -> Diagnosis:
    """Every published file is read and compared with its hash.

    Raises: UnknownVersionError: nothing is published. IntegrityError: a file is damaged.
    """
    past = {r.version: _past(r) for r in diagnose_lineage(lineage)}
    numbers = [m.version for m in lineage.versions]
    steps = {n: StepFacts(kind="identity") for n in lineage.withdrawn}
    for before, n in pairwise(numbers):
        steps[n] = _step(lineage, n, before)
    return Diagnosis({n: lineage.metrics(n) for n in numbers}, steps, past)


def dashboard_data(
    lineage: Lineage,
    consumers: Sequence[Consumer],
    live: Live,
    diagnosis: Diagnosis | None = None,
) -> DashboardData:
    """All that the page shows.

    Args:
        diagnosis: of this lineage, for then no file is read; made here where it is not given.
    Raises: UnknownVersionError: nothing is published. IntegrityError: a file is damaged.
    """
    found = diagnose(lineage) if diagnosis is None else diagnosis
    return DashboardData(
        lineage=lineage.name,
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        newest=lineage.newest,
        production=lineage.production,
        versions=[
            _withdrawn(lineage, n, found) if n in lineage.withdrawn else _version(lineage, n, found)
            for n in range(lineage.next_version)
        ],
        consumers=sorted((_consumer(lineage, c, found) for c in consumers), key=lambda c: c.name),
        live=live,
    )


def _version(lineage: Lineage, version: int, diagnosis: Diagnosis) -> VersionFacts:
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
        quality=_quality(diagnosis.metrics[version]),
        step=diagnosis.steps.get(version),
        past=diagnosis.past.get(version),
    )


def _withdrawn(lineage: Lineage, version: int, diagnosis: Diagnosis) -> VersionFacts:
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
        step=diagnosis.steps.get(version),
        past=None,
    )


def _short(fingerprint: str) -> str:
    return fingerprint.removeprefix("sha256:")[:DIGITS]


def _quality(metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    found = metrics.get("metrics", {})
    return {
        who: {k: float(v) for k, v in found[who].items() if _finite(v) is not None}
        for who in ("model", "popularity", "alone")
        if who in found
    }


def _step(lineage: Lineage, version: int, before: int) -> StepFacts:
    """From a version to the one before it that is not withdrawn."""
    chain = lineage.chain
    canaries = {n: lineage.canaries(n) for n in (before, version)}
    seen = measure_canaries(chain, canaries, version, before)
    known = certify(chain, lineage.step_errors, version, before)
    amplification = None
    if chain.is_affine(version, before):
        amplification = float(torch.linalg.matrix_norm(chain.matrix(version, before), 2))
    return StepFacts(
        kind=chain.transforms[version - 1].kind,
        error=None if seen is None else _finite(seen.relative),
        estimate=None if known is None else _finite(known.relative),
        amplification=_finite(amplification),
    )


def _past(reading: Reading) -> PastFacts:
    seen, known = reading.measured, reading.certificate
    return PastFacts(
        canaries=0 if seen is None else seen.objects,
        error=None if seen is None else _finite(seen.relative),
        cosine=None if seen is None else _finite(seen.cosine),
        estimate=None if known is None else _finite(known.relative),
        bound=None if known is None else _finite(known.relative_bound),
        amplification=None if known is None else _finite(known.amplification),
        history={k: v for k, v in reading.history.items() if _finite(v) is not None},
    )


def _consumer(lineage: Lineage, consumer: Consumer, diagnosis: Diagnosis) -> ConsumerFacts:
    version = None
    with suppress(LineageError):
        version = lineage.resolve(consumer.pinned)
    probe = consumer.probe
    return ConsumerFacts(
        name=consumer.name,
        pinned=consumer.pinned,
        version=version,
        since=consumer.since,
        probe=None if probe is None else _probe(lineage, consumer, probe, diagnosis),
    )


def _probe(lineage: Lineage, consumer: Consumer, probe: Probe, diagnosis: Diagnosis) -> ProbeFacts:
    """What this probe said at publications since the consumer is pinned to what it is."""
    values: dict[int, float] = {}
    tried: set[int] = set()
    if probe.baseline is not None:
        values[probe.baseline.version] = probe.baseline.value
    for n, metrics in diagnosis.metrics.items():
        for said in metrics.get("probes", ()):
            same = [said["consumer"], said["pinned"], said["metric"]]
            if same == [consumer.name, consumer.pinned, probe.metric]:
                tried.add(n)
                if _finite(said["value"]) is not None:
                    values[n] = said["value"]
    less = probe.metric == "rmse"
    limit = probe.max if less else probe.min
    last = values.get(lineage.newest)
    # Why is not said here: it may name files of the machine.
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
    """JSON has no NaN; what is not a number is not known."""
    return value if value is not None and math.isfinite(value) else None
