"""What the command calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from reproduction.commands import Run, list_all, list_lines, make_report, reproduce
from tests.support.reproduction_results import map_result

from evergram.errors import DataError
from evergram.training import Progress
from reproduction import results

QUIET = Progress(quiet=True)


@pytest.mark.long
def test_a_run_returns_tables_verdicts_and_where_its_results_are(tmp_path: Path) -> None:
    run = Run("gramian/movielens", "tiny", seeds=1, out=tmp_path)
    outcome = reproduce(run, QUIET)
    assert outcome.seeds == [0]
    assert len(list(outcome.folder.glob("*.json"))) == 4
    values = outcome.as_json()
    assert [claim["verdict"] for claim in values["claims"]] == ["not separable"] * 2
    assert values["tables"][0]["rows"]
    assert outcome.sentences[0].startswith("not separable: The best validation MAP")
    more = reproduce(Run("gramian/movielens", "tiny", seeds=2, out=tmp_path), QUIET)
    assert more.seeds == [0, 1]


def test_the_list_has_a_line_for_each_row(tmp_path: Path) -> None:
    rows = list_all(tmp_path)
    lines = list_lines(rows)
    assert len(lines) == len(rows)
    assert any("bc/figure1" in line and "a drawing" in line for line in lines)


def test_a_report_of_a_folder_is_written_into_it(tmp_path: Path) -> None:
    results.write(tmp_path, replace(map_result("zero", [0.5]), experiment="gramian/table2"))
    paths = make_report(tmp_path)
    assert paths[0] == tmp_path / "reproduction.md"
    assert all(path.is_file() for path in paths)


def test_a_folder_without_results_has_no_report(tmp_path: Path) -> None:
    for folder in (tmp_path / "typo", tmp_path):
        with pytest.raises(DataError, match=f"{folder} has no results, of which a report"):
            make_report(folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", [".", "below"])
def test_a_file_in_place_of_the_folder_is_refused_before_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr("reproduction.commands.run_all", lambda *_: pytest.fail("it trains"))
    with pytest.raises(DataError, match="file is a file, and --out is a folder"):
        reproduce(Run("gramian/table2", "tiny", out=tmp_path / "file" / below), QUIET)
    with pytest.raises(DataError, match="file is a file, and --out is a folder"):
        make_report(tmp_path / "file" / below)
    assert (tmp_path / "file").read_text() == "mine"
