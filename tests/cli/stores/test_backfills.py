"""`evergram store backfill`: stores are refreshed and put back."""

from __future__ import annotations

from pathlib import Path

from tests.cli.stores.conftest import ROWS, versions_in
from tests.support.command import Command

from evergram.stores.open_store import open_store


def test_a_backfill_is_planned_applied_and_rolled_back(evergram: Command, outdated: Path) -> None:
    store = ("line", "--store", "object=rows")
    planned = evergram.json("store", "backfill", "plan", *store, "--batch", 100)
    assert (planned["target"], planned["rows"], planned["refreshed"]) == (1, ROWS, 0)
    half = evergram.json("store", "backfill", "apply", *store, "--rows", 150)
    assert half["refreshed"] == 150
    assert versions_in("rows") == {0: 150, 1: 150}
    assert evergram.json("store", "backfill", "status", *store) == half
    whole = evergram("store", "backfill", "apply", *store)
    assert whole.code == 0
    assert f"{ROWS} of {ROWS} rows refreshed to version 1; 0.0% of the predicted" in whole.out
    assert f"Rows held: {ROWS} of version 1." in whole.out
    assert whole.err.splitlines()[-1] == f"{ROWS} of {ROWS} rows"
    assert "had no row" not in whole.out
    assert evergram("store", "backfill", "rollback", *store).code == 0
    assert versions_in("rows") == {0: ROWS}
    with open_store("rows") as rows:
        rows.delete(list(range(3)))
    assert evergram.json("store", "backfill", "plan", *store)["absent"] == 3
    planned = evergram("store", "backfill", "status", *store).out
    assert "3 objects of it had no row when this was planned, and get none: 'evergram" in planned


def test_backfill_without_a_command_prints_its_help(evergram: Command) -> None:
    code, out, err = evergram("store", "backfill")
    assert (code, err) == (2, "")
    assert all(command in out for command in ("plan", "apply", "status", "rollback"))
