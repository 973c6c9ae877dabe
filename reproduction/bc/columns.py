"""Read the results of a comparison: columns of [BC] Table 3, over seeds and corpora."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reproduction.bc.methods import FILMS, MUSIC, SAME, SHORT
from reproduction.claims import Margins
from reproduction.experiment import Runs
from reproduction.results import Result

# Reads one number from a result, i.e. for one corpus and seed.
Read = Callable[[Result], float]
# Reads one number for each competitor.
ReadEach = Callable[[Result], Mapping[str, float]]


def comparison(result: Result) -> Mapping[str, Any]:
    """Return the output of `compare_methods`."""
    measured: Mapping[str, Any] = result.series["comparison"]
    return measured


def value(result: Result, method: str, column: str) -> float:
    """Return a method's figure.

    Args:
        column: a key of `COLUMNS`.
    """
    return float(comparison(result)["methods"][method][column])


def over_time(result: Result, method: str, column: str) -> dict[int, float]:
    """Return a method's figure by version; the column (1)+(2) is not available."""
    by_version = comparison(result)["methods"][method]["over_time"][column]
    return {int(version): float(figure) for version, figure in by_version.items()}


def by_task(result: Result, method: str) -> dict[str, dict[int, float]]:
    """Return a method's metric (2) by task and version."""
    tasks = comparison(result)["methods"][method]["by_task"]
    return {
        task: {int(version): float(figure) for version, figure in by_version.items()}
        for task, by_version in tasks.items()
    }


def swept(result: Result, method: str, column: str) -> dict[float, float]:
    """Return a method's figure by λ, ascending."""
    rows = comparison(result)["sweep"][method]
    return {float(w): float(row[column]) for w, row in sorted(rows.items(), key=_by_weight)}


def _by_weight(item: tuple[str, Any]) -> float:
    return float(item[0])


def keep_all(result: Result, metric: str) -> float:
    """Return Keep-All's mean performance; `metric` is "intended" or "unintended"."""
    return float(comparison(result)["keep_all"][metric])


def times(result: Result) -> list[float]:
    """Return the share of interactions on which each version was trained."""
    return [float(t) for t in comparison(result)["times"]]


def of_corpus(runs: Runs, corpus: str, read: Read) -> list[float]:
    """Return a number for each seed of a corpus, even if other corpora lack the seed."""
    return [read(result) for result in runs.of(corpus)]


def by_version(
    runs: Runs, corpus: str, read: Callable[[Result], Mapping[int, float]]
) -> dict[int, list[float]]:
    """Return one value per seed of a corpus, by version."""
    each = [read(result) for result in runs.of(corpus)]
    return {version: [values[version] for values in each] for version in each[0]}


def margins_of(runs: Runs, corpus: str, read: Read | ReadEach) -> Margins:
    """Return a number for each seed of a corpus, by competitor if `read` returns several."""
    each = [read(result) for result in runs.of(corpus)]
    rows = [row for row in each if isinstance(row, Mapping)]
    if rows:
        return {name: [row[name] for row in rows] for name in rows[0]}
    return [float(number) for number in each if not isinstance(number, Mapping)]


def on_first(read: Read | ReadEach) -> Callable[[Runs], Margins]:
    """Return margins on the preset's first corpus, which has the most test queries per version."""
    return lambda runs: margins_of(runs, runs.labels[0], read)


def on_music(read: Read | ReadEach) -> Callable[[Runs], Margins]:
    """Return margins on Musical Instruments, the corpus of the paper's figures; on the first corpus
    if a preset lacks it."""
    return lambda runs: margins_of(runs, music_of(runs), read)


def on_consumers(read: Read | ReadEach) -> Callable[[Runs], Margins]:
    """Return margins on MovieLens, which has five consumer tasks; on the first corpus if the runs
    lack it."""
    return lambda runs: margins_of(runs, consumers_of(runs), read)


def on_each(read: Read | ReadEach) -> Callable[[Runs], Margins]:
    """Return margins on every corpus, as one comparison each, or one for each competitor."""

    def margins(runs: Runs) -> Margins:
        made: dict[str, Sequence[float]] = {}
        for corpus in runs.labels:
            found = margins_of(runs, corpus, read)
            each = found if isinstance(found, Mapping) else {"": found}
            short = SHORT.get(corpus, corpus)
            made |= {f"{name}, {short}" if name else short: x for name, x in each.items()}
        return made

    return margins


def consumers_of(runs: Runs) -> str:
    """Return the label of the corpus on which consumers are judged."""
    return FILMS if FILMS in runs.labels else runs.labels[0]


def music_of(runs: Runs) -> str:
    """Return the label of Musical Instruments, or the first label if the runs lack it."""
    return next((label for label in runs.labels if SAME.get(label) == MUSIC), runs.labels[0])
