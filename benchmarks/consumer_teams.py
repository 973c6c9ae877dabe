"""Teams that fitted classifiers to version 0, and what a later version leaves of their accuracy.

Of each kind of consumer task there are two teams, which have one half of the labelled objects
each: the "seen" one is known to upgrades, the "unseen" one is not. "Other" teams predict a feature
of candidates, such as a film's genre. All are scored on the objects that version 0 knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean

import torch
from reproduction.comparison.consumer_classifiers import (
    ConsumerClassifiers,
    ConsumerFit,
    ConsumerInputs,
    fit_consumers,
)
from reproduction.comparison.consumer_tasks import ConsumerTask, Examples, consumer_tasks
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.releasing.known_consumers import KnownConsumer

GROUPS = ("seen", "unseen", "other")
# Ratings that a candidate needs to be asked about, and the most examples of a set, as in [compare].
MINIMUM, LIMIT = 10, 20_000
# Of each side, z [N, D], and which objects have one, bool [N].
Vectors = Mapping[str, Tensor]
Known = tuple[Vectors, Vectors]


@dataclass(frozen=True)
class TeamSettings:
    """How teams fit their classifiers.

    Args:
        feature: of candidates; the "other" teams predict its commonest keys, `others` of them.
        members: classifiers of each team, with `hidden` units.
        epochs: at most.
    """

    feature: str
    others: int = 3
    members: int = 2
    hidden: int = 128
    epochs: int = 20


@dataclass(frozen=True)
class Team:
    """A task's classifiers, fitted to the task's training examples."""

    task: ConsumerTask
    group: str
    classifiers: ConsumerClassifiers

    def known(self) -> Iterator[KnownConsumer]:
        """Yield its classifiers as an upgrade takes them."""
        side = "pair" if len(self.task.sides) == 2 else self.task.sides[0]
        for member in range(len(self.classifiers.seeds)):
            read = partial(_one, self.classifiers, member)
            name = f"{self.task.name}-{member}"
            yield KnownConsumer(name, read, 0, side)  # type: ignore[arg-type]


def _one(classifiers: ConsumerClassifiers, member: int, inputs: Tensor) -> Tensor:
    scores: Tensor = classifiers(inputs)[member]
    return scores


class Teams:
    """All teams of one version 0.

    Args:
        corpus: all interactions, in order of time.
        times: shares of them, t_0 … t_K and the end: version 0 has seen t_0.
        training: the corpus that version 0 was trained on, of whose entities the teams are asked.
        past: z_0 of these, and which of them version 0 knows.
        seed: halves the examples.
    """

    def __init__(
        self,
        settings: TeamSettings,
        corpus: Corpus,
        times: Sequence[float],
        training: Corpus,
        past: Known,
        seed: int,
    ) -> None:
        self.settings, self.training, self.past, self.seed = settings, training, past, seed
        every = [training] * (len(times) - 1)
        tasks, _ = consumer_tasks(corpus, times, every, minimum=MINIMUM, limit=LIMIT, seed=seed)
        self.teams = [team for task in tasks for team in self._of_kind(task)]
        self.teams += [self._fitted(task, "other") for task in self._of_feature()]

    def known(self) -> list[KnownConsumer]:
        """Return the classifiers of the "seen" teams."""
        return [each for team in self.teams if team.group == "seen" for each in team.known()]

    def scores(self, group: str, read: Vectors) -> dict[str, float]:
        """Return metric (2) of a group in percent, and how far its scores move, the root mean
        square of the change over the scores' deviation.

        Args:
            read: z̃_0 of each side, [N, D].
        """
        before: list[float] = []
        after: list[float] = []
        moved: list[float] = []
        for team in (t for t in self.teams if t.group == group):
            rows = [self._of_test(team, test, read) for test in team.task.tests.values()]
            for values, column in zip((before, after, moved), zip(*rows, strict=True), strict=True):
                values.append(mean(column))
        return {"auc": 100 * (mean(after) - mean(before)) / mean(before), "moved": mean(moved)}

    def _of_test(self, team: Team, test: Examples, read: Vectors) -> tuple[float, float, float]:
        """Return the AUC on z_0 and on z̃_0, and how far the scores moved."""
        examples = self._known(test)
        old, label = _inputs(examples, self.past[0])
        new, _ = _inputs(examples, read)
        own, other = team.classifiers.score(old), team.classifiers.score(new)
        moved = ((other - own) / own.std(1, keepdim=True)).square().mean().sqrt()
        auc = [mean(team.classifiers.auc(inputs, label)) for inputs in (old, new)]
        return auc[0], auc[1], float(moved)

    def _of_kind(self, task: ConsumerTask) -> Iterator[Team]:
        halves = _halves(self._known(task.training), self.seed)
        for group, half in zip(("seen", "unseen"), halves, strict=True):
            yield self._fitted(replace(task, training=half), group)

    def _of_feature(self) -> Iterator[ConsumerTask]:
        """Yield a task for each of the commonest keys of the feature."""
        first = self.training
        feature = first.candidates.features[self.settings.feature]
        owner = torch.repeat_interleave(torch.arange(len(first.candidates)), feature.offsets.diff())
        rows = torch.nonzero(first.counts("candidate") >= MINIMUM).flatten()
        counts = torch.bincount(feature.indices[torch.isin(owner, rows)])
        for key in counts.argsort(descending=True)[: self.settings.others].tolist():
            label = torch.zeros(len(first.candidates), dtype=torch.bool)
            label[owner[feature.indices == key]] = True
            tests = {1: Examples(1, {"candidate": rows}, label[rows])}
            halves = _halves(Examples(0, {"candidate": rows}, label[rows]), self.seed)
            yield ConsumerTask(f"feature-{key}", *halves, tests)

    def _fitted(self, task: ConsumerTask, group: str) -> Team:
        sets = [
            _inputs(self._known(examples), self.past[0])
            for examples in (task.training, task.validation)
        ]
        seeds = [2 * member + (group == "unseen") for member in range(self.settings.members)]
        fit = ConsumerFit(epochs=self.settings.epochs)
        hidden = self.settings.hidden
        return Team(task, group, fit_consumers(*sets, seeds=seeds, hidden=hidden, settings=fit)[0])

    def _known(self, examples: Examples) -> Examples:
        """Return the examples whose objects version 0 knows."""
        known = self.past[1]
        kept = torch.ones(len(examples), dtype=torch.bool)
        for side, rows in examples.rows.items():
            kept &= (rows >= 0) & known[side][rows.clamp(min=0)]
        return _taken(examples, kept)


def _inputs(examples: Examples, vectors: Vectors) -> tuple[ConsumerInputs, Tensor]:
    sides = list(examples.rows)
    tables = tuple(vectors[side] for side in sides)
    return ConsumerInputs(tables, tuple(examples.rows[s] for s in sides)), examples.label


def _taken(examples: Examples, mask: Tensor) -> Examples:
    rows = {side: every[mask] for side, every in examples.rows.items()}
    return replace(examples, rows=rows, label=examples.label[mask])


def _halves(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Return two halves of the examples; of pairs, all of a query are in one half."""
    owner = next(iter(examples.rows.values()))
    draw = torch.Generator().manual_seed(seed)
    coin = torch.randperm(int(owner.max()) + 1, generator=draw)[owner] % 2 == 0
    return _taken(examples, coin), _taken(examples, ~coin)
