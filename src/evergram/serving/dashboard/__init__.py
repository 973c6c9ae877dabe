"""The dashboard's JSON (its page is in `static/`): facts about a lineage, its consumers and the
running service, and an overall health state.

The health state fails closed: what was not measured is "not known", never "well".
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
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict

from evergram.errors import EvergramError, LineageError
from evergram.lineage import diagnosis
from evergram.lineage.consumers import Consumer
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfill import UNREADABLE, BackfillProgress, backfill_progress
from evergram.retrieval.reader import Reader

DIGITS = 12  # displayed digits of a fingerprint
# Number of requests whose latency is kept, and seconds for which a failure counts.
REMEMBERED, WINDOW = 2_000, 600.0
# Seconds for which a store's row count is cached: some stores scan all rows to count them.
COUNTED_FOR = 5.0


def _finite(value: Any) -> Any:
    return value if value is not None and math.isfinite(value) else None


# None means "not known". So do NaN and infinity, which JSON cannot represent.
Finite = Annotated[float | None, BeforeValidator(_finite)]


class _Facts(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class StepFacts(_Facts):
    """The backward transform from a version to the previous one: its measured error, its error
    estimated at publication, its largest singular value. The identity for a withdrawn version."""

    kind: str
    error: Finite = None
    estimate: Finite = None
    amplification: Finite = None


class PastFacts(_Facts):
    """The newest version read as a past one; errors are relative to the past vectors' length.

    Args:
        unseen: number of canaries not used for alignment; 0 if there are too few.
        error: `Reading.error`, which `lineage check` limits: on unseen canaries if possible.
        cosine: on the unseen canaries, or else on all canaries.
        canaries, measured: the number of all canaries, and the error on them.
        estimate, bound, amplification: from the certificate.
        history: the error at every version since, by version.
        contradiction: a sentence if the error is far above the certificate's bound, or None.
    """

    unseen: int
    error: Finite
    cosine: Finite
    canaries: int
    measured: Finite
    estimate: Finite
    bound: Finite
    amplification: Finite
    history: dict[int, float]
    contradiction: str | None = None


class VersionFacts(_Facts):
    """One version. If it was withdrawn, `created` and `withdrawn` say when and why.

    Args:
        encoder: its kind; "file" if the embeddings came from a file; None if withdrawn.
        fingerprint: its first 12 digits.
        quality: maps "model", "popularity" and "alone" to metrics and their values.
        errors, sample: standard errors of `quality`, and a sentence about the sample of queries;
            empty and None if all queries were ranked.
        step: None for the first version.
        past: None for the newest version and for versions that are no longer read.
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
    """A consumer's probe: the consumer's model, evaluated on the vectors that it would read.

    Args:
        limit: the minimum acceptable value; the maximum if `less_is_better`.
        values: the value by version, each read as the consumer's version.
        last: the value at the newest version; None if it was not measured.
        holds: whether `last` is within the limit; None if there is no limit or no `last`.
        failed: whether the probe could not be run on the newest version; see `metrics.json`.
    """

    metric: str
    limit: float | None
    less_is_better: bool
    values: dict[int, float]
    last: float | None
    holds: bool | None
    failed: bool = False


class ConsumerFacts(_Facts):
    """One consumer; `version` is what `pinned` resolves to, None if the label was removed."""

    name: str
    pinned: str
    version: int | None
    since: str
    probe: ProbeFacts | None = None


class Traffic(_Facts):
    """Requests of one consumer ("" without a token) for one version since the service started;
    `errors` counts those refused or failed."""

    consumer: str
    version: int | None
    requests: int
    errors: int


class Live(_Facts):
    """Facts about the running service: how many requests `failed` in the last ten minutes,
    sentences about what it could not load or reach (`problems`), "p50" and "p99" of the last
    requests' latencies, and the number of stored `rows` by side and version."""

    started: str | None = None
    traffic: list[Traffic] = []
    failed: int = 0
    problems: list[str] = []
    latency_ms: dict[str, float] | None = None
    rows: dict[str, dict[int, int]] | None = None
    backfill: list[BackfillProgress] = []


class Reason(_Facts):
    """A reason why the state is not "well"; `part` is the section of the page with details."""

    kind: Literal["broken", "not known"]
    part: str
    sentence: str


_Found = tuple[Literal["broken", "not known"], str, str]  # kind, part and sentence of a `Reason`


class Health(_Facts):
    """The overall state, with its reasons; "broken" ones come first."""

    state: Literal["well", "not well", "not known"]
    reasons: list[Reason]


class DashboardData(_Facts):
    """All data of the page. `at` is when it was collected, `checked` when the published files were
    verified against their hashes and each other; both ISO 8601."""

    lineage: str
    at: str
    checked: str
    health: Health
    newest: int
    production: int
    versions: list[VersionFacts]
    consumers: list[ConsumerFacts]
    live: Live


@dataclass(frozen=True)
class PublishedFacts:
    """Facts that change only with a publication and are slow to read: each version's metrics,
    backward transform and reading, contradictions between the lineage's files, and the time of
    reading them."""

    metrics: Mapping[int, Mapping[str, Any]]
    steps: Mapping[int, StepFacts]
    past: Mapping[int, PastFacts]
    contradictions: Sequence[str]
    checked: str


def published_facts(lineage: Lineage) -> PublishedFacts:
    """Read the facts of a lineage from its published files, verifying each file's hash. Raises:
    UnknownVersionError: nothing is published. IntegrityError: a file is damaged."""
    lineage.check()
    past = {r.version: _past(r) for r in diagnosis.diagnose_lineage(lineage)}
    numbers = [m.version for m in lineage.versions]
    steps = {n: StepFacts(kind="identity") for n in lineage.withdrawn}
    for before, n in pairwise(numbers):  # withdrawn versions are skipped
        (reading,) = diagnosis.read_versions(lineage, [before], n)
        kind = lineage.chain.transforms[n - 1].kind
        steps[n] = StepFacts(kind=kind, error=reading.error, **_certified(reading))
    metrics = {n: lineage.metrics(n) for n in numbers}
    return PublishedFacts(metrics, steps, past, diagnosis.contradictions(lineage), _now())


def dashboard_data(
    lineage: Lineage,
    consumers: Sequence[Consumer],
    live: Live,
    published: PublishedFacts | None = None,
) -> DashboardData:
    """Return all data of the page. Reads no files if `published` facts are given. Raises: see
    `published_facts`."""
    facts = published_facts(lineage) if published is None else published
    versions = [_version(lineage, n, facts) for n in range(lineage.next_version)]
    shown = []
    for consumer in sorted(consumers, key=lambda consumer: consumer.name):
        version = None
        with suppress(LineageError):
            version = lineage.resolve(consumer.pinned)
        fields = consumer.model_dump(include={"name", "pinned", "since"})
        probe = _probe(lineage.newest, consumer, facts.metrics)
        shown.append(ConsumerFacts(version=version, probe=probe, **fields))
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
    withdrawal = lineage.withdrawn.get(version)
    fields: dict[str, Any] = {"withdrawn": None, "encoder": None, "quality": {}}
    if withdrawal is not None:
        fingerprint = withdrawal.fingerprint
        fields |= {"created": withdrawal.when, "withdrawn": withdrawal.reason}
    else:
        manifest, metrics = lineage.manifest(version), published.metrics[version]
        quality = {
            model: {k: float(v) for k, v in values.items() if _finite(v) is not None}
            for model, values in metrics.get("metrics", {}).items()
            if model in ("model", "popularity", "alone")
        }
        fingerprint, sampled = manifest.fingerprint, metrics.get("sampled")
        errors = {model: diagnosis.standard_errors(sampled, model) for model in quality}
        fields |= {"created": manifest.created, "quality": quality}
        fields["encoder"] = "file" if manifest.encoder is None else manifest.encoder.kind
        fields["errors"] = {model: values for model, values in errors.items() if values}
        fields["sample"] = diagnosis.sample_sentence(sampled)
    return VersionFacts(
        version=version,
        name=f"{lineage.name}@v{version}",
        fingerprint=fingerprint.removeprefix("sha256:")[:DIGITS],
        dim=lineage.chain.dim(version),
        labels=sorted(name for name, n in lineage.labels.items() if n == version),
        retired=version in lineage.retired,
        step=published.steps.get(version),
        past=published.past.get(version),
        **fields,
    )


def _past(reading: diagnosis.Reading) -> PastFacts:
    measured = reading.measured
    return PastFacts(
        unseen=getattr(reading.unseen, "objects", 0),
        error=reading.error,
        cosine=getattr(reading.unseen or measured, "cosine", None),
        canaries=getattr(measured, "objects", 0),
        measured=getattr(measured, "relative", None),
        bound=getattr(reading.certificate, "relative_bound", None),
        history={k: v for k, v in reading.history.items() if _finite(v) is not None},
        contradiction=reading.contradiction,
        **_certified(reading),
    )


def _certified(reading: diagnosis.Reading) -> dict[str, float | None]:
    names = {"estimate": "relative", "amplification": "amplification"}
    return {name: getattr(reading.certificate, of, None) for name, of in names.items()}


def _probe(
    newest: int, consumer: Consumer, published: Mapping[int, Mapping[str, Any]]
) -> ProbeFacts | None:
    """Return the probe's values at all publications since the consumer's pin was last changed."""
    probe = consumer.probe
    if probe is None:
        return None
    values: dict[int, float] = {}
    if probe.baseline is not None:
        values[probe.baseline.version] = probe.baseline.value
    failed, key = False, (consumer.name, consumer.pinned, probe.metric)
    for n, metrics in published.items():
        for reading in metrics.get("probes", ()):
            if (reading["consumer"], reading["pinned"], reading["metric"]) != key:
                continue
            if _finite(reading["value"]) is not None:
                values[n] = reading["value"]
            # The reason is not shown, because it may name files of the machine.
            failed = n == newest and n not in values
    less = probe.metric == "rmse"
    limit = probe.max if less else probe.min
    last = values.get(newest)
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


def health(
    versions: Sequence[VersionFacts],
    consumers: Sequence[ConsumerFacts],
    newest: int,
    live: Live,
    contradictions: Sequence[str] = (),
) -> Health:
    """Return the overall state and its reasons. `contradictions` are sentences about the lineage's
    files."""
    found = [
        *_of_consumers(consumers, newest),
        *(("broken", "versions", sentence) for sentence in contradictions),
        *_of_versions(versions),
        *_of_stores(versions, live),
        *(("broken", "requests", problem) for problem in live.problems),
    ]
    if live.failed:
        count = "1 request" if live.failed == 1 else f"{live.failed:,} requests"
        found.append(("broken", "requests", f"{count} failed in the last ten minutes."))
    found.sort(key=lambda reason: reason[0] != "broken")
    if not found:
        return Health(state="well", reasons=[])
    reasons = [Reason(kind=kind, part=part, sentence=sentence) for kind, part, sentence in found]
    return Health(state="not well" if found[0][0] == "broken" else "not known", reasons=reasons)


def _of_consumers(consumers: Sequence[ConsumerFacts], newest: int) -> Iterator[_Found]:
    for consumer in consumers:
        name, probe, broken = consumer.name, consumer.probe, True
        if consumer.version is None:
            sentence = f"Consumer {name} is pinned to {consumer.pinned}, which does not exist."
        elif probe is None:
            # A consumer of the newest version gets its vectors untransformed, without any error.
            if consumer.version == newest:
                continue
            broken, sentence = False, f"Consumer {name} has no probe, so its quality is not known."
        elif probe.failed:
            sentence = f"The probe of {name} could not be run."
        elif probe.holds is False and probe.last is not None and probe.limit is not None:
            limit = f"{'at most' if probe.less_is_better else 'at least'} {probe.limit:.3g}"
            value = f"{probe.metric} is {probe.last:.3g}; it must be {limit}"
            sentence = f"The probe of {name} is beyond its limit: {value}."
        elif probe.limit is None:
            broken, sentence = False, f"The probe of {name} has no limit."
        elif probe.holds is None:
            broken, sentence = False, f"The probe of {name} was not run on version {newest}."
        else:
            continue
        yield "broken" if broken else "not known", "consumers", sentence


def _of_versions(versions: Sequence[VersionFacts]) -> Iterator[_Found]:
    for version, past in ((v.version, v.past) for v in versions):
        if past is None:  # the newest version, or one that is no longer read
            continue
        if past.contradiction is not None:
            yield "broken", "certificate", past.contradiction
        elif past.bound is None:
            yield "not known", "certificate", f"Version {version} has no certificate."
        elif not past.canaries:
            sentence = f"Version {version} has no canaries, so its certificate cannot be checked."
            yield "not known", "certificate", sentence


def _of_stores(versions: Sequence[VersionFacts], live: Live) -> Iterator[_Found]:
    withdrawn = {v.version: v.withdrawn is not None for v in versions}
    if not live.rows:
        yield "not known", "store", "The rows of the stores could not be counted."
    for side, rows in (live.rows or {}).items():
        if not any(rows.values()):
            yield "broken", "store", f"The store of side {side} has no rows."
        for version, count in rows.items():
            if count and withdrawn.get(version, True):
                what = "withdrawn" if version in withdrawn else "unknown"
                sentence = f"The store of side {side} has rows of the {what} version {version}."
                yield "broken", "store", sentence
    for backfill in live.backfill:
        name = f"The backfill of side {backfill.side}"
        if backfill.state == UNREADABLE:
            yield "broken", "store", f"{name} {UNREADABLE}."
        elif backfill.state == "stalled":
            idle = "a while" if backfill.idle is None else f"{abs(backfill.idle):,.0f} seconds"
            done = f"{backfill.done:,} of {backfill.total:,} rows are done"
            todo = "'evergram store backfill apply' resumes it"
            sentence = f"{name} has stalled: no progress for {idle}; {done}; {todo}."
            yield "broken", "store", sentence


class TrafficLog:
    """Counts of all requests, and the latencies of the last ones."""

    def __init__(self) -> None:
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._requests: Counter[tuple[str, int | None]] = Counter()
        self._errors: Counter[tuple[str, int | None]] = Counter()
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self._failed: deque[float] = deque(maxlen=REMEMBERED)  # times of failed requests
        self._counted = -COUNTED_FOR
        self._rows: dict[str, dict[int, int]] | None = None

    def answered(self, consumer: str, version: int | None, status: int, seconds: float) -> None:
        """Record one request; called only from the event loop."""
        key = consumer, version
        self._requests[key] += 1
        self._errors[key] += status >= 400
        self._seconds.append(seconds)
        if status >= 500:
            self._failed.append(monotonic())

    def live(self, reader: Reader, problems: list[str]) -> Live:
        """Return the current facts; `problems` are sentences, see `Live`."""
        now = monotonic()
        if now - self._counted >= COUNTED_FOR:
            self._rows, self._counted = None, now
            with suppress(EvergramError):
                self._rows = {side: reader.store(side).count() for side in reader.sides}
        traffic = [
            Traffic(consumer=key[0], version=key[1], requests=requests, errors=self._errors[key])
            for key, requests in self._requests.copy().items()
        ]
        # Requests refused before their version was resolved come first.
        traffic.sort(key=lambda row: (row.consumer, -1 if row.version is None else row.version))
        times = list(self._seconds.copy())
        p50, p99 = np.percentile(times or [0.0], [50, 99]).tolist()
        return Live(
            started=self._started,
            traffic=traffic,
            failed=sum(when > now - WINDOW for when in self._failed.copy()),
            problems=problems,
            latency_ms={"p50": p50 * 1000, "p99": p99 * 1000} if times else None,
            rows=self._rows,
            backfill=backfill_progress(reader.lineage.path),
        )
