"""The description of an experiment: its trainings by preset, readings, figures and claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evergram.training import Progress
from reproduction.claims import Claim
from reproduction.readings.reading import Reading
from reproduction.recipe import PaperRecipe
from reproduction.results import Result

ROOT = Path(__file__).parents[1]
Program = Callable[[Any, Progress, str, Path], Mapping[str, Any]]


def best_validation(result: Result) -> float:
    """Return a training's highest MAP@10 on validation pairs."""
    return float(max(result.series["map"]["validation"]))


@dataclass(frozen=True)
class Search:
    """A search for a method's settings. Trials use a separate seed and split; all seeds are then
    trained with the settings of the trial with the highest score."""

    label: str  # names the method in the trials' results; trainings with equal searches share them
    settings: Mapping[str, Any]  # the method's settings, as in `Training`
    # Settings to try, by "table.key"; use the same number for each compared method.
    trials: tuple[Mapping[str, Any], ...]
    score: Callable[[Result], float] = best_validation  # the score of a trial's result


@dataclass(frozen=True)
class Training:
    """One training of an experiment; each seed gives one result."""

    label: str  # its name in tables and legends, unique in a preset
    recipe: Path  # a TOML file in the paper's folder `recipes/`
    # Values set in the recipe, by "table.key"; None removes a key.
    settings: Mapping[str, Any] = field(default_factory=dict)
    readings: tuple[Reading, ...] = ()  # measurements taken during training
    # The size of a synthetic corpus, see `reproduction.planted`; None uses the recipe's.
    planted: Mapping[str, int] | None = None
    # For experiments that need more than one training, such as several versions. It takes the
    # recipe, a progress, the device's name and a folder, and returns series as JSON. Files in the
    # folder are still there when an interrupted run is resumed. Its name is part of a result's key.
    # None trains version 0 with the readings.
    program: Program | None = None
    # Converts the file's values for the program, with the arguments of `Recipe.of`.
    reads: Callable[..., Any] = PaperRecipe.of
    search: Search | None = None  # chooses further settings; None uses `settings` alone


@dataclass(frozen=True)
class Preset:
    """The trainings of an experiment at one size."""

    trainings: tuple[Training, ...]
    note: str  # how the setting differs from the paper's
    corpus: str = ""  # the corpus's name; the report shows each preset that has one
    setting: str = ""  # settings common to all presets on this corpus, stated once in the report


class Runs:
    """The results of one experiment's preset.

    Args:
        trainings: the preset's trainings, in order.
        results: all available results; those of other trainings are ignored.
    """

    def __init__(self, trainings: Sequence[Training], results: Sequence[Result]) -> None:
        self.labels = [training.label for training in trainings]
        self._by_label: dict[str, list[Result]] = {label: [] for label in self.labels}
        for result in sorted(results, key=lambda r: r.seed):
            if result.label in self._by_label:
                self._by_label[result.label].append(result)

    def of(self, label: str) -> list[Result]:
        """Return the results of a training, one per seed, ordered by seed."""
        return self._by_label[label]

    def only(self, labels: Sequence[str]) -> Runs:
        """Return the runs of these trainings, in the order of `labels`."""
        kept = Runs([], [])
        kept.labels = list(labels)
        kept._by_label = {label: self._by_label[label] for label in labels}
        return kept

    @property
    def seeds(self) -> list[int]:
        """The seeds that every training has."""
        each = [{r.seed for r in self._by_label[label]} for label in self.labels]
        return sorted(set.intersection(*each)) if each else []

    @property
    def all(self) -> list[Result]:
        return [result for label in self.labels for result in self._by_label[label]]

    def values(self, label: str, read: Callable[[Result], float]) -> list[float]:
        """Return one number of a training for each of `seeds`."""
        return [read(r) for r in self.of(label) if r.seed in self.seeds]

    def pairs(
        self, label: str, other: str, read: Callable[[Result], float]
    ) -> Iterable[tuple[float, float]]:
        """Return one number of two trainings for each of `seeds`."""
        return zip(self.values(label, read), self.values(other, read), strict=True)


@dataclass(frozen=True)
class Line:
    """A curve: values over x for each seed."""

    label: str
    x: Sequence[float]
    values: Sequence[Sequence[float]]  # [seeds][points]
    dashed: bool = False  # for the paper's figures or a baseline
    steps: bool = False  # draw a histogram; x are the edges, one more than points


@dataclass(frozen=True)
class Panel:
    """One diagram of a figure."""

    title: str
    # The axes' labels, with units.
    horizontal: str
    vertical: str
    lines: Sequence[Line]
    # Whether an axis is logarithmic.
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Table:
    """A table of the report; cells are text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def nothing(runs: Runs) -> list[Any]:
    """Return no tables, or no panels."""
    return []


@dataclass(frozen=True)
class Experiment:
    """One experiment: its trainings, tables and figures, and the claims it tests."""

    name: str  # "paper/name", the argument of the command
    # The tables and figures that it reproduces, by paper: {"G2": "Figure 2a"}.
    shown: Mapping[str, str]
    # For the report.
    title: str
    caption: str
    # "tiny" (synthetic data, seconds), "small" (two cores), and small presets on other corpora, by
    # name.
    presets: Mapping[str, Preset]
    # Made from the results of a preset.
    tables: Callable[[Runs], Sequence[Table]]
    panels: Callable[[Runs], Sequence[Panel]]
    claims: tuple[Claim, ...] = ()  # the papers' claims that the results of a preset test
    runs_of: str = ""  # the experiment whose results it shows; empty for its own

    @property
    def source(self) -> str:
        """The name of the experiment under which its results are stored."""
        return self.runs_of or self.name

    @property
    def reported(self) -> list[str]:
        """The presets that the report shows: the small ones, one per corpus."""
        return ["small", *(n for n, p in self.presets.items() if p.corpus and n != "small")]

    def claims_on(self, preset: str) -> list[Claim]:
        """Return the claims with a preset's remarks."""
        return [replace(c, remark=c.remarks.get(preset, c.remark)) for c in self.claims]
