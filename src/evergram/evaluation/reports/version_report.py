"""Write the report of a version: one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evergram.atomic_files import replace_file
from evergram.evaluation.breakdown import Stratum
from evergram.evaluation.gramian_error import Histograms
from evergram.evaluation.ranking import parse_metric
from evergram.evaluation.reports.html_page import (
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


@dataclass(frozen=True)
class NotMeasured:
    """Stands where a measure would be.

    Args:
        why: a sentence.
    """

    why: str


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of a side's second moment under its measure.

    Args:
        shares: of the sum of eigenvalues, the largest first, [D].
        effective_rank: exp of the entropy of `shares`.
        entities: embeddings of the side.
    """

    shares: Sequence[float]
    effective_rank: float
    entities: int


@dataclass(frozen=True)
class Neighbours:
    """A candidate and its nearest others.

    Args:
        name: of the candidate, or its id.
        pairs: training pairs of it.
        popular: True for one of the most popular, False for one drawn at random.
        nearest: names and cosines, the nearest first.
    """

    name: str
    pairs: int
    popular: bool
    nearest: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class WorstQuery:
    """A query whose test pairs rank far down.

    Args:
        pairs: training pairs of it.
        tested: test pairs of it, those outside the catalogue left out.
        best, worst: ranks of the first and of the last of them.
    """

    id: str
    pairs: int
    tested: int
    best: int
    worst: int


@dataclass(frozen=True)
class KeptPast:
    """What is kept of a past version, on the queries and candidates that it knew.

    Args:
        new: the selection metric of the new version itself on the same queries and candidates.
        strata: recall of the past version itself ("past"), of the new one through the chain
            ("chain") and of the new one itself ("new").
    """

    new: float
    strata: Sequence[Stratum]


@dataclass(frozen=True)
class VersionFacts:
    """The measures of one version.

    Args:
        lineage: its name.
        version: the number.
        metric: the selection metric.
        metrics: as published, JSON.
        spectra: by side.
        scores: of observed and of random pairs.
        worst: the worst query first.
        by_popularity, by_pairs: recall of the strata of candidates, and of queries.
        kept: by past version; empty for version 0.
        warnings: sentences.
    """

    lineage: str
    version: int
    metric: str
    metrics: Mapping[str, Any]
    spectra: Mapping[str, Spectrum] | NotMeasured
    scores: Histograms | NotMeasured
    neighbours: Sequence[Neighbours] | NotMeasured
    worst: Sequence[WorstQuery] | NotMeasured
    by_popularity: Sequence[Stratum] | NotMeasured
    by_pairs: Sequence[Stratum] | NotMeasured
    kept: Mapping[str, KeptPast | NotMeasured] = field(default_factory=dict)
    warnings: Sequence[str] = ()


_ENDED = {
    "patience": "the metric no longer improved (training.patience)",
    "epochs": "all epochs ran (training.epochs)",
    "budget": "its time was over (training.budget)",
    "minutes": "its time was over (--minutes)",
}


def number(value: float | None, error: float | None = None) -> str:
    """Return a measure's text, with ± its standard error if it has one."""
    if value is None or math.isnan(value):
        return NONE
    known = error is not None and math.isfinite(error)
    return f"{value:.4f} ± {error:.4f}" if known else f"{value:.4f}"


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
        ends = (
            "no point"
            if not points
            else f"{points[0][1]:.4g} at first, {points[-1][1]:.4g} at last"
        )
        axes = Axes(
            title,
            f"{title} by epoch: {ends}; chosen epoch {chosen}",
            "epoch",
            (chosen, f"chosen: {chosen}"),
        )
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


def histogram_figure(scores: Histograms) -> str:
    """Return the histograms of observed and of random pairs. [G2] Fig. 4."""
    edges = scores.edges.tolist()
    lines = []
    for name, density in (("observed pairs", scores.observed), ("random pairs", scores.random)):
        bins = zip(edges[:-1], density.tolist(), strict=True)
        lines.append(Line(name, [(edges[0], 0.0), *bins, (edges[-1], 0.0)], "steps"))
    means = f"{scores.means[0]:.4f} on average for observed pairs, {scores.means[1]:.4f} for random"
    sentence = (
        f"The score is {means}; an observed one is the higher one {scores.separation:.1%} of the "
        "time."
    )
    alt = f"Histograms of scores: {means}"
    axes = Axes("Density of scores", alt, "score", from_zero=True)
    return paragraph(sentence) + figures(chart(axes, lines))


def spectrum_figure(spectra: Mapping[str, Spectrum]) -> str:
    """Return the shares of the eigenvalues of both sides, and their effective ranks."""
    rows = [
        [
            side,
            f"{s.entities:,}",
            str(len(s.shares)),
            f"{s.effective_rank:.2f}",
            f"{s.shares[0]:.1%}",
        ]
        for side, s in spectra.items()
    ]
    header = ["side", "embeddings", "dims", "effective rank", "largest share"]
    lines = [Line(side, list(enumerate(s.shares, 1))) for side, s in spectra.items()]
    ranks = ", ".join(
        f"{s.effective_rank:.2f} of {len(s.shares)} ({side})" for side, s in spectra.items()
    )
    axes = Axes(
        "Share of each eigenvalue",
        f"Shares of eigenvalues, largest first; effective rank {ranks}",
        "eigenvalue, the largest first",
        logarithmic=True,
    )
    figure = figures(chart(axes, lines))
    note = paragraph(
        "Of the second moment of each side under its measure. The effective rank is the number of "
        "equal eigenvalues with the same entropy.",
        "dim",
    )
    return table("Spectrum", header, rows) + note + figure


def kept_sections(facts: VersionFacts, metrics: Mapping[str, Any]) -> list[str]:
    """Return the sections of what is kept; none for version 0.

    Args:
        metrics: as they were published, with probes.
    """
    if not facts.kept:
        return []
    return [
        section("What past versions keep", *_readings(facts, metrics)),
        section("What past versions keep by popularity of candidates", *_kept_by_popularity(facts)),
        section("Certificate", *_certificate(facts, metrics)),
        section("Consumers", _probes(metrics)),
    ]


def _readings(facts: VersionFacts, metrics: Mapping[str, Any]) -> list[str]:
    rows, why = [], []
    for version, kept in facts.kept.items():
        reading = metrics.get("compatibility", {}).get(version, {})
        ranking, errors = reading.get("ranking", {}), reading.get("sampled", {}).get("errors", {})
        own, chain = (ranking.get(name, {}).get(facts.metric) for name in ("past", "chain"))
        drift = reading.get("drift", {}).get("held_out", {})
        new = kept.new if isinstance(kept, KeptPast) else None
        if isinstance(kept, NotMeasured):
            why.append(not_measured(f"Version {version}", kept.why))
        rows.append(
            [
                f"version {version}",
                f"{drift['relative']:.1%}" if drift.get("objects") else NONE,
                f"{reading['queries']:,}" if "queries" in reading else NONE,
                number(own, errors.get("past", {}).get(facts.metric)),
                number(chain, errors.get("chain", {}).get(facts.metric)),
                share(chain, own),
                number(new),
                share(chain, new),
            ]
        )
    header = [
        "read as",
        "error",
        "queries",
        "itself",
        "through the chain",
        "of itself",
        "this version",
        "of this version",
    ]
    text = (
        f"{facts.metric} on the test queries and the candidates that each past version knew: by "
        "that version itself, by this version through the chain of backward transforms, and by "
        "this version itself. The error is on objects that alignment never saw, over the length "
        "of their past vectors."
    )
    return [paragraph(text), table(f"{facts.metric} kept", header, rows), *why]


def share(value: float | None, of: float | None) -> str:
    """Return a value in percent of another one; "not measured" where that is not above 0."""
    if value is None or of is None or not of > 0:
        return NONE
    return f"{value / of:.1%}"


def _kept_by_popularity(facts: VersionFacts) -> list[str]:
    k, parts = parse_metric(facts.metric)[1], []
    for version, kept in facts.kept.items():
        if isinstance(kept, NotMeasured):
            parts.append(not_measured(f"Version {version}", kept.why))
            continue
        rows = []
        for stratum in kept.strata:
            own, chain, new = (stratum.values[name] for name in ("past", "chain", "new"))
            cells = [number(own), number(chain), share(chain, own), number(new)]
            if not stratum.measured:
                cells = [f"{NONE} (no test pairs)", *([NONE] * 3)]
            elif not own:
                cells[2] = f"{NONE} (version {version} finds none)"
            rows.append([stratum.name, f"{stratum.members:,}", f"{stratum.measured:,}", *cells])
        header = [
            "candidates",
            "how many",
            "test pairs",
            "itself",
            "through the chain",
            "kept",
            "this version",
        ]
        parts.append(table(f"Version {version}: recall@{k} of test pairs", header, rows))
    return parts


def _certificate(facts: VersionFacts, metrics: Mapping[str, Any]) -> list[str]:
    certificates = metrics.get("certificate", {})
    rows = []
    for version in facts.kept:
        one = certificates.get(version)
        names = ("estimate", "bound", "relative", "relative_bound")
        rows.append([f"version {version}", *(number((one or {}).get(name)) for name in names)])
    header = ["read as", "estimate", "bound", "estimate, relative", "bound, relative"]
    text = (
        "Root mean square error of reading this version as a past one: at most the bound, on "
        "objects like those that the steps were measured on; the estimate, if errors of steps are "
        "uncorrelated; relative to the length of the past vectors."
    )
    parts = [paragraph(text), table("Certificate", header, rows)]
    missing = [version for version in facts.kept if version not in certificates]
    if missing:
        why = (
            "A step on the way is not affine, or its error was measured on too few objects or not "
            "at all; `evergram lineage check` says which."
        )
        parts.append(not_measured(f"Certificate of version {', '.join(missing)}", why))
    return parts


def _probes(metrics: Mapping[str, Any]) -> str:
    probes = metrics.get("probes")
    if not probes:
        return not_measured("Consumers", "No consumer of this lineage has a probe.")
    rows = [
        [
            probe["consumer"],
            probe["pinned"],
            probe["metric"],
            number((probe["baseline"] or {}).get("value")),
            number(probe["value"]),
            number(probe["limit"]),
            f"{probe['objects']:,}",
            f"{probe['missing']:,}",
            probe.get("sentence") or "within its limit",
        ]
        for probe in probes
    ]
    header = ["consumer", "pinned", "metric", "when added", "now", "limit", "objects", "missing"]
    header.append("in words")
    return table("Probes, before and after", header, rows, words=[1, 2, 8])


_DATA = (
    ("interactions", "rows of training"),
    ("queries", "queries"),
    ("candidates", "candidates"),
    ("repeats", "rows that repeat an earlier pair"),
    ("test_pairs", "test pairs"),
    ("test_queries", "test queries"),
    ("unknown_test_candidates", "test pairs of candidates outside the catalogue (certain misses)"),
    ("unknown_queries", "held-out pairs left out: training knows nothing of their query"),
    ("trained_before", "held-out pairs left out: an earlier version was trained on them"),
    ("in_training", "held-out pairs left out: the training data has them, too"),
)
_MODELS = {
    "model": "this version",
    "alone": "the same model, trained without alignment",
    "popularity": "popularity",
}


def write_version_report(
    path: Path,
    facts: VersionFacts,
    metrics: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> Path:
    """Write what was measured of a version; what was not says so, and why.

    Args:
        metrics: as they were published, with probes; by default those of `facts`.
        warnings: beside those of training, such as `Published.warnings`.
    Returns: path.
    """
    published = facts.metrics if metrics is None else metrics
    k = parse_metric(facts.metric)[1]
    body = [
        section("Warnings", _warnings(facts, published, warnings)),
        section("What it was trained on", _data(published)),
        section("How training went", training_figures(published, facts.metric)),
        section("Metrics on the test pairs", *_metrics(published)),
        *kept_sections(facts, published),
        section("Scores", _or_why(facts.scores, "Scores", histogram_figure)),
        section("Spectrum", _or_why(facts.spectra, "Spectrum", spectrum_figure)),
        section(
            f"Recall@{k} by popularity of candidates",
            paragraph(
                f"Of the test pairs of each part of the catalogue, the share that is within the "
                f"first {k} of its query's list."
            ),
            _or_why(facts.by_popularity, "Recall by popularity", lambda x: _strata(x, k, "pairs")),
        ),
        section(
            f"Recall@{k} by training pairs of a query",
            _or_why(facts.by_pairs, "Recall by pairs", lambda x: _strata(x, k, "queries")),
        ),
        section("Nearest neighbours", _or_why(facts.neighbours, "Neighbours", _neighbours)),
        section("Worst queries", _or_why(facts.worst, "Worst queries", _worst)),
    ]
    title = f"Version {facts.version} of {facts.lineage}"
    replace_file(path, page(title, body).encode())
    return path


def _or_why(measured: Any, what: str, shown: Any) -> str:
    if isinstance(measured, NotMeasured):
        return not_measured(what, measured.why)
    return str(shown(measured))


def _warnings(facts: VersionFacts, metrics: Mapping[str, Any], published: Sequence[str]) -> str:
    training = metrics.get("training", {})
    sentences = [*training.get("warnings", ()), *training.get("alone", {}).get("warnings", ())]
    rankings = metrics.get("metrics", {})
    own, popular = (rankings.get(m, {}).get(facts.metric) for m in ("model", "popularity"))
    if own is not None and popular is not None and own <= popular:
        sentences.append(
            f"It ranks no better than popularity: {facts.metric} {own:.4f}, and {popular:.4f} by "
            "the number of pairs alone."
        )
    sentences += [*facts.warnings, *published]
    if not sentences:
        return paragraph("There are none.")
    return warning_list(list(dict.fromkeys(sentences)))


def _data(metrics: Mapping[str, Any]) -> str:
    data = metrics.get("data", {})
    rows = [[name, f"{data[key]:,}" if key in data else NONE] for key, name in _DATA]
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
        "random; ± is a standard error. So is what is measured by query and by stratum below."
    )
    notes = [paragraph(sentence, "dim")]
    if "compatibility" in metrics and "alone" not in rankings:
        notes.append(paragraph("No model was trained without alignment (upgrade.alone = false)."))
    return [table("Metrics", ["", *names], rows), *notes]


def _strata(strata: Any, k: int, unit: str) -> str:
    first = "candidates" if unit == "pairs" else "training pairs of a query"
    members = "candidates" if unit == "pairs" else "queries"
    rows = [
        [
            stratum.name,
            f"{stratum.members:,}",
            f"{stratum.measured:,}",
            f"{NONE} (no test {unit})"
            if stratum.values["model"] is None
            else number(stratum.values["model"]),
        ]
        for stratum in strata
    ]
    header = [first, f"how many {members}", f"test {unit}", f"recall@{k}"]
    return table(f"Recall@{k} by {first}", header, rows)


def _neighbours(neighbours: Any) -> str:
    tables = []
    for popular, caption in ((True, "The most popular candidates"), (False, "Drawn at random")):
        rows = [
            [n.name, f"{n.pairs:,}", "; ".join(f"{name} ({c:.2f})" for name, c in n.nearest)]
            for n in neighbours
            if n.popular is popular
        ]
        if rows:
            header = ["candidate", "pairs", "nearest others, by cosine"]
            tables.append(table(caption, header, rows, words=[2]))
    return "\n".join(tables)


def _worst(queries: Any) -> str:
    rows = [[q.id, *(f"{n:,}" for n in (q.pairs, q.tested, q.best, q.worst))] for q in queries]
    header = ["query", "training pairs", "test pairs", "first rank", "last rank"]
    return paragraph(
        "Queries of whose test pairs even the first one in the list ranks far down; candidates "
        "outside the catalogue are left out."
    ) + table(f"The {len(rows)} worst queries", header, rows)
