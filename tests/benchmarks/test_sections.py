"""Sections of the benchmarks run, with --tiny; tables become figures, and runs are compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.__main__ import main
from benchmarks.records import figures_of
from benchmarks.sections import SECTIONS
from benchmarks.verdicts import CHOICES, _trial

from benchmarks import __main__ as benchmarks
from benchmarks import pairs

DOCUMENTS = {path: path.read_bytes() for path in benchmarks.DOCUMENTS}
TABLE = """
| method | seconds | loop / bare | Recall@20 |
|---|---|---|---|
| exact | 1,234.5 ± 3 | 0.5 | 7e3 |
| sampled | – | -2 | none |
| exact | 7 ms | 3 | 1 |

| peak | store |
|---|---|
| 10 rows | 48.0 MiB |
"""


@pytest.mark.long
@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "time-to-als":
        pytest.importorskip("implicit", reason="needs evergram[peers]")
    code = main([name, "--tiny"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert f"## {name}" in captured.out
    assert figures_of(captured.out)
    assert {path: path.read_bytes() for path in DOCUMENTS} == DOCUMENTS


def broken() -> str:
    raise ZeroDivisionError("on purpose")


def test_a_failure_does_not_stop_the_next_and_a_run_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(SECTIONS, "steps", replace(SECTIONS["steps"], measure=broken))
    monkeypatch.setitem(
        SECTIONS, "walks", replace(SECTIONS["walks"], measure=str, table=lambda _: TABLE)
    )
    assert main(["steps", "walks", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "## walks" in captured.out
    assert "on purpose" in captured.err
    (path,) = tmp_path.iterdir()
    run = json.loads(path.read_text())
    assert {"machine", "versions", "commit", "load"} < run.keys()
    assert {"row": "10 rows", "column": "store", "value": 48} in run["sections"]["walks"]["figures"]


def test_sections_without_their_data_are_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("benchmarks.gowalla.DATA", tmp_path)
    assert main(["movielens", "pinned"]) == 0
    assert f"there is no real data at {tmp_path}: movielens, pinned." in capsys.readouterr().out


def test_figures_are_the_first_numbers_of_the_cells_of_a_table() -> None:
    assert figures_of(TABLE) == {
        ("exact", "seconds"): 1234.5,
        ("exact", "loop / bare"): 0.5,
        ("exact", "Recall@20"): 7000,
        ("sampled", "loop / bare"): -2,
        ("exact (2)", "seconds"): 7,
        ("exact (2)", "loop / bare"): 3,
        ("exact (2)", "Recall@20"): 1,
        ("10 rows", "store"): 48,
    }


def test_runs_alternate_and_only_common_figures_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    def run(checkout: Path, section: str, *, tiny: bool) -> dict[pairs.Cell, float]:
        order.append(checkout.name)
        only = {"new": ("added", "s"), "old": ("gone", "s")}[checkout.name]
        return {("step", "s"): float(len(order)), only: 1.0}

    monkeypatch.setattr(pairs, "run", run)
    compared = pairs.pairs(Path("old"), Path("new"), "steps", 3)
    assert order == ["old", "new", "new", "old", "old", "new"]
    assert compared == {("step", "s"): ([1, 4, 5], [2, 3, 6])}


def test_a_verdict_sees_its_own_half_alone() -> None:
    draw = torch.Generator().manual_seed(0)
    low = 0.2 + 0.05 * torch.rand(80, generator=draw)
    seen, unseen = torch.arange(40), torch.arange(40, 80)
    ndcg = dict.fromkeys([*CHOICES, "naive", "sidecar"], low)
    # Reindexing is better on the first half alone.
    ndcg = ndcg | {"reindex": torch.where(torch.arange(80) < 40, low + 0.3, low - 0.1)}
    made = _trial("c", ndcg, dict.fromkeys(CHOICES, 0.0), seen, unseen)
    assert (made.chosen, made.expected) == ("reindex", "reindex")
    assert made.regret("reindex") == pytest.approx(0.1, abs=1e-6)
    assert not made.covers
    assert _trial("c", ndcg, dict.fromkeys(CHOICES, 0.0), unseen, seen).chosen == "stay"
