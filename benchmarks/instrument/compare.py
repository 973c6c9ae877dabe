"""A run beside a kept one: ratios of ratios, and what has moved by more than it varies."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.instrument.figures import Figure
from benchmarks.instrument.runs import Measured, Run


@dataclass(frozen=True)
class Change:
    """One figure before and now; of both sides, as they were measured."""

    before: Figure
    now: Figure

    @property
    def ratio(self) -> float | None:
        """The ratio of the medians; None if there is none before."""
        return self.now.middle / self.before.middle if self.before.middle else None

    @property
    def moved(self) -> bool | None:
        """Whether the medians differ by more than either side varies; None if neither side was
        measured three times."""
        spreads = [s for s in (self.before.spread, self.now.spread) if s is not None]
        if not spreads:
            return None
        return abs(self.now.middle - self.before.middle) > max(spreads)


def changes(before: Measured, now: Measured) -> list[Change]:
    """Return the figures that both have and that another machine's can be compared with."""
    old = {figure.name: figure for figure in before.figures}
    return [
        Change(old[figure.name], figure)
        for figure in now.figures
        if figure.name in old and figure.is_comparable and old[figure.name].is_comparable
    ]


def table(name: str, before: Run, now: Run) -> str:
    """Return the comparison of one section in Markdown, and below it what disturbs it."""
    compared = changes(before.sections[name], now.sections[name])
    lines = [
        f"| {name}, against {before.date[:10]} ({before.commit}) | figure | before | now "
        "| now / before | moved |",
        "|---|---|---|---|---|---|",
    ]
    for change in compared:
        ratio = "–" if change.ratio is None else f"{change.ratio:.3f}"
        cells = (change.now.row, change.now.column, shown(change.before), shown(change.now), ratio)
        lines.append(f"| {' | '.join(cells)} | {_verdict(change.moved)} |")
    lines.append("")
    if not compared:
        lines.append("Neither run has a ratio that the other has, and times are not compared.")
    for run, when in ((before, "before"), (now, "now")):
        if run.is_busy(name):
            lines.append(busy_note(run, name, when))
    if before.machine.get("processor") != now.machine.get("processor"):
        lines.append(
            f"The machines differ: {before.machine.get('processor')}, then "
            f"{now.machine.get('processor')}."
        )
    return "\n".join(lines).rstrip()


def busy_note(run: Run, name: str, when: str = "") -> str:
    """Return the sentence that says a run was disturbed."""
    measured = run.sections[name]
    subject = f"The machine was busy {when}".rstrip()
    return (
        f"{subject}: load {run.load:.1f} when the run started and {measured.load:.1f} when the "
        f"section did, on {run.machine['cores']} cores; read its figures with that in mind."
    )


def shown(figure: Figure) -> str:
    """Return a figure's median, and its lowest and highest value if there are more than one."""
    if len(figure.values) == 1:
        return f"{figure.middle:.4g}"
    return f"{figure.middle:.4g} ({min(figure.values):.4g}–{max(figure.values):.4g})"


def _verdict(moved: bool | None) -> str:
    return {True: "moved", False: "", None: "no spread"}[moved]
