"""Draw lines and histograms as inline SVG in the colours of the page around it."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
