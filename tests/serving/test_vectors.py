"""New queries, folded in by what they met; and searches: re-ranked, calibrated, or filtered by the
columns of a table of one's own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pytest
import torch
from numpy.testing import assert_allclose
from starlette.testclient import TestClient
from tests.support.arrow_requests import ARROW
from tests.support.folding import CANDIDATES, folding_lineage, solved
from tests.support.lineages import DIMS, lineage_of, vectors_of
from tests.support.own_tables import address_of, own_table
from tests.support.postgres_server import postgres
from tests.support.running_service import Running, client_of, http_of, refused, running
from tests.support.text_encoders import (
    ADDRESSES,
    CALLS,
    encoded,
    sentences,
    word_vectors,
)

from evergram.errors import DataError, LineageError, ServiceError
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.releasing.align import AlignSettings, align
from evergram.retrieval.reader import QueryVectors, Reader
from evergram.retrieval.version_sidecar import SidecarFiles, make_sidecar
from evergram.serving.settings import ServiceSettings
from evergram.serving.texts import Documents, ServedTexts

LISTS = [["c1", "c5"], ["c7"]]
WEIGHTS = [[2.0, 0.5], [1.0]]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("fold") / "films"
    folding_lineage(folder)
    with running(folder) as served:
        yield served


def test_vectors_are_those_that_python_folds_in(films: Running) -> None:
    answer = films.post("/v1/fold-in", {"candidates": LISTS, "weights": WEIGHTS})
    body = answer.json()
    expected = np.stack([solved([1, 5], WEIGHTS[0]).numpy(), solved([7], WEIGHTS[1]).numpy()])
    assert_allclose(body["vectors"], expected, atol=1e-5)
    fingerprint = Lineage.open(films.folder).manifest(1).fingerprint
    origin = {"version": 1, "computed_from": [1, 1], "side": "query", "fingerprint": fingerprint}
    assert body["evergram"] == origin
    for name in ("version", "computed-from"):
        assert answer.headers[f"x-evergram-{name}"] == "1"
    # A large body is read in pieces.
    draw = np.random.default_rng(0)
    lists = [[f"c{i}" for i in draw.integers(CANDIDATES, size=12)] for _ in range(1500)]
    weights = (draw.random((1500, 12)) + 0.5).tolist()
    body = films.post("/v1/fold-in", {"candidates": lists, "weights": weights}).json()
    folded = Lineage.open(films.folder).view().fold_in(lists, weights)
    assert_allclose(body["vectors"], folded.numpy(), atol=1e-5)


def test_a_pinned_consumer_gets_its_own_version_through_the_client(tmp_path: Path) -> None:
    lineage = folding_lineage(tmp_path / "films")
    consumers = ConsumerRegistry.open(lineage.path)
    consumers.add("old", "v0", lineage.resolve)
    token = consumers.issue_token("old")
    expected = lineage.view(0).fold_in(LISTS, WEIGHTS).numpy()
    assert expected.shape == (2, 3)
    with running(lineage.path, ServiceSettings(admin_token="the-administrators")) as served:
        served.http.headers["Authorization"] = f"Bearer {token}"
        client = client_of(served.http)
        assert_allclose(client.fold_in(LISTS, WEIGHTS), expected, atol=1e-5)
        assert_allclose(client.fold_in(LISTS[0], WEIGHTS[0], "v0"), expected[:1], atol=1e-5)
        with pytest.raises(ServiceError, match="may not read"):
            client.fold_in(LISTS, version=1)
        with pytest.raises(DataError, match="1 of 2 candidates are not stored: 'x'"):
            client.fold_in(["c1", "x"])
        assert client.fold_in(["c1", "x"], missing="skip").shape == (1, 3)


def test_an_integer_in_another_form_is_another_candidate(tmp_path: Path) -> None:
    folding_lineage(tmp_path / "films", ids="integers")
    with running(tmp_path / "films") as films:
        asked: dict[str, Any] = {"candidates": [["1", "05"], ["07", "7"]]}
        asked["weights"] = [[2.0, 3.0], [4.0, 1.0]]
        unknown = "2 of 4 candidates are not stored: '05', '07'"
        refused(films.post("/v1/fold-in", asked), 400, unknown)
        known = {"candidates": [[1], [7]], "weights": [[2.0], [1.0]]}
        skipped = films.post("/v1/fold-in", {**asked, "missing": "skip"})
        assert skipped.json() == films.post("/v1/fold-in", known).json()
        for wrong in ([[2.0], [1.0]], [[2.0, 3.0]]):
            answer = films.post("/v1/fold-in", {**asked, "missing": "skip", "weights": wrong})
            refused(answer, 400, code="shape")


def test_what_cannot_be_folded_in_is_refused(films: Running, served: Running) -> None:
    asked: dict[str, Any]
    for asked, status, words in (
        ({"candidates": []}, 400, "candidates"),
        ({"candidates": [[]]}, 400, "Query 1 of 1 has no candidates"),
        ({"candidates": [["x"]]}, 400, "1 of 1 candidates are not stored: 'x'"),
        ({"candidates": [[1]]}, 400, "Ids are strings here; integers were given; send 1 as"),
        ({"candidates": [["c1"]], "weights": [[0]]}, 400, "must be above 0"),
        ({"candidates": [["c1"]], "weights": [[1, 2]]}, 400, "must be as long as the candidates"),
        ({"candidates": [["c1"]], "version": 7}, 404, "0, 1"),
        ({"candidates": [["c1"] * 70] * 1000}, 413, "70000 candidates exceed the limit of 65536"),
    ):
        answer = films.post("/v1/fold-in", asked)
        assert words in answer.json()["error"]["message"]
        assert answer.status_code == status
    for route, asked in (("embeddings", {"input": "x"}), ("search", {"id": "x"})):
        answer = films.post(f"/v1/{route}", asked)
        refused(answer, 404, "side' may be 'query' or 'candidate'", code="unknown_id")
    answer = films.http.post("/v1/fold-in", content=b"", headers={"Content-Type": ARROW})
    refused(answer, 415, code="request")
    refused(served.post("/v1/fold-in", {"candidates": [[1]]}), 400, "no side 'candidate'")


ALL, MOVED, DIM = 400, 150, 12
QUERIES = word_vectors(["word1 word2 word3", "word4 word9"], 1, DIM)
OLD_QUERY = word_vectors(["word1 word2 word3"], 0, 10)
LOSSY = AlignSettings(transform="low_rank", rank=4, held_out=0.5)
CALIBRATED: Any = {"scores": "calibrated", "query_vectors": "own"}


def write_texts(path: Path, count: int = ALL) -> None:
    table = pa.table({"id": [f"text-{i}" for i in range(count)], "text": sentences(ALL)[:count]})
    arrow_csv.write_csv(table, path)


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moving")
    old = encoded(folder, ADDRESSES[0])
    new = encoded(folder, ADDRESSES[1], texts=sentences()[:MOVED])
    align(old, new, Lineage.create(folder / "line", "line"), AlignSettings(), promote=False)
    write_texts(folder / "texts.csv")
    return folder


@pytest.fixture
def half_moved(moving: Path, tmp_path: Path) -> Lineage:
    """Version 0 in production with all texts; version 1 of the first texts, not promoted."""
    shutil.copytree(moving, tmp_path, dirs_exist_ok=True)
    return Lineage.open(tmp_path / "line")


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a lineage of two versions, of which the newer is read back with a loss."""
    folder = tmp_path_factory.mktemp("lossy")
    old, new = (encoded(folder, address) for address in ADDRESSES[:2])
    lineage = Lineage.create(folder / "line", "line")
    align(old, new, lineage, LOSSY)
    make_sidecar(lineage, old, size=8).save(folder / "one.sidecar")
    return folder


def reranking(
    lineage: Lineage,
    settings: ServiceSettings | None = None,
    addresses: list[str] = ADDRESSES,
    kept: Path | None = None,
) -> AbstractContextManager[TestClient]:
    documents = Documents(lineage.path.parent / "texts.csv", kept)
    texts = ServedTexts(addresses, documents=documents)
    return http_of(lineage.path, settings=settings, texts=texts)


def search(http: TestClient, **fields: Any) -> Any:
    asked = {"version": 1, "k": 10, **fields}
    if not asked.keys() & {"id", "input", "vector"}:
        asked = {"vectors": QUERIES.tolist(), **asked}
    CALLS.clear()
    return http.post("/v1/search", json=asked)


def hits_of(answer: Any, what: str = "id") -> list[list[Any]]:
    assert answer.status_code == 200, answer.text
    return [[hit[what] for hit in row["hits"]] for row in answer.json()["data"]]


def asked_for() -> set[str]:
    return set(sentences()) & {text for call in CALLS for text in call}


def test_texts_are_served_as_the_plan_measures_its_cascades(tmp_path: Path) -> None:
    """As step 3 of docs/migrate.md has it: a lossy way back, so that it proposes other hits."""
    lineage = Lineage.create(tmp_path / "line", "line")
    old_file, new_file = (encoded(tmp_path, address) for address in ADDRESSES[:2])
    align(old_file, new_file, lineage, AlignSettings("low_rank", rank=2), promote=False)
    write_texts(tmp_path / "texts.csv")
    texts = ["word1 word2 word3", "word4 word9", "word5 word6 word7"]
    new = word_vectors(texts, 1, DIM)
    old_rows, new_rows = (word_vectors(sentences(), n, d) for n, d in ((0, 10), (1, DIM)))
    back = lineage.chain.apply(torch.from_numpy(new), 1, 0).numpy()

    def cascaded(proposing: Any) -> list[list[str]]:
        found = []
        for first, second in zip(proposing, new, strict=True):
            hits = np.argsort(-(old_rows @ first) / np.linalg.norm(old_rows, axis=1))[:10]
            own = new_rows[hits] @ second / np.linalg.norm(new_rows[hits], axis=1)
            found.append([f"text-{i}" for i in hits[np.argsort(-own, kind="stable")]])
        return found

    cascade, bridge_cascade = cascaded(word_vectors(texts, 0, 10)), cascaded(back)
    assert cascade != bridge_cascade
    fields: Any = {"rerank": 10, "metric": "cosine"}
    for addresses, expected in ((ADDRESSES, cascade), (ADDRESSES[1:], bridge_cascade)):
        with reranking(lineage, addresses=addresses) as http:
            assert hits_of(search(http, input=texts, **fields)) == expected
            assert hits_of(search(http, vectors=new.tolist(), **fields)) == bridge_cascade


def test_only_rows_that_have_not_moved_are_encoded_once_and_saved(
    half_moved: Lineage, tmp_path: Path
) -> None:
    with reranking(half_moved, kept=tmp_path / "kept") as http:
        # Without it, what version 1 has stored is all there is.
        plain = hits_of(search(http))
        assert all(int(id_.split("-")[1]) < MOVED for row in plain for id_ in row)
        first = hits_of(search(http, rerank=40))
        texts = asked_for()
        assert texts
        assert not texts & set(sentences()[:MOVED])
        assert hits_of(search(http, rerank=40)) == first
        assert not asked_for()
        # An id may be the query before its row has moved.
        fields: Any = {"k": 1, "rerank": 50, "metric": "l2"}
        for number in (3, ALL - 1):
            assert hits_of(search(http, id=f"text-{number}", **fields)) == [[f"text-{number}"]]
        assert search(http, id="text-9999", **fields).status_code == 404
        page = http.get("/metrics").text
    assert re.search(r'evergram_kept_vectors{version="1"} \d', page)
    for damage in (False, True):
        with reranking(half_moved, kept=tmp_path / "kept") as http:
            assert hits_of(search(http, rerank=40)) == first
            assert bool(asked_for()) == damage
        for saved in (tmp_path / "kept").glob("*.parquet"):
            saved.write_bytes(saved.read_bytes()[:100])


def test_what_cannot_be_reranked_is_refused(half_moved: Lineage, tmp_path: Path) -> None:
    settings = ServiceSettings(max_k=50, max_hits=80, max_batch=20)
    with reranking(half_moved, settings) as http:
        for fields, status, words in (
            ({"rerank": 5}, 400, "at least k (10) and at most 50"),
            ({"rerank": 51}, 400, "at most 50"),
            ({"rerank": 50}, 413, "exceed the limit of 80 results"),
            ({"rerank": 40}, 413, "a search may encode 20"),
            ({"rerank": True}, 400, "rerank"),
            ({"rerank": 20, "fingerprint": "x"}, 409, "are not of version"),
        ):
            refused(search(http, **fields), status, words)
    assert half_moved.production == 0
    other = ServedTexts(ADDRESSES[:1], documents=Documents(half_moved.path.parent / "texts.csv"))
    for texts, status, code, words in (
        (None, 400, "rerank", "without --encoder"),
        (ServedTexts(ADDRESSES), 400, "rerank", "without --encoder or --texts"),
        (other, 503, "text_encoder", "version 1"),
    ):
        with http_of(half_moved.path, texts=texts) as http:
            refusal = search(http, rerank=40)
            assert search(http).status_code == 200
        refused(refusal, status, words, code)
    # An object without a text is refused until the file has it.
    write_texts(half_moved.path.parent / "texts.csv", MOVED)
    with reranking(half_moved) as http:
        refused(search(http, rerank=ALL), 409, code="no_text")
        write_texts(half_moved.path.parent / "texts.csv")
        assert search(http, rerank=ALL).status_code == 200


@pytest.mark.parametrize("metric", ["ip", "cosine"])
def test_calibrated_scores_are_those_of_the_reader(lossy: Path, metric: Any) -> None:
    def read(reader: Reader, **options: Any) -> Any:
        return reader.search(OLD_QUERY, 7, 0, None, metric, **options)[0].scores

    with closing(Reader.open(lossy / "line")) as reader:
        raw = read(reader)
        ways = {
            made: read(reader, scores="calibrated", query_vectors=made)
            for made in get_args(QueryVectors)
        }
    assert not np.allclose(ways["own"], ways["read_back"], rtol=1e-3)
    assert not np.allclose(raw, ways["own"], rtol=5e-3)
    asked: Any = {"vector": OLD_QUERY[0].tolist(), "version": 0, "k": 7, "metric": metric}
    with http_of(lossy / "line") as http:
        answer = search(http, **asked)
        assert_allclose(hits_of(answer, "score")[0], raw, rtol=1e-5)
        assert "scores" not in answer.json()["evergram"]
        for whose, way in (("own", "own"), ("read_back", "read_back"), (1, "read_back")):
            answer = search(http, **asked, scores="calibrated", query_vectors=whose)
            assert_allclose(hits_of(answer, "score")[0], ways[way], rtol=1e-5)
            assert answer.json()["evergram"]["scores"] == "calibrated"
        (hits,) = client_of(http).search(OLD_QUERY, 7, 0, metric=metric, **CALIBRATED)
        assert_allclose(hits.scores, ways["own"], rtol=1e-5)
        for wrong, words in (
            ({**asked, **CALIBRATED, "query_vectors": -1}, "query_vectors"),
            ({**asked, "scores": "calibrated"}, "query_vectors is not given"),
            ({"id": "text-1", **CALIBRATED}, "'query_vectors' is for 'vector'"),
            ({**asked, "scores": "nice"}, "scores"),
        ):
            refused(search(http, **wrong), 400, words)
        refused(search(http, **{**asked, **CALIBRATED, "query_vectors": 99}), 404, "99")


def test_an_id_with_a_sidecar_is_searched_as_its_rows_are_read(lossy: Path) -> None:
    """Rows are then read by the way back, and so must the query be: an object finds itself."""
    answers = []
    for files in (SidecarFiles(), SidecarFiles([lossy / "one.sidecar"])):
        with http_of(lossy / "line", sidecars=files) as http:
            asked = {"version": 0, "k": 5, "metric": "cosine", "scores": "calibrated"}
            answers.append(search(http, id="text-3", **asked).json()["data"][0]["hits"])
    assert answers[0] == answers[1]
    assert answers[0][0]["id"] == "text-3"


def test_an_id_is_calibrated_as_a_query_of_the_version_that_its_row_is_of(
    adopted: tuple[TestClient, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def recorded(*_: Any, query_vectors: Any, **__: Any) -> Any:
        made.append(query_vectors)
        raise LineageError("no canaries")

    monkeypatch.setattr(Reader, "search", recorded)
    asked = {"id": 3, "version": 0, "scores": "calibrated"}
    assert adopted[0].post("/v1/search", json=asked).status_code == 400
    assert made == [1]  # and production is version 2


# Texts that would end a statement of SQL, or match more than themselves; one is a row's.
ODD = ("'; drop table x; --", "%s", "%", "' or '1'='1", "\\", "o'clock; --", "{x}", "news%", "`")


def filtered(http: TestClient, conditions: Any, **more: Any) -> Any:
    asked = {"vector": [1.0] * DIMS[0], "version": 0, "k": 300, "filter": conditions, **more}
    return http.post("/v1/search", json=asked)


@pytest.fixture(scope="module")
def adopted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, str]]:
    """A service on a table of PostgreSQL, and the table's name."""
    lineage = lineage_of(tmp_path_factory.mktemp("adopted") / "line", canaries=2)
    table = own_table(300, {0: range(300), 1: range(100)})
    with http_of(lineage.path, {"object": address_of(table, [0, 1], "&filter=category,year")}) as h:
        yield h, table


def test_a_table_of_postgresql_filters_and_is_not_changed(adopted: tuple[TestClient, str]) -> None:
    http, table = adopted
    for metric in ("ip", "l2", "cosine"):
        (ids,) = hits_of(filtered(http, {"category": "news", "year": {"gte": 2018}}, metric=metric))
        assert sorted(ids) == [i for i in range(300) if i % 3 == 0 and i % 20 >= 18]
        (ids,) = hits_of(filtered(http, {"category": ["news", "sport"], "year": [2001]}))
        assert sorted(ids) == [i for i in range(300) if i % 3 < 2 and i % 20 == 1]
    for text in (*ODD, "none"):
        expected = list(range(2, 300, 3)) if text == "o'clock; --" else []
        assert sorted(hits_of(filtered(http, {"category": text}))[0]) == expected
    assert postgres().sql(f"select count(*) from {table}") == [(300,)]
    client = client_of(http)
    query = vectors_of(0).numpy()[3]
    (hits,) = client.search(query, 2, 0, metric="l2", filter={"category": "news"})
    assert hits.ids.to_pylist()[0] == 3
    assert all(i % 3 == 0 for i in hits.ids.to_pylist())
    (hits,) = client.search(query, 300, 0, filter={"year": {"gte": 2003, "lte": 2003}})
    assert len(hits) == 15


def test_what_is_no_filter_is_refused(adopted: tuple[TestClient, str], served: Running) -> None:
    conditions: Any
    for conditions, words in (
        (["category = 'news'", []], "gte"),
        ("1 = 1", "gte"),
        ({}, "filter"),
        ({"year": {}}, "filter"),
        ({"category": {"like": "n%"}}, "filter"),
        ({"title": "Title 1"}, "allowed are category, year"),
        ({"category\" = 'news' or \"category": "x"}, "allowed are category, year"),
        ({"year": "2001"}, "of type int4, with a text"),
        ({"year": {"gte": True}}, "of type int4, with a boolean"),
        ({"category": "x\0"}, "texts without NUL"),
    ):
        refused(filtered(adopted[0], conditions), 400, words)
    refused(filtered(served.http, {"category": "news"}), 400, "only ids and vectors")
