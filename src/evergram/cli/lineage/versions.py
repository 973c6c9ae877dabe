"""Commands that read a lineage."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergram.cli.app import lineage_commands
from evergram.cli.options import (
    Json,
    LineageFolder,
)
from evergram.cli.printing import (
    dump,
    number,
    paragraph,
    print_warnings,
    table,
)
from evergram.log_lines import write_line

if TYPE_CHECKING:
    from evergram.lineage.canary_check import Reading
    from evergram.lineage.lineage import Lineage


@lineage_commands.command("list", epilog="Example: evergram lineage list lineages/shop")
def list_versions(
    lineage: LineageFolder,
    as_json: Json = False,
) -> None:
    """List the versions of a lineage: dims, metric, labels, and which is in production."""
    from evergram.lineage.lineage import Lineage
    from evergram.lineage.version_warnings import version_warnings

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
    if as_json:
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
    if not rows:
        return
    kinds = [k for k in ("manifest.json", "metrics.json") if any(f.endswith(k) for f in checked)]
    paragraph(
        f"Compared with their hashes: {'lineage.json, and ' if 'lineage.json' in checked else ''}"
        f"{' and '.join(kinds)} of each version. 'evergram lineage check' compares every file."
    )


def _measured(row: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of the model itself; none where its publisher stated none."""
    measured: dict[str, float] = row["metrics"].get("model", {})
    return measured


def _sample_of(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return `sampled` of metrics of a sample of queries; nothing of others."""
    return {"sampled": metrics["sampled"]} if "sampled" in metrics else {}


def _with_error(row: dict[str, Any], metric: str) -> str:
    """Return the model's metric, with ± its standard error if it is of a sample of queries."""
    from evergram.lineage.version_warnings import standard_errors, with_error

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
    max_amplification: Annotated[
        float | None,
        typer.Option(min=0, help="Limit of the largest singular value of the backward transforms."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how well the newest version is read as every past one; exit code 1 past a limit.

    Every published file is compared with its hash first, and then transforms with canaries, stored
    vectors with both, and lineage.json with the folders; exit code 1 if they contradict each other.
    """
    from evergram.lineage.canary_check import (
        CompatibilityLimits,
        diagnose_lineage,
        past_limits,
    )
    from evergram.lineage.canary_check import as_json as reading_json
    from evergram.lineage.contradictions import contradictions
    from evergram.lineage.lineage import Lineage
    from evergram.lineage.score_maps import threshold_counts
    from evergram.lineage.version_warnings import version_warnings

    opened = Lineage.open(lineage)
    readings = diagnose_lineage(opened)
    thresholds = threshold_counts(opened)
    checked = opened.checked_files
    wrong = contradictions(opened)
    sentences = past_limits(readings, CompatibilityLimits(max_error, max_bound, max_amplification))
    if as_json:
        rows = [reading_json(r) for r in readings]
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
    from evergram.lineage.version_warnings import version_warnings

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
