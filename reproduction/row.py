"""A row of the list of tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from reproduction.experiment import Experiment

NOT_BUILT = "not built yet"
NO_DATA = "needs data that is not here"
GPU_HOURS = "needs hours of GPU"
DRAWING = "a drawing, with nothing to measure"


@dataclass(frozen=True)
class Row:
    """A table or figure, whether or not its experiment is built.

    Args:
        name: "paper/name".
        shown: the tables and figures, by paper.
        state: of a row without an experiment.
        paper_state: of the papers' own setting.
        experiment: that makes it, if it is built.
    """

    name: str
    title: str
    shown: Mapping[str, str] = field(default_factory=dict)
    state: str = NOT_BUILT
    paper_state: str = NOT_BUILT
    experiment: Experiment | None = None

    @classmethod
    def of(cls, experiment: Experiment, paper_state: str) -> Self:
        """Return the row of an experiment that is built."""
        shown = experiment.shown
        return cls(experiment.name, experiment.title, shown, "", paper_state, experiment)


def experiments_of(rows: Sequence[Row]) -> dict[str, Experiment]:
    """Return the experiments of those rows that have one, by name."""
    return {row.name: row.experiment for row in rows if row.experiment is not None}
