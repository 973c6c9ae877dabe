"""`evergram store fill, index, backfill`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command import Command
from tests.support.lineages import lineage_of, publish

from evergram.stores.open_store import open_store

ROWS = 300


def versions_in(address: str) -> dict[int, int]:
    """Return how many rows a store has of each version."""
    with open_store(address) as store:
        return dict(store.count())


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lineage of one version in `line`, beside which the command runs."""
    monkeypatch.chdir(tmp_path)
    lineage_of(tmp_path / "line", versions=1)
    return tmp_path / "line"


@pytest.fixture
def outdated(line: Path, evergram: Command) -> Path:
    """A lineage whose store `rows` still holds the version before production."""
    from evergram.lineage.lineage import Lineage

    assert evergram("store", "fill", "line", "--store", "object=rows").code == 0
    publish(Lineage.open(line), 1)
    return line


def test_fill_says_what_it_has_written_where(evergram: Command, line: Path) -> None:
    code, out, err = evergram("store", "fill", "line", "--store", "object=rows")
    facts = f"store: snapshot:rows, side: object, rows: {ROWS}, held: 0: {ROWS}"
    assert (code, out) == (0, f"version: 0\nstores: {facts}\n")
    assert err.splitlines()[-1] == f"{ROWS} of {ROWS} rows of side object"
    assert evergram.json("store", "fill", "line", "--store", "object=rows", "--index") == {
        "version": 0,
        "stores": [{"store": "snapshot:rows", "side": "object", "rows": ROWS, "held": {"0": ROWS}}],
    }


def test_a_store_is_indexed_and_what_is_not_is_said(
    evergram: Command, line: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evergram("store", "fill", "line", "--store", "object=rows").code == 0
    done = evergram("store", "index", "rows")
    assert (done.code, done.out) == (0, "store: snapshot:rows\nversions: none\n")
    facts = {"store": "snapshot:rows", "versions": []}
    assert evergram.json("store", "index", "rows") == facts
    monkeypatch.setattr("evergram.stores.snapshot_store.SnapshotStore.build_index", lambda _: [0])
    done = evergram("store", "index", "rows")
    assert (done.code, done.out) == (0, "store: snapshot:rows\nversions: 0\n")


def test_progress_on_a_terminal_is_one_line_that_is_written_over(
    evergram: Command,
    line: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    err = evergram("store", "fill", "line", "--store", "object=rows").err
    assert err.startswith("\r")
    assert err.endswith(f"\r{ROWS} of {ROWS} rows of side object\n")
    assert err.count("\n") == 1


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
    assert f"refreshed: {ROWS}\n" in whole.out
    assert f"held: 1: {ROWS}\n" in whole.out
    last = whole.err.splitlines()[-1]
    assert last.startswith(f"{ROWS} of {ROWS} rows, ")
    assert last.endswith(" 0:00:00 left")
    assert evergram("store", "backfill", "rollback", *store).code == 0
    assert versions_in("rows") == {0: ROWS}


@pytest.fixture
def ctrl_c_interrupts() -> Iterator[None]:
    """A process that was started in the background may ignore Ctrl-C, and so these tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_interrupts")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_backfill_is_paused(
    evergram: Command, outdated: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def interrupt(done: int, total: int, what: str) -> None:
        if done == 200:
            os.kill(os.getpid(), number)

    store, before = ("line", "--store", "object=rows"), signal.getsignal(number)
    assert evergram("store", "backfill", "plan", *store, "--batch", 100).code == 0
    with monkeypatch.context() as during:
        during.setattr("evergram.cli.stores.print_progress", interrupt)
        stopped = evergram("store", "backfill", "apply", *store)
    assert stopped == (128 + number, "", "interrupted; run the same command again\n")
    assert signal.getsignal(number) is before
    paused = evergram.json("store", "backfill", "status", *store)
    assert (paused["state"], paused["refreshed"]) == ("paused", 200)
    assert evergram.json("store", "backfill", "apply", *store)["held"] == {"1": ROWS}


def test_every_store_that_is_given_is_filled(
    trained_lineage: Path, tmp_path: Path, evergram: Command
) -> None:
    films, people = f"{tmp_path}/films", f"lance:{tmp_path}#people"
    both = f"{trained_lineage} --store candidate={films} --store query={people}"
    assert evergram.json(f"store fill {both}") == {
        "version": 2,
        "stores": [
            {"store": f"snapshot:{films}", "side": "candidate", "rows": 27, "held": {"2": 27}},
            {"store": people, "side": "query", "rows": 32, "held": {"2": 32}},
        ],
    }
    assert (versions_in(films), versions_in(people)) == ({2: 27}, {2: 32})
