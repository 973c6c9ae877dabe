"""Sections of the benchmarks run, with --tiny; tables become figures, and runs are compared."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.__main__ import main
from benchmarks.records import figures_of
from benchmarks.sections import SECTIONS
from benchmarks.verdicts import CHOICES, _trial

from benchmarks import ROOT
from benchmarks import __main__ as benchmarks

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
    assert path.name == "walks.json"
    assert {"machine", "versions", "commit", "load"} < run.keys()
    assert {"row": "10 rows", "column": "store", "value": 48} in run["figures"]


@pytest.mark.parametrize("path", sorted(benchmarks.KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_the_documents_have_the_figures_that_were_kept(path: Path) -> None:
    kept = {(f["row"], f["column"]): f["value"] for f in json.loads(path.read_text())["figures"]}
    start, end = f"<!-- {path.stem} -->", f"<!-- end {path.stem} -->"
    (shown,) = (text for text in (p.read_text() for p in DOCUMENTS) if start in text)
    assert figures_of(shown.split(start)[1].split(end)[0]) == kept


def test_a_section_is_left_out_until_the_code_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    head = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("needs a checkout of git")
    code = ["git", "diff", "--quiet", "HEAD", "--", "src", "recipes", "benchmarks"]
    clean = subprocess.run(code, cwd=ROOT, check=False).returncode == 0
    monkeypatch.setattr(benchmarks, "KEPT", tmp_path)
    monkeypatch.setitem(
        SECTIONS, "walks", replace(SECTIONS["walks"], measure=str, table=lambda _: TABLE)
    )
    for commit, again in ((done.stdout.strip(), not clean), ("0" * 40, True), ("", True)):
        (tmp_path / "walks.json").write_text(json.dumps({"commit": commit}))
        assert main(["walks", "--changed", "--out", str(tmp_path / "out")]) == 0
        assert ("## walks" in capsys.readouterr().out) is again


def test_sections_without_their_data_are_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("benchmarks.gowalla.DATA", tmp_path)
    assert main(["defaults", "pinned"]) == 0
    assert f"there is no real data at {tmp_path}: defaults, pinned." in capsys.readouterr().out


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
