"""The page of `evergram demo`: charts and a table in one file, which loads nothing else."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evergram.atomic_files import replace_file

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --page: #fff; --line: #d8dee4;
  --dim: #57606a; --one: #0550ae; --two: #a03c00; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --page: #0d1117; --line: #30363d;
  --dim: #9da7b3; --one: #79c0ff; --two: #ffa657; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--text); background: var(--page); overflow-wrap: anywhere; }
h1 { line-height: 1.25; }
.wide { overflow-x: auto; margin: 1rem 0; } .wide:focus-visible { outline: 2px solid var(--one); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th:first-child { text-align: left; } tbody th { font-weight: 400; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr));
  gap: 1rem; }
figure { margin: 0; } figure svg { width: 100%; max-width: 30rem; height: auto; display: block;
  overflow: visible; }
figcaption { font-weight: 600; } svg text { fill: var(--text); font: 11px system-ui, sans-serif; }
.grid { stroke: var(--line); }
.curve { fill: none; stroke: var(--ink); stroke-width: 2; }
.dot { fill: var(--ink); }
.d1 { stroke-dasharray: 5 3; } .d2 { stroke-dasharray: 1 3; }
.c0 { --ink: var(--one); } .c1 { --ink: var(--two); } .c2 { --ink: #009e73; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 0 1rem; }
figure .legend svg { width: 1.6rem; display: inline; }
"""

# Of a drawing, in the units of its text's 11 pixels; and the margins around the axes.
WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 36
# Steps between the ends of an axis, at most.
TICKS = 5


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts with a caption; the first cell of a row is its header. One that is
    wider than the screen scrolls, also by the keyboard."""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in header)
    body = []
    for first, *cells in rows:
        line = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        body.append(f'<tr><th scope="row">{html.escape(first)}</th>{line}</tr>')
    name = html.escape(caption)
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{name}"><table>'
        f"<caption>{name}</caption><thead><tr>{head}</tr></thead>\n<tbody>"
        + "\n".join(body)
        + "</tbody></table></div>"
    )


def chart(title: str, versions: Sequence[int], lines: Mapping[str, Sequence[float | None]]) -> str:
    """Return a figure of a line for each name, by version, with the axis from 0, a caption and, of
    several lines, a legend. Values that are None or not finite are left out."""
    points = {
        name: [
            (x, y) for x, y in zip(versions, of, strict=True) if y is not None and math.isfinite(y)
        ]
        for name, of in lines.items()
    }
    values = [y for of in points.values() for _, y in of]
    caption = f"<figcaption>{html.escape(title)}</figcaption>"
    if not values:
        return f"<figure>{caption}<p>not measured: there is no point to draw.</p></figure>"
    low, high = min(0.0, *values), max(0.0, *values)
    first, last = min(versions), max(versions)

    def across(version: float) -> float:
        width = WIDTH - RIGHT - LEFT
        return LEFT + width * ((version - first) / (last - first) if last > first else 0.5)

    def down(value: float) -> float:
        height = HEIGHT - BOTTOM - TOP
        return HEIGHT - BOTTOM - height * ((value - low) / (high - low) if high > low else 0.5)

    alt = html.escape(f"{title} by version")
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{alt}"><title>{alt}</title>'
    ]
    for at in ticks(low, high):
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down(at):.1f}" '
            f'y2="{down(at):.1f}"/><text x="{LEFT - 5}" y="{down(at) + 4:.1f}" '
            f'text-anchor="end">{at:.4g}</text>'
        )
    for version in versions:
        parts.append(
            f'<text x="{across(version):.1f}" y="{HEIGHT - BOTTOM + 14}" '
            f'text-anchor="middle">{version}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">version</text>')
    legend = ""
    for place, (name, of) in enumerate(points.items()):
        ink = f"c{place} d{place}"
        places = [(across(x), down(y)) for x, y in of]
        if places:
            path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<path class="curve {ink}" d="{path}"/>')
        parts += [
            f'<circle class="dot {ink}" r="2.5" cx="{x:.1f}" cy="{y:.1f}"/>' for x, y in places
        ]
        legend += (
            f'<li><svg viewBox="0 0 24 8"><path class="curve {ink}" d="M0,4H24"/></svg> '
            f"{html.escape(name)}</li>"
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
    numbers = [v["version"] for v in versions]
    columns: dict[str, list[float | None]] = {
        metric: [v["metrics"].get("model", {}).get(metric) for v in versions],
        "trained alone": [v["metrics"].get("alone", {}).get(metric) for v in versions],
        "popularity": [v["metrics"].get("popularity", {}).get(metric) for v in versions],
        "AUC with chain": [v["consumer"]["auc_chain"] for v in versions],
        "AUC without": [v["consumer"]["auc_raw"] for v in versions],
        "alignment error": [v["drift_relative"] for v in versions],
    }
    names = list(columns)
    panels = (
        (f"Intended task: {metric}", names[:3]),
        ("Version-0 consumer: ROC-AUC, 0.5 by chance", names[3:5]),
        ("Alignment error to version 0", names[5:]),
    )
    charts = "".join(chart(title, numbers, {n: columns[n] for n in of}) for title, of in panels)
    rows = [
        [str(v["version"]), str(v["dim"])]
        + ["–" if cell is None else f"{cell:.4f}" for cell in cells]
        for v, *cells in zip(versions, *columns.values(), strict=True)
    ]
    title = f"One consumer, {len(versions)} versions"
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{STYLE}</style></head>
<body><main>
<h1>{title}</h1>
<p>{html.escape(_DEMO)}</p>
<div class="figures">{charts}</div>
{table("By version", ["version", "dim", *names], rows)}
<p>{html.escape(_TESTS)}</p>
</main></body></html>
"""
    replace_file(path, page.encode())
    return path
