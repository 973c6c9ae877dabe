"""The page of `--report`: one HTML file on a published version, which loads nothing from elsewhere.

It is drawn from the version's metrics and from the warnings of publishing alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evergram.atomic_files import replace_file, try_writing
from evergram.errors import DataError
from evergram.evaluation.html_page import (
    NONE,
    Axes,
    Line,
    chart,
    figures,
    not_measured,
    page,
    paragraph,
    section,
    table,
    warning_list,
)

_ENDED = {
    "patience": "the metric no longer improved (training.patience)",
    "epochs": "all epochs ran (training.epochs)",
    "budget": "its time was over (training.budget)",
    "minutes": "its time was over (--minutes)",
}
_DATA = {
    "interactions": "rows of training",
    "queries": "queries",
    "candidates": "candidates",
    "repeats": "rows that repeat an earlier pair",
    "test_pairs": "test pairs",
    "test_queries": "test queries",
    "unknown_test_candidates": "test pairs of candidates outside the catalogue (certain misses)",
    "unknown_queries": "held-out pairs left out: training knows nothing of their query",
    "trained_before": "held-out pairs left out: an earlier version was trained on them",
    "in_training": "held-out pairs left out: the training data has them, too",
}
_MODELS = {
    "model": "this version",
    "alone": "the same model, trained without alignment",
    "popularity": "popularity",
}


def refuse_unwritable(path: Path | None) -> None:
    """Refuse a path at which no report could be written; None is never refused. Raises:
    DataError."""
    if path is None:
        return
    if path.suffix != ".html" or path.is_dir():
        raise DataError(f"--report {path} must be a file that ends in .html.")
    try:
        try_writing(path.absolute().parent)
    except OSError as error:
        raise DataError(
            f"--report {path} cannot be written: {error.strerror or error}; give a file in a "
            "folder that you may write to."
        ) from None


def write_report(
    path: Path, lineage: str, metric: str, metrics: Mapping[str, Any], warnings: Sequence[str]
) -> None:
    """Write the page of a version, by its metrics and the warnings of publishing it.

    Args:
        lineage: its name.
        metric: by which its best epoch was chosen.
    Raises: DataError: the version is published, and its report cannot be written.
    """
    version = metrics["version"]
    body = [
        section("Warnings", _warnings(metric, metrics, warnings)),
        section("What it was trained on", _data(metrics)),
        section("How training went", training_figures(metrics, metric)),
        section("Metrics on the test pairs", *_metrics(metrics)),
    ]
    if version:
        body += [
            section("What past versions keep", *_readings(metric, metrics)),
            section("Certificate", *_certificate(metrics)),
            section("Consumers", _probes(metrics)),
        ]
    try:
        replace_file(path, page(f"Version {version} of {lineage}", body).encode())
    except OSError as error:
        raise DataError(
            f"Version {version} is published, and its report could not be written: "
            f"{path}: {error.strerror or error}. Its numbers are in the version's metrics."
        ) from error


def number(value: float | None, error: float | None = None) -> str:
    """Return a measure's text, with ± its standard error if it has one."""
    if value is None or math.isnan(value):
        return NONE
    known = error is not None and math.isfinite(error)
    return f"{value:.4f} ± {error:.4f}" if known else f"{value:.4f}"


def share(value: float | None, of: float | None) -> str:
    """Return a value in percent of another one; "not measured" where that is not above 0."""
    if value is None or of is None or not of > 0:
        return NONE
    return f"{value / of:.1%}"


def training_figures(metrics: Mapping[str, Any], metric: str) -> str:
    """Return the curves of the objective and of the selection metric, and what ended training."""
    training = metrics.get("training", {})
    history = training.get("history")
    if not history:
        return not_measured("The curve", "This model was not trained here.")
    chosen = training["best_epoch"]
    charts = []
    for key, title in (("objective", "Objective"), (metric, f"{metric} on the selection pairs")):
        points = [(e["epoch"], e[key]) for e in history if e.get(key) is not None]
        ends = f"{points[0][1]:.4g} at first, {points[-1][1]:.4g} at last" if points else "no point"
        alt = f"{title} by epoch: {ends}; chosen epoch {chosen}"
        axes = Axes(title, alt, "epoch", (chosen, f"chosen: {chosen}"))
        charts.append(chart(axes, [Line(title, points)]))
    refit = training.get("refit")
    again = (
        f" Then it was trained once more, on all {refit['interactions']:,} rows that are not test, "
        f"for {refit['steps']:,} steps."
        if refit
        else ""
    )
    sentence = (
        f"Epoch {chosen} of {training['epochs']} was chosen; training ended because "
        f"{_ENDED.get(training['ended'], training['ended'])}, after {training['seconds']:.1f} "
        f"seconds without evaluation.{again}"
    )
    return paragraph(sentence) + figures(*charts)


def _readings(metric: str, metrics: Mapping[str, Any]) -> list[str]:
    rows = []
    for version, reading in metrics.get("compatibility", {}).items():
        ranking, errors = reading["ranking"], reading.get("sampled", {}).get("errors", {})
        own, chain = (ranking.get(name, {}).get(metric) for name in ("past", "chain"))
        drift = reading["drift"]["held_out"]
        rows.append(
            [
                f"version {version}",
                f"{drift['relative']:.1%}" if drift.get("objects") else NONE,
                f"{reading['queries']:,}",
                number(own, errors.get("past", {}).get(metric)),
                number(chain, errors.get("chain", {}).get(metric)),
                share(chain, own),
            ]
        )
    if not rows:
        return [not_measured("Past versions", "None of them was read by this version.")]
    header = ["read as", "error", "queries", "itself", "through the chain", "of itself"]
    text = (
        f"{metric} on the test queries and the candidates that each past version knew: by "
        "that version itself, and by this version through the chain of backward transforms. The "
        "error is on objects that alignment never saw, over the length of their past vectors. A "
        "version that is not here was not measured."
    )
    return [paragraph(text), table(f"{metric} kept", header, rows)]


def _certificate(metrics: Mapping[str, Any]) -> list[str]:
    certificates = metrics.get("certificate", {})
    names = ("estimate", "bound", "relative", "relative_bound")
    rows = [
        [f"version {version}", *(number(certificate.get(name)) for name in names)]
        for version, certificate in certificates.items()
    ]
    header = ["read as", "estimate", "bound", "estimate, relative", "bound, relative"]
    text = (
        "Root mean square error of reading this version as a past one: at most the bound, on "
        "objects like those that the steps were measured on; the estimate, if errors of steps are "
        "uncorrelated; relative to the length of the past vectors. `evergram lineage check` says "
        "why a version has none."
    )
    return [paragraph(text), table("Certificate", header, rows)]


def _probes(metrics: Mapping[str, Any]) -> str:
    probes = metrics.get("probes")
    if not probes:
        return not_measured("Consumers", "No consumer of this lineage has a probe.")
    rows = [
        [
            *(probe[name] for name in ("consumer", "pinned", "metric")),
            number((probe["baseline"] or {}).get("value")),
            number(probe["value"]),
            number(probe["limit"]),
            *(f"{probe[name]:,}" for name in ("objects", "missing")),
            probe.get("sentence") or "within its limit",
        ]
        for probe in probes
    ]
    header = ["consumer", "pinned", "metric", "when added", "now", "limit", "objects", "missing"]
    return table("Probes, before and after", [*header, "in words"], rows, words=[1, 2, 8])


def _warnings(metric: str, metrics: Mapping[str, Any], published: Sequence[str]) -> str:
    training = metrics.get("training", {})
    sentences = [*training.get("warnings", ()), *training.get("alone", {}).get("warnings", ())]
    rankings = metrics.get("metrics", {})
    own, popular = (rankings.get(m, {}).get(metric) for m in ("model", "popularity"))
    if own is not None and popular is not None and own <= popular:
        sentences.append(
            f"It ranks no better than popularity: {metric} {own:.4f}, and {popular:.4f} by "
            "the number of pairs alone."
        )
    sentences += published
    return warning_list(list(dict.fromkeys(sentences))) if sentences else paragraph("None.")


def _data(metrics: Mapping[str, Any]) -> str:
    data = metrics.get("data", {})
    rows = [[name, f"{data[key]:,}" if key in data else NONE] for key, name in _DATA.items()]
    return table("Data", ["", "number"], rows)


def _metrics(metrics: Mapping[str, Any]) -> list[str]:
    sampled = metrics.get("sampled")
    if "untested" in metrics:
        return [not_measured("Metrics", metrics["untested"])]
    rankings = metrics.get("metrics", {})
    names = list(rankings.get("model", {}))
    errors = {} if sampled is None else sampled.get("errors", {})
    rows = []
    for model, title in _MODELS.items():
        if model in rankings:
            of_model = errors.get(model, {})
            rows.append([title, *(number(rankings[model].get(n), of_model.get(n)) for n in names)])
        elif model == "alone" and "compatibility" in metrics:
            rows.append([title, *([NONE] * len(names))])
    sentence = (
        "All test queries were ranked."
        if sampled is None
        else f"Measured on {sampled['queries']:,} of {sampled['of']:,} test queries, drawn at "
        "random; ± is a standard error."
    )
    notes = [paragraph(sentence, "dim")]
    if "compatibility" in metrics and "alone" not in rankings:
        notes.append(paragraph("No model was trained without alignment (upgrade.alone = false)."))
    return [table("Metrics", ["", *names], rows), *notes]
