"""What the dashboard shows, as JSON: what the lineage says, and what the service has seen."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StepFacts(_Facts):
    """The way from a version to the one before it. None is what nothing is known of.

    Args:
        kind: of the transform; "identity" of a withdrawn version.
        error: relative, on canaries that both versions kept.
        estimate: relative, of the objects that it was measured on at publication.
        amplification: the largest singular value, where it is one matrix.
    """

    kind: str
    error: float | None = None
    estimate: float | None = None
    amplification: float | None = None


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
        created: when; of a withdrawn one, when it was withdrawn.
        encoder: its kind; "file" where the embeddings came from one; None of a withdrawn one.
        fingerprint: its first 12 digits.
        quality: "model", "popularity", "alone" to metric to value.
        withdrawn: why, of a version that was.
        step: the way back; None of the first version.
        past: None of the newest, and of what is no longer read.
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
    step: StepFacts | None
    past: PastFacts | None


class ProbeFacts(_Facts):
    """A consumer's own model, on what it would read.

    Args:
        limit: the least that is good enough; the most, where `less_is_better`.
        values: by the version that was read as the consumer's.
        last: of the newest version; None where it was not measured.
        holds: whether that is good enough; None where there is no limit, or nothing was measured.
        failed: whether it could not be run on the newest; `metrics.json` says why.
    """

    metric: str
    limit: float | None
    less_is_better: bool
    values: dict[int, float]
    last: float | None
    holds: bool | None
    failed: bool = False


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
    """Requests of one consumer to one version, since the service started.

    Args:
        consumer: its name; "" of who needs none.
        errors: how many of the requests were not answered as asked.
        per_minute: of late, where the service counts that.
    """

    consumer: str
    version: int | None
    requests: int
    errors: int
    per_minute: float | None = None


class Backfill(_Facts):
    """How far the rows of a store's side have been brought to a version.

    Args:
        state: "planned", "under way", "applied" or "rolled back", as `evergram backfill` says;
            "being filled" of the service's own snapshots.
    """

    side: str
    version: int
    done: int
    total: int
    state: str


class Drift(_Facts):
    """How far the second moments of what was served are from those of what is stored.

    Args:
        version: whose vectors are compared.
        relative: ‖served − stored‖ over ‖stored‖; 0 where both are the same.
        vectors: how many were served.
        limit: past which it is worth a look.
    """

    side: str
    version: int | None = None
    relative: float | None
    vectors: int | None = None
    limit: float | None = None


class Rate(_Facts):
    """Requests within a few seconds.

    Args:
        ago: seconds from their end until now.
        per_minute: how many they would be in a minute.
    """

    ago: float
    per_minute: float


class Live(_Facts):
    """What the running service knows; None is what it does not.

    Args:
        started: when, ISO 8601.
        rates: of the last ten minutes, oldest first.
        latency_ms: of answers, "p50" and "p99" to milliseconds.
        rows: side to version to rows in its store.
    """

    started: str | None = None
    traffic: list[Traffic] | None = None
    rates: list[Rate] | None = None
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
