"""The page of `evergram demo`: charts and a table in one self-contained file."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evergram.atomic_files import replace_file

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption, figcaption { text-align: left; font-weight: 600; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #8888; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
figure { margin: 0; }
svg text { fill: currentColor; font: 11px system-ui, sans-serif; }
"""
# Colours that are distinguishable with colour blindness (Okabe and Ito 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73")
# The size of a chart, and the margins around the axes, in SVG units; text is 11 units high.
WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 36


def chart(title: str, versions: Sequence[int], lines: Mapping[str, Sequence[float | None]]) -> str:
    """Return a line chart by version, one line per name, with an axis that includes 0, a caption
    and a legend. Values that are None or not finite are left out."""
    points = {
        name: [
            (x, y) for x, y in zip(versions, ys, strict=True) if y is not None and math.isfinite(y)
        ]
        for name, ys in lines.items()
    }
    values = [y for line in points.values() for _, y in line]
    caption = f"<figcaption>{html.escape(title)}</figcaption>"
    if not values:
        return f"<figure>{caption}<p>Not measured.</p></figure>"
    low, high = min(0.0, *values), max(0.0, *values)
    first, last = min(versions), max(versions)

    def x_of(version: float) -> float:
        return LEFT + (WIDTH - RIGHT - LEFT) * (version - first) / ((last - first) or 1)

    def y_of(value: float) -> float:
        height = HEIGHT - BOTTOM - TOP
        return HEIGHT - BOTTOM - height * (value - low) / ((high - low) or 1.0)

    alt = html.escape(f"{title} by version")
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{alt}">']
    for tick in (low, (low + high) / 2, high):
        parts.append(
            f'<path stroke="#8888" d="M{LEFT},{y_of(tick):.1f}H{WIDTH - RIGHT}"/>'
            f'<text x="{LEFT - 5}" y="{y_of(tick) + 4:.1f}" text-anchor="end">{tick:.3g}</text>'
        )
    parts += [
        f'<text x="{x_of(version):.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{version}'
        "</text>"
        for version in versions
    ]
    legend = ""
    for colour, (name, line) in zip(COLOURS, points.items(), strict=False):
        corners = [(f"{x_of(x):.1f}", f"{y_of(y):.1f}") for x, y in line]
        path = " ".join(map(",".join, corners))
        parts.append(f'<polyline fill="none" stroke="{colour}" points="{path}"/>')
        parts += [f'<circle fill="{colour}" r="3" cx="{x}" cy="{y}"/>' for x, y in corners]
        legend += f'<li style="color:{colour}">{html.escape(name)}</li>'
    return f"<figure>{caption}{''.join(parts)}</svg><ul>{legend}</ul></figure>"


_DEMO = """\
A classifier was trained once, on version 0's embeddings. Each later version was trained together
with a small transform back to the previous version; only the newest embeddings are stored. The
classifier keeps working on transformed embeddings, but not on the new embeddings themselves.
"""
_TESTS = """\
Each version is tested on interactions that came after its training data, so compare it only with
the same model trained alone (without a transform, on the same data), not with other versions.
The alignment error is the mean distance of transformed vectors from version 0's, divided by the
mean length of version 0's, on objects that alignment never saw.
"""


def write_demo(path: Path, versions: Sequence[Mapping[str, Any]], metric: str) -> Path:
    """Write the page of `evergram demo` from the versions that `run_demo` returned; `metric` names
    the metric of the intended task."""
    numbers = [v["version"] for v in versions]
    columns: dict[str, list[float | None]] = {
        metric: [v["metrics"].get("model", {}).get(metric) for v in versions],
        "trained alone": [v["metrics"].get("alone", {}).get(metric) for v in versions],
        "popularity": [v["metrics"].get("popularity", {}).get(metric) for v in versions],
        "AUC with transforms": [v["consumer"]["auc_chain"] for v in versions],
        "AUC without transforms": [v["consumer"]["auc_raw"] for v in versions],
        "alignment error": [v["drift_relative"] for v in versions],
    }
    names = list(columns)
    panels = (
        (f"The model's own task: {metric}", names[:3]),
        ("The version-0 classifier: ROC-AUC; 0.5 is chance", names[3:5]),
        ("Alignment error at version 0", names[5:]),
    )
    charts = "".join(chart(title, numbers, {n: columns[n] for n in of}) for title, of in panels)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("version", "dim", *names))
    rows = ""
    for v, *values in zip(versions, *columns.values(), strict=True):
        cells = [str(v["dim"]), *("–" if x is None else f"{x:.4f}" for x in values)]
        rows += f"<tr><th>{v['version']}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n"
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
<div class="wide" tabindex="0"><table><caption>By version</caption>
<thead><tr>{head}</tr></thead>
<tbody>{rows}</tbody></table></div>
<p>{html.escape(_TESTS)}</p>
</main></body></html>
"""
    replace_file(path, page.encode())
    return path


_STALE = """\
Each chart compares an index with stale rows to a fully refreshed one; "2 old" are rows that are two
versions old. "chain" reads each row through the transforms, "raw" treats old vectors as new.
"""


def write_skew(path: Path, report: Mapping[str, Any]) -> Path:
    """Write a page of charts from `SkewReport.as_json`: loss by share of stale rows."""
    single = [(*one["stale"].items(), one) for one in report["readings"] if len(one["stale"]) == 1]
    shares, charts = sorted({round(100 * share) for (_, share), _ in single}), ""
    for read in dict.fromkeys(one["read"] for _, one in single if one["loss"] is not None):
        lines: dict[str, list[float | None]] = {}
        for (age, share), one in single:
            line = lines.setdefault(f"{age} old", [0.0, *(None for _ in shares)])
            if one["read"] == read:
                line[1 + shares.index(round(100 * share))] = one["loss"]
        charts += chart(
            f"{read}: % of {report['metric']} lost by % of stale rows", [0, *shares], lines
        )
    title = f"Stale rows in an index of version {report['version']}"
    page = f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1><p>{_STALE}</p>"
    page = f'<!doctype html><html lang="en"><meta charset="utf-8">{page}'
    replace_file(path, f'{page}<div class="figures">{charts}</div></html>'.encode())
    return path
