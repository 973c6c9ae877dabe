"""The commands of `evergram lineage` and `evergram consumer`: versions, and who reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evergram.cli.options import (
    Description,
    command,
    described,
    open_lineage,
    pairs_of,
    print_progress,
    refuse_unread,
)
from evergram.cli.printing import Grid, number, probes_table, show, skew_table
from evergram.errors import DataError, LineageError
from evergram.log_lines import write_line

if TYPE_CHECKING:
    from evergram.lineage.consumers import Consumer, ConsumerRegistry, Probe
    from evergram.lineage.diagnosis import Reading
    from evergram.lineage.lineage import Lineage


@command("lineage list", "lineages/shop")
def list_versions(lineage: str) -> None:
    """List the versions of a lineage: dims, metric, labels, and which is in production."""
    from evergram.lineage.diagnosis import standard_errors, version_warnings, with_error

    opened = open_lineage(lineage)
    warnings = version_warnings(opened)
    metrics = {m.version: opened.metrics(m.version) for m in opened.versions}
    # Show the metric that selected the newest version, or else its first.
    newest = opened.versions[-1] if metrics else None
    known = metrics[newest.version].get("metrics", {}).get("model", {}) if newest else {}
    chosen = newest.recipe.get("training", {}).get("metric") if newest else None
    metric = chosen if chosen in known else next(iter(known), None)
    rows, lines = [], []
    for m in opened.versions:
        measured = metrics[m.version]
        labels = sorted(name for name, n in opened.labels.items() if n == m.version)
        row = {
            **m.model_dump(include={"version", "name", "dim", "created", "fingerprint"}),
            "encoder": "file" if m.encoder is None else m.encoder.kind,
            "labels": labels,
            "production": m.version == opened.production,
            "retired": m.version in opened.retired,
            "held": m.version in opened.versions_with_embeddings,
            "metrics": measured.get("metrics", {}),
            **({"sampled": measured["sampled"]} if "sampled" in measured else {}),
            "warnings": warnings[m.version],
        }
        rows.append(row)
        value = number(row["metrics"].get("model", {}).get(metric))
        error = standard_errors(measured.get("sampled"), "model").get(metric or "")
        states = [state for state in ("production", "retired") if row[state]]
        lines.append(
            [
                str(m.version),
                str(m.dim),
                m.created[:10],
                *([with_error(value, error)] if metric else []),
                m.fingerprint.removeprefix("sha256:")[:12],
                ", ".join([*labels, *states]),
            ]
        )
    header = ["version", "dim", "created", *([metric] if metric else []), "fingerprint", "labels"]
    withdrawn = opened.withdrawn.items()
    facts = {"lineage": str(lineage), "name": opened.name, "labels": opened.labels}
    gone = {str(n): w.model_dump() for n, w in withdrawn}
    show(
        {**facts, "versions": rows, "withdrawn": gone},
        Grid(f"{opened.name}, in {lineage}", header, lines),
        *_sentences(warnings),
        *(f"Version {n} was withdrawn on {w.when[:10]}: {w.reason}" for n, w in withdrawn),
    )


def _sentences(warnings: dict[int, list[str]]) -> list[str]:
    return [f"Version {version}: {each}" for version, listed in warnings.items() for each in listed]


@command(
    "lineage check",
    "lineages/shop --max-error 0.2",
    max_error=described("Largest relative error allowed at any past version.", min=0),
    max_bound=described("Largest relative bound allowed in any certificate.", min=0),
)
def check(lineage: str, *, max_error: float | None = None, max_bound: float | None = None) -> None:
    """Show the error of the newest version read as each past one; exit code 1 past a limit.

    First it compares every published file with its hash. It also checks that transforms, canaries,
    stored vectors and lineage.json fit together; exit code 1 if they contradict each other.
    """
    from evergram.lineage import diagnosis

    opened = open_lineage(lineage)
    checked, readings = opened.check(), diagnosis.diagnose_lineage(opened)
    wrong, warnings = diagnosis.contradictions(opened), diagnosis.version_warnings(opened)
    past = diagnosis.past_limits(readings, error=max_error, bound=max_bound)
    show(
        {
            "lineage": str(lineage),
            "version": opened.newest,
            "readings": [r.as_json() for r in readings],
            "past_limits": past,
            "contradictions": wrong,
            "warnings": {str(n): listed for n, listed in warnings.items() if listed},
            "checked": checked,
        },
        *_readings(opened, readings),
        *_sentences(warnings),
        f"All {checked} published files match their hashes.",
    )
    for sentence in wrong:
        write_line("contradiction", sentence, level="warning")
    for sentence in past:
        write_line("past_limit", sentence, level="warning")
    if past or wrong:
        sys.exit(1)


# At most nine columns fit into 80 characters.
_READING = ["as", "error", "unseen", "cosine", "all", "on all", "estimate", "bound", "stretch"]
_EXPLANATION = """\
error: relative to the length of the vectors, on objects that alignment never saw, like those that
came after a consumer's version; --max-error limits it. unseen: the number of such canaries, and
their cosine; if they are too few, error is the larger of on all and estimate. all: the number of
all canaries, and on all: their error. estimate and bound: the certificate, for unseen objects.
stretch: the largest factor by which the transforms lengthen an error (largest singular value)."""


def _readings(lineage: Lineage, readings: list[Reading]) -> Iterator[str | Grid]:
    """Yield the table of past versions, and a sentence on each unknown figure."""
    lines = []
    for one in readings:
        unseen, measured, certificate = one.unseen, one.measured, one.certificate
        line = [str(one.version), number(one.error)]
        line += [str(unseen.objects), number(unseen.cosine)] if unseen else ["–", "–"]
        line += [str(measured.objects), number(measured.relative)] if measured else ["0", "–"]
        figures = ("relative", "relative_bound", "amplification")
        lines.append([*line, *(number(getattr(certificate, name, None)) for name in figures)])
    yield Grid(f"Version {lineage.newest} of {lineage}, read as", _READING, lines)
    yield _EXPLANATION
    for one in readings:
        for what, why in one.unknown.items():
            yield f"Version {one.version}: its {what} is not known: {why}."


@command(
    "lineage skew",
    "lineages/shop --stale 1=0.5,2=0.2 --max-loss 1",
    stale="AGE=SHARE,… | Shares of rows by age in versions; repeatable (default: a sweep).",
    max_loss=described("PERCENT | Limit of the loss through the chain, for each mixture.", min=0),
    html="FILE | Write charts to this HTML page.",
)
def skew(
    lineage: str,
    *,
    stale: list[str] | None = None,
    max_loss: float | None = None,
    html: Path | None = None,
    set_: list[str] | None = None,
) -> None:
    """Measure how much quality an index loses while some rows are from older versions.

    Test pairs come from the newest version's recipe; use --set data.path=PATH if the data moved.
    Exit code 1 if a limit is exceeded.
    """
    from evergram.evaluation.html_page import write_skew
    from evergram.releasing.skew import skew as measure_skew
    from evergram.training.recipe import Recipe

    refuse_unread(set_, "data", "split")
    opened, mixtures = open_lineage(lineage), []
    for text in stale or ():
        shares = pairs_of("--stale", text.split(","), "AGE=SHARE, as in 1=0.5,2=0.2")
        try:
            mixtures.append({int(age): float(share) for age, share in shares.items()})
        except ValueError:
            raise DataError(f"--stale {text} must be AGE=SHARE, as in 1=0.5,2=0.2.") from None
    recipe = Recipe.of_data(opened.recipe(opened.newest), set_) if set_ else None
    progress = partial(print_progress, what="mixtures")
    report = measure_skew(opened, mixtures or None, recipe=recipe, progress=progress)
    past = [] if max_loss is None else report.past_limit(max_loss)
    facts = report.as_json()
    parts: list[str | Grid] = [skew_table(facts), _SKEW, *report.notes]
    if html is not None:
        parts.append(f"Page: {write_skew(html, facts)}")
    problems = dict.fromkeys(r.problem for r in report.readings if r.problem)
    show({"lineage": str(lineage), **facts, "past_limits": past}, *parts, *problems)
    for sentence in past:
        write_line("past_limit", sentence, level="warning")
    if past:
        sys.exit(1)


_SKEW = """\
chain: each row is read from its version. raw: old vectors are treated as new. worst first: chain,
after a backfill has refreshed the worst rows. above: pairs above a threshold, compared with a full
refresh. ECE: calibration error of the scores. The last columns are the consumers' probes."""
_VERSION = "VERSION | A number, a label or 'newest'."


@command(
    "lineage label",
    "lineages/shop trusted v1",
    name="NAME | Name of the label.",
    version=_VERSION,
    remove="Remove the label.",
)
def label(lineage: str, name: str, version: str | None = None, *, remove: bool = False) -> None:
    """Set a label on a version, move it there, or remove it; `stable` marks production."""
    if remove == (version is not None):
        raise LineageError("Give the version to put the label on, or --remove and no version.")
    opened = open_lineage(lineage)
    if version is None:
        opened.unlabel(name)
    else:
        opened.label(name, version)
    _show_labels(opened)


@command("lineage promote", "lineages/shop v1", version=_VERSION)
def promote(lineage: str, version: str = "newest") -> None:
    """Put a version into production, or put an earlier one back: the label `stable` moves to it."""
    opened = open_lineage(lineage)
    opened.promote(version)
    _show_labels(opened)


@command("lineage withdraw", "lineages/shop --reason broken", reason="The reason, which is kept.")
def withdraw(lineage: str, *, reason: str) -> None:
    """Withdraw the newest version, if no label and no consumer is on it.

    Its number is never used again.
    """
    opened = open_lineage(lineage)
    opened.withdraw(opened.newest, reason)
    _show_labels(opened)


@command("lineage retire", "lineages/shop v0", version=_VERSION)
def retire(lineage: str, version: str) -> None:
    """Make an old version unreadable, if no label and no consumer is on it."""
    opened = open_lineage(lineage)
    opened.retire(version)
    _show_labels(opened)


def _show_labels(lineage: Lineage) -> None:
    show(
        {
            "lineage": str(lineage),
            "newest": lineage.newest,
            "production": lineage.production,
            "labels": dict(sorted(lineage.labels.items())),
            "readable": lineage.readable,
            "held": lineage.versions_with_embeddings,
            "retired": lineage.retired,
            "withdrawn": {str(n): w.model_dump() for n, w in lineage.withdrawn.items()},
        }
    )


_CONSUMER = "NAME | Name of the consumer."
_PROBE: dict[str, Description] = {
    "name": _CONSUMER,
    "probe": (
        "MODEL | The consumer's own model, which tests every new version: .onnx, or .safetensors "
        "of a linear one."
    ),
    "data": "FILE | Test data of the probe: Parquet with the columns id and label.",
    "metric": described("Measure of the probe: auc, accuracy or rmse.", show_default="auc"),
    "limit": "Smallest auc or accuracy, or largest rmse, that the consumer accepts.",
}


def _registry(lineage: str) -> ConsumerRegistry:
    from evergram.lineage.consumers import ConsumerRegistry

    return ConsumerRegistry.open(lineage)


@command("consumer list", "lineages/shop")
def list_consumers(lineage: str) -> None:
    """List the consumers of a lineage, their versions, and their probes' last values."""
    opened = open_lineage(lineage)
    last = {}
    if opened.versions:
        last = {p["consumer"]: p for p in opened.metrics(opened.newest).get("probes", [])}
    rows = [{**_facts(one), "last": last.get(one.name)} for one in _registry(lineage).list()]
    header = ["name", "pinned", "may read", "since", "contact", "probe", "when added", "last"]
    lines = []
    for row in rows:
        probe, latest = row["probe"] or {}, row["last"] or {}
        values = ((probe.get("baseline") or {}).get("value"), latest.get("value"))
        who = [row["name"], row["pinned"], ", ".join(row["allowed"]), row["since"]]
        words = [row["contact"] or "–", probe.get("metric", "–")]
        lines.append([*who, *words, *map(number, values)])
    grid = Grid(f"Consumers of {lineage}", header, lines)
    show({"lineage": str(lineage), "consumers": rows}, grid)


@command(
    "consumer add",
    "lineages/shop ads --pin v0 --token",
    **_PROBE,
    pin="VERSION | Version that it reads: v0, or a label.",
    allow="VERSION | Another version that it may read; repeatable.",
    contact="Whom to tell if the probe fails.",
    token="Issue a token for the service.",
)
def add(
    lineage: str,
    name: str,
    *,
    pin: str,
    allow: list[str] | None = None,
    contact: str | None = None,
    token: bool = False,
    probe: Path | None = None,
    data: Path | None = None,
    side: str | None = None,
    metric: str | None = None,
    limit: float | None = None,
) -> None:
    """Register a consumer of a lineage, and its probe, a model that tests every new version."""
    opened, registry = open_lineage(lineage), _registry(lineage)
    added = registry.add(
        name,
        pin,
        lambda version: open_lineage(lineage).resolve(version),
        allowed=allow or (),
        contact=contact,
        probe=_measured(opened, pin, (probe, data), side=side, metric=metric, limit=limit),
    )
    _show_consumer(added, registry.issue_token(name) if token else None)


@command(
    "consumer pin",
    "lineages/shop ads v1",
    **_PROBE,
    version="VERSION | Version to read from now on: v0, or a label.",
    drop_probe="Leave the consumer without a probe.",
)
def pin(
    lineage: str,
    name: str,
    version: str,
    *,
    probe: Path | None = None,
    data: Path | None = None,
    side: str | None = None,
    metric: str | None = None,
    limit: float | None = None,
    drop_probe: bool = False,
) -> None:
    """Move a consumer to another version, with the probe for that version."""
    if drop_probe and (probe or data):
        raise DataError("--drop-probe leaves it without a probe; leave --probe and --data out.")
    opened = open_lineage(lineage)
    moved = _registry(lineage).repin(
        name,
        version,
        lambda version: open_lineage(lineage).resolve(version),
        probe=_measured(opened, version, (probe, data), side=side, metric=metric, limit=limit),
        drop_probe=drop_probe,
    )
    _show_consumer(moved)


@command("consumer token", "lineages/shop ads", name=_CONSUMER)
def token(lineage: str, name: str) -> None:
    """Issue a consumer's token for the service; the token before it stops working."""
    registry = _registry(lineage)
    issued = registry.issue_token(name)
    _show_consumer(registry.get(name), issued)


@command("consumer remove", "lineages/shop ads", name=_CONSUMER)
def remove(lineage: str, name: str) -> None:
    """Remove a consumer, its probe and its token."""
    _registry(lineage).remove(name)
    show({"removed": name})


@command("consumer probe", "lineages/shop", name="[NAME] | Run one consumer's probe only.")
def run_probe(lineage: str, name: str | None = None) -> None:
    """Run the consumers' probes on the newest version; exit code 1 if one is past its limit."""
    from evergram.releasing.probes import run_probes

    opened = open_lineage(lineage)
    readings = run_probes(opened, names=None if name is None else [name])
    if not readings:
        who = f"No consumer of {lineage} has a probe" if name is None else f"{name} has no probe"
        raise DataError(f"{who}; 'evergram consumer add' and 'pin' with --probe give one.")
    rows = [r.as_json() for r in readings]
    show(
        {"lineage": str(lineage), "version": opened.newest, "probes": rows},
        probes_table(rows, f"Version {opened.newest} of {lineage}"),
    )
    for reading in readings:
        if reading.broken:
            write_line("past_limit", reading.sentence, level="warning", consumer=reading.consumer)
    if any(r.broken for r in readings):
        sys.exit(1)


def _measured(
    lineage: Lineage, pinned: str, files: tuple[Path | None, Path | None], **options: Any
) -> Probe | None:
    """Return the probe with its measured baseline, given the files of the model and the data; None
    if no file or option (`side`, `metric`, `limit`) is given."""
    from pydantic import ValidationError

    from evergram.lineage.consumers import Probe
    from evergram.lineage.lineage import side_of
    from evergram.releasing.probes import measured_probe
    from evergram.validation import sentence_of

    model, data = files
    if all(given is None for given in (*files, *options.values())):
        return None
    if model is None or data is None:
        raise DataError("A probe is a model and an evaluation file: give both --probe and --data.")
    metric = options["metric"] or "auc"
    sides = lineage.manifest(lineage.production).embeddings
    side, limit = side_of(sides, str(lineage.path), options["side"]), options["limit"]
    facts = {"model": str(model), "data": str(data), "metric": metric, "side": side}
    try:
        probe = Probe.model_validate({**facts, "max" if metric == "rmse" else "min": limit})
    except ValidationError as error:
        raise DataError(f"The probe cannot be used: {sentence_of(error, Probe)}") from error
    return measured_probe(lineage, pinned, probe)


def _facts(consumer: Consumer) -> dict[str, Any]:
    """Return a consumer as JSON; "token" says whether it has one."""
    facts = consumer.model_dump(mode="json", exclude={"token_sha256"})
    return {**facts, "token": consumer.token_sha256 is not None}


def _show_consumer(consumer: Consumer, token: str | None = None) -> None:
    """Print a consumer, with its token if one was just issued; the token is never shown again."""
    if (probe := consumer.probe) is not None and (base := probe.baseline) is not None:
        least, most = probe.min, probe.max
        if (least is not None and base.value < least) or (most is not None and base.value > most):
            what = "That is past its limit already, so every upgrade will report it."
            write_line("past_limit", what, level="warning", consumer=consumer.name)
    show(_facts(consumer) | ({} if token is None else {"token": token}))
