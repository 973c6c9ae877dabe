"""Indexes of fewer bytes: what they take, what they find, and how long a search takes.

Rows are the items of Gowalla by a truncated SVD of its training pairs (PureSVD: Cremonesi, Koren
and Turrin, RecSys 2010), with its users as queries, and vectors in made-up clusters. By distance, a
row is [z, ‖z‖²/1024] and a query [q, −512], as stores have them (docs/method.md, "One index for all
versions").
"""

from __future__ import annotations

import gc
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import gowalla
from benchmarks.serving import planted, stores
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.lance_store import FORMS, LanceStore
from evergram.stores.open_store import open_store
from evergram.stores.rows import Floats, Rows, Space
from evergram.stores.snapshot_store import SnapshotStore
from evergram.stores.store import Store

MEASURED = [
    FLOAT32,
    *(
        IndexCodes(kind, oversample)
        for kind, several in {"float16": (2,), "int8": (1, 2, 4), "binary": (4, 8, 16)}.items()
        for oversample in several
    ),
]
MOST_BY_SERVER = 100_000
CLUSTERED, DIM, QUERIES, NEAREST = 200_000, 128, 300, 10
SCALE = 1024  # of the squared lengths behind a stored vector


@dataclass(frozen=True)
class Vectors:
    """What is searched. Args: rows [N, D] and queries [Q, D], float32."""

    name: str
    rows: Floats
    queries: Floats

    def by_distance(self) -> Vectors:
        """Return the rows with their squared lengths, and queries whose products order by
        distance."""
        lengths = (self.rows**2).sum(axis=1, keepdims=True) / SCALE
        weights = np.full((len(self.queries), 1), -SCALE / 2)
        return Vectors(
            f"{self.name}, by distance",
            np.hstack([self.rows, lengths]).astype(np.float32),
            np.hstack([self.queries, weights]).astype(np.float32),
        )


@dataclass(frozen=True)
class Measured:
    """One index on one data set.

    Args:
        store: its kind.
        codes: None for a search without an index; built: whether the codes gave the recall.
        size: bytes of the index's file a row.
        touched: MB of the store's files that the searches read; 0 where a server reads them.
        recall: share of the ten truly best.
        seconds: of the median query.
    """

    store: str
    vectors: str
    codes: IndexCodes | None
    built: bool = True
    size: float = 0.0
    touched: float = 0.0
    recall: float = 0.0
    seconds: float = 0.0


def measure() -> list[Measured]:
    draw = np.random.default_rng(3)
    rows = planted(CLUSTERED, DIM, 0)
    near = rows[draw.integers(0, len(rows), QUERIES)]
    near = near + 0.3 * draw.standard_normal(near.shape).astype(np.float32)
    places = places_of_gowalla()
    sets = [places, places.by_distance(), Vectors(f"{CLUSTERED:,} in clusters", rows, near)]
    return [
        one
        for vectors in sets
        for one in [*measured(vectors), *by_lance(vectors), *by_server(vectors)]
    ]


def tiny() -> list[Measured]:
    rows = planted(3_000, 16, 0)
    vectors = Vectors("tiny", rows, rows[:20] + np.float32(0.1))
    return [*measured(vectors), *by_lance(vectors), *by_server(vectors)]


def places_of_gowalla() -> Vectors:
    """Return Gowalla's items, and QUERIES of its users, as a truncated SVD of rank DIM has them."""
    from scipy.sparse import coo_array
    from scipy.sparse.linalg import svds

    with tempfile.TemporaryDirectory() as folder:
        pairs = pq.read_table(gowalla.convert(Path(folder)) / "train.parquet")
    users, items = (pairs[side].to_numpy() for side in ("query", "candidate"))
    matrix = coo_array((np.ones(len(users)), (users, items))).tocsr()
    start = np.random.default_rng(0).standard_normal(min(matrix.shape))
    _, lengths, right = svds(matrix, k=DIM, v0=start)
    vectors = (right.T * np.sqrt(lengths)).astype(np.float32)
    chosen = np.random.default_rng(1).choice(matrix.shape[0], QUERIES, replace=False)
    queries = (matrix[chosen] @ right.T / np.sqrt(lengths)).astype(np.float32)
    return Vectors(f"Gowalla, {len(vectors):,} items", vectors, queries)


def measured(vectors: Vectors) -> list[Measured]:
    """Build every index over the same rows, and ask each the same queries, one by one, in turns."""
    with tempfile.TemporaryDirectory() as name:
        plain = Path(name) / "plain"
        with SnapshotStore.open(str(plain), "int64") as store:
            load(store, vectors)
        folders: list[tuple[IndexCodes | None, Path]] = [(None, plain)]
        refused = []
        for codes in MEASURED:
            folder = Path(shutil.copytree(plain, Path(name) / f"{codes.kind}-{codes.oversample}"))
            with SnapshotStore(folder, index_from=1_000) as store:
                if has_index(store, codes):
                    folders.append((codes, folder))
                else:
                    refused.append(Measured("snapshot", vectors.name, codes, built=False))
        opened = [SnapshotStore(folder) for _, folder in folders]
        truth = [set(best.tolist()) for best in exact(vectors)]
        hits, seconds = asked(opened, vectors.queries, truth)
        figures = [
            Measured(
                "snapshot",
                vectors.name,
                codes,
                True,
                sum(file.stat().st_size for file in folder.rglob("*.faiss")) / len(vectors.rows),
                touched(store, folder, vectors.queries),
                found / (NEAREST * len(vectors.queries)),
                median(times[1:]),
            )
            for (codes, folder), store, found, times in zip(
                folders, opened, hits, seconds, strict=True
            )
        ]
        for store in opened:
            store.close()
    return [*figures, *refused]


def by_lance(vectors: Vectors) -> list[Measured]:
    """As `measured`, of LanceDB's indexes, which are not mapped: what they read is not known."""
    several = [None, *(codes for codes in MEASURED if of_lance(codes, vectors.rows.shape[1]))]
    with tempfile.TemporaryDirectory() as name:
        plain = Path(name) / "plain"
        with LanceStore.open(f"lance:{plain}#bench", "int64") as store:
            load(store, vectors)
        opened: list[tuple[IndexCodes | None, LanceStore]] = []
        refused = []
        for number, codes in enumerate(several):
            folder = Path(shutil.copytree(plain, Path(name) / str(number)))
            store = LanceStore.open(f"lance:{folder}#bench")
            if codes is None or has_index(store, codes):
                opened.append((codes, store))
            else:
                refused.append(Measured("lance", vectors.name, codes, built=False))
        truth = [set(best.tolist()) for best in exact(vectors)]
        hits, seconds = asked([store for _, store in opened], vectors.queries, truth)
        figures = [
            Measured(
                "lance",
                vectors.name,
                codes,
                size=0.0 if codes is None else index_bytes(store) / len(vectors.rows),
                recall=found / (NEAREST * len(vectors.queries)),
                seconds=median(times[1:]),
            )
            for (codes, store), found, times in zip(opened, hits, seconds, strict=True)
        ]
        for _, store in opened:
            store.close()
    return [*figures, *refused]


def of_lance(codes: IndexCodes, dim: int) -> bool:
    """Say whether LanceDB has an index of these codes of vectors of so many dims."""
    return codes.kind in FORMS and dim % FORMS[codes.kind][1] == 0


def index_bytes(store: LanceStore) -> int:
    """Return the size of the index of the vectors, as LanceDB says it."""
    (size,) = (
        one.size_bytes for one in store._table(0).list_indices() if list(one.columns) == ["vector"]
    )
    return int(size)


def by_server(vectors: Vectors) -> list[Measured]:
    """Measure pgvector's index of whole vectors and of halves; nothing where no server runs, or
    there are more rows than it indexes in a minute or two."""
    if len(vectors.rows) > MOST_BY_SERVER:
        return []
    import psycopg

    with tempfile.TemporaryDirectory() as name, stores(Path(name), 0) as addresses:
        if "pgvector" not in addresses:
            return []
        several = [FLOAT32, IndexCodes("float16", 2)]
        address = addresses["pgvector"].rpartition("#")[0]
        made = [open_store(f"{address}#{codes.kind}", create="int64") for codes in several]
        sizes = []
        with psycopg.connect(address, autocommit=True) as connection:
            for codes, store in zip(several, made, strict=True):
                load(store, vectors)
                store.build_index(codes)
                connection.execute(f"analyze {codes.kind}_vectors")  # as a server does by itself
                relation = f"{codes.kind}_v0_hnsw" + ("" if codes.whole else f"_{codes.kind}")
                row = connection.execute("select pg_relation_size(%s)", [relation]).fetchone()
                assert row is not None
                sizes.append(row[0] / len(vectors.rows))
        truth = [set(best.tolist()) for best in exact(vectors)]
        hits, seconds = asked(made, vectors.queries, truth)
        for store in made:
            store.close()
    return [
        Measured("pgvector", vectors.name, codes, True, size, 0.0, found, median(times[1:]))
        for codes, size, found, times in zip(
            several, sizes, [hit / (NEAREST * len(truth)) for hit in hits], seconds, strict=True
        )
    ]


def load(store: Store, vectors: Vectors) -> None:
    space = Space(0, vectors.rows.shape[1], "sha256:bench")
    store.load(space, [Rows(0, pa.array(range(len(vectors.rows))), vectors.rows)])


def has_index(store: Store, codes: IndexCodes) -> bool:
    """Build an index and return whether there is one: codes that find too few are refused."""
    from evergram.errors import DataError

    try:
        return bool(store.build_index(codes))
    except DataError:
        return False


def exact(vectors: Vectors) -> Iterator[npt.NDArray[np.int64]]:
    for query in vectors.queries:
        yield np.argpartition(-(vectors.rows @ query), NEAREST)[:NEAREST]


def asked(
    several: Sequence[Store], queries: Floats, truth: list[set[int]]
) -> tuple[list[int], list[list[float]]]:
    """Return of each store the hits and the seconds of its queries. No query is asked twice in a
    row: the second time its rows would be at hand."""
    hits, seconds = [0] * len(several), [[0.0] * len(queries) for _ in several]
    for turn in range(len(queries)):
        for number, store in enumerate(several):
            at = (turn + 7 * number) % len(queries)
            started = time.perf_counter()
            (best,) = store.search({0: queries[at][None]}, NEAREST)
            seconds[number][turn] = time.perf_counter() - started
            hits[number] += len(truth[at] & set(best.ids.to_pylist()))
    return hits, seconds


def touched(store: SnapshotStore, folder: Path, queries: Floats) -> float:
    """Return the MB of a store's mapped files that a pass over the queries reads: what has to stay
    in memory for searches to be fast."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("1")
    for query in queries:
        store.search({0: query[None]}, NEAREST)
    kilobytes, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()
        if "-" in head[0]:
            ours = len(head) > 5 and head[5].startswith(str(folder))
        elif ours and head[0] == "Referenced:":
            kilobytes += int(head[1])
    return kilobytes * 1024 / 1e6


def table(figures: list[Measured]) -> str:
    lines = [
        "| store | rows | index of | oversample | index, bytes a row | files read, MB | recall@10 "
        "| ms a query | over float32's |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    whole = {(f.store, f.vectors): f.seconds for f in figures if f.codes == FLOAT32 and f.built}
    for f in figures:
        kind = "none: exact" if f.codes is None else f.codes.kind
        more = "–" if f.codes is None or f.codes.whole else str(f.codes.oversample)
        cells = ["none: it would find too few of the best, or not be faster", "–", "–", "–", "–"]
        if f.built:
            base = whole.get((f.store, f.vectors))
            ratio = "–" if base is None else f"{f.seconds / base:.2f}"
            read = f"{f.touched:.1f}" if f.touched else "–"
            size = "–" if f.codes is None else f"{f.size:.0f}"
            cells = [size, read, f"{f.recall:.3f}", f"{f.seconds * 1e3:.2f}", ratio]
        lines.append(f"| {f.store} | {f.vectors} | {kind} | {more} | {' | '.join(cells)} |")
    return "\n".join(lines)
