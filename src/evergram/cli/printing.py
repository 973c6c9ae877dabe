"""Print results on stdout: a table for people, JSON for machines."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evergram.cli.app import is_json

if TYPE_CHECKING:
    from evergram.training.diagnose import Diagnosis
    from evergram.vector_files.shards import WrittenShards


def dump(value: dict[str, Any]) -> None:
    """Print a value as JSON; NaN and infinity as null."""
    from evergram.lineage.version_files import plain_numbers

    sys.stdout.write(json.dumps(plain_numbers(value), indent=2) + "\n")


def show(facts: dict[str, Any], *sentences: str) -> None:
    """Print the result of a command: its facts as JSON, or sentences for people."""
    if is_json():
        dump(facts)
        return
    for sentence in sentences:
        sys.stdout.write(f"{sentence}\n")


def file_written(path: Path) -> str:
    """Return a file of vectors for a sentence, with the file of its ids where there is one."""
    from evergram.vector_files.open_embeddings import companion

    ids = companion(path)
    if path.suffix != ".npy":
        return str(path)
    return f"{path}, with its ids in {ids}" if ids.is_file() else f"{path}, without ids"


def written_to(path: Path, outcome: WrittenShards | None) -> str:
    """Return for a sentence what was written: a file, or a folder of shards, which may be whole."""
    if outcome is None:
        return file_written(path)
    written, kept, missing = map(len, (outcome.written, outcome.kept, outcome.missing))
    whole = f"missing: {missing}" if missing else "the set is whole"
    return f"{path} (shards written: {written}; there already: {kept}; {whole})"


def shard_facts(outcome: WrittenShards | None) -> dict[str, Any]:
    """Return the keys about shards of a command's JSON; none if a single file was written."""
    if outcome is None:
        return {}
    return {"written": outcome.written, "kept": outcome.kept, "missing": outcome.missing}


def print_version(lineage: str | Path, metrics: dict[str, Any], report: Path | None = None) -> None:
    """Print what was measured of a version, and where its report is, if one was written."""
    if is_json():
        dump({"lineage": str(lineage), **metrics, **({"report": str(report)} if report else {})})
        return
    title, sampled = f"Version {metrics['version']} in {lineage}", metrics.get("sampled")
    metrics_table(title, metrics["metrics"], sampled)
    if metrics.get("training", {}).get("history"):
        sys.stdout.write(_training_sentence(metrics["training"]) + "\n")
    if "overlap" in metrics:
        _print_overlap(metrics["version"], metrics["overlap"])
    for past, reading in metrics.get("compatibility", {}).items():
        _print_reading(past, reading)
    if metrics.get("probes"):
        print_probes(metrics["probes"])
    if report is not None:
        sys.stdout.write(f"Report: {report}\n")


def _print_overlap(version: int, overlap: dict[str, Any]) -> None:
    sys.stdout.write(
        f"{overlap['common']} objects in common with the version before: {overlap['fitted']} that "
        f"version {version} was aligned on, {overlap['held_out']} that its error was measured on.\n"
    )


def _print_reading(past: str, reading: dict[str, Any]) -> None:
    """Print how well a new version is read as a past one, and what could not be measured."""
    if reading["queries"]:
        metrics_table(
            f"Read as version {past} (by {_known_queries(reading)} test queries that it knew)",
            reading["ranking"],
            reading.get("sampled"),
            _READINGS,
        )
    else:
        sys.stdout.write(
            f"Read as version {past}: no ranking was measured, as it knew none of the test "
            "queries.\n"
        )
    for kind, drift in reading["drift"].items():
        if not drift["objects"]:
            sys.stdout.write(f"distance to version {past}: there are no {_OBJECTS[kind]}\n")
            continue
        sys.stdout.write(
            f"mean distance to version {past} on {drift['objects']} {_OBJECTS[kind]}: "
            f"{drift['l2']:.4f} ({drift['relative']:.1%} of their length), {_MEETS[kind]}\n"
        )
    sys.stdout.write(f"overlap@10 with version {past}: {number(reading['overlap@10'])}\n")


def _known_queries(reading: dict[str, Any]) -> str:
    """Return how many queries a reading is by: all that the past version knew, or some of them."""
    of = reading.get("sampled", {}).get("of")
    return f"the {reading['queries']}" if of is None else f"{reading['queries']} of the {of}"


def print_probes(probes: list[dict[str, Any]], title: str = "Consumers' probes") -> None:
    header = ["name", "pinned", "metric", "value", "limit", "when added", "objects", "missing"]
    lines = [
        [
            p["consumer"],
            p["pinned"],
            p["metric"],
            number(p["value"]),
            number(p["limit"]),
            number((p["baseline"] or {}).get("value")),
            str(p["objects"]),
            str(p["missing"]),
        ]
        for p in probes
    ]
    table(title, header, lines)


def print_warnings(warnings: dict[int, list[str]]) -> None:
    """Print the warnings of each version."""
    for version, sentences in warnings.items():
        for sentence in sentences:
            sys.stdout.write(f"Version {version}: {sentence}\n")


def _training_sentence(training: dict[str, Any]) -> str:
    """Return a sentence on the data that a model was trained on, and on what ended its training."""
    chosen = (
        f"{_ENDED[training['ended']].format(training['epochs'])}; epoch {training['best_epoch']} "
        "was best on the selection pairs"
    )
    strengths = ", ".join(f"{value:.4g}" for value in training["penalty"])
    weights = f"λ = {strengths}, l2 = {training['l2']:.4g}"
    if pilots := training.get("pilots"):
        how = f"training.table_rate = {training['table_rate']:.4g}"
        if training.get("optimizer") == "als":
            how = 'training.optimizer = "als"'
        weights += (
            f', task.l2_measure = "{training["l2_measure"]}" and {how}, '
            f"as {len(pilots)} pilots chose"
        )
    if popularity := training.get("popularity"):
        power = f"{popularity['exponent']:.4g}"
        weights += f"; candidates times count^{power} ({popularity['reason']})"
    refit = training["refit"]
    if refit:
        return (
            f"Trained on all {refit['interactions']:,} interactions that are not test, for "
            f"{refit['steps']:,} steps: {chosen}; {weights}."
        )
    return f"Trained on the training pairs alone: {chosen}; {weights}."


_ENDED = {
    "patience": "ended by training.patience after {} epochs",
    "epochs": "all {} epochs ran",
    "budget": "ended by training.budget after {} epochs",
    "minutes": "ended by --minutes after {} epochs",
}
_OBJECTS = {"held_out": "objects that alignment never saw", "known": "objects that it knew"}
# Which of the two a consumer meets: docs/upgrading.md, "What is known of every past version".
_MEETS = {
    "held_out": "as its consumers meet it on objects that came later",
    "known": "as its consumers meet it on their own objects",
}
_READINGS = {
    "past": "version itself",
    "chain": "new, through the chain",
    "raw": "new, as it is",
    "chain_candidates": "own queries, new candidates through the chain",
    "raw_candidates": "own queries, new candidates as they are",
}


def metrics_table(
    title: str,
    metrics: dict[str, dict[str, float]],
    sampled: dict[str, Any] | None = None,
    titles: Mapping[str, str] | None = None,
) -> None:
    """Print a row of metrics for each model.

    Args:
        sampled: of metrics of a sample of queries, their standard errors and the sample's size.
        titles: of the rows, by model; the model's name where there is none.
    """
    from evergram.lineage.diagnosis import sample_sentence, standard_errors, with_error

    names = list(next(iter(metrics.values())))
    lines = []
    for model, values in metrics.items():
        errors = standard_errors(sampled, model)
        cells = [with_error(number(values.get(n)), errors.get(n)) for n in names]
        lines.append([(titles or {}).get(model, model), *cells])
    table(title, ["", *names], lines)
    if (sentence := sample_sentence(sampled)) is not None:
        sys.stdout.write(sentence + "\n")


def table(title: str, header: list[str], lines: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in header:
        left = name in ("", "name", "method", "created", "fingerprint", "labels")
        justify: Literal["left", "right"] = "left" if left else "right"
        table.add_column(name, justify=justify, no_wrap=name == "method")
    for line in lines:
        table.add_row(*line)
    # What is printed is data: a contact "ops [at] shop" has no markup in it.
    Console(markup=False, emoji=False).print(table)


def paragraph(text: str) -> None:
    """Print text in lines of 80 characters."""
    sys.stdout.write(textwrap.fill(text, 80, break_on_hyphens=False) + "\n")


def number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4f}"


def print_diagnosis(diagnosis: Diagnosis, steps: int) -> None:
    """Print the spectrum of each side, the scores, and the error of each estimator."""
    from evergram.training.monitors.gramian_tracking import OWN

    table(
        f"Version {diagnosis.version}",
        ["", *next(iter(diagnosis.sides.values()))],
        [[side, *(f"{v:.4g}" for v in facts.values())] for side, facts in diagnosis.sides.items()],
    )
    scores, tracking = diagnosis.histograms, diagnosis.tracking
    sys.stdout.write(
        f"Mean score of observed pairs {scores.means[0]:.4f}, of random pairs "
        f"{scores.means[1]:.4f}; an observed one is higher {scores.separation:.1%} of the time.\n"
    )
    if tracking is None:
        sys.stdout.write(diagnosis.left_out + "\n")
        return
    gramian, gradient = diagnosis.gramian_error, diagnosis.gradient_error
    own = {OWN: diagnosis.own}
    table(
        f"Errors over the second half of {steps} steps{tracking.sampling}",
        ["estimator", "Gramian", "gradient"],
        [[own.get(name, name), str(gramian[name]), str(gradient[name])] for name in gramian],
    )
