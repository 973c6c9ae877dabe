"""What teams that built on version 0 predict, on every later version: five tasks as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.errors import DataError

SIDES = ("query", "candidate")
POSITIVE = 4.0


@dataclass(frozen=True)
class Examples:
    """N labelled inputs, all read at one time.

    Args:
        version: k; embeddings are those of t_k.
        rows: for each side that the task reads, int64 [N], rows of version k's training corpus.
        label: bool [N].
        absent: pairs that are no examples, for the training corpus of t_k does not know one side.
    """

    version: int
    rows: dict[str, Tensor]
    label: Tensor
    absent: int = 0

    def __len__(self) -> int:
        return len(self.label)

    @property
    def has_both(self) -> bool:
        """Whether both classes are there."""
        return bool(self.label.any()) and not bool(self.label.all())

    def drawn(self, limit: int | None, seed: int) -> Examples:
        """At most `limit` of them, drawn uniformly with `seed`."""
        if limit is None or len(self) <= limit:
            return self
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        kept = order[:limit].sort().values
        rows = {side: found[kept] for side, found in self.rows.items()}
        return Examples(self.version, rows, self.label[kept], self.absent)


@dataclass(frozen=True)
class ConsumerTask:
    """One binary task: what its model learns from, is chosen by, and is judged on for ever after.

    Args:
        training: at t_0. validation: see `consumer_tasks`.
        tests: by version k.
    """

    name: str
    training: Examples
    validation: Examples
    tests: dict[int, Examples]

    @property
    def sides(self) -> tuple[str, ...]:
        """What it reads: of two sides, the concatenation of both embeddings."""
        return tuple(self.training.rows)


def consumer_tasks(
    corpus: Corpus,
    times: Sequence[float],
    training: Sequence[Corpus],
    *,
    minimum: int = 10,
    limit: int | None = None,
    seed: int = 0,
) -> tuple[list[ConsumerTask], list[str]]:
    """The five tasks of [BC], as far as the corpus allows.

    With E_k the first share t_k of all interactions:

    | task | inputs at t_k | label |
    |---|---|---|
    | activity | queries of E_k | has an interaction in (t_k, t_{k+1}] |
    | positive-activity | queries of E_k | has one of value >= 4 there |
    | mean-rating | candidates with `minimum` in E_k | mean value until t_{k+1} above a threshold |
    | rating-deviation | the same | standard deviation of values until t_{k+1} >= 1 |
    | pair-rating | pairs of E_{k+1} without E_k | value >= 4 |

    The first two train at t_0, validate at t_1 and are tested from t_2. The others train at t_0 on
    what t_0 knows (labels until t_0; the pairs of E_0), validate on t_0's embeddings with labels
    until t_1, and are tested from t_1. The threshold is the median at t_0 of the means of the
    candidates with `minimum` ratings; the deviation is the population's.

    Args:
        corpus: all interactions, in order of time.
        times: t_0 … t_K and the end of the last interval, ascending shares.
        training: for each k up to K, the corpus whose rows version k's embeddings have.
        limit: the most examples of a set, drawn with `seed`; None for all.
    Returns: the tasks that can be judged, and a sentence on each that cannot.
    Raises: DataError: the corpus has no times.
    Source: [BC] App. A.2; `minimum` inclusive as its authors' code has it.
    """
    if not corpus.has_times:
        raise DataError("Consumer tasks look ahead in time; the corpus has no column 'time'.")
    line = _Line(corpus, [round(t * len(corpus)) for t in times], training, minimum)
    last = len(training) - 1
    found: list[ConsumerTask] = []
    left_out: list[str] = []

    def add(
        name: str, at: Callable[[int], Examples], *, start: Examples | None, first: int
    ) -> None:
        # `at(k)` predicts the interval after t_k; what trains is that at t_0 unless it is given.
        train = at(0) if start is None else start
        tests = {k: at(k).drawn(limit, seed) for k in range(first, last + 1)}
        check = at(first - 1) if first - 1 <= last else train
        task = ConsumerTask(name, train.drawn(limit, seed), check.drawn(limit, seed), tests)
        problem = _problem(task, first)
        if problem is None:
            found.append(task)
        else:
            left_out.append(f"The task {name} is left out: {problem}.")

    add("activity", lambda k: line.activity(k, None), start=None, first=2)
    if corpus.has_values:
        add("positive-activity", lambda k: line.activity(k, POSITIVE), start=None, first=2)
        now = line.ends[0]
        add(
            "mean-rating",
            lambda k: line.mean(k, line.ends[k + 1]),
            start=line.mean(0, now),
            first=1,
        )
        add(
            "rating-deviation",
            lambda k: line.deviation(k, line.ends[k + 1]),
            start=line.deviation(0, now),
            first=1,
        )
        add(
            "pair-rating",
            lambda k: line.pairs(k, line.ends[k], line.ends[k + 1]),
            start=line.pairs(0, 0, now),
            first=1,
        )
    else:
        left_out.append(
            "The tasks positive-activity, mean-rating, rating-deviation and pair-rating are left "
            "out: the corpus has no ratings (no column 'value')."
        )
    return found, left_out


def _problem(task: ConsumerTask, first: int) -> str | None:
    if not task.tests:
        return f"it is tested from version {first} on, and there is none"
    sets = {"training": task.training, "validation": task.validation}
    sets |= {f"test examples at version {k}": e for k, e in task.tests.items()}
    for name, examples in sets.items():
        if not examples.has_both:
            what = name if name.startswith("test") else f"{name} examples"
            return f"its {len(examples)} {what} are not of both classes"
    return None


class _Line:
    """The corpus along time."""

    def __init__(
        self, corpus: Corpus, ends: Sequence[int], training: Sequence[Corpus], minimum: int
    ) -> None:
        self.ends = list(ends)
        self.minimum = minimum
        self.column = {side: corpus.column(side) for side in SIDES}
        self.size = {"query": len(corpus.queries), "candidate": len(corpus.candidates)}
        self.value = corpus.column("value").double() if corpus.has_values else torch.ones(0)
        self.row = [
            {
                "query": t.queries.vocabulary.rows(corpus.queries.vocabulary.keys),
                "candidate": t.candidates.vocabulary.rows(corpus.candidates.vocabulary.keys),
            }
            for t in training
        ]
        means = self._moments(self.ends[0])[0][self._rated(0)].sort().values
        # The middle, or the mean of the two middle ones.
        middle = means[(len(means) - 1) // 2 : len(means) // 2 + 1]
        self.threshold = float(middle.mean()) if len(middle) else float("nan")

    def activity(self, k: int, least: float | None) -> Examples:
        there = self._counts("query", 0, self.ends[k]) > 0
        active = self._counts("query", self.ends[k], self.ends[k + 1], least) > 0
        return self._one_side(k, "query", torch.nonzero(there).flatten(), active)

    def mean(self, k: int, until: int) -> Examples:
        label = self._moments(until)[0] > self.threshold
        return self._one_side(k, "candidate", self._rated(k), label)

    def deviation(self, k: int, until: int) -> Examples:
        return self._one_side(k, "candidate", self._rated(k), self._moments(until)[1] >= 1.0)

    def pairs(self, k: int, start: int, stop: int) -> Examples:
        rows = {side: self.row[k][side][self.column[side][start:stop]] for side in SIDES}
        known = (rows["query"] >= 0) & (rows["candidate"] >= 0)
        label = self.value[start:stop] >= POSITIVE
        absent = int((~known).sum())
        return Examples(k, {side: r[known] for side, r in rows.items()}, label[known], absent)

    def _one_side(self, k: int, side: str, which: Tensor, label: Tensor) -> Examples:
        return Examples(k, {side: self.row[k][side][which]}, label[which])

    def _counts(self, side: str, start: int, stop: int, least: float | None = None) -> Tensor:
        who = self.column[side][start:stop]
        if least is not None:
            who = who[self.value[start:stop] >= least]
        return torch.bincount(who, minlength=self.size[side])

    def _rated(self, k: int) -> Tensor:
        """Candidates with enough ratings in E_k."""
        counts = self._counts("candidate", 0, self.ends[k])
        return torch.nonzero(counts >= self.minimum).flatten()

    def _moments(self, until: int) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each candidate's values in the first `until`, float64."""
        who, value = self.column["candidate"][:until], self.value[:until]
        if len(value) < until:  # no ratings at all
            return (torch.zeros(self.size["candidate"], dtype=torch.float64),) * 2
        count = self._counts("candidate", 0, until).clamp(min=1).double()
        zero = torch.zeros_like(count)
        mean = zero.index_add(0, who, value) / count
        square = zero.index_add(0, who, (value - mean[who]) ** 2) / count
        return mean, square.sqrt()
