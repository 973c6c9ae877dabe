"""Parts of an HTML page that loads nothing from elsewhere: sections, tables, lists."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --page: #fff; --line: #d8dee4;
  --dim: #57606a; --one: #0550ae; --two: #a03c00; --mark: #fff4d6; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --page: #0d1117; --line: #30363d;
  --dim: #9da7b3; --one: #79c0ff; --two: #ffa657; --mark: #3a2d0b; } }
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
.not-measured, .warnings { background: var(--mark); padding: .5rem .8rem; }
.warnings li { margin-left: 1rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr));
  gap: 1rem; }
figure { margin: 0; } figure svg { width: 100%; max-width: 30rem; height: auto; display: block; }
figcaption { font-weight: 600; } svg text { fill: var(--text); font: 11px system-ui, sans-serif; }
.grid { stroke: var(--line); } .one { stroke: var(--one); } .two { stroke: var(--two); }
.two-dashed { stroke: var(--two); stroke-dasharray: 5 3; } .curve { fill: none; stroke-width: 2; }
.area-one { fill: var(--one); opacity: .25; } .area-two { fill: var(--two); opacity: .25; }
.chosen { stroke: var(--text); stroke-dasharray: 2 3; } .dot { fill: var(--one); }
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
    """Return a paragraph of text.

    Args:
        kind: its class.
    """
    of_kind = f' class="{kind}"' if kind else ""
    return f"<p{of_kind}>{html.escape(text)}</p>"


def not_measured(what: str, why: str) -> str:
    """Return the paragraph that stands in the place of a measure."""
    return paragraph(f"{what}: {NONE}. {why}", "not-measured")


def warning_list(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="warnings">{items}</ul>'


def table(
    caption: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    words: Sequence[int] = (),
) -> str:
    """Return a table of texts with a caption; the first cell of a row is its header.

    A table that is wider than the screen scrolls, also by the keyboard.

    Args:
        words: columns of text, which stand to the left.
    """
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


# Of the drawing, in the units of its text's 11 pixels; and the margins around the axes.
WIDTH, HEIGHT = 360, 220
# Steps between the ends of an axis, at most.
TICKS = 5
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 24, 36
STYLES = ("one", "two-dashed")
AREAS = ("area-one", "area-two")


@dataclass(frozen=True)
class Line:
    """A curve.

    Args:
        points: x and y; those that are not finite are left out.
        steps: whether y holds from each x to the next, as in a histogram.
    """

    name: str
    points: Sequence[tuple[float, float]]
    steps: bool = False


@dataclass(frozen=True)
class Axes:
    """The title and the scales of a chart.

    Args:
        alt: what a reader sees in it, for those who do not see it.
        marked: an x with a vertical line, and its name.
        from_zero: whether y begins at 0.
        logarithmic: whether y is drawn by its logarithm; values of 0 are left out.
    """

    title: str
    alt: str
    x_label: str
    marked: tuple[float, str] | None = None
    from_zero: bool = False
    logarithmic: bool = False


def chart(axes: Axes, lines: Sequence[Line]) -> str:
    """Return a figure of at most two lines, with its caption."""
    drawn = [[_scaled(axes, p) for p in line.points if _is_drawn(axes, p)] for line in lines]
    points = [point for line in drawn for point in line]
    caption = f"<figcaption>{html.escape(axes.title)}</figcaption>"
    if not points:
        return f"<figure>{caption}<p>not measured: there is no point to draw.</p></figure>"
    xs = [x for x, _ in points] + ([] if axes.marked is None else [axes.marked[0]])
    ys = [y for _, y in points] + ([0.0] if axes.from_zero else [])
    x, y = _axis(xs, LEFT, WIDTH - RIGHT), _axis(ys, HEIGHT - BOTTOM, TOP)
    alt = html.escape(axes.alt)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{alt}">']
    parts += [f"<title>{alt}</title>", *_grid(axes, (xs, ys), x, y)]
    for place, (line, scaled) in enumerate(zip(lines, drawn, strict=True)):
        parts += _curve(scaled, x, y, place, steps=line.steps)
        left = LEFT + place * (WIDTH - LEFT) // 2
        if len(lines) > 1:
            parts.append(
                f'<line x1="{left}" x2="{left + 22}" y1="10" y2="10" '
                f'class="curve {STYLES[place]}"/>'
                f'<text x="{left + 28}" y="14">{html.escape(line.name)}</text>'
            )
    if axes.marked is not None:
        at, name = x(axes.marked[0]), html.escape(axes.marked[1])
        anchor = "end" if at > (LEFT + WIDTH) / 2 else "start"
        shift = -5 if anchor == "end" else 5
        parts.append(
            f'<line class="chosen" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            f'<text x="{at + shift:.1f}" y="{HEIGHT - BOTTOM - 6}" text-anchor="{anchor}">{name}'
            "</text>"
        )
    return f"<figure>{caption}{''.join(parts)}</svg></figure>"


def ticks(low: float, high: float) -> list[float]:
    """Return at most `TICKS` + 1 round numbers between two, evenly apart."""
    if not high > low:
        return [low]
    raw = (high - low) / TICKS
    unit = 10 ** math.floor(math.log10(raw))
    step = next(f * unit for f in (1, 2, 5, 10) if f * unit >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def _is_drawn(axes: Axes, point: tuple[float, float]) -> bool:
    return all(map(math.isfinite, point)) and (point[1] > 0 or not axes.logarithmic)


def _scaled(axes: Axes, point: tuple[float, float]) -> tuple[float, float]:
    return (point[0], math.log10(point[1])) if axes.logarithmic else point


def _axis(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """Return the function from values to places between `start` and `end`."""
    low, high = min(values), max(values)
    if high <= low:
        return lambda value: (start + end) / 2
    return lambda value: start + (end - start) * (value - low) / (high - low)


def _grid(
    axes: Axes,
    values: tuple[Sequence[float], Sequence[float]],
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> list[str]:
    parts = []
    for at in ticks(min(values[1]), max(values[1])):
        label = f"{10**at:.2g}" if axes.logarithmic else f"{at:.4g}"
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(at):.1f}" '
            f'y2="{y(at):.1f}"/><text x="{LEFT - 5}" y="{y(at) + 4:.1f}" text-anchor="end">'
            f"{label}</text>"
        )
    for at in ticks(min(values[0]), max(values[0])):
        parts.append(
            f'<text x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{at:.4g}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    label = html.escape(axes.x_label)
    parts.append(f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{label}</text>')
    return parts


def _curve(
    points: Sequence[tuple[float, float]],
    x: Callable[[float], float],
    y: Callable[[float], float],
    place: int,
    *,
    steps: bool,
) -> list[str]:
    """Return a curve; one of steps with the area under it, and short ones with their points."""
    at = [(x(a), y(b)) for a, b in points]
    if steps:
        path = f"M{at[0][0]:.1f},{at[0][1]:.1f}"
        path += "".join(f"H{a:.1f}V{b:.1f}" for a, b in at[1:])
        area = f"M{at[0][0]:.1f},{y(0):.1f}V{at[0][1]:.1f}"
        area += "".join(f"H{a:.1f}V{b:.1f}" for a, b in at[1:]) + f"V{y(0):.1f}Z"
        filled = [f'<path class="{AREAS[place]}" d="{area}"/>']
    else:
        path = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in at)
        few = at if len(at) <= 40 and place == 0 else []
        filled = [f'<circle class="dot" r="2.5" cx="{a:.1f}" cy="{b:.1f}"/>' for a, b in few]
    return [*filled, f'<path class="curve {STYLES[place]}" d="{path}"/>']
