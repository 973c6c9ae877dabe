"""What the command calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from reproduction.commands import Run, list_all, list_lines, make_report, reproduce

from evergram.training import Progress

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
    paths = make_report(tmp_path)
    assert paths[0] == tmp_path / "reproduction.md"
    assert all(path.is_file() for path in paths)
