"""Build the five consumer tasks of [BC] App. A.2; consumers are fitted to version 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.errors import DataError

SIDES = ("query", "candidate")
POSITIVE = 4.0


@dataclass(frozen=True)
class Examples:
    """N labelled inputs, with embeddings of one version."""

    version: int  # k; the embeddings are those of version k
    # Rows in version k's training corpus, int64 [N], for each side that the task reads.
    rows: dict[str, Tensor]
    label: Tensor  # bool [N]
    absent: int = 0  # the number of inputs left out because an object has no embedding

    def __len__(self) -> int:
        return len(self.label)

    @property
    def has_both(self) -> bool:
        """True if both classes are present."""
        return bool(self.label.any()) and not bool(self.label.all())

    def among(self, known: Mapping[str, Tensor]) -> Examples:
        """Return the examples whose rows are all marked in `known`, bool [rows] by side."""
        kept = torch.stack([known[side][row] for side, row in self.rows.items()]).all(0)
        rows = {side: row[kept] for side, row in self.rows.items()}
        return Examples(self.version, rows, self.label[kept], self.absent + int((~kept).sum()))

    def drawn(self, limit: int | None, seed: int) -> Examples:
        """Return at most `limit` examples, drawn uniformly with `seed`."""
        if limit is None or len(self) <= limit:
            return self
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        kept = order[:limit].sort().values
        rows = {side: every[kept] for side, every in self.rows.items()}
        return Examples(self.version, rows, self.label[kept], self.absent)


@dataclass(frozen=True)
class ConsumerTask:
    """One binary task, with its training, validation and test examples."""

    name: str  # the task's name
    training: Examples  # examples at t_0
    validation: Examples  # see `consumer_tasks`
    tests: dict[int, Examples]  # by version k


def consumer_tasks(
    corpus: Corpus,
    times: Sequence[float],
    training: Sequence[Corpus],
    *,
    minimum: int = 10,
    limit: int | None = None,
    seed: int = 0,
    of_first: bool = False,
) -> tuple[list[ConsumerTask], list[str]]:
    """Return the tasks of [BC] that the corpus supports, out of five.

    Let E_k be the first share t_k of all interactions:

    | task | inputs at t_k | label |
    |---|---|---|
    | activity | queries of E_k | has an interaction in (t_k, t_{k+1}] |
    | positive-activity | queries of E_k | has an interaction of value >= 4 there |
    | mean-rating | candidates with `minimum` in E_k | mean value until t_{k+1} above a threshold |
    | rating-deviation | the same | standard deviation of values until t_{k+1} >= 1 |
    | pair-rating | pairs in E_{k+1} but not E_k | value >= 4 |

    The first two train at t_0, validate at t_1 and test from t_2 on. The others train at t_0 on
    data known then (labels until t_0; the pairs of E_0), validate on t_0's embeddings with labels
    until t_1, and test from t_1 on. The threshold is the median, at t_0, of the mean values of
    candidates with `minimum` ratings; the deviation is the sample standard deviation.

    Args:
        corpus: all interactions, ordered by time.
        times: t_0 … t_K and the end of the last interval, ascending shares.
        training: for each k up to K, the corpus whose rows are those of version k's embeddings.
        limit: maximum number of examples per set, drawn with `seed`; None for all.
        of_first: leave out objects missing at t_0, which an id-only model cannot embed: whether an
            object has a vector is a matter of coverage, not of compatibility.
    Returns: the tasks that can be scored, and a sentence for each that cannot.
    Raises: DataError: the corpus has no times, or there are fewer than two versions.
    Source: [BC] App. A.2; sample deviation and inclusive `minimum` follow its authors' code.
    """
    _check_times(corpus, len(times), len(training))
    line = _Line(corpus, [round(t * len(corpus)) for t in times], training, minimum)
    tasks: list[ConsumerTask] = []
    left_out: list[str] = []
    if not corpus.has_values:
        left_out.append(
            "The tasks positive-activity, mean-rating, rating-deviation and pair-rating are left "
            "out: the corpus has no ratings (no column 'value')."
        )
    for task in _all_tasks(line, len(training) - 1):
        if of_first:
            validation = task.validation.among(line.early(task.validation.version))
            tests = {k: e.among(line.early(k)) for k, e in task.tests.items()}
            task = replace(task, validation=validation, tests=tests)
        problem = _problem(task)
        if problem is None:
            tests = {k: e.drawn(limit, seed) for k, e in task.tests.items()}
            learn, check = (e.drawn(limit, seed) for e in (task.training, task.validation))
            task = ConsumerTask(task.name, learn, check, tests)
            problem = _problem(task)
        if problem is None:
            tasks.append(task)
        else:
            left_out.append(f"The task {task.name} is left out: {problem}.")
    return tasks, left_out


def _check_times(corpus: Corpus, times: int, versions: int) -> None:
    """Check that the corpus has times, and that there is one more time than versions. Raises:
    DataError."""
    if not corpus.has_times:
        raise DataError("Consumer tasks look ahead in time; the corpus has no column 'time'.")
    if versions < 2 or times != versions + 1:
        raise DataError(
            f"Consumer tasks need two or more versions and one time more, not {versions} "
            f"versions and {times} times."
        )


def _all_tasks(line: _Line, last: int) -> Iterator[ConsumerTask]:
    """Yield the tasks for which the corpus has columns, including tasks with a single class."""

    def task(
        name: str, first: int, at: Callable[[int], Examples], now: Examples | None = None
    ) -> ConsumerTask:
        # `at(k)` returns the examples at t_k; `now`, or else at(0), is the training set.
        tests = {k: at(k) for k in range(first, last + 1)}
        return ConsumerTask(name, at(0) if now is None else now, at(first - 1), tests)

    ends = line.ends
    yield task("activity", 2, lambda k: line.activity(k, None))
    if not line.has_values:
        return
    yield task("positive-activity", 2, lambda k: line.activity(k, POSITIVE))
    for name, kind in (("mean-rating", line.mean), ("rating-deviation", line.deviation)):
        yield task(name, 1, partial(_ahead, kind, ends), kind(0, ends[0]))
    yield task(
        "pair-rating",
        1,
        lambda k: line.pairs(k, ends[k], ends[k + 1]),
        line.pairs(0, 0, ends[0]),
    )


def _ahead(kind: Callable[[int, int], Examples], ends: Sequence[int], k: int) -> Examples:
    return kind(k, ends[k + 1])


def _problem(task: ConsumerTask) -> str | None:
    """Return the reason why a task cannot be scored; None if it can."""
    if not task.tests:
        return "it is tested from version 2 on, and there is none"
    sets = {"training examples": task.training, "validation examples": task.validation}
    sets |= {f"test examples at version {k}": e for k, e in task.tests.items()}
    for name, examples in sets.items():
        if not examples.has_both:
            return f"its {len(examples)} {name} are not of both classes"
    return None


class _Line:
    """A corpus ordered by time, from which the tasks' labels are computed."""

    def __init__(
        self, corpus: Corpus, ends: Sequence[int], training: Sequence[Corpus], minimum: int
    ) -> None:
        self.ends = list(ends)
        self.minimum = minimum
        self.column = {side: corpus.column(side) for side in SIDES}
        self.size = {"query": len(corpus.queries), "candidate": len(corpus.candidates)}
        self.has_values = corpus.has_values
        self.value = corpus.column("value").double() if corpus.has_values else torch.zeros(0)
        self.row = [
            {
                "query": t.queries.vocabulary.rows(corpus.queries.vocabulary.keys),
                "candidate": t.candidates.vocabulary.rows(corpus.candidates.vocabulary.keys),
            }
            for t in training
        ]
        means = torch.zeros(0)
        if self.has_values:
            means = self._moments(self.ends[0])[0][self._rated(0)].sort().values
        # The median.
        middle = means[(len(means) - 1) // 2 : len(means) // 2 + 1]
        self.threshold = float(middle.mean()) if len(middle) else float("nan")

    def early(self, k: int) -> dict[str, Tensor]:
        """Return a mask by side: True for rows of version k that exist at t_0."""
        early = {}
        for side, at_first in self.row[0].items():
            row = self.row[k][side]
            early[side] = torch.zeros(int(row.max()) + 1, dtype=torch.bool)
            early[side][row[row >= 0]] = at_first[row >= 0] >= 0
        return early

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
        """Return the candidates with at least `minimum` ratings in E_k."""
        counts = self._counts("candidate", 0, self.ends[k])
        return torch.nonzero(counts >= self.minimum).flatten()

    def _moments(self, until: int) -> tuple[Tensor, Tensor]:
        """Return the mean and standard deviation of each candidate's values in the first `until`
        interactions, float64."""
        who, value = self.column["candidate"][:until], self.value[:until]
        count = self._counts("candidate", 0, until).clamp(min=1).double()
        zero = torch.zeros_like(count)
        mean = zero.index_add(0, who, value) / count
        square = zero.index_add(0, who, (value - mean[who]) ** 2) / (count - 1).clamp(min=1)
        return mean, square.sqrt()
