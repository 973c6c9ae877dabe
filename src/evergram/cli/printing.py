"""Print results to stdout: tables and sentences for people, JSON for machines."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from evergram.cli.app import run


class Grid(NamedTuple):
    """A table: its title, column names and lines."""

    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]


def show(facts: dict[str, Any], *parts: str | Grid) -> None:
    """Print the result of a command: with `--json` its facts as JSON (NaN and infinity as null),
    otherwise `parts` (sentences and tables) or, without these, one fact per line."""
    if run.json:
        from evergram.lineage.artefact import plain_numbers

        sys.stdout.write(json.dumps(plain_numbers(facts), indent=2) + "\n")
        return
    for part in parts or [f"{key.replace('_', ' ')}: {_words(v)}" for key, v in facts.items()]:
        if isinstance(part, Grid):
            table(*part)
        else:
            sys.stdout.write(f"{part}\n")


def _words(value: Any) -> str:
    """Format a fact for people."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_words(x)}" for name, x in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value) or "none"


def table(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in header:
        is_text = name in ("", "name", "method", "created", "fingerprint", "labels")
        justify: Literal["left", "right"] = "left" if is_text else "right"
        table.add_column(name, justify=justify, no_wrap=name == "method")
    for line in lines:
        table.add_row(*line)
    # No markup, because data such as the contact "ops [at] shop" may look like it.
    Console(markup=False, emoji=False).print(table)


def paragraph(text: str) -> str:
    """Wrap text at 80 characters."""
    return textwrap.fill(text, 80, break_on_hyphens=False)


def number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4f}"


def print_version(lineage: str, metrics: dict[str, Any], then: str = "") -> None:
    """Print a published version's metrics and, for people, the command to run `then`."""
    title, sampled = f"Version {metrics['version']} in {lineage}", metrics.get("sampled")
    parts = metrics_table(title, metrics["metrics"], sampled, _MODELS)
    if metrics.get("training", {}).get("history"):
        parts.append(_training_sentence(metrics["training"]))
    if overlap := metrics.get("overlap"):
        parts.append(
            f"{overlap['common']} objects in common with the previous version: aligned on "
            f"{overlap['fitted']}, error measured on {overlap['held_out']}."
        )
    for past, reading in metrics.get("compatibility", {}).items():
        parts += _reading(past, reading)
    if metrics.get("probes"):
        parts.append(probes_table(metrics["probes"]))
    if metrics.get("skew"):
        parts.append(skew_table(metrics["skew"]))
    if then:
        parts.append(f"Next: {then}")
    show({"lineage": lineage, **metrics}, *parts)


def _reading(past: str, reading: dict[str, Any]) -> Iterator[str | Grid]:
    """Yield tables and sentences on how well a new version can be read as a past one."""
    if queries := reading["queries"]:
        total = reading.get("sampled", {}).get("of")
        sample = f"the {queries}" if total is None else f"{queries} of the {total}"
        title = f"Read as version {past} (on {sample} test queries that it knew)"
        yield from metrics_table(title, reading["ranking"], reading.get("sampled"), _READINGS)
    else:
        yield f"Read as version {past}: no ranking, as it knew none of the test queries."
    for kind, drift in reading["drift"].items():
        if drift["objects"]:
            distance = f"{drift['l2']:.4f} ({drift['relative']:.1%} of their length)"
            objects = f"{drift['objects']} {_OBJECTS[kind]}"
            yield f"mean distance to version {past} on {objects}: {distance}"
    yield f"overlap@10 with version {past}: {number(reading['overlap@10'])}"


def probes_table(probes: list[dict[str, Any]], title: str = "Consumers' probes") -> Grid:
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
    return Grid(title, header, lines)


def skew_table(report: dict[str, Any]) -> Grid:
    """Return the readings of `SkewReport.as_json` as a table."""
    names, lines = list(report["probes"]), []
    fresh = [number(report["fresh"]), "1.0000", "0.0000", *map(number, report["probes"].values())]
    lines.append(["none", "", *fresh])
    for one in report["readings"]:
        stale = ", ".join(f"{share:.0%} {age} old" for age, share in one["stale"].items())
        ends = (one["low"], one["loss"], one["high"])
        lost = "–" if None in ends else f"−{ends[1]:.2f} % ({ends[0]:.2f}…{ends[2]:.2f})"
        scores = (one["above"], one["calibration"], *map(one["probes"].get, names))
        lines.append([stale, one["read"], lost, *map(number, scores)])
    title = f"Version {report['version']}, while rows are stale"
    return Grid(title, ["stale rows", "read", report["metric"], "above", "ECE", *names], lines)


def _training_sentence(training: dict[str, Any]) -> str:
    """Return a sentence on a model's training data, its epochs and its weights."""
    data = "the training pairs"
    if refit := training["refit"]:
        count = f"{refit['interactions']:,} interactions"
        data = f"all {count} except test pairs, for {refit['steps']:,} steps"
    penalties = ", ".join(f"{value:.4g}" for value in training["penalty"])
    weights = f"λ = {penalties}, l2 = {training['l2']:.4g}"
    if pilots := training.get("pilots"):
        optimizer = f"training.table_rate = {training['table_rate']:.4g}"
        if training.get("optimizer") == "als":
            optimizer = 'training.optimizer = "als"'
        measure = f'task.l2_measure = "{training["l2_measure"]}"'
        weights += f", {measure} and {optimizer}, as {len(pilots)} pilots chose"
    epochs = f"{training['epochs']} epoch{'s' * (training['epochs'] != 1)}"
    return (
        f"Trained on {data}: {epochs} (stopped by: {training['ended']}); epoch "
        f"{training['best_epoch']} was best on the selection pairs; {weights}."
    )


_OBJECTS = {"held_out": "objects that alignment never saw", "known": "objects that it knew"}
_MODELS = {"alone": "the same model, trained alone"}
_READINGS = {
    "past": "the old model's own vectors",
    "chain": "new vectors, through the chain",
    "raw": "new vectors, not transformed",
    "chain_candidates": "old queries, new candidates through the chain",
    "raw_candidates": "old queries, new candidates not transformed",
}


def metrics_table(
    title: str,
    metrics: dict[str, dict[str, float]],
    sampled: dict[str, Any] | None = None,
    titles: Mapping[str, str] | None = None,
) -> list[str | Grid]:
    """Return a table with a row of metrics per model, and a sentence on the sample, if any;
    `titles` maps a model to the title of its row."""
    from evergram.lineage.diagnosis import sample_sentence, standard_errors, with_error

    names = list(next(iter(metrics.values())))
    lines = []
    for model, values in metrics.items():
        errors = standard_errors(sampled, model)
        cells = [with_error(number(values.get(n)), errors.get(n)) for n in names]
        lines.append([(titles or {}).get(model, model), *cells])
    sentence = sample_sentence(sampled)
    return [Grid(title, ["", *names], lines), *([] if sentence is None else [sentence])]
