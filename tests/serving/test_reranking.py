"""A search over HTTP that re-ranks by vectors computed from texts: an index migrates by use."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pytest
import torch
from numpy.testing import assert_allclose
from starlette.testclient import TestClient
from tests.support.running_service import ADDRESS
from tests.support.text_encoders import (
    ADDRESSES,
    CALLS,
    encoded,
    sentences,
    text_lineage,
    word_vectors,
)

from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import AlignSettings, align
from evergram.serving.app import create_app
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings
from evergram.serving.texts.documents import Documents
from evergram.serving.texts.served_texts import ServedTexts

ALL, MOVED, DIM = 400, 150, 12
QUERIES = word_vectors(["word1 word2 word3", "word4 word9"], 1, DIM)


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


@contextmanager
def running(
    lineage: Lineage,
    settings: ServiceSettings | None = None,
    addresses: list[str] = ADDRESSES,
    kept: Path | None = None,
) -> Iterator[TestClient]:
    documents = Documents(lineage.path.parent / "texts.csv", kept)
    texts = ServedTexts(addresses, documents=documents)
    app = create_app(Service.open(lineage.path, texts=texts), settings)
    with TestClient(app, base_url=ADDRESS) as http:
        CALLS.clear()
        yield http


def search(http: TestClient, **fields: Any) -> Any:
    asked = {"vectors": QUERIES.tolist(), "version": 1, "k": 10, **fields}
    return http.post("/v1/search", json=asked)


def ids_of(answer: Any) -> list[list[str]]:
    assert answer.status_code == 200, answer.text
    return [[hit["id"] for hit in row["hits"]] for row in answer.json()["data"]]


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


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_at_full_depth_it_is_a_search_of_the_new_model(half_moved: Lineage, metric: str) -> None:
    with running(half_moved) as http:
        answer = search(http, rerank=ALL, metric=metric)
    scores = by_new_model(QUERIES, metric)
    best = np.argsort(-scores, axis=1)[:, :10]
    assert ids_of(answer) == [[f"text-{i}" for i in row] for row in best]
    got = [[hit["score"] for hit in row["hits"]] for row in answer.json()["data"]]
    assert_allclose(got, np.take_along_axis(scores, best, 1), rtol=1e-4, atol=1e-4)
    assert answer.json()["evergram"]["computed_from"] == [1]


@pytest.fixture
def sampled(tmp_path: Path) -> Lineage:
    """As step 3 of docs/migrate.md has it: a lossy way back, so that it proposes other hits."""
    lineage = Lineage.create(tmp_path / "line", "line")
    old, new = (encoded(tmp_path, address) for address in ADDRESSES[:2])
    align(old, new, lineage, AlignSettings("low_rank", rank=2), promote=False)
    write_texts(tmp_path / "texts.csv")
    return lineage


@pytest.mark.parametrize("both", [True, False])
def test_texts_are_served_as_the_plan_measures_its_cascades(sampled: Lineage, both: bool) -> None:
    texts = ["word1 word2 word3", "word4 word9", "word5 word6 word7"]
    new = word_vectors(texts, 1, DIM)
    with running(sampled, addresses=ADDRESSES if both else ADDRESSES[1:]) as http:
        fields = {"version": 1, "k": 10, "rerank": 10, "metric": "cosine"}
        by_text = ids_of(http.post("/v1/search", json={"input": texts, **fields}))
        by_vector = ids_of(http.post("/v1/search", json={"vectors": new.tolist(), **fields}))
    old_rows, new_rows = (word_vectors(sentences(), n, d) for n, d in ((0, 10), (1, DIM)))
    back = sampled.chain.apply(torch.from_numpy(new), 1, 0).numpy()

    def cascaded(proposing: Any) -> list[list[str]]:
        found = []
        for first, second in zip(proposing, new, strict=True):
            hits = np.argsort(-(old_rows @ first) / np.linalg.norm(old_rows, axis=1))[:10]
            own = new_rows[hits] @ second / np.linalg.norm(new_rows[hits], axis=1)
            found.append([f"text-{i}" for i in hits[np.argsort(-own, kind="stable")]])
        return found

    cascade, bridge_cascade = cascaded(word_vectors(texts, 0, 10)), cascaded(back)
    assert cascade != bridge_cascade
    assert by_text == (cascade if both else bridge_cascade)
    assert by_vector == bridge_cascade


def test_only_rows_that_have_not_moved_are_encoded_and_each_once(half_moved: Lineage) -> None:
    with running(half_moved) as http:
        plain = ids_of(search(http))
        # Without it, what version 1 has stored is all there is.
        assert all(int(id_.split("-")[1]) < MOVED for row in plain for id_ in row)
        first = ids_of(search(http, rerank=40))
        texts = asked_for()
        moved = set(sentences()[:MOVED])
        assert texts
        assert not texts & moved
        CALLS.clear()
        assert ids_of(search(http, rerank=40)) == first
        assert not asked_for()
        page = http.get("/metrics").text
    assert f'evergram_kept_vectors{{version="1"}} {len(texts)}.0' in page
    for where in ("computed", "kept"):
        line = f'evergram_reranked_total{{vector="{where}",version="1"}} {len(texts)}.0'
        assert line in page, page
    assert 'evergram_reranked_total{vector="stored",version="1"}' in page


def test_vectors_that_were_saved_are_not_computed_again(
    half_moved: Lineage, tmp_path: Path
) -> None:
    with running(half_moved, kept=tmp_path / "kept") as http:
        first = ids_of(search(http, rerank=40))
        assert asked_for()
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
        for number in (3, ALL - 1):
            asked = {"id": f"text-{number}", "version": 1, "k": 1, "rerank": 50, "metric": "l2"}
            assert ids_of(http.post("/v1/search", json=asked)) == [[f"text-{number}"]]
        assert http.post("/v1/search", json={**asked, "id": "text-9999"}).status_code == 404


def test_when_all_rows_have_moved_it_is_an_ordinary_search(tmp_path: Path) -> None:
    lineage = text_lineage(tmp_path)
    write_texts(tmp_path / "texts.csv")
    with running(lineage) as http:
        assert ids_of(search(http, rerank=40)) == ids_of(search(http))
        assert not asked_for()


def test_what_cannot_be_reranked_is_refused_in_a_sentence(half_moved: Lineage) -> None:
    settings = ServiceSettings(max_k=50, max_hits=80, max_batch=20)
    with running(half_moved, settings) as http:
        for fields, status, words in (
            ({"rerank": 5}, 400, "at least k (10) and at most 50"),
            ({"rerank": 51}, 400, "at most 50"),
            ({"rerank": 50}, 413, "more than the 80 hits"),
            ({"rerank": 40}, 413, "one search may have 20 encoded"),
            ({"rerank": True}, 400, "rerank"),
        ):
            refusal = search(http, **fields)
            assert refusal.status_code == status, refusal.text
            assert words in refusal.json()["error"]["message"]
        bounds = http.get("/openapi.json").json()["components"]["schemas"]["SearchRequest"]
        assert bounds["properties"]["rerank"]["anyOf"][0]["maximum"] == 50
    assert half_moved.production == 0


def test_a_version_whose_model_does_not_run_is_refused(tmp_path: Path) -> None:
    lineage = text_lineage(tmp_path)
    write_texts(tmp_path / "texts.csv")
    old = word_vectors(["word1"], 0, 10).tolist()
    with running(lineage) as http:
        refusal = search(http, vectors=old, version=0, rerank=40)
    assert refusal.status_code == 400
    assert "before production" in refusal.json()["error"]["message"]


def test_without_texts_without_an_encoder_and_with_the_wrong_one(half_moved: Lineage) -> None:
    for texts, status, words in (
        (None, 400, "without an encoder"),
        (ServedTexts(ADDRESSES), 400, "without the texts"),
    ):
        with TestClient(
            create_app(Service.open(half_moved.path, texts=texts)), base_url=ADDRESS
        ) as http:
            refusal = search(http, rerank=40)
        assert refusal.status_code == status
        assert words in refusal.json()["error"]["message"]
    with running(half_moved, addresses=ADDRESSES[:1]) as http:
        refusal = search(http, rerank=40)
        assert refusal.status_code == 503
        assert refusal.json()["error"]["code"] == "text_encoder"
        assert search(http).status_code == 200


def test_an_object_without_a_text_is_named_until_the_file_has_it(half_moved: Lineage) -> None:
    path = write_texts(half_moved.path.parent / "texts.csv", MOVED)
    with running(half_moved) as http:
        refusal = search(http, rerank=ALL)
        assert refusal.status_code == 409
        assert "no text in the file of --texts" in refusal.json()["error"]["message"]
        write_texts(path)
        assert search(http, rerank=ALL).status_code == 200
