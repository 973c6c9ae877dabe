"""The JSON of the dashboard, whose page is in `static/`: facts of a lineage, its consumers and the
running service, and the rule that says whether all is well.

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
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict

from evergram.errors import EvergramError, LineageError
from evergram.lineage import diagnosis
from evergram.lineage.consumers import Consumer
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfill import UNREADABLE, BackfillProgress, backfill_progress
from evergram.retrieval.reader import Reader

# Digits of a fingerprint that are shown.
DIGITS = 12
# Requests of which the times are remembered, and seconds for which a failure counts.
REMEMBERED, WINDOW = 2_000, 600.0
# Seconds for which a count of a store's rows is kept: some stores look at each row to count them.
COUNTED_FOR = 5.0


def _finite(value: Any) -> Any:
    return value if value is not None and math.isfinite(value) else None


# NaN and infinity, which JSON cannot hold, are not known, and neither is None.
Finite = Annotated[float | None, BeforeValidator(_finite)]


class _Facts(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class StepFacts(_Facts):
    """The backward transform from a version to the one before it: its error, that at publication,
    and its largest singular value. A withdrawn version has the identity."""

    kind: str
    error: Finite = None
    estimate: Finite = None
    amplification: Finite = None


class PastFacts(_Facts):
    """The newest version read as a past one; errors are relative to the past vectors' length.

    Args:
        unseen: how many canaries alignment never saw; 0 if they are too few to measure.
        error: what `lineage check` holds to a limit, on these if there are enough: `Reading.error`.
        cosine: on these, or else on all canaries.
        canaries, measured: how many canaries there are, and the error on all of them.
        estimate, bound, amplification: of the certificate.
        history: the error at every version since, by version.
        belied: a sentence, where the measured error is far above the certificate's bound.
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
    belied: str | None = None


class VersionFacts(_Facts):
    """One version. `created` and `withdrawn` of a withdrawn one say when and why it was withdrawn.

    Args:
        encoder: its kind; "file" where the embeddings came from a file; None of a withdrawn one.
        fingerprint: its first 12 digits.
        quality: "model", "popularity", "alone" to metric to value.
        errors, sample: standard errors of `quality`, and a sentence on the sample of queries that
            they are of; None where all queries were ranked.
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
    """One consumer; `version` is what `pinned` is now, None where that label is gone."""

    name: str
    pinned: str
    version: int | None
    since: str
    probe: ProbeFacts | None = None


class Traffic(_Facts):
    """Requests of one consumer ("" without a token) to one version, since the service started;
    `errors` were refused or failed."""

    consumer: str
    version: int | None
    requests: int
    errors: int


class Live(_Facts):
    """Facts of the running service: how many requests it `failed` to answer in the last ten
    minutes; `problems` are sentences on what it could not load or reach; `latency_ms` has "p50" and
    "p99" of the last requests; `rows` are those of each side, by version."""

    started: str | None = None
    traffic: list[Traffic] = []
    failed: int = 0
    problems: list[str] = []
    latency_ms: dict[str, float] | None = None
    rows: dict[str, dict[int, int]] | None = None
    backfill: list[BackfillProgress] = []


class Reason(_Facts):
    """One reason why not all is well; `part` is the part of the page that has more."""

    kind: Literal["broken", "not known"]
    part: str
    sentence: str


# A reason that was found: its kind, part and sentence.
_Found = tuple[Literal["broken", "not known"], str, str]


class Health(_Facts):
    """Whether all is well; the reasons that something is broken come first."""

    state: Literal["well", "not well", "not known"]
    reasons: list[Reason]


class DashboardData(_Facts):
    """Everything on the page, put together `at` that time; the published files were compared with
    their hashes and with each other when `checked` says, both ISO 8601."""

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
    """Facts that are slow to read, and stay as they are until the next publication: the metrics,
    the backward transform and the reading of each version, what the lineage's files say of each
    other that cannot be, and when all of this was read."""

    metrics: Mapping[int, Mapping[str, Any]]
    steps: Mapping[int, StepFacts]
    past: Mapping[int, PastFacts]
    contradictions: Sequence[str]
    checked: str


def published_facts(lineage: Lineage) -> PublishedFacts:
    """Read the facts of a lineage from its published files, each compared with its hash. Raises:
    UnknownVersionError: nothing is published. IntegrityError: a file is damaged."""
    lineage.check()
    past = {r.version: _past(r) for r in diagnosis.diagnose_lineage(lineage)}
    numbers = [m.version for m in lineage.versions]
    steps = {n: StepFacts(kind="identity") for n in lineage.withdrawn}
    for before, n in pairwise(numbers):  # the one before that is not withdrawn
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
    """Return everything that the page shows; with the `published` facts, if they were read before,
    no file is read. Raises: as `published_facts`."""
    facts = published_facts(lineage) if published is None else published
    versions = [_version(lineage, n, facts) for n in range(lineage.next_version)]
    shown = []
    for consumer in sorted(consumers, key=lambda consumer: consumer.name):
        version = None
        with suppress(LineageError):
            version = lineage.resolve(consumer.pinned)
        known = consumer.model_dump(include={"name", "pinned", "since"})
        probe = _probe(lineage.newest, consumer, facts.metrics)
        shown.append(ConsumerFacts(version=version, probe=probe, **known))
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
    known: dict[str, Any] = {"withdrawn": None, "encoder": None, "quality": {}}
    if withdrawal is not None:
        fingerprint = withdrawal.fingerprint
        known |= {"created": withdrawal.when, "withdrawn": withdrawal.reason}
    else:
        manifest, metrics = lineage.manifest(version), published.metrics[version]
        quality = {
            model: {k: float(v) for k, v in values.items() if _finite(v) is not None}
            for model, values in metrics.get("metrics", {}).items()
            if model in ("model", "popularity", "alone")
        }
        fingerprint, sampled = manifest.fingerprint, metrics.get("sampled")
        errors = {model: diagnosis.standard_errors(sampled, model) for model in quality}
        known |= {"created": manifest.created, "quality": quality}
        known["encoder"] = "file" if manifest.encoder is None else manifest.encoder.kind
        known["errors"] = {model: each for model, each in errors.items() if each}
        known["sample"] = diagnosis.sample_sentence(sampled)
    return VersionFacts(
        version=version,
        name=f"{lineage.name}@v{version}",
        fingerprint=fingerprint.removeprefix("sha256:")[:DIGITS],
        dim=lineage.chain.dim(version),
        labels=sorted(name for name, n in lineage.labels.items() if n == version),
        retired=version in lineage.retired,
        step=published.steps.get(version),
        past=published.past.get(version),
        **known,
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
        belied=reading.belied,
        **_certified(reading),
    )


def _certified(reading: diagnosis.Reading) -> dict[str, float | None]:
    names = {"estimate": "relative", "amplification": "amplification"}
    return {name: getattr(reading.certificate, of, None) for name, of in names.items()}


def _probe(
    newest: int, consumer: Consumer, published: Mapping[int, Mapping[str, Any]]
) -> ProbeFacts | None:
    """Return the probe's values at publications since the consumer was pinned as it is now."""
    probe = consumer.probe
    if probe is None:
        return None
    values: dict[int, float] = {}
    if probe.baseline is not None:
        values[probe.baseline.version] = probe.baseline.value
    failed, own = False, (consumer.name, consumer.pinned, probe.metric)
    for n, metrics in published.items():
        for reading in metrics.get("probes", ()):
            if (reading["consumer"], reading["pinned"], reading["metric"]) != own:
                continue
            if _finite(reading["value"]) is not None:
                values[n] = reading["value"]
            # The reason is left out: it may name files of the machine.
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
    """Return whether all is well, and the reasons where it is not; past versions are read from the
    `newest`, and `contradictions` of the lineage are a sentence each."""
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
    reasons = [Reason(kind=kind, part=part, sentence=said) for kind, part, said in found]
    return Health(state="not well" if found[0][0] == "broken" else "not known", reasons=reasons)


def _of_consumers(consumers: Sequence[ConsumerFacts], newest: int) -> Iterator[_Found]:
    for consumer in consumers:
        name, probe, broken = consumer.name, consumer.probe, True
        if consumer.version is None:
            sentence = f"Consumer {name} is pinned to {consumer.pinned}, which does not exist."
        elif probe is None:
            # Who reads the newest version reads it as it was published: nothing can be lost.
            if consumer.version == newest:
                continue
            broken, sentence = False, f"Consumer {name} has no probe: what it keeps is unknown."
        elif probe.failed:
            sentence = f"The probe of {name} could not be run."
        elif probe.holds is False and probe.last is not None and probe.limit is not None:
            asked = f"{'at most' if probe.less_is_better else 'at least'} {probe.limit:.3g}"
            value = f"{probe.metric} is {probe.last:.3g}, and {asked} is asked for"
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
        if past is None:  # the newest, or one that is no longer read
            continue
        if past.belied is not None:
            yield "broken", "certificate", past.belied
        elif past.bound is None:
            yield "not known", "certificate", f"Version {version} has no certificate."
        elif not past.canaries:
            sentence = f"Version {version} has no canaries: its certificate cannot be checked."
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
            sentence = f"{name} stalled: nothing was written for {idle}, {done}; {todo}."
            yield "broken", "store", sentence


class TrafficLog:
    """Counts of all requests, and how long the last ones took."""

    def __init__(self) -> None:
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._requests: Counter[tuple[str, int | None]] = Counter()
        self._errors: Counter[tuple[str, int | None]] = Counter()
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        # When requests failed.
        self._failed: deque[float] = deque(maxlen=REMEMBERED)
        self._counted = -COUNTED_FOR
        self._rows: dict[str, dict[int, int]] | None = None

    def answered(self, consumer: str, version: int | None, status: int, seconds: float) -> None:
        """Record one request; called from the event loop alone."""
        key = consumer, version
        self._requests[key] += 1
        self._errors[key] += status >= 400
        self._seconds.append(seconds)
        if status >= 500:
            self._failed.append(monotonic())

    def live(self, reader: Reader, problems: list[str]) -> Live:
        """Return the facts as they are now, with `problems`: what could not be loaded or reached,
        a sentence each."""
        now = monotonic()
        if now - self._counted >= COUNTED_FOR:
            self._rows, self._counted = None, now
            with suppress(EvergramError):
                self._rows = {side: reader.store(side).count() for side in reader.sides}
        traffic = [
            Traffic(consumer=key[0], version=key[1], requests=requests, errors=self._errors[key])
            for key, requests in self._requests.copy().items()
        ]
        # Requests that were refused before their version was known come first.
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
