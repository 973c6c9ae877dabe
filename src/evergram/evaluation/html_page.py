"""HTML pages that load nothing from elsewhere: sections, tables, lists and charts; and the pages of
`evergram demo` and `diagnose`."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evergram.atomic_files import replace_file

if TYPE_CHECKING:
    from evergram.evaluation.gramian_error import Histograms

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --page: #fff; --line: #d8dee4;
  --dim: #57606a; --one: #0550ae; --two: #a03c00; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --page: #0d1117; --line: #30363d;
  --dim: #9da7b3; --one: #79c0ff; --two: #ffa657; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--text); background: var(--page); overflow-wrap: anywhere; }
h1, h2 { line-height: 1.25; } h2 { margin-top: 2.5rem; } .dim { color: var(--dim); }
.wide { overflow-x: auto; margin: 1rem 0; } .wide:focus-visible { outline: 2px solid var(--one); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th:first-child, th.words, td.words { text-align: left; } tbody th { font-weight: 400; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr));
  gap: 1rem; }
figure { margin: 0; } figure svg { width: 100%; max-width: 30rem; height: auto; display: block;
  overflow: visible; }
figcaption { font-weight: 600; } svg text { fill: var(--text); font: 11px system-ui, sans-serif; }
.grid { stroke: var(--line); } .chosen { stroke: var(--text); stroke-dasharray: 2 3; }
.curve { fill: none; stroke: var(--ink); stroke-width: 2; }
.area { fill: var(--ink); opacity: .25; } .dot { fill: var(--ink); }
.d1 { stroke-dasharray: 5 3; } .d2 { stroke-dasharray: 1 3; }
.c0 { --ink: var(--one); } .c1 { --ink: var(--two); } .c2 { --ink: #009e73; }
.c3 { --ink: #cc79a7; } .c4 { --ink: #b8860b; } .c5 { --ink: #56b4e9; }
.c6 { --ink: #8c6d31; } .c7 { --ink: #7f7f7f; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 0 1rem; }
figure .legend svg { width: 1.6rem; display: inline; }
"""

NONE = "not measured"


def page(title: str, body: Sequence[str]) -> str:
    """Return a whole page; the parts of its body are HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f"<title>{html.escape(title)}</title>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head>\n<body><main>\n<h1>{html.escape(title)}</h1>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    """Return a section under a heading; the parts are HTML."""
    return "\n".join([f"<section>\n<h2>{html.escape(title)}</h2>", *parts, "</section>"])


def paragraph(text: str, kind: str = "") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f"<p{of_kind}>{html.escape(text)}</p>"


def table(
    caption: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    words: Sequence[int] = (),
) -> str:
    """Return a table of texts with a caption; the first cell of a row is its header, and columns of
    `words` stand to the left. One that is wider than the screen scrolls, also by the keyboard."""
    of_words = [' class="words"' if place in words else "" for place in range(len(header))]
    # A header without words is none.
    head = "".join(
        f'<th scope="col"{kind}>{html.escape(name)}</th>' if name else "<td></td>"
        for kind, name in zip(of_words, header, strict=True)
    )
    body = []
    for first, *cells in rows:
        line = [f'<th scope="row">{html.escape(first)}</th>']
        cells_of = zip(of_words[1:], cells, strict=True)
        line += [f"<td{kind}>{html.escape(cell)}</td>" for kind, cell in cells_of]
        body.append(f"<tr>{''.join(line)}</tr>")
    name = html.escape(caption)
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{name}"><table>'
        f"<caption>{name}</caption><thead><tr>{head}</tr></thead>\n<tbody>"
        + "\n".join(body)
        + "</tbody></table></div>"
    )


def figures(*charts: str) -> str:
    return f'<div class="figures">{"".join(charts)}</div>'


# Of the drawing, in the units of its text's 11 pixels; and the margins around the axes.
WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 36
# Steps between the ends of an axis, at most; and points of a line that are marked by dots.
TICKS, DOTS = 5, 40
COLOURS, DASHES = 8, 3


@dataclass(frozen=True)
class Line:
    """A curve; "steps" holds y from each x to the next, as a histogram does."""

    name: str
    points: Sequence[tuple[float, float]]
    kind: Literal["line", "steps"] = "line"


@dataclass(frozen=True)
class Axes:
    """The title and the scales of a chart: `alt` says what is seen in it, `marked` is an x with a
    vertical line and its name, `logarithmic` leaves values of 0 out, and `names` are places on the
    x axis in place of round numbers."""

    title: str
    alt: str
    x_label: str
    marked: tuple[float, str] | None = None
    from_zero: bool = False
    logarithmic: bool = False
    names: Sequence[tuple[float, str]] = ()


Scale = Callable[[float], float]
Point = tuple[float, float]


def chart(axes: Axes, lines: Sequence[Line]) -> str:
    """Return a figure with its caption and, of several lines, a legend."""
    drawn = [_points(axes, line) for line in lines]
    every = [point for points in drawn for point in points]
    caption = f"<figcaption>{html.escape(axes.title)}</figcaption>"
    if not every:
        return f"<figure>{caption}<p>not measured: there is no point to draw.</p></figure>"
    xs = [x for x, _ in every] + [x for x, _ in axes.names]
    xs += [] if axes.marked is None else [axes.marked[0]]
    ys = [y for _, y in every] + [0.0] * axes.from_zero
    x, y = _axis(xs, LEFT, WIDTH - RIGHT), _axis(ys, HEIGHT - BOTTOM, TOP)
    alt = html.escape(axes.alt)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{alt}">']
    parts += [f"<title>{alt}</title>", *_grid(axes, xs, ys, x, y)]
    legend = ""
    for place, (line, points) in enumerate(zip(lines, drawn, strict=True)):
        ink = f"c{place % COLOURS} d{place % DASHES}"
        parts += _curve(points, x, y, ink, line.kind) if points else []
        legend += (
            f'<li><svg viewBox="0 0 24 8"><path class="curve {ink}" d="M0,4H24"/></svg> '
            f"{html.escape(line.name)}</li>"
        )
    if axes.marked is not None:
        at, name = x(axes.marked[0]), html.escape(axes.marked[1])
        anchor, shift = ("end", -5) if at > (LEFT + WIDTH) / 2 else ("start", 5)
        parts.append(
            f'<line class="chosen" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            f'<text x="{at + shift:.1f}" y="{HEIGHT - BOTTOM - 6}" text-anchor="{anchor}">{name}'
            "</text>"
        )
    names = f'<ul class="legend">{legend}</ul>' if len(lines) > 1 else ""
    return f"<figure>{caption}{''.join(parts)}</svg>{names}</figure>"


def ticks(low: float, high: float) -> list[float]:
    """Return at most `TICKS` + 1 round numbers between two, evenly apart."""
    if not high > low:
        return [low]
    raw = (high - low) / TICKS
    unit = 10 ** math.floor(math.log10(raw))
    step = next(f * unit for f in (1, 2, 5, 10) if f * unit >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def _points(axes: Axes, line: Line) -> list[Point]:
    points = [point for point in line.points if all(map(math.isfinite, point))]
    if axes.logarithmic:
        return [(x, math.log10(y)) for x, y in points if y > 0]
    return points


def _axis(values: Sequence[float], start: float, end: float) -> Scale:
    """Return the function from values to places between `start` and `end`."""
    low, high = min(values), max(values)
    if high <= low:
        return lambda value: (start + end) / 2
    return lambda value: start + (end - start) * (value - low) / (high - low)


def _grid(axes: Axes, xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale) -> list[str]:
    parts = []
    for at in ticks(min(ys), max(ys)):
        label = f"{10**at:.2g}" if axes.logarithmic else f"{at:.4g}"
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(at):.1f}" '
            f'y2="{y(at):.1f}"/><text x="{LEFT - 5}" y="{y(at) + 4:.1f}" text-anchor="end">'
            f"{label}</text>"
        )
    for at, label in axes.names or [(at, f"{at:.4g}") for at in ticks(min(xs), max(xs))]:
        parts.append(
            f'<text x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">'
            f"{html.escape(label)}</text>"
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    label = html.escape(axes.x_label)
    parts.append(f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{label}</text>')
    return parts


def _curve(points: Sequence[Point], x: Scale, y: Scale, ink: str, kind: str) -> list[str]:
    """Return a curve: of steps with the area under it, and a short one with dots."""
    at = [(x(a), y(b)) for a, b in points]
    if kind == "steps":
        steps = "".join(f"H{a:.1f}V{b:.1f}" for a, b in at[1:])
        area = f"M{at[0][0]:.1f},{y(0):.1f}V{at[0][1]:.1f}{steps}V{y(0):.1f}Z"
        curve = f'<path class="curve {ink}" d="M{at[0][0]:.1f},{at[0][1]:.1f}{steps}"/>'
        return [f'<path class="area {ink}" d="{area}"/>', curve]
    path = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in at)
    parts = [f'<path class="curve {ink}" d="{path}"/>']
    if len(at) <= DOTS:
        parts += (f'<circle class="dot {ink}" r="2.5" cx="{a:.1f}" cy="{b:.1f}"/>' for a, b in at)
    return parts


_DEMO = """\
A classifier was trained once, on version 0's embeddings. Each later version was trained together
with a light transform back to the one before; only the newest embeddings are stored. Through the
chain of transforms the classifier keeps working; given the new embeddings as they are, it does not.
"""
_TESTS = """\
Each version is tested on the interactions that came after its data, so the tests differ: compare a
version's metric with that of the same model trained alone, without a transform, on the same data.
The alignment error is mean ‖z̃₀ − z₀‖ over mean ‖z₀‖, on objects that alignment never saw.
"""


def write_demo(path: Path, versions: Sequence[Mapping[str, Any]], metric: str) -> Path:
    """Write the page of `evergram demo` from what `run_demo` returns, and the metric of the
    intended task."""
    names = [(v["version"], str(v["version"])) for v in versions]
    columns: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
        metric: lambda v: v["metrics"].get("model", {}).get(metric),
        "trained alone": lambda v: v["metrics"].get("alone", {}).get(metric),
        "popularity": lambda v: v["metrics"].get("popularity", {}).get(metric),
        "AUC with chain": lambda v: v["consumer"]["auc_chain"],
        "AUC without": lambda v: v["consumer"]["auc_raw"],
        "alignment error": lambda v: v["drift_relative"],
    }

    def panel(title: str, shown: Sequence[str]) -> str:
        lines = []
        for name in shown:
            values = [(v["version"], columns[name](v)) for v in versions]
            lines.append(Line(name, [(x, y) for x, y in values if y is not None]))
        axes = Axes(title, f"{title} by version", "version", from_zero=True, names=names)
        return chart(axes, lines)

    rows = []
    for v in versions:
        cells = [of(v) for of in columns.values()]
        shown = ["–" if cell is None else f"{cell:.4f}" for cell in cells]
        rows.append([str(v["version"]), str(v["dim"]), *shown])
    task, consumer, error = list(columns)[:3], list(columns)[3:5], list(columns)[5:]
    body = [
        paragraph(_DEMO),
        figures(
            panel(f"Intended task: {metric}", task),
            panel("Version-0 consumer: ROC-AUC, 0.5 by chance", consumer),
            panel("Alignment error to version 0", error),
        ),
        table("By version", ["version", "dim", *columns], rows),
        paragraph(_TESTS),
    ]
    return _written(path, f"One consumer, {len(versions)} versions", body)


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
    axes = Axes("Density of scores", f"Histograms of scores: {means}", "score", from_zero=True)
    return paragraph(sentence) + figures(chart(axes, lines))


def write_diagnosis(
    path: Path,
    histograms: Histograms,
    steps: Sequence[int],
    gramian_errors: Mapping[str, Sequence[float]],
    gradient_errors: Mapping[str, Sequence[float]],
) -> Path:
    """Write the score histograms and both errors of each estimator by step; of no steps, the
    histograms alone."""
    body = [section("Scores of pairs", histogram_figure(histograms))]
    if steps:
        charts = [
            chart(
                Axes(title, f"{title} of each estimator by step", "step", logarithmic=True),
                [Line(name, list(zip(steps, of, strict=True))) for name, of in errors.items()],
            )
            for title, errors in (
                ("Gramian error", gramian_errors),
                ("Gradient error", gradient_errors),
            )
        ]
        body.append(section("Errors of estimators", figures(*charts)))
    return _written(path, "Diagnosis", body)


def _written(path: Path, title: str, body: Sequence[str]) -> Path:
    replace_file(path, page(title, body).encode())
    return path
