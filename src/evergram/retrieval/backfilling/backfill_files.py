"""The files of a backfill: its plan, its progress, the order of its rows, and the old rows."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from evergram.atomic_files import OWNER_ALONE, replacing, write_text
from evergram.errors import IntegrityError
from evergram.stores.rows import places_among
from evergram.stores.store import Rows

STATES = ("planned", "under way", "applied", "rolling back", "rolled back")
_HASH = 32


@dataclass(frozen=True)
class BackfillPlan:
    """The facts of a backfill that do not change while it runs.

    Args:
        side, store: the side, and the store's address.
        target, fingerprint: of the version that rows are refreshed to.
        batch: rows that are refreshed at once.
        rows: how many are to be refreshed.
        without: older rows for which the version has no embedding.
        absent: objects of the version without a row.
    """

    side: str
    store: str
    target: int
    fingerprint: str
    batch: int
    rows: int
    without: int
    absent: int


@dataclass(frozen=True)
class BackfillStatus:
    """The progress of a backfill.

    Args:
        state: one of `STATES`.
        target: the version that rows are refreshed to.
        rows: how many are to be refreshed.
        refreshed: how many of these are.
        without: older rows for which the version has no embedding; they stay as they are.
        absent: objects of the version that had no row when it was planned; none is added.
        remaining: mean predicted error of rows that wait, over that of all rows to refresh.
        held: rows of the store by version, now.
    """

    state: str
    side: str
    store: str
    target: int
    rows: int
    refreshed: int
    without: int
    absent: int
    remaining: float
    held: dict[int, int]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class BackfillState:
    """Reads and writes `plan.json` and `progress.json` of a folder.

    Args:
        mode: permissions of the files.
    """

    def __init__(self, folder: Path, mode: int) -> None:
        self.plan_path: Path = folder / "plan.json"
        self._progress_path = folder / "progress.json"
        self._mode = mode
        self._run: dict[str, float] = {}

    @property
    def is_planned(self) -> bool:
        return self.plan_path.exists()

    def plan(self) -> BackfillPlan:
        """Return the plan. Raises: IntegrityError: it cannot be read."""
        kinds: dict[str, type] = dict.fromkeys(("side", "store", "fingerprint"), str)
        kinds |= dict.fromkeys(("target", "batch", "rows", "without", "absent"), int)
        facts = _read_facts(self.plan_path, kinds)
        if not facts["batch"]:
            raise _unreadable(self.plan_path, "batch is 0")
        return BackfillPlan(**{name: facts[name] for name in kinds})

    def progress(self) -> tuple[str, int]:
        """Return the state and how many rows are refreshed; see `BackfillStatus`.

        Raises: IntegrityError: it cannot be read.
        """
        facts = _read_facts(self._progress_path, {"state": str, "done": int})
        if facts["state"] not in STATES:
            raise _unreadable(self._progress_path, f"state is {facts['state']!r}")
        return facts["state"], facts["done"]

    def write_plan(self, plan: BackfillPlan) -> None:
        """Replace the plan, and begin its progress anew; the plan is there when both are."""
        self.write_progress("planned", 0)
        write_text(self.plan_path, json.dumps(asdict(plan), indent=2), self._mode)

    def begin_run(self, done: int) -> None:
        """Write that rows are refreshed from now on, so that a rate can be told from here."""
        self._run = {"since": time.time(), "from": done}
        self.write_progress("under way", done)

    def write_progress(self, state: str, done: int, *, paused: bool = False) -> None:
        """Replace the progress, with the time: who reads it later can tell whether it still moves.

        Args:
            paused: whether it stops here because it was asked to, with rows left.
        """
        facts = {"state": state, "done": done, "at": time.time(), "paused": paused, **self._run}
        write_text(self._progress_path, json.dumps(facts), self._mode)


def _read_facts(path: Path, kinds: dict[str, type]) -> dict[str, Any]:
    """Return the facts in a file.

    Args:
        kinds: the type of each fact that must be there; numbers must not be negative.
    Raises: IntegrityError: the file cannot be read, or a fact is missing.
    """
    try:
        facts: dict[str, Any] = json.loads(path.read_text())
        for name, kind in kinds.items():
            if type(facts[name]) is not kind or (kind is int and facts[name] < 0):
                raise ValueError(f"{name} is {facts[name]!r}")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unreadable(path, error) from error
    return facts


def _unreadable(path: Path, why: object) -> IntegrityError:
    return IntegrityError(
        f"{path} cannot be read: {why}. Remove {path.parent} and plan again; rows that were "
        "refreshed stay so."
    )


def write_table(path: Path, table: pa.Table, mode: int = OWNER_ALONE) -> None:
    """Write a table, whole or not at all, as its SHA-256 followed by an Arrow file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    content = sink.getvalue()
    with replacing(path, mode) as file:
        file.write(sha256(content).digest())
        file.write(content)


def read_table(path: Path) -> pa.Table:
    """Return the table that `write_table` wrote. Its hash is compared before anything is parsed, as
    damaged Arrow can end the process.

    Raises: IntegrityError: it is missing or damaged.
    """
    try:
        with pa.memory_map(str(path)) as file:
            whole = file.read_buffer()
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error}. Plan again.") from error
    content = whole[_HASH:]
    if whole[:_HASH].to_pybytes() != sha256(content).digest():
        raise IntegrityError(
            f"{path} is not what was written; no row is taken from it. Rows that were refreshed "
            "stay so; plan again."
        )
    try:
        table = pa.ipc.open_file(content).read_all()
        table.validate(full=True)
    except pa.ArrowException as error:
        raise IntegrityError(
            f"{path} is not a table of a backfill: {error}. Plan again."
        ) from error
    return table


def read_order(path: Path) -> pa.Table:
    """Return the ids to refresh, worst first, and the predicted error of each.

    Raises: IntegrityError: it is missing or damaged.
    """
    return _columns(read_table(path), path, "id", "error")


def write_journal(path: Path, parts: list[Rows], mode: int = OWNER_ALONE) -> None:
    """Write rows of several versions, whose vectors may differ in length."""
    tables = [
        pa.table(
            {
                "id": rows.ids,
                "version": pa.array(np.full(len(rows), rows.version), pa.int64()),
                "vector": pa.array(list(rows.vectors), pa.list_(pa.float32())),
            }
        )
        for rows in parts
    ]
    write_table(path, pa.concat_tables(tables), mode)


def journal_rows(path: Path) -> Iterator[Rows]:
    """Yield what `write_journal` wrote, by version. Raises: IntegrityError: missing or damaged."""
    table = _columns(read_table(path), path, "id", "version", "vector")
    versions = table["version"].to_numpy()
    for version in sorted(set(versions.tolist())):
        mine = table.filter(pa.array(versions == version))
        vectors = np.stack([np.asarray(v, dtype=np.float32) for v in mine["vector"].to_numpy()])
        yield Rows(int(version), mine["id"].combine_chunks(), vectors)


def _columns(table: pa.Table, path: Path, *names: str) -> pa.Table:
    if table.column_names != list(names):
        raise IntegrityError(f"{path} is not a table of a backfill; plan again.")
    return table


def not_in_journals(parts: list[Rows], paths: list[Path]) -> list[Rows]:
    """Return the rows that no journal has with the same vector. Raises: IntegrityError."""
    for known in (rows for path in paths for rows in journal_rows(path)):
        parts = [_without(rows, known) for rows in parts]
    return [rows for rows in parts if len(rows)]


def _without(rows: Rows, known: Rows) -> Rows:
    if rows.version != known.version or not len(rows):
        return rows
    there, places = places_among(rows.ids, known.ids)
    new = ~there
    new[there] = (rows.vectors[there] != known.vectors[places]).any(axis=1)
    return Rows(rows.version, rows.ids.filter(pa.array(new)), rows.vectors[new])


UNREADABLE = "cannot be read; plan again"
# A backfill has stalled when it wrote nothing for so many seconds, and for the time of so many of
# its batches.
PATIENCE, BATCHES = 60.0, 5


@dataclass(frozen=True)
class BackfillProgress:
    """The progress of one backfill; see `Backfill`.

    Args:
        version: the one that rows are refreshed to.
        done, total: rows.
        state: "planned", "under way", "paused" (`apply` stopped after the rows that it was asked
            for), "stalled" (under way, and nothing was written for long: `apply` hangs, failed or
            was killed), "applied" or "rolled back".
        rate: rows a second in the last run of `apply`; None where it is not known.
        idle: seconds since the progress was last written.
    """

    side: str
    version: int
    done: int
    total: int
    state: str
    rate: float | None = None
    idle: float | None = None

    @property
    def left(self) -> float | None:
        """Seconds until all rows are done at this rate; None if not running or not known."""
        if self.state != "under way" or not self.rate:
            return None
        return (self.total - self.done) / self.rate


def backfill_progress(lineage: Path, now: float | None = None) -> list[BackfillProgress]:
    """Return every backfill that is planned, under way or done; of a store, the last one.

    A plan that is still being made is left out; one whose files are damaged says so in its state.

    Args:
        lineage: its folder.
        now: seconds since 1970, to which the times in the files are compared; by default the clock.
    """
    plans = sorted((lineage / "backfills").glob("*/plan.json"))
    clock = time.time() if now is None else now
    return [_read(plan, clock) for plan in plans if plan.is_file()]


def _read(path: Path, now: float) -> BackfillProgress:
    side = path.parent.name.rpartition("-")[0]
    try:
        plan = json.loads(path.read_text())
        progress = path.parent / "progress.json"
        # Before the content: if it is replaced in between, its own time is the later one.
        changed = progress.stat().st_mtime
        at = json.loads(progress.read_text())
        done, state, written = _number(at["done"]), str(at["state"]), _time(at.get("at", changed))
        since = _time(at["since"]) if "since" in at else None
        rows = done - _number(at["from"]) if since is not None else 0
        rate = (
            rows / (written - since) if since is not None and rows > 0 and written > since else None
        )
        idle = now - written
        if state == "under way":
            batch = _number(plan["batch"]) / rate if rate and "batch" in plan else 0.0
            # A time ahead of this machine's clock says as little as one that is long past.
            moves = abs(idle) <= max(PATIENCE, BATCHES * batch)
            state = "paused" if at.get("paused") is True else state if moves else "stalled"
        version, total = _number(plan["target"]), _number(plan["rows"])
        return BackfillProgress(str(plan["side"]), version, done, total, state, rate, idle)
    except (OSError, ValueError, KeyError, TypeError):
        return BackfillProgress(side, 0, 0, 0, UNREADABLE)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a number of rows")
    return value


def _time(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is not a time")
    return float(value)
