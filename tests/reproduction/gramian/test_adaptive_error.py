"""Adaptive sampling stands in the tables of a trajectory that was trained a second time."""

from __future__ import annotations

import pytest
from reproduction.experiment import Runs
from reproduction.gramian.adaptive_error import LINEAR, NAME, SUFFIX, trajectories_of
from reproduction.gramian.gramian_error import FAST, GRAMIAN_ERROR, NAMES
from reproduction.readings.gramian_errors import GramianErrors
from reproduction.results import FOLDER, read_all
from reproduction.run import jobs_of
from tests.support.reproduction_results import result, runs_of

from reproduction.gramian import averaging_error, gramian_error

SIZES = (128, 1024)


def runs(*, adaptive: bool = True) -> Runs:
    def series(names: tuple[str, ...], value: float) -> dict[str, object]:
        errors = {f"{name} | {size}": [value] * 4 for name in names for size in SIZES}
        return {"step": [1, 2, 3, 4], "gramian": errors, "gradient": errors}

    rates = tuple(gramian_error.sogram_name(rate) for rate in gramian_error.RATES)
    made = [result(FAST, errors=series((*NAMES, *rates), 0.5))]
    if adaptive:
        small = {f"{name} | 128": [0.25] * 4 for name in (NAME, LINEAR)}
        steps = {"step": [1, 2, 3, 4], "gramian": small, "gradient": small}
        made.append(result(FAST + SUFFIX, errors=steps))
    return runs_of(made)


def test_its_row_follows_those_of_the_other_samplings() -> None:
    (table,) = gramian_error.tables(runs(), "gramian")
    assert [row[0] for row in table.rows] == [*NAMES[:3], NAME, *NAMES[3:]]
    assert {row[0]: row[1:] for row in table.rows}[NAME] == ["0.2500", "–"]
    panels = gramian_error.panels(runs(), "gradient")
    dashed = [[line.label for line in panel.lines if line.dashed] for panel in panels]
    assert dashed == [[*NAMES[:3], NAME], [*NAMES[:3]]]


def test_a_trajectory_without_it_has_the_papers_rows_alone() -> None:
    (table,) = gramian_error.tables(runs(adaptive=False), "gramian")
    assert [row[0] for row in table.rows] == list(NAMES)


def test_the_second_training_is_no_trajectory_of_its_own() -> None:
    assert trajectories_of(runs()) == [FAST]
    assert len(averaging_error.tables(runs())) == 1
    assert {panel.title for panel in averaging_error.panels(runs())} == {f"{FAST}, |B| = 1,024"}
    for claim in (*gramian_error.CLAIMS, *averaging_error.CLAIMS):
        assert claim.margins(runs()) == claim.margins(runs(adaptive=False))


@pytest.mark.parametrize("preset", ["tiny", "small", "sgd", "paper"])
def test_it_is_the_same_training_with_other_estimators_that_look_on(preset: str) -> None:
    jobs = {job.training.label: job for job in jobs_of(GRAMIAN_ERROR, preset, [0])}
    first = [label for label in jobs if not label.endswith(SUFFIX)]
    assert {f"{label}{SUFFIX}" for label in first} == jobs.keys() - set(first)
    for label in first:
        one, two = jobs[label], jobs[label + SUFFIX]
        assert one.settings["recipe"] == two.settings["recipe"]
        (own,), (other,) = one.training.readings, two.training.readings
        assert isinstance(own, GramianErrors)
        assert isinstance(other, GramianErrors)
        assert own.every == other.every
        assert all(
            own.estimators[n] == other.estimators[n] for n in other.estimators if LINEAR in n
        )
        assert {n.split(" | ")[0] for n in other.estimators} == {NAME, LINEAR}


def test_in_the_kept_results_both_trainings_are_one_trajectory() -> None:
    """Linear sampling was measured in both, and has the same errors at every step."""
    kept = {
        (r.label, r.seed): r.series["errors"] for r in read_all(FOLDER, GRAMIAN_ERROR.name, "small")
    }
    seconds = [(label, seed) for label, seed in kept if label.endswith(SUFFIX)]
    assert len(seconds) >= 3
    for label, seed in seconds:
        one, two = kept[label.removesuffix(SUFFIX), seed], kept[label, seed]
        assert one["step"] == two["step"]
        for kind in ("gramian", "gradient"):
            names = [name for name in two[kind] if name.startswith(LINEAR)]
            assert names
            for name in names:
                assert two[kind][name] == pytest.approx(one[kind][name], rel=1e-5)
