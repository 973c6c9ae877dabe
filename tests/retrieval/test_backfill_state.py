"""The plan and the progress of a backfill, and files that hold something else."""

from __future__ import annotations

import json

import pytest
from tests.support.older_stores import older_store

from evergram.errors import IntegrityError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfill import Backfill

pytestmark = pytest.mark.usefixtures("backfill_in_memory")


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("progress.json", {"state": "planned"}),
        ("progress.json", {"state": "planned", "done": "all"}),
        ("progress.json", {"state": "planned", "done": -1}),
        ("progress.json", []),
        ("plan.json", {"target": 2}),
        ("plan.json", {"target": True, "fingerprint": 1, "batch": 1, "rows": 1, "without": 1}),
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
