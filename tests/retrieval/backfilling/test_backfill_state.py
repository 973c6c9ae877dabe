"""The plan and the progress of a backfill, and files that hold something else."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.support.older_stores import older_store

from evergram.errors import IntegrityError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.backfilling.backfill_state import BackfillPlan, BackfillState

pytestmark = pytest.mark.usefixtures("backfill_in_memory")

PLAN = BackfillPlan("object", "snapshot:x", 2, "sha256:a", 64, 300, 20, 3)
WHOLE = asdict(PLAN)


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("progress.json", {"state": "planned"}),
        ("progress.json", {"state": "planned", "done": "all"}),
        ("progress.json", {"state": "planned", "done": -1}),
        ("progress.json", []),
        ("plan.json", {"target": 2}),
        ("plan.json", {**WHOLE, "target": True}),
        ("plan.json", {**WHOLE, "store": 1}),
        ("plan.json", {**WHOLE, "absent": -1}),
        ("plan.json", {**WHOLE, "absent": "none"}),
    ],
)
def test_a_plan_or_progress_that_cannot_be_read_is_an_error(
    lineage: Lineage, name: str, facts: object
) -> None:
    work = Backfill(lineage, older_store(lineage), "object")
    work.plan()
    (work.folder / name).write_text(json.dumps(facts))
    with pytest.raises(IntegrityError, match=f"{name} cannot be read: .* plan again"):
        work.apply()


def test_a_plan_and_its_progress_are_read_as_they_were_written(tmp_path: Path) -> None:
    state = BackfillState(tmp_path, 0o600)
    assert not state.is_planned
    state.write_plan(PLAN)
    assert state.is_planned
    assert (state.plan(), state.progress()) == (PLAN, ("planned", 0))
    state.write_progress("under way", 64)
    assert BackfillState(tmp_path, 0o600).progress() == ("under way", 64)
    assert (tmp_path / "plan.json").stat().st_mode & 0o777 == 0o600
