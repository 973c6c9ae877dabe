"""The list of tables and figures."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from reproduction.catalogue import EXPERIMENTS, READY, REPRODUCED, ROWS, find, listing, runs_of
from reproduction.run import jobs_of
from tests.support.reproduction_results import result

from evergram.errors import DataError
from reproduction import results

# How many figures and tables each paper has.
FIGURES = {"G1": (8, 3), "G2": (9, 5), "BC": (5, 3)}
# Listed under a number of the other paper, or not a result: [BC] Table 1 names the methods.
NOT_RESULTS = {("BC", "Table 1")}


@pytest.mark.parametrize("paper", FIGURES)
def test_every_table_and_figure_has_its_row(paper: str) -> None:
    listed: set[str] = set()
    for row in ROWS.values():
        text = row.shown.get(paper, "")
        for kind, numbers in re.findall(r"(Figure|Table)s? (\d+\w?(?:, \d+\w?)*)", text):
            listed |= {f"{kind} {re.match(r'[0-9]+', n)[0]}" for n in numbers.split(", ")}  # type: ignore[index]
    figures, tables = FIGURES[paper]
    expected = {f"Figure {i + 1}" for i in range(figures)}
    expected |= {f"Table {i + 1}" for i in range(tables)}
    assert expected - listed - {name for p, name in NOT_RESULTS if p == paper} == set()


def test_every_experiment_has_its_row_and_the_other_rows_say_why_they_have_none() -> None:
    assert set(EXPERIMENTS) <= set(ROWS)
    for name, row in ROWS.items():
        assert bool(row.state) == (name not in EXPERIMENTS)


def test_an_experiment_is_found_by_its_name() -> None:
    assert find("gramian/table2").name == "gramian/table2"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gramian/table", "did you mean gramian/table"),
        ("table2", "did you mean"),
        ("x", "lists all"),
        ("bc/figure1", "cannot be run: a drawing"),
    ],
)
def test_a_name_that_cannot_be_run_is_refused(name: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        find(name)


def test_the_state_is_what_the_folder_has(tmp_path: Path) -> None:
    def states() -> dict[str, tuple[str, list[int]]]:
        return {row.name: (row.state, row.seeds) for row in listing(tmp_path)}

    assert states()["gramian/movielens"] == (READY, [])
    jobs = jobs_of(find("gramian/movielens"), "small", [0])
    for job in jobs:
        made = replace(result(job.training.label), experiment=job.experiment, key=job.key)
        assert states()["gramian/movielens"] == (READY, [])  # until every training is there
        results.write(tmp_path, made)
    assert states()["gramian/movielens"] == (f"{REPRODUCED}small", [0])


def test_results_of_other_settings_are_no_results(tmp_path: Path) -> None:
    experiment = find("gramian/movielens")
    for job in jobs_of(experiment, "small", [0]):
        results.write(tmp_path, replace(result(job.training.label), experiment=job.experiment))
    assert runs_of(experiment, "small", tmp_path).seeds == []


def test_an_experiment_that_shares_trainings_shares_their_results() -> None:
    shared = [e for e in EXPERIMENTS.values() if e.runs_of]
    assert shared
    for experiment in shared:
        assert experiment.presets.items() <= EXPERIMENTS[experiment.runs_of].presets.items()


def test_the_state_names_every_corpus_that_was_run_and_the_seeds_of_all(tmp_path: Path) -> None:
    experiment = find("gramian/table2")
    assert experiment.reported == ["small", "gowalla"]
    for preset, seeds in (("small", [0, 1]), ("gowalla", [1, 2])):
        for job in jobs_of(experiment, preset, seeds):
            made = replace(result(job.training.label, job.seed), key=job.key)
            results.write(tmp_path, replace(made, experiment=job.experiment, preset=preset))
    (row,) = (line for line in listing(tmp_path) if line.name == "gramian/table2")
    assert (row.state, row.seeds) == (f"{REPRODUCED}small, gowalla", [1])
