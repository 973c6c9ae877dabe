"""The progress of backfills as the service shows it, read from their files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evergram.retrieval.backfill_progress import (
    UNREADABLE,
    BackfillProgress,
    backfill_progress,
)

PLAN = {"side": "candidate", "target": 3, "rows": 10}


def write(lineage: Path, name: str, plan: Any, progress: Any) -> Path:
    folder = lineage / "backfills" / name
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "progress.json").write_text(json.dumps(progress))
    return folder


def test_each_backfill_is_read_with_its_progress(tmp_path: Path) -> None:
    assert backfill_progress(tmp_path) == []
    write(tmp_path, "candidate-0a", PLAN, {"state": "under way", "done": 4})
    write(tmp_path, "query-0b", {**PLAN, "side": "query"}, {"state": "applied", "done": 10})
    assert backfill_progress(tmp_path) == [
        BackfillProgress("candidate", 3, 4, 10, "under way"),
        BackfillProgress("query", 3, 10, 10, "applied"),
    ]


def test_a_plan_that_is_still_being_made_is_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path, "candidate-0a", PLAN, {"state": "planned", "done": 0})
    (folder / "plan.json").unlink()
    assert backfill_progress(tmp_path) == []


@pytest.mark.parametrize(
    ("plan", "progress"),
    [
        ([], {"state": "planned", "done": 0}),
        ({**PLAN, "rows": "10"}, {"state": "planned", "done": 0}),
        ({**PLAN, "target": True}, {"state": "planned", "done": 0}),
        (PLAN, {"state": "planned"}),
        (PLAN, {"state": "planned", "done": 1.5}),
    ],
)
def test_damaged_files_are_said_in_the_state(tmp_path: Path, plan: Any, progress: Any) -> None:
    write(tmp_path, "sub-side-0a", plan, progress)
    assert backfill_progress(tmp_path) == [BackfillProgress("sub-side", 0, 0, 0, UNREADABLE)]
