"""The commands of `evergram lineage`: its versions, and which of them may be read."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergram.cli.app import is_json, lineage_commands
from evergram.cli.options import (
    LineageFolder,
)
from evergram.cli.printing import (
    dump,
    number,
    paragraph,
    print_warnings,
    show,
    table,
)
from evergram.errors import LineageError
from evergram.log_lines import write_line

if TYPE_CHECKING:
    from evergram.lineage.diagnosis import Reading
    from evergram.lineage.lineage import Lineage


@lineage_commands.command("list", epilog="Example: evergram lineage list lineages/shop")
def list_versions(lineage: LineageFolder) -> None:
    """List the versions of a lineage: dims, metric, labels, and which is in production."""
    from evergram.lineage.diagnosis import version_warnings
    from evergram.lineage.lineage import Lineage

    opened = Lineage.open(lineage)
    warnings = version_warnings(opened)
    rows = [
        {
            "version": m.version,
            "name": m.name,
            "dim": m.dim,
            "created": m.created,
            "encoder": "file" if m.encoder is None else m.encoder.kind,
            "fingerprint": m.fingerprint,
            "labels": sorted(k for k, n in opened.labels.items() if n == m.version),
            "production": m.version == opened.production,
            "retired": m.version in opened.retired,
            "held": m.version in opened.versions_with_embeddings,
            "metrics": opened.metrics(m.version).get("metrics", {}),
            **_sample_of(opened.metrics(m.version)),
            "warnings": warnings[m.version],
        }
        for m in opened.versions
    ]
    checked = [*opened.opened_files, *(f"versions/{r['version']}/metrics.json" for r in rows)]
    if is_json():
        facts = {"lineage": str(lineage), "name": opened.name, "labels": opened.labels}
        withdrawn = {str(n): w.model_dump() for n, w in opened.withdrawn.items()}
        dump({**facts, "versions": rows, "withdrawn": withdrawn, "checked": checked})
        return
    metric = _metric(opened.versions[-1].recipe, _measured(rows[-1])) if rows else None
    header = ["version", "dim", "created", *([metric] if metric else []), "fingerprint", "labels"]
    lines = [
        [
            str(r["version"]),
            str(r["dim"]),
            r["created"][:10],
            *([_with_error(r, metric)] if metric else []),
            r["fingerprint"].removeprefix("sha256:")[:_SHORT],
            ", ".join([*r["labels"], *(s for s in ("production", "retired") if r[s])]),
        ]
        for r in rows
    ]
    table(f"{opened.name}, in {lineage}", header, lines)
    print_warnings(warnings)
    for n, w in opened.withdrawn.items():
        sys.stdout.write(f"Version {n} was withdrawn on {w.when[:10]}: {w.reason}\n")


def _measured(row: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of the model itself; none where its publisher stated none."""
    measured: dict[str, float] = row["metrics"].get("model", {})
    return measured


def _sample_of(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return `sampled` of metrics of a sample of queries; nothing of others."""
    return {"sampled": metrics["sampled"]} if "sampled" in metrics else {}


def _with_error(row: dict[str, Any], metric: str) -> str:
    """Return the model's metric, with ± its standard error if it is of a sample of queries."""
    from evergram.lineage.diagnosis import standard_errors, with_error

    error = standard_errors(row.get("sampled"), "model").get(metric)
    return with_error(number(_measured(row).get(metric)), error)


def _metric(recipe: dict[str, Any], measured: dict[str, float]) -> str | None:
    """Return the metric that selected the version, else the first measured one, else None."""
    chosen = recipe.get("training", {}).get("metric")
    return chosen if chosen in measured else next(iter(measured), None)


# Characters of a fingerprint in a table.
_SHORT = 12


@lineage_commands.command(epilog="Example: evergram lineage check lineages/shop --max-error 0.2")
def check(
    lineage: LineageFolder,
    max_error: Annotated[
        float | None,
        typer.Option(min=0, help="Limit of the relative error of any past version."),
    ] = None,
    max_bound: Annotated[
        float | None, typer.Option(min=0, help="Limit of the certificate's relative bound.")
    ] = None,
) -> None:
    """Show how well the newest version is read as every past one; exit code 1 past a limit.

    Every published file is compared with its hash first, and then transforms with canaries, stored
    vectors with both, and lineage.json with the folders; exit code 1 if they contradict each other.
    """
    from evergram.lineage.diagnosis import (
        contradictions,
        diagnose_lineage,
        past_limits,
        version_warnings,
    )
    from evergram.lineage.lineage import Lineage
    from evergram.lineage.score_maps import threshold_counts

    opened = Lineage.open(lineage)
    readings = diagnose_lineage(opened)
    thresholds = threshold_counts(opened)
    checked = opened.checked_files
    wrong = contradictions(opened)
    sentences = past_limits(readings, error=max_error, bound=max_bound)
    if is_json():
        rows = [r.as_json() for r in readings]
        facts = {"lineage": str(lineage), "version": opened.newest}
        warnings = {str(n): listed for n, listed in version_warnings(opened).items() if listed}
        dump(
            {
                **facts,
                "readings": rows,
                "past_limits": sentences,
                "contradictions": wrong,
                "warnings": warnings,
                "thresholds": [asdict(count) for count in thresholds],
                "checked": checked,
            }
        )
    else:
        _print_readings(opened, readings)
        for count in thresholds:
            paragraph(count.sentence)
        paragraph(
            f"{len(checked)} files were compared with their hashes, all that are published: "
            f"{_described(opened, checked)}."
        )
    for sentence in wrong:
        write_line("contradiction", sentence, level="warning")
    for sentence in sentences:
        write_line("past_limit", sentence, level="warning")
    if sentences or wrong:
        sys.exit(1)


# Nine columns are as many as eighty characters hold.
_READING = ["as", "error", "unseen", "cosine", "all", "on all", "estimate", "bound", "stretch"]
_EXPLANATION = """\
error: what --max-error compares: the error over the length of the vectors, on objects that
alignment never saw, such as those that came after a consumer's version. unseen: how many canaries
these are, and their cosine; where they are too few, error is the larger of on all and estimate.
all: how many canaries there are in all, and on all: their error. estimate and bound: the
certificate, of unseen objects; stretch: the amplification, which is the largest singular value.
"""


def _print_readings(lineage: Lineage, readings: list[Reading]) -> None:
    """Print a line for each past version, and a sentence on each figure that is not known."""
    from evergram.lineage.diagnosis import version_warnings

    lines = [_reading_line(r) for r in readings]
    table(f"Version {lineage.newest} of {lineage}, read as", _READING, lines)
    sys.stdout.write(_EXPLANATION)
    for reading in readings:
        for what, why in reading.unknown.items():
            what = "error on unseen objects" if what == "error" else what
            sys.stdout.write(f"Version {reading.version}: its {what} is not known: {why}.\n")
    print_warnings(version_warnings(lineage))


def _described(lineage: Lineage, checked: list[str]) -> str:
    """Return a phrase on the files that were compared with their hashes."""
    own = ["lineage.json"] if "lineage.json" in checked else []
    parts = {
        "versions": [m.version for m in lineage.versions],
        "embeddings": lineage.versions_with_embeddings,
    }
    for folder, numbers in parts.items():
        count = sum(name.startswith(f"{folder}/") for name in checked)
        own.append(f"{count} in {folder}/ (of {', '.join(map(str, numbers))})")
    return ", ".join(own)


def _reading_line(reading: Reading) -> list[str]:
    unseen, measured, certificate = reading.unseen, reading.measured, reading.certificate
    return [
        str(reading.version),
        number(reading.error),
        str(unseen.objects) if unseen else "–",
        number(unseen.cosine if unseen else None),
        str(measured.objects if measured else 0),
        number(measured.relative if measured else None),
        number(certificate.relative if certificate else None),
        number(certificate.relative_bound if certificate else None),
        number(reading.amplification),
    ]


_Version = Annotated[
    str,
    typer.Argument(
        metavar="VERSION",
        help="A number, a label or 'newest'.",
        show_default=True,
    ),
]


@lineage_commands.command(epilog="Example: evergram lineage label lineages/shop trusted v1")
def label(
    lineage: LineageFolder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the label.")],
    version: Annotated[
        str | None,
        typer.Argument(metavar="VERSION", help="A number, a label or 'newest'."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the label.")] = False,
) -> None:
    """Set a label on a version, move it there, or remove it; `stable` marks production."""
    from evergram.lineage.lineage import Lineage

    if remove == (version is not None):
        raise LineageError("Give the version to put the label on, or --remove and no version.")
    opened = Lineage.open(lineage)
    if version is None:
        opened.unlabel(name)
    else:
        opened.label(name, version)
    _print_labels(opened)


@lineage_commands.command(epilog="Example: evergram lineage promote lineages/shop v1")
def promote(lineage: LineageFolder, version: _Version = "newest") -> None:
    """Put a version into production, or put an earlier one back: the label `stable` moves to it."""
    from evergram.lineage.lineage import Lineage

    opened = Lineage.open(lineage)
    opened.promote(version)
    _print_labels(opened)


@lineage_commands.command(epilog="Example: evergram lineage withdraw lineages/shop --reason broken")
def withdraw(
    lineage: LineageFolder,
    reason: Annotated[str, typer.Option(help="The reason, which is kept.")],
) -> None:
    """Withdraw the newest version, if no label and no consumer is on it.

    Its number is never used again.
    """
    from evergram.lineage.lineage import Lineage

    opened = Lineage.open(lineage)
    opened.withdraw(opened.newest, reason)
    _print_labels(opened)


@lineage_commands.command(epilog="Example: evergram lineage retire lineages/shop v0")
def retire(lineage: LineageFolder, version: _Version) -> None:
    """Make an old version unreadable, if no label and no consumer is on it."""
    from evergram.lineage.lineage import Lineage

    opened = Lineage.open(lineage)
    opened.retire(version)
    _print_labels(opened)


def _print_labels(lineage: Lineage) -> None:
    """Print the version of every label, and which versions may be read."""
    labels = ", ".join(f"{name}: {n}" for name, n in sorted(lineage.labels.items())) or "none"
    show(
        {
            "lineage": str(lineage),
            "newest": lineage.newest,
            "production": lineage.production,
            "labels": lineage.labels,
            "readable": lineage.readable,
            "held": lineage.versions_with_embeddings,
            "retired": lineage.retired,
            "withdrawn": {str(n): w.model_dump() for n, w in lineage.withdrawn.items()},
        },
        f"Production: version {lineage.production}; newest: version {lineage.newest}; "
        f"labels: {labels}.",
    )
