"""Figures are read by method, version, task and λ, and averaged over corpora."""

from __future__ import annotations

import pytest
from reproduction.bc.columns import (
    best,
    by_task,
    by_version,
    keep_all,
    of_corpus,
    on_first,
    on_music,
    over_time,
    rank_correlation,
    swept,
    times,
    value,
    worst,
)
from reproduction.bc.methods import ALIGNER, FIX, JOINT, NON_BC
from reproduction.results import Result
from tests.support.reproduced_comparisons import TIMES, comparison_result, theirs
from tests.support.reproduction_results import runs_of

FIGURES = theirs("Video Games")
ONE = comparison_result("games", FIGURES, strengths=(16.0, 2.0, 4.5))


def test_a_figure_is_read_by_method_and_column() -> None:
    assert value(ONE, ALIGNER, "total") == -3.94
    assert best(ONE, [FIX, ALIGNER], "intended") == -3.35
    assert worst(ONE, [FIX, ALIGNER], "intended") == -25.55
    assert keep_all(ONE, "unintended") == 0.7
    assert times(ONE) == list(TIMES)


def test_versions_tasks_and_strengths_are_numbers_in_order() -> None:
    assert over_time(ONE, ALIGNER, "error") == {0: 0.0, 1: 0.28, 2: 0.56}
    assert by_task(ONE, NON_BC) == {"activity": {2: -30.81}}
    assert list(swept(ONE, JOINT[0], "error")) == [2.0, 4.5, 16.0]


def test_a_corpus_has_all_of_its_own_seeds() -> None:
    results = [comparison_result("a", FIGURES, seed) for seed in range(3)]
    runs = runs_of([*results, comparison_result("b", FIGURES, 1)])
    assert by_version(runs, "a", lambda r: over_time(r, ALIGNER, "error"))[2] == [0.56] * 3
    assert of_corpus(runs, "b", lambda r: r.seed) == [1]
    assert on_first(lambda r: r.seed)(runs) == [0, 1, 2]
    assert runs.seeds == [1]


@pytest.mark.parametrize(
    ("labels", "music"),
    [
        (["amazon-beauty", "amazon-musical-instruments"], -26.81),
        (["Grocery", "Musical Instruments"], -26.81),
        (["Grocery", "films"], -27.79),
    ],
)
def test_margins_are_of_the_first_corpus_or_of_musical_instruments(
    labels: list[str], music: float
) -> None:
    figures = (theirs("Grocery"), theirs("Musical Instruments"))
    runs = runs_of(
        [
            comparison_result(label, own, seed)
            for label, own in zip(labels, figures, strict=True)
            for seed in (0, 1)
        ]
    )

    def read(result: Result) -> float:
        return value(result, FIX, "intended")

    assert on_first(read)(runs) == [-27.79] * 2
    assert on_music(read)(runs) == [music] * 2


def test_ranks_are_compared_and_not_values() -> None:
    assert rank_correlation([1, 2, 3], [1, 10, 100]) == 1
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == -1
    assert rank_correlation([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(0.8)
