"""What the dashboard shows, as data: what the lineage says, and what the service has seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from evergram.compatibility.certificate import certify
from evergram.lineage.diagnosis import Reading, diagnose_lineage
from evergram.lineage.lineage import Lineage


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StepFacts(_Facts):
    """The way from a version to the one before it. None is what nothing is known of.

    Args:
        kind: of the transform.
        error: relative, on canaries that both versions kept.
        estimate: relative, of the objects that it was measured on at publication.
        amplification: the largest singular value, where it is one matrix.
    """

    kind: str
    error: float | None
    estimate: float | None
    amplification: float | None


class PastFacts(_Facts):
    """A past version, as the newest reads it; all errors over the length of its vectors.

    Args:
        canaries: how many the measured error and cosine are of.
        history: the measured error at every version since, by version.
    """

    canaries: int
    error: float | None
    cosine: float | None
    estimate: float | None
    bound: float | None
    amplification: float | None
    history: dict[int, float]


class VersionFacts(_Facts):
    """One version.

    Args:
        encoder: its kind; "file" where the embeddings came from one.
        fingerprint: the first 12 digits.
        quality: "model", "popularity", "alone" to metric to value.
        withdrawn: why, of a version that was.
        step: the way back; None of the first version.
        past: None of the newest and of what was withdrawn.
    """

    version: int
    name: str
    created: str
    dim: int
    encoder: str
    fingerprint: str | None
    labels: list[str]
    retired: bool
    withdrawn: str | None
    quality: dict[str, dict[str, float]]
    step: StepFacts | None
    past: PastFacts | None


class ProbeFacts(_Facts):
    """A consumer's own model, on what it would read.

    Args:
        limit: the least that is good enough; the most, where `less_is_better`.
        values: by the version that was read as the consumer's.
        last: of the newest version; None where it was not measured.
        holds: whether that is good enough; None where there is no limit, or nothing was measured.
        problem: why it could not be run on the newest.
    """

    metric: str
    limit: float | None
    less_is_better: bool
    values: dict[int, float]
    last: float | None
    holds: bool | None
    problem: str | None = None


class ConsumerFacts(_Facts):
    """Who reads which version, since when.

    Args:
        pinned: "v0", or a label.
        version: that this is now; None where the label is no more.
    """

    name: str
    pinned: str
    version: int | None
    since: str
    probe: ProbeFacts | None = None


class Traffic(_Facts):
    """Requests of one consumer to one version, since the service started."""

    consumer: str
    version: int | None
    requests: int
    errors: int
    per_minute: float | None = None


class Backfill(_Facts):
    """How far the rows of a store's side have been brought to a version."""

    side: str
    version: int
    done: int
    total: int
    state: str


class Drift(_Facts):
    """How far the second moments of what was served are from those of what is stored.

    Args:
        relative: ‖served − stored‖ over ‖stored‖; 0 where both are the same.
        vectors: how many were served.
        limit: past which it is worth a look.
    """

    side: str
    relative: float | None
    vectors: int | None = None
    limit: float | None = None


class Live(_Facts):
    """What the running service knows; None is what it does not.

    Args:
        started: when, ISO 8601.
        latency_ms: of answers, "p50" and "p99" to milliseconds.
        rows: side to version to rows in its store.
    """

    started: str | None = None
    traffic: list[Traffic] | None = None
    latency_ms: dict[str, float] | None = None
    drift: list[Drift] | None = None
    rows: dict[str, dict[int, int]] | None = None
    backfill: list[Backfill] | None = None


class DashboardData(_Facts):
    """Everything on the page.

    Args:
        at: when it was put together, ISO 8601.
        production: what who asks for no version reads.
    """

    lineage: str
    at: str
    newest: int
    production: int
    versions: list[VersionFacts]
    consumers: list[ConsumerFacts]
    live: Live


class Diagnosis(_Facts):
    """What stays as it is until the next publication, and takes long to find.

    Args:
        steps: by version, from the second on.
        past: by past version.
    """

    steps: dict[int, StepFacts]
    past: dict[int, PastFacts]


def diagnose(lineage: Lineage) -> Diagnosis:
    """Every published file is read and compared with its hash.

    Raises: UnknownVersionError: nothing is published. IntegrityError: a file is damaged.
    """
    readings = {r.version: r for r in diagnose_lineage(lineage)}
    chain, errors = lineage.chain, lineage.errors
    steps = {}
    for n in range(1, chain.newest + 1):
        known = certify(chain, errors, n, n - 1)
        seen = readings[n - 1].history.get(n) if n - 1 in readings else None
        affine = chain.is_affine(n, n - 1)
        steps[n] = StepFacts(
            kind=chain.transforms[n - 1].kind,
            error=_finite(seen),
            estimate=None if known is None else _finite(known.relative),
            amplification=(
                _finite(float(torch.linalg.matrix_norm(chain.matrix(n, n - 1), 2)))
                if affine
                else None
            ),
        )
    return Diagnosis(steps=steps, past={n: _past(r) for n, r in readings.items()})


def dashboard_data(
    lineage: Lineage,
    consumers: Sequence[ConsumerFacts],
    live: Live,
    diagnosis: Diagnosis | None = None,
) -> DashboardData:
    """All that the page shows.

    Args:
        diagnosis: of this lineage; made here, slowly, where it is not given.
    Raises: UnknownVersionError: nothing is published. IntegrityError: a file is damaged.
    """
    found = diagnose(lineage) if diagnosis is None else diagnosis
    return DashboardData(
        lineage=lineage.name,
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        newest=lineage.newest,
        production=lineage.newest,
        versions=[_version(lineage, m.version, found) for m in lineage.versions],
        consumers=sorted(consumers, key=lambda c: c.name),
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
        fingerprint=None,
        labels=[],
        retired=False,
        withdrawn=None,
        quality=_quality(lineage.metrics(version)),
        step=diagnosis.steps.get(version),
        past=diagnosis.past.get(version),
    )


def _quality(metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    found = metrics.get("metrics", {})
    return {
        who: {k: float(v) for k, v in found[who].items() if _finite(v) is not None}
        for who in ("model", "popularity", "alone")
        if who in found
    }


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


def _finite(value: float | None) -> float | None:
    """JSON has no NaN; what is not a number is not known."""
    return value if value is not None and math.isfinite(value) else None
