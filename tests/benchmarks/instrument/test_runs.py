"""A run is one file, whole or not there, and is read back as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.instrument.figures import Figure
from benchmarks.instrument.runs import Measured, Run

from benchmarks.instrument import runs
from evergram.errors import DataError

RUN = Run(
    "2026-11-22T21:27:24Z",
    {"processor": "a", "cores": 2},
    {"torch": "2"},
    "81ad43d1b3+",
    0.1,
    {"steps": Measured(0.1, 3.0, [Figure("a", "b", "ratio", [1.5, 2.0])])},
)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = runs.write(RUN, tmp_path / "kept")
    assert path == tmp_path / "kept" / "20261122T212724-81ad43d1b3.json"
    assert runs.read(path) == RUN
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert runs.write(RUN, tmp_path / "one.json") == tmp_path / "one.json"


def test_the_last_run_is_chosen_for_each_section(tmp_path: Path) -> None:
    later = replace(RUN, date="2026-12-01T00:00:00Z", sections={"growth": RUN.sections["steps"]})
    for run in (later, RUN):
        runs.write(run, tmp_path)
    (tmp_path / ".half.json.part").write_text("{")
    assert runs.kept(tmp_path) == [RUN, later]
    assert runs.last_of_each(runs.kept(tmp_path)) == {"steps": RUN, "growth": later}
    assert runs.kept(tmp_path / "nowhere") == []


def test_what_is_no_run_is_refused_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    whole = json.loads(runs.as_json(RUN))
    for text, words in (
        ("{", "is no run"),
        ("[]", "is no run"),
        (json.dumps({**whole, "format": 9}), "has format 9"),
        (json.dumps({k: v for k, v in whole.items() if k != "load"}), "is no run"),
        (json.dumps({**whole, "sections": {"a": {"load": 1}}}), "is no run"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            runs.read(path)
    with pytest.raises(DataError, match="is no run"):
        runs.read(tmp_path / "absent.json")


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DataError, match="--out"):
        runs.write(RUN, tmp_path / "file" / "run.json")
    assert (tmp_path / "file").read_text() == "mine"


def test_the_first_section_is_judged_by_its_own_load_and_later_ones_by_the_run_s() -> None:
    first, later = RUN.sections["steps"], replace(RUN.sections["steps"], load=2.0)
    run = replace(RUN, sections={"steps": first, "growth": later})
    assert not run.is_busy("growth")  # the load is the run's own
    busy = replace(run, load=1.4, sections={"steps": later, "growth": first})
    assert busy.is_busy("steps")
    assert busy.is_busy("growth")


def test_a_run_begins_here_and_now() -> None:
    run = runs.begin()
    assert run.date.endswith("Z")
    assert run.sections == {}
    assert "numpy" in run.versions
