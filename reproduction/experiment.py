"""The description of an experiment: trainings by preset, and what is read, drawn and judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """Return the highest MAP@10 on validation pairs of a training."""
    return float(max(result.series["map"]["validation"]))


@dataclass(frozen=True)
class Search:
    """A method's settings that selection chooses: each trial is trained on a split and seed of its
    own, and all seeds are trained with the settings of the one with the highest score.

    Args:
        label: names the method in the trials' results; trainings with equal searches share them.
        settings: of the method, as a `Training` has them.
        trials: what is tried, by "table.key"; as many for each method that is compared.
        score: of a trial's result.
    """

    label: str
    settings: Mapping[str, Any]
    trials: tuple[Mapping[str, Any], ...]
    score: Callable[[Result], float] = best_validation


@dataclass(frozen=True)
class Training:
    """One training of an experiment; every seed of it is one result.

    Args:
        label: names it in tables and legends; one for each training of a preset.
        recipe: a TOML file, in a folder `recipes/` of the paper.
        settings: values set in it, by "table.key"; None takes a key out.
        readings: what is read from it.
        planted: the size of a made-up corpus, see `reproduction.planted`; None reads the recipe's.
        program: takes the recipe, a progress, the device's name and a folder, and returns series
            as JSON, for experiments that are no single training, such as those of several versions;
            None trains version 0 with the readings. What it leaves in the folder is there again
            when an interrupted run goes on. Its name is part of a result's key.
        reads: makes of the file's values what the program takes, with the arguments of `Recipe.of`.
        search: chooses further settings; None takes `settings` as they are.
    """

    label: str
    recipe: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    readings: tuple[Reading, ...] = ()
    planted: Mapping[str, int] | None = None
    program: Program | None = None
    reads: Callable[..., Any] = PaperRecipe.of
    search: Search | None = None


@dataclass(frozen=True)
class Preset:
    """The trainings of an experiment at one size.

    Args:
        note: where the setting differs from the paper's.
        corpus: its name; the report shows each preset that has one.
        setting: what the presets on this corpus have in common; the report says it once.
    """

    trainings: tuple[Training, ...]
    note: str
    corpus: str = ""
    setting: str = ""


class Runs:
    """The results of one experiment's preset.

    Args:
        trainings: of the preset, in its order.
        results: all that there are; those of other trainings are left out.
    """

    def __init__(self, trainings: Sequence[Training], results: Sequence[Result]) -> None:
        self.labels = [training.label for training in trainings]
        self._by_label: dict[str, list[Result]] = {label: [] for label in self.labels}
        for result in sorted(results, key=lambda r: r.seed):
            if result.label in self._by_label:
                self._by_label[result.label].append(result)

    def of(self, label: str) -> list[Result]:
        """Return the results of a training, one a seed, in order of seeds."""
        return self._by_label[label]

    def only(self, labels: Sequence[str]) -> Runs:
        """Return the runs of some of the trainings, in their own order."""
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
        """Return a number of a training for each of `seeds`."""
        return [read(r) for r in self.of(label) if r.seed in self.seeds]


@dataclass(frozen=True)
class Line:
    """A curve: for each seed its values over x.

    Args:
        values: [seeds][points].
        dashed: the paper's own figures, or a baseline.
        steps: drawn as a histogram of which x are the edges, one more than points.
    """

    label: str
    x: Sequence[float]
    values: Sequence[Sequence[float]]
    dashed: bool = False
    steps: bool = False


@dataclass(frozen=True)
class Panel:
    """One diagram of a figure.

    Args:
        horizontal, vertical: the axes' labels, with units.
        log_x, log_y: whether an axis is logarithmic.
    """

    title: str
    horizontal: str
    vertical: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Table:
    """A table of the report; cells are text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Experiment:
    """One experiment: the settings of its trainings, what is shown of them, and what they prove.

    Args:
        name: "paper/name", as the command takes it.
        shown: the tables and figures that it reproduces, by paper: {"G2": "Figure 2a"}.
        title, caption: of the report.
        presets: "tiny" (made-up data, seconds), "small" (two cores), and small ones on other
            corpora, by their names.
        tables, panels: of the results of a preset.
        claims: sentences of the papers that the results of a preset judge.
        runs_of: the experiment whose results it shows; its own where it is empty.
    """

    name: str
    shown: Mapping[str, str]
    title: str
    caption: str
    presets: Mapping[str, Preset]
    tables: Callable[[Runs], Sequence[Table]]
    panels: Callable[[Runs], Sequence[Panel]]
    claims: tuple[Claim, ...] = ()
    runs_of: str = ""

    @property
    def source(self) -> str:
        """The name of the experiment that its results are kept under."""
        return self.runs_of or self.name

    @property
    def reported(self) -> list[str]:
        """The presets that the report shows: the small ones, one a corpus."""
        return ["small", *(n for n, p in self.presets.items() if p.corpus and n != "small")]

    def claims_on(self, preset: str) -> list[Claim]:
        """Return the claims with a preset's remarks."""
        return [replace(c, remark=c.remarks.get(preset, c.remark)) for c in self.claims]
