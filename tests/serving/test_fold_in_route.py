"""New queries over HTTP: at the pinned version, as the reader folds them in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.support.folding import CANDIDATES, candidates_of, folding_lineage, solved, weight
from tests.support.running_service import Running, running

from evergram import Client, Lineage
from evergram.errors import DataError, ServiceError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.serving.settings import ServiceSettings

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
    manifest = Lineage.open(films.folder).manifest(1)
    assert body["evergram"] == {
        "version": 1,
        "computed_from": [1, 1],
        "side": "query",
        "fingerprint": manifest.fingerprint,
    }
    assert answer.headers["x-evergram-version"] == "1"
    assert answer.headers["x-evergram-computed-from"] == "1"


def test_a_pinned_consumer_gets_its_own_version_through_the_client(tmp_path: Path) -> None:
    lineage = folding_lineage(tmp_path / "films")
    consumers = ConsumerRegistry.open(tmp_path / "films")
    consumers.add("old", "v0", lineage.resolve)
    token = consumers.issue_token("old")
    expected = lineage.fold_in(LISTS, WEIGHTS, version=0).numpy()
    with running(tmp_path / "films", ServiceSettings(admin_token="the-administrators")) as served:
        client = Client("http://testserver", token, retries=0)
        client._http = served.http  # type: ignore[assignment]
        served.http.headers["Authorization"] = f"Bearer {token}"
        assert_allclose(client.fold_in(LISTS, WEIGHTS), expected, atol=1e-5)
        assert_allclose(client.fold_in(LISTS[0], WEIGHTS[0], "v0"), expected[:1], atol=1e-5)
        assert expected.shape == (2, 3)
        with pytest.raises(ServiceError, match="may not read"):
            client.fold_in(LISTS, version=1)
        with pytest.raises(DataError, match="1 of 2 candidates are not stored: 'x'"):
            client.fold_in(["c1", "x"])
        assert client.fold_in(["c1", "x"], missing="skip").shape == (1, 3)


def test_an_integer_in_another_form_is_another_candidate(tmp_path: Path) -> None:
    folding_lineage(tmp_path / "films", ids="integers")
    with running(tmp_path / "films") as films:
        lists, weights = [["1", "05"], ["07", "7"]], [[2.0, 3.0], [4.0, 1.0]]
        refused = films.post("/v1/fold-in", {"candidates": lists, "weights": weights})
        assert refused.status_code == 400
        assert "2 of 4 candidates are not stored: '05', '07'" in refused.json()["error"]["message"]
        skipping = {"candidates": lists, "weights": weights, "missing": "skip"}
        expected = films.post(
            "/v1/fold-in", {"candidates": [[1], [7]], "weights": [[2.0], [1.0]]}
        ).json()
        assert films.post("/v1/fold-in", skipping).json() == expected
        for wrong in ([[2.0], [1.0]], [[2.0, 3.0]]):
            answer = films.post("/v1/fold-in", {**skipping, "weights": wrong})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "shape")


@pytest.mark.parametrize(("version", "include"), [(0, False), (1, True)])
def test_hits_are_the_best_candidates_that_were_not_met(
    films: Running, version: int, include: bool
) -> None:
    asked = {"candidates": LISTS, "k": 4, "version": version, "include_met": include}
    body = films.post("/v1/fold-in", asked).json()
    queries = Lineage.open(films.folder).fold_in(LISTS, version=version)
    read = candidates_of(1) if version else candidates_of(1) @ weight().T
    for row, met, query in zip(body["data"], LISTS, queries, strict=True):
        ranked = [f"c{i}" for i in (-(read @ query)).argsort().tolist()]
        expected = [c for c in ranked if include or c not in met][:4]
        assert [hit["id"] for hit in row["hits"]] == expected
    assert body["evergram"]["side"] == "candidate"


def test_arrow_answers_have_the_same_numbers(films: Running) -> None:
    import pyarrow as pa

    accept = {"accept": "application/vnd.apache.arrow.stream"}
    for asked in ({"candidates": LISTS}, {"candidates": LISTS, "k": 3}):
        plain = films.post("/v1/fold-in", asked).json()
        answer = films.http.post("/v1/fold-in", json=asked, headers=accept)
        table = pa.ipc.open_stream(answer.content).read_all()
        if "k" in asked:
            hits = [hit["id"] for row in plain["data"] for hit in row["hits"]]
            assert table["id"].to_pylist() == hits
        else:
            assert_array_equal(
                np.float32(table["vector"].to_pylist()), np.float32(plain["vectors"])
            )


def test_a_large_body_is_read_in_pieces(films: Running) -> None:
    draw = np.random.default_rng(0)
    lists = [[f"c{i}" for i in draw.integers(CANDIDATES, size=12)] for _ in range(1500)]
    weights = (draw.random((1500, 12)) + 0.5).tolist()
    body = films.post("/v1/fold-in", {"candidates": lists, "weights": weights}).json()
    expected = Lineage.open(films.folder).fold_in(lists, weights)
    assert_allclose(body["vectors"], expected.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"candidates": []}, 400, "candidates"),
        ({"candidates": [[]]}, 400, "Query 1 of 1 has no candidates"),
        ({"candidates": [["x"]]}, 400, "1 of 1 candidates are not stored: 'x'"),
        ({"candidates": [[1]]}, 400, "Ids are strings here"),
        ({"candidates": [["c1"]], "weights": [[0]]}, 400, "must be above 0"),
        ({"candidates": [["c1"]], "weights": [[1, 2]]}, 400, "not as long as the candidates"),
        ({"candidates": [["c1"]], "version": 7}, 404, "0, 1"),
        ({"candidates": [["c1"]], "k": 2000}, 400, "at most 1000"),
        ({"candidates": [["c1"]] * 2000, "k": 100}, 413, "send fewer"),
        ({"candidates": [["c1"] * 70] * 1000}, 413, "70000 candidates are more than the 65536"),
    ],
)
def test_it_refuses_with_a_sentence(
    films: Running, asked: dict[str, Any], status: int, words: str
) -> None:
    answer = films.post("/v1/fold-in", asked)
    assert words in answer.json()["error"]["message"]
    assert answer.status_code == status


def test_objects_of_files_are_not_folded_in(served: Running) -> None:
    answer = served.post("/v1/fold-in", {"candidates": [[1]]})
    assert answer.status_code == 400
    assert "no side 'candidate'" in answer.json()["error"]["message"]
