"""`evergram reproduce`, and the checkout that it needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command import Command

import evergram
from evergram.cli.reproduce import checkout, reproduction
from evergram.errors import DataError


def test_without_a_name_it_lists_every_table_and_figure(evergram: Command, tmp_path: Path) -> None:
    rows = {row["name"]: row for row in evergram("reproduce", "--json").json["experiments"]}
    assert {"gramian/table2", "bc/table2", "bc/table3", "bc/figure5"} <= set(rows)
    assert rows["bc/figure1"]["state"].startswith("a drawing")
    empty = evergram("reproduce", "--out", tmp_path, "--json").json["experiments"]
    states = {row["name"]: row["state"] for row in empty}
    assert states["gramian/table2"] == "ready, not run yet"
    listed = evergram("reproduce", "--out", tmp_path).out.splitlines()
    assert len(listed) == len(rows)
    assert listed[0].startswith("gramian/figure1")


@pytest.mark.long
def test_a_run_prints_its_tables_and_verdicts_and_goes_on(
    evergram: Command, tmp_path: Path
) -> None:
    options = ("reproduce", "gramian/gramian-error", "--preset", "tiny", "--out", tmp_path)
    first = evergram(*options, "--json")
    assert first.json["seeds"] == [0]
    assert {claim["verdict"] for claim in first.json["claims"]} == {"not separable"}
    assert first.json["tables"][0]["rows"]
    again = evergram(*options, "--seeds", "2")
    assert again.code == 0
    assert "kept" in again.err.splitlines()[0]
    assert "not separable: Both variants of SAGram" in again.out
    report = evergram("reproduce", "report", "--out", tmp_path, "--json").json["report"]
    assert [Path(path).is_file() for path in report] == [True] * len(report)
    # Tiny figures are no results of the small preset.
    assert "not run yet" in (tmp_path / "reproduction.md").read_text()


ROOT = Path(__file__).parents[2]


def test_it_is_that_of_the_installed_source() -> None:
    assert checkout() == ROOT
    assert reproduction("row").NOT_BUILT == "not built yet"


def test_a_wheel_finds_it_in_the_working_directory_or_says_where_it_is_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evergram, "__file__", str(tmp_path / "site" / "evergram" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="in a checkout of Evergram's repository"):
        checkout()
    monkeypatch.chdir(ROOT)
    assert checkout() == ROOT
