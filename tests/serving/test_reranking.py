"""Searches over HTTP whose scores are those of a version's own vectors: re-ranked by texts, so that
an index migrates by use, or calibrated."""

from __future__ import annotations

import shutil
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
from tests.support.running_service import client_of, http_of
from tests.support.text_encoders import (
    ADDRESSES,
    CALLS,
    encoded,
    sentences,
    text_lineage,
    word_vectors,
)

from evergram.errors import LineageError
from evergram.lineage.lineage import Lineage
from evergram.migration.make_sidecar import make_sidecar
from evergram.releasing.files.align import AlignSettings, align
from evergram.retrieval.fill import fill, space_of, stored_rows
from evergram.retrieval.reader import QueryVectors, Reader
from evergram.retrieval.sidecars.sidecar_files import SidecarFiles
from evergram.retrieval.version_maps import VersionMaps
from evergram.serving.documents import Documents
from evergram.serving.settings import ServiceSettings
from evergram.serving.text_encoders import ServedTexts
from evergram.stores import open_store
from evergram.vector_files.open_embeddings import EmbeddingFile

ALL, MOVED, DIM = 400, 150, 12
QUERIES = word_vectors(["word1 word2 word3", "word4 word9"], 1, DIM)
OLD_QUERY = word_vectors(["word1 word2 word3"], 0, 10)
LOSSY = AlignSettings(transform="low_rank", rank=4, held_out=0.5)
CALIBRATED: Any = {"scores": "calibrated", "query_vectors": "own"}


def write_texts(path: Path, count: int = ALL) -> Path:
    rows = sentences(ALL)[:count]
    table = pa.table({"id": [f"text-{i}" for i in range(count)], "text": rows})
    arrow_csv.write_csv(table, path)
    return path


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


def running(
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


def ids_of(answer: Any) -> list[list[str]]:
    assert answer.status_code == 200, answer.text
    return [[hit["id"] for hit in row["hits"]] for row in answer.json()["data"]]


def scores_of(answer: Any) -> list[list[float]]:
    assert answer.status_code == 200, answer.text
    return [[hit["score"] for hit in row["hits"]] for row in answer.json()["data"]]


def asked_for() -> set[str]:
    return set(sentences()) & {text for call in CALLS for text in call}


def by_new_model(queries: Any, metric: str) -> Any:
    rows = word_vectors(sentences(), 1, DIM).astype(np.float64)
    if metric == "cosine":
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    if metric == "l2":
        return -np.square(queries[:, None] - rows[None]).sum(axis=2)
    return queries @ rows.T


def test_at_full_depth_it_is_a_search_of_the_new_model(half_moved: Lineage) -> None:
    with running(half_moved) as http:
        answers = {
            metric: search(http, rerank=ALL, metric=metric) for metric in ("ip", "l2", "cosine")
        }
    for metric, answer in answers.items():
        scores = by_new_model(QUERIES, metric)
        best = np.argsort(-scores, axis=1)[:, :10]
        assert ids_of(answer) == [[f"text-{i}" for i in row] for row in best]
        expected = np.take_along_axis(scores, best, 1)
        assert_allclose(scores_of(answer), expected, rtol=1e-4, atol=1e-4)
        assert answer.json()["evergram"]["computed_from"] == [1]


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
        with running(lineage, addresses=addresses) as http:
            assert ids_of(search(http, input=texts, **fields)) == expected
            assert ids_of(search(http, vectors=new.tolist(), **fields)) == bridge_cascade


def test_only_rows_that_have_not_moved_are_encoded_once_and_saved(
    half_moved: Lineage, tmp_path: Path
) -> None:
    with running(half_moved, kept=tmp_path / "kept") as http:
        # Without it, what version 1 has stored is all there is.
        plain = ids_of(search(http))
        assert all(int(id_.split("-")[1]) < MOVED for row in plain for id_ in row)
        first = ids_of(search(http, rerank=40))
        texts = asked_for()
        assert texts
        assert not texts & set(sentences()[:MOVED])
        assert ids_of(search(http, rerank=40)) == first
        assert not asked_for()
        page = http.get("/metrics").text
    assert f'evergram_kept_vectors{{version="1"}} {len(texts)}.0' in page
    for where in ("computed", "kept"):
        line = f'evergram_reranked_total{{vector="{where}",version="1"}} {len(texts)}.0'
        assert line in page, page
    assert 'evergram_reranked_total{vector="stored",version="1"}' in page
    with running(half_moved, kept=tmp_path / "kept") as http:
        assert ids_of(search(http, rerank=40)) == first
        assert not asked_for()
    damaged = next((tmp_path / "kept").glob("*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    with running(half_moved, kept=tmp_path / "kept") as http:
        assert ids_of(search(http, rerank=40)) == first
        assert asked_for()


def test_an_id_may_be_the_query_before_its_row_has_moved(half_moved: Lineage) -> None:
    with running(half_moved) as http:
        fields: Any = {"k": 1, "rerank": 50, "metric": "l2"}
        for number in (3, ALL - 1):
            assert ids_of(search(http, id=f"text-{number}", **fields)) == [[f"text-{number}"]]
        assert search(http, id="text-9999", **fields).status_code == 404


def test_what_cannot_be_reranked_is_refused(half_moved: Lineage, tmp_path: Path) -> None:
    settings = ServiceSettings(max_k=50, max_hits=80, max_batch=20)
    with running(half_moved, settings) as http:
        for fields, status, words in (
            ({"rerank": 5}, 400, "at least k (10) and at most 50"),
            ({"rerank": 51}, 400, "at most 50"),
            ({"rerank": 50}, 413, "more than the 80 hits"),
            ({"rerank": 40}, 413, "one search may have 20 encoded"),
            ({"rerank": True}, 400, "rerank"),
            ({"rerank": 20, "fingerprint": "x"}, 409, "another space"),
        ):
            refusal = search(http, **fields)
            assert refusal.status_code == status, refusal.text
            assert words in refusal.json()["error"]["message"]
        bounds = http.get("/openapi.json").json()["components"]["schemas"]["SearchRequest"]
        assert bounds["properties"]["rerank"]["anyOf"][0]["maximum"] == 50
    assert half_moved.production == 0
    for texts, words in (
        (None, "without an encoder"),
        (ServedTexts(ADDRESSES), "without the texts"),
    ):
        with http_of(half_moved.path, texts=texts) as http:
            refusal = search(http, rerank=40)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "rerank")
        assert words in refusal.json()["error"]["message"]
    with running(half_moved, addresses=ADDRESSES[:1]) as http:
        refusal = search(http, rerank=40)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "text_encoder")
        assert search(http).status_code == 200


def test_when_all_rows_have_moved_it_is_an_ordinary_search_of_production(tmp_path: Path) -> None:
    lineage = text_lineage(tmp_path)
    write_texts(tmp_path / "texts.csv")
    with running(lineage) as http:
        plain = ids_of(search(http))
        assert ids_of(search(http, rerank=40)) == plain
        assert not asked_for()
        # The model of a version before production does not run.
        refusal = search(http, vector=OLD_QUERY[0].tolist(), version=0, rerank=40)
        assert refusal.status_code == 400
        assert "before production" in refusal.json()["error"]["message"]


def test_an_object_without_a_text_is_named_until_the_file_has_it(half_moved: Lineage) -> None:
    path = write_texts(half_moved.path.parent / "texts.csv", MOVED)
    with running(half_moved) as http:
        refusal = search(http, rerank=ALL)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (409, "no_text")
        write_texts(path)
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
        assert_allclose(scores_of(answer)[0], raw, rtol=1e-5)
        assert "scores" not in answer.json()["evergram"]
        for whose, way in (("own", "own"), ("read_back", "read_back"), (1, "read_back")):
            answer = search(http, **asked, scores="calibrated", query_vectors=whose)
            assert_allclose(scores_of(answer)[0], ways[way], rtol=1e-5)
            assert answer.json()["evergram"]["scores"] == "calibrated"
        (hits,) = client_of(http).search(OLD_QUERY, 7, 0, metric=metric, **CALIBRATED)
        assert_allclose(hits.scores, ways["own"], rtol=1e-5)
        for wrong, words in (
            ({**asked, **CALIBRATED, "query_vectors": -1}, "query_vectors"),
            ({**asked, "scores": "calibrated"}, "query_vectors is not given"),
            ({"id": "text-1", **CALIBRATED}, "'query_vectors' is for 'vector'"),
            ({**asked, "scores": "nice"}, "scores"),
        ):
            refusal = search(http, **wrong)
            assert refusal.status_code == 400
            assert words in refusal.json()["error"]["message"]


def test_calibrated_scores_of_too_few_canaries_are_refused(tmp_path: Path) -> None:
    lineage, texts = Lineage.create(tmp_path / "line", "line"), sentences(44)
    old, new = (encoded(tmp_path, address, texts=texts) for address in ADDRESSES[:2])
    align(old, new, lineage, AlignSettings("orthogonal", held_out=0.5, allow_small_overlap=True))
    with (
        http_of(lineage.path) as http,
        pytest.raises(LineageError, match="Ask for raw scores"),
    ):
        client_of(http).search(OLD_QUERY, 5, 0, **CALIBRATED)


def test_an_id_with_a_sidecar_is_searched_as_its_rows_are_read(lossy: Path) -> None:
    """Rows are then read by the way back, and so must the query be: an object finds itself."""
    answers = []
    for files in (SidecarFiles(), SidecarFiles([lossy / "one.sidecar"])):
        with http_of(lossy / "line", sidecars=files) as http:
            asked = {"version": 0, "k": 5, "metric": "cosine", "scores": "calibrated"}
            answers.append(search(http, id="text-3", **asked).json()["data"][0]["hits"])
    assert answers[0] == answers[1]
    assert answers[0][0]["id"] == "text-3"


def test_an_id_of_a_version_between_is_calibrated_as_a_query_of_that_version(
    tmp_path: Path,
) -> None:
    """In a store that is partly refreshed, as by the reader that is told whose the query is."""
    lineage = Lineage.create(tmp_path / "line", "line")
    old: EmbeddingFile | int = encoded(tmp_path, ADDRESSES[0])
    for number, address in enumerate(ADDRESSES[1:]):
        align(old, encoded(tmp_path, address), lineage, LOSSY)
        old = number + 1
    stores = {"object": f"sqlite:{tmp_path / 'rows.db'}#object"}
    with closing(open_store(stores["object"], create="string")) as store:
        fill(lineage, store, "object", 2)
        ids = pa.array([f"text-{i}" for i in range(9)])
        store.add_space(space := space_of(lineage, 1))
        vectors = word_vectors(sentences()[:9], 1, 12)
        rows = stored_rows(lineage, VersionMaps(lineage), space, ids, vectors)
        store.delete(ids)
        store.upsert(rows)
    with http_of(lineage.path, stores) as http:
        asked = {"version": 0, "k": 7, "metric": "ip", "scores": "calibrated"}
        found = scores_of(search(http, id="text-3", **asked))[0]
    with closing(Reader.open(lineage.path, stores)) as reader:
        row = reader.embed(["text-3"], 0)
        assert row.sources.tolist() == [1]
        query: Any = row.vectors
        whose: tuple[QueryVectors | int, ...] = (1, "read_back")
        expected, read_back = (
            reader.search(query, 7, 0, scores="calibrated", query_vectors=made)[0].scores
            for made in whose
        )
    assert_allclose(found, expected, rtol=1e-5)
    assert not np.allclose(expected, read_back, rtol=1e-3)
