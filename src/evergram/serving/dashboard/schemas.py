"""The JSON that the dashboard shows: facts of the lineage, and of the running service."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict


class _Facts(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class StepFacts(_Facts):
    """The backward transform from a version to the one before it. None means not known.

    Args:
        kind: the transform's kind; "identity" of a withdrawn version.
        error: as of `PastFacts`.
        estimate: relative error on the objects that it was measured on at publication.
        amplification: the largest singular value, where the transform is one matrix.
    """

    kind: str
    error: float | None = None
    estimate: float | None = None
    amplification: float | None = None


class PastFacts(_Facts):
    """The newest version read as a past one; errors are relative to the past vectors' length.

    Args:
        unseen: how many canaries alignment never saw; 0 if they are too few to measure.
        error: what `lineage check` holds to a limit, on these if there are enough: `Reading.error`.
        cosine: on these, or else on all canaries.
        canaries, measured: how many canaries there are, and the error on all of them.
        history: the error at every version since, by version.
        belied: a sentence, where the measured error is far above the certificate's bound.
    """

    unseen: int
    error: float | None
    cosine: float | None
    canaries: int
    measured: float | None
    estimate: float | None
    bound: float | None
    amplification: float | None
    history: dict[int, float]
    belied: str | None = None


class VersionFacts(_Facts):
    """One version.

    Args:
        created: when it was published; when it was withdrawn, of a withdrawn version.
        encoder: the encoder's kind; "file" where the embeddings came from a file; None of a
            withdrawn version.
        fingerprint: its first 12 digits.
        quality: "model", "popularity", "alone" to metric to value.
        errors, sample: standard errors of `quality`, and a sentence on the sample of queries that
            they are of; None where all queries were ranked.
        withdrawn: the reason, of a withdrawn version.
        step: None of the first version.
        past: None of the newest version, and of those that are no longer read.
    """

    version: int
    name: str
    created: str
    dim: int
    encoder: str | None
    fingerprint: str
    labels: list[str]
    retired: bool
    withdrawn: str | None
    quality: dict[str, dict[str, float]]
    errors: dict[str, dict[str, float]] = {}
    sample: str | None = None
    step: StepFacts | None
    past: PastFacts | None


class ProbeFacts(_Facts):
    """A consumer's probe: its own model, measured on the vectors that it would read.

    Args:
        limit: the least value that is good enough; the most, where `less_is_better`.
        values: the value at each version that was read as the consumer's, by version.
        last: the value at the newest version; None where it was not measured.
        holds: whether `last` is good enough; None where there is no limit, or no `last`.
        failed: whether the probe could not be run on the newest; `metrics.json` says why.
    """

    metric: str
    limit: float | None
    less_is_better: bool
    values: dict[int, float]
    last: float | None
    holds: bool | None
    failed: bool = False


class ConsumerFacts(_Facts):
    """One consumer.

    Args:
        pinned: "v0", or a label.
        version: the version that `pinned` is now; None where the label is gone.
        since: when the consumer was added, ISO 8601.
    """

    name: str
    pinned: str
    version: int | None
    since: str
    probe: ProbeFacts | None = None


class Traffic(_Facts):
    """Requests of one consumer to one version, since the service started.

    Args:
        consumer: its name; "" of requests that needed no token.
        errors: how many of the requests were refused or failed.
        per_minute: the rate of the last minute, where the service counts it.
    """

    consumer: str
    version: int | None
    requests: int
    errors: int
    per_minute: float | None = None


class BackfillFacts(_Facts):
    """Progress of bringing the rows of a store's side to a version.

    Args:
        state: as of `BackfillProgress`; "being filled" while the service fills its own snapshots.
        per_minute: rows a minute in the last run; None where it is not known.
        left: seconds until it is done at that rate; None if it does not run, or is not known.
        idle: seconds since a row was last done; None where it is not known.
    """

    side: str
    version: int
    done: int
    total: int
    state: str
    per_minute: float | None = None
    left: float | None = None
    idle: float | None = None


class DriftFacts(_Facts):
    """Distance of the second moments of served vectors from those of the stored ones.

    Args:
        version: the version whose vectors are compared.
        relative: ‖served − stored‖ / ‖stored‖; 0 where both are the same.
        vectors: how many served vectors were measured.
        limit: the distance past which the page marks it.
    """

    side: str
    version: int | None = None
    relative: float | None
    vectors: int | None = None
    limit: float | None = None


class Rate(_Facts):
    """Rate of requests over a few seconds.

    Args:
        ago: seconds from the end of that time until now.
        per_minute: requests, scaled to a minute.
    """

    ago: float
    per_minute: float


class Live(_Facts):
    """Facts of the running service. None means not known.

    Args:
        started: when it started, ISO 8601.
        rates: rates of the last ten minutes, oldest first.
        failed: requests of that time that the service failed to answer (status 500 and above).
        problems: sentences on what the service could not load or reach; [] if there is nothing.
        latency_ms: "p50" and "p99" of the time to answer, in milliseconds.
        rows: side to version to rows in its store.
    """

    started: str | None = None
    traffic: list[Traffic] | None = None
    rates: list[Rate] | None = None
    failed: int | None = None
    problems: list[str] | None = None
    latency_ms: dict[str, float] | None = None
    drift: list[DriftFacts] | None = None
    rows: dict[str, dict[int, int]] | None = None
    backfill: list[BackfillFacts] | None = None


class Reason(_Facts):
    """One reason why not all is well.

    Args:
        kind: "broken", or "not known": nobody measured it, or the measurement failed.
        part: the part of the page that has more: "versions", "consumers", "certificate",
            "requests", "drift" or "store".
    """

    kind: Literal["broken", "not known"]
    part: str
    sentence: str


class Health(_Facts):
    """Whether all is well; see `health`.

    Args:
        state: "well", "not well" if anything is broken, else "not known" if anything is not known.
        reasons: the broken first; [] if all is well.
    """

    state: Literal["well", "not well", "not known"]
    reasons: list[Reason]


class DashboardData(_Facts):
    """Everything on the page.

    Args:
        at: when the data was put together, ISO 8601.
        checked: when the published files were compared with their hashes and with each other: at
            the first request after `lineage.json` last changed.
        production: the version that is read where a request names none.
    """

    lineage: str
    at: str
    checked: str
    health: Health
    newest: int
    production: int
    versions: list[VersionFacts]
    consumers: list[ConsumerFacts]
    live: Live
