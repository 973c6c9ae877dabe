"""What is particular to Qdrant: local mode, a server's answers, and collections of one's own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.agreement import scores_of
from tests.support.lineages import DIMS, lineage_of, vectors_of
from tests.support.own_tables import own_store
from tests.support.planted import planted, recall
from tests.support.publishing import publish_next
from tests.support.store_kinds import without_waiting_for_the_disk
from tests.support.store_pairs import constant

from evergram.errors import DataError, FormatError, IntegrityError, StoreError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.retrieval.reader import Metric, Reader
from evergram.stores.open_store import open_store
from evergram.stores.qdrant_store import QdrantStore, points_of
from evergram.stores.store import ReadableStore, Rows, Space

if TYPE_CHECKING:
    from qdrant_client import QdrantClient


class QdrantAnswers:
    """A server's answers, made of a collection of the client's local mode: what it was asked, the
    path and the body of each request, and its URL."""

    def __init__(self, client: QdrantClient) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.url = ""
        self._client = client
        # The keys that came with requests; whether to cut the next connection off.
        self.keys: set[str | None] = set()
        self.cut = False

    def answer(self, path: str, body: Any) -> Any:
        from qdrant_client import models

        self.asked.append((path, body))
        parts = path.partition("?")[0].strip("/").split("/")
        if parts == ["collections"]:
            return self._client.get_collections().model_dump(mode="json")
        name, rest = parts[1], "/".join(parts[2:])
        if rest == "exists":
            return {"exists": self._client.collection_exists(name)}
        if not self._client.collection_exists(name):
            return None
        if not rest:
            return self._client.get_collection(name).model_dump(mode="json")
        if rest == "points/payload":
            self._client.set_payload(name, body["payload"], body["points"])
            return {"operation_id": 1, "status": "completed"}
        if rest == "points":
            held = self._client.retrieve(name, body["ids"], with_vectors=body["with_vector"])
            return [point.model_dump(mode="json") for point in held]
        if rest == "points/count":
            count = models.CountRequest(**body)
            return self._client.count(name, count.filter).model_dump(mode="json")
        if rest == "points/scroll":
            page = models.ScrollRequest(**body)
            points, offset = self._client.scroll(
                name,
                page.filter,
                limit=page.limit or 10,
                offset=page.offset,
                with_payload=page.with_payload or False,
                with_vectors=page.with_vector or False,
            )
            shown = [point.model_dump(mode="json") for point in points]
            return {"points": shown, "next_page_offset": offset}
        assert rest == "points/query/batch"
        searches = models.QueryRequestBatch(**body).searches
        # The local mode warns of parameters.
        plain = [one.model_copy(update={"params": None}) for one in searches]
        found = self._client.query_batch_points(name, plain)
        return [hits.model_dump(mode="json") for hits in found]


@contextmanager
def qdrant_answers(folder: Path) -> Iterator[QdrantAnswers]:
    """Serve the collections of a folder at a URL of this machine."""
    from qdrant_client import QdrantClient

    with closing(QdrantClient(path=str(folder), force_disable_check_same_thread=True)) as client:
        answers = QdrantAnswers(client)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.do_POST()

            def do_PATCH(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length", 0)))
                answers.keys.add(self.headers.get("api-key"))
                if answers.cut:
                    answers.cut, self.close_connection = False, True
                    return
                result = answers.answer(self.path, json.loads(raw) if raw else None)
                body = {"result": result, "status": "ok", "time": 0.0}
                if result is None:
                    body = {"status": {"error": "Not found: no such collection"}, "time": 0.0}
                sent = json.dumps(body).encode()
                self.send_response(404 if result is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_: Any) -> None:
                """Not into the tests' output."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answers.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield answers
        finally:
            server.shutdown()
            server.server_close()


without_waiting_for_the_disk()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[QdrantStore]:
    with QdrantStore.open(f"qdrant:{tmp_path}/qdrant#emb", "int64") as opened:
        opened.add_space(Space(0, 4, "sha256:zero"))
        yield opened


def test_what_cannot_be_opened_says_why_and_ids_of_points_stay(store: QdrantStore) -> None:
    with pytest.raises(StoreError, match=r"http://127\.0\.0\.1:9#emb cannot be reached"):
        open_store("qdrant:http://127.0.0.1:9#emb")
    # They are stored, so a later Evergram must compute the same.
    assert points_of([7, "a"]) == [
        "f0b5b4b8-b5cb-5920-af1b-2cdcb054a491",
        "e59b53f8-58a3-5574-b7b7-297c834c9cf7",
    ]
    name = store.address.rpartition("#")[2]
    store._ask("set_payload", name, {"format_version": 9}, [0], wait=True)
    with pytest.raises(FormatError, match="has format 9; this Evergram reads 1"):
        store.spaces()
    # Another process is told that the folder is taken.
    code = f"from evergram.stores.open_store import open_store; open_store({store.address!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "StoreError" in done.stderr
    assert "already accessed" in done.stderr


def test_a_process_that_moves_rows_all_the_time_is_not_waited_for(
    store: QdrantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server, where another process may write however long this one reads."""
    store.add_space(Space(1, 3, "sha256:one"))
    store.upsert(constant(range(3)))
    monkeypatch.setattr(store, "_remote", True)
    looks = []

    def look(view: ReadableStore) -> dict[int, int]:
        looks.append(view)
        store.upsert(constant(range(3), len(looks) % 2, 4 - len(looks) % 2))
        return view.count()

    with pytest.raises(StoreError, match="moved to other versions by another process each of the"):
        store.read_consistently(look)
    assert len(looks) == 10


def test_collections_of_somebody_else_are_refused_and_stay(store: QdrantStore) -> None:
    """They were deleted: one of that name was taken for what a killed writer had left."""
    from qdrant_client import models

    shape = models.VectorParams(size=1, distance=models.Distance.DOT)
    for name in ("emb-v7", "mine"):
        store._ask("create_collection", name, vectors_config=shape)
        point = models.PointStruct(id=5, vector=[1.0], payload={"price": 3})
        store._ask("upsert", name, [point], wait=True)
    with pytest.raises(StoreError, match="a collection emb-v7 that"):
        store.add_space(Space(7, 4, "sha256:seven"))
    with pytest.raises(StoreError, match="a collection mine that"):
        QdrantStore.open(f"qdrant:{store._place}#mine", "int64")
    for name in ("emb-v7", "mine"):
        assert store._ask("count", name, exact=True).count == 1


def test_one_of_two_that_make_a_store_at_once_takes_the_others_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote its own over it, and the other's space was gone."""
    address, make = f"qdrant:{tmp_path}/q#emb", QdrantStore._make

    def make_and_be_overtaken(self: QdrantStore, collection: str, dim: int) -> None:
        make(self, collection, dim)
        monkeypatch.setattr(QdrantStore, "_make", make)
        with open_store(address, create="string") as other:
            other.add_space(Space(0, 4, "sha256:zero"))

    monkeypatch.setattr(QdrantStore, "_make", make_and_be_overtaken)
    with pytest.raises(DataError, match="string"):
        open_store(address, create="int64")
    with open_store(address, create="string") as store:
        assert list(store.spaces()) == [0]


def test_two_stores_share_a_folder_and_the_last_one_closes_it(tmp_path: Path) -> None:
    films, people = (open_store(f"qdrant:{tmp_path}/q#{n}", create="int64") for n in "ab")
    films.close()
    people.add_space(Space(0, 3, "sha256:zero"))
    with pytest.raises(StoreError, match="was closed"):
        films.spaces()
    people.close()
    people.close()
    with open_store(f"qdrant:{tmp_path}/q#b") as again:
        assert list(again.spaces()) == [0]


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_a_server_is_given_the_key_and_asked_again_after_a_cut(
    store: QdrantStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    monkeypatch.setenv("QDRANT_API_KEY", "hush")
    with qdrant_answers(tmp_path / "qdrant") as server:
        with open_store(f"qdrant:{server.url}#emb") as remote:
            assert "hush" not in remote.address
            server.cut = True
            assert remote.spaces() == {0: Space(0, 4, "sha256:zero")}
        assert (server.cut, server.keys) == (False, {"hush"})


ROWS, DIM = 150, 8


@contextmanager
def served(folder: Path) -> Iterator[tuple[QdrantStore, QdrantAnswers]]:
    """Fill a folder of the local mode, and open it as what a server has."""
    with QdrantStore.open(f"qdrant:{folder}/own#emb", "int64") as store:
        vectors, _ = planted(ROWS, DIM)
        store.load(Space(0, DIM, "sha256:0"), [Rows(0, pa.array(range(ROWS)), vectors)])
        store.add_space(Space(1, 4, "sha256:1"))
    with (
        qdrant_answers(folder / "own") as server,
        QdrantStore.open(f"qdrant:{server.url}#emb") as remote,
    ):
        yield remote, server


def parameters_of(server: QdrantAnswers) -> list[Any]:
    """Return the parameters of the searches that a server was asked for, and forget them."""
    bodies = [body for path, body in server.asked if "query/batch" in path]
    server.asked.clear()
    assert bodies
    return [one["params"] for body in bodies for one in body["searches"]]


def test_a_server_is_asked_to_score_by_whole_vectors(tmp_path: Path) -> None:
    vectors, queries = planted(ROWS, DIM)
    graph = {"ignore": False, "rescore": True}
    with served(tmp_path) as (store, server):
        assert store.build_index() == [0, 1]
        server.asked.clear()
        assert recall(store, 0, vectors, queries, 10) == 1.0
        store.read_consistently(lambda view: view.search({0: queries[:1]}, 200))
        first, *_, last = parameters_of(server)
        assert first == {"hnsw_ef": 128, "exact": False, "quantization": graph}
        assert last == {"hnsw_ef": 200, "exact": False, "quantization": graph}
        # Where all rows are compared, and among few ids, codes of the server are left out.
        store.search({0: queries[:1]}, 3, exact=True)
        store.search({0: queries[:1]}, 3, ids=[1, 2, 3, 4])
        whole = {"hnsw_ef": 128, "exact": True, "quantization": {"ignore": True, "rescore": True}}
        assert parameters_of(server) == [whole, whole]


QUERY = {0: np.ones((1, DIMS[0]), np.float32)}


def made(folder: Path, points: Mapping[Any, Any], distance: str = "Dot", **shape: Any) -> str:
    """Make a collection `mine` of points with a vector without a name, and return its address."""
    from qdrant_client import QdrantClient, models

    dim = max((len(vector) for vector in points.values()), default=6)
    params = models.VectorParams(size=dim, distance=models.Distance(distance), **shape)
    with closing(QdrantClient(path=str(folder))) as client:
        client.create_collection("mine", vectors_config=params)
        written = [models.PointStruct(id=k, vector=list(map(float, v))) for k, v in points.items()]
        if written:
            client.upsert("mine", written)
    return f"qdrant-collection:{folder}#collection=mine&v0="


def test_collections_that_cannot_be_read_are_refused(store: QdrantStore, tmp_path: Path) -> None:
    from qdrant_client import models

    many = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    bad: list[tuple[str, str]] = [
        (made(tmp_path / "a", {}), "no point yet"),
        (made(tmp_path / "c", {}, "Manhattan"), "Dot, Cosine or Euclid"),
        (made(tmp_path / "d", {}, multivector_config=many), "one vector a point"),
    ]
    for address, error in bad:
        with pytest.raises((StoreError, IntegrityError), match=error):
            open_store(address)
    for other in ("#other", "#emb-v0"):
        with pytest.raises(DataError, match="no store"):
            open_store(store.address.replace("#emb", other))
    points: dict[Any, Any] = dict.fromkeys([*range(5), str(uuid.UUID(int=4))], np.ones(6))
    large = {1: np.ones(6), 2**63: np.ones(6)}
    with open_store(made(tmp_path / "b", large)) as opened, pytest.raises(IntegrityError):
        opened.search(QUERY, 9)
    with open_store(made(tmp_path / "e", points)) as opened:
        for read in (lambda: opened.search(QUERY, 9), lambda: list(opened.scan())):
            with pytest.raises(IntegrityError, match="must all be whole numbers"):
                read()


def unit_lineage(folder: Path, scale: float = 1.0) -> tuple[Lineage, np.ndarray]:
    """Return a lineage of one version of vectors of one length, and the vectors."""
    vectors = torch.nn.functional.normalize(vectors_of(0, 60), dim=1) * scale
    lineage = Lineage.create(folder, "line")
    ids = pa.array(range(60))
    block = (ids, vectors)
    described = {"metrics": {"model": {}}, "version": 0}
    canaries = {"object": ids}
    publish_next(lineage, Artefact(6, {"object": block}, None, described, {}, canaries=canaries))
    return lineage, vectors.numpy()


def test_a_cosine_collection_is_searched_by_each_metric(tmp_path: Path) -> None:
    lineage, vectors = unit_lineage(tmp_path / "line")
    address = made(tmp_path / "own", dict(enumerate(vectors)), "Cosine")
    query = np.linspace(-2, 3, 6).astype(np.float32)
    metrics: list[Metric] = ["ip", "l2", "cosine"]
    with closing(Reader.open(lineage, {"object": address})) as reader:
        for metric in metrics:
            (scores,) = scores_of(metric, query[None], vectors)
            (hits,) = reader.search(query, 7, 0, metric=metric)
            best = np.argsort(-scores)[:7]
            assert hits.ids.to_pylist() == best.tolist()
            assert np.allclose(hits.scores, scores[best], atol=1e-5)

    # Vectors of other lengths are not what it stores.
    lineage, vectors = unit_lineage(tmp_path / "long", 3.0)
    address = made(tmp_path / "owner", dict(enumerate(vectors)), "Cosine")
    with pytest.raises(IntegrityError, match="60 of 60 vectors"):
        Reader.open(lineage, {"object": address})
    dot = made(tmp_path / "dot", dict(enumerate(vectors)))
    Reader.open(lineage, {"object": dot}).close()


def test_a_server_is_asked_for_exact_searches(tmp_path: Path) -> None:
    """The answers are made by the tests: no real server runs here."""
    held = {0: range(280), 1: range(100, 200)}
    local = own_store("qdrant-collection, Euclid", tmp_path / "own", 300, held)
    lineage = lineage_of(tmp_path / "line", canaries=2)
    query = np.linspace(-1, 2, DIMS[0]).astype(np.float32)
    options: dict[str, Any] = {"filter": {"category": ["news", "sport"], "year": {"gte": 2003}}}

    def searched(address: str) -> list[Any]:
        with closing(Reader.open(lineage, {"object": address})) as reader:
            return [
                (hits.ids.to_pylist(), hits.scores.round(4).tolist(), hits.versions.tolist())
                for ids in (None, list(range(0, 300, 7)))
                for hits in reader.search(query, 9, 0, metric="l2", ids=ids, **options)
            ]

    expected = searched(local)
    with qdrant_answers(tmp_path / "own") as server:
        assert searched(f"qdrant-collection:{server.url}#{local.rpartition('#')[2]}") == expected
        paths = {path.partition("?")[0].rpartition("mine")[2] for path, _ in server.asked}
        assert paths == {"", "/points/scroll", "/points/count", "/points/query/batch"}
        for params in parameters_of(server):
            assert (params["exact"], params["quantization"]["ignore"]) == (True, True)
        with pytest.raises(DataError, match=r"no collection 'none' at http.*; it has mine"):
            open_store(f"qdrant-collection:{server.url}#collection=none&v0=e0")
