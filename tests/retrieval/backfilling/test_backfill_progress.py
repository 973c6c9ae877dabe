"""The progress of backfills as the service shows it, read from their files alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from evergram.retrieval.backfilling.backfill_progress import (
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
    write(tmp_path, "candidate-0a", PLAN, {"state": "under way", "done": 4, "at": 990.0})
    query = {"state": "applied", "done": 10, "at": 900.0}
    write(tmp_path, "query-0b", {**PLAN, "side": "query"}, query)
    assert backfill_progress(tmp_path, 1000.0) == [
        BackfillProgress("candidate", 3, 4, 10, "under way", None, 10.0),
        BackfillProgress("query", 3, 10, 10, "applied", None, 100.0),
    ]


# A run that did 4 rows in 20 seconds, in batches of 2: ten seconds each.
RUN = {"state": "under way", "done": 6, "from": 2, "since": 1000.0, "at": 1020.0}


@pytest.mark.parametrize(
    ("plan", "progress", "now", "state", "rate", "left"),
    [
        ({}, {}, 1030.0, "under way", 0.2, 20.0),
        ({}, {}, 1080.0, "under way", 0.2, 20.0),
        ({}, {}, 1081.0, "stalled", 0.2, None),
        # Five batches of twenty seconds each: it may take longer.
        ({"batch": 4}, {}, 1119.0, "under way", 0.2, 20.0),
        ({"batch": 4}, {}, 1121.0, "stalled", 0.2, None),
        ({}, {"paused": True}, 9999.0, "paused", 0.2, None),
        ({}, {"done": 2}, 1030.0, "under way", None, None),
        ({}, {"state": "applied"}, 9999.0, "applied", 0.2, None),
        # A clock that is behind proves nothing.
        ({}, {}, 900.0, "stalled", 0.2, None),
    ],
)
def test_the_rate_the_time_left_and_when_it_stalled(
    tmp_path: Path,
    plan: dict[str, Any],
    progress: dict[str, Any],
    now: float,
    state: str,
    rate: float | None,
    left: float | None,
) -> None:
    write(tmp_path, "candidate-0a", {**PLAN, "batch": 2, **plan}, {**RUN, **progress})
    (found,) = backfill_progress(tmp_path, now)
    assert (found.state, found.rate, found.left) == (state, rate, left)


def test_progress_of_an_older_release_has_the_time_of_its_file(tmp_path: Path) -> None:
    folder = write(tmp_path, "candidate-0a", PLAN, {"state": "under way", "done": 4})
    os.utime(folder / "progress.json", (1000.0, 1000.0))
    states = [backfill_progress(tmp_path, now)[0].state for now in (1050.0, 1070.0)]
    assert states == ["under way", "stalled"]


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
        (PLAN, {**RUN, "at": float("nan")}),
        (PLAN, {**RUN, "since": "long ago"}),
    ],
)
def test_damaged_files_are_said_in_the_state(tmp_path: Path, plan: Any, progress: Any) -> None:
    write(tmp_path, "sub-side-0a", plan, progress)
    assert backfill_progress(tmp_path) == [BackfillProgress("sub-side", 0, 0, 0, UNREADABLE)]
