"""Filters over HTTP, of a service on a table of somebody's own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.support.lineages import DIMS, lineage_of, vectors_of
from tests.support.own_tables import OWN, address_of, own_store, own_table
from tests.support.postgres_server import postgres
from tests.support.running_service import ADDRESS, Running, server

from evergram.serving.app import create_app
from evergram.serving.client import Client
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings

VECTOR = [1.0] * DIMS[0]


class Adopted:
    def __init__(self, http: TestClient, table: str) -> None:
        self.http, self.table = http, table

    def search(self, conditions: Any, **more: Any) -> Any:
        asked = {"vector": VECTOR, "version": 0, "k": 300, "filter": conditions, **more}
        return self.http.post("/v1/search", json=asked)


def service_of(folder: Path) -> tuple[Service, str]:
    """Return a service on a table, and the table's name."""
    lineage_of(folder, canaries=2)
    table = own_table(300, {0: range(300), 1: range(100)})
    address = address_of(table, [0, 1], "&filter=category,year")
    return Service.open(folder, {"object": address}), table


@pytest.fixture(scope="module")
def adopted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adopted]:
    service, table = service_of(tmp_path_factory.mktemp("adopted") / "line")
    app = create_app(service, ServiceSettings())
    with TestClient(app, ADDRESS, raise_server_exceptions=False) as http:
        yield Adopted(http, table)


def ids_of(answer: Any) -> list[int]:
    assert answer.status_code == 200, answer.text
    return sorted(row["id"] for row in answer.json()["data"][0]["hits"])


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_a_filter_gives_the_rows_that_match(adopted: Adopted, metric: str) -> None:
    every = ids_of(adopted.search({"category": "news", "year": {"gte": 2018}}, metric=metric))
    assert every == [i for i in range(300) if i % 3 == 0 and i % 20 >= 18]
    listed = ids_of(adopted.search({"category": ["news", "sport"], "year": [2001]}, metric=metric))
    assert listed == [i for i in range(300) if i % 3 < 2 and i % 20 == 1]
    assert ids_of(adopted.search({"category": "none"}, metric=metric)) == []


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ("1 = 1", "filter"),
        (["category = 'news'", []], "filter"),
        ({"category": {"like": "n%"}}, "filter"),
        ({"title": "Title 1"}, "may name category, year"),
        ({"1 = 1 or category": "x"}, "may name category, year"),
        ({"category\" = 'news' or \"category": "x"}, "may name category, year"),
        ({"year": "2001"}, "of type int4, with a text"),
        ({"year": {"gte": True}}, "filter"),
        ({"category": "x\0"}, "no text has"),
    ],
)
def test_what_is_no_filter_is_refused(adopted: Adopted, conditions: Any, words: str) -> None:
    answer = adopted.search(conditions)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]


def test_a_value_is_a_value(adopted: Adopted) -> None:
    for text in (
        "'; drop table x; --",
        "%s",
        "%",
        "' or '1'='1",
        "\\",
        "o'clock; --",
        "{x}",
        "news%",
    ):
        expected = list(range(2, 300, 3)) if text == "o'clock; --" else []
        assert ids_of(adopted.search({"category": text})) == expected
    assert postgres().sql(f"select count(*) from {adopted.table}") == [(300,)]


@pytest.mark.parametrize("kind", sorted(set(OWN) - {"pgvector-table"}))
def test_each_kind_of_own_table_filters(kind: str, tmp_path: Path) -> None:
    lineage_of(tmp_path / "line", canaries=2)
    held = {0: range(300), 1: range(100)}
    service = Service.open(
        tmp_path / "line", {"object": own_store(kind, tmp_path / "own", 300, held)}
    )
    with TestClient(
        create_app(service, ServiceSettings()), ADDRESS, raise_server_exceptions=False
    ) as http:
        own = Adopted(http, "own")
        answer = own.search({"category": "news", "year": {"gte": 2018}})
        assert ids_of(answer) == [i for i in range(300) if i % 3 == 0 and i % 20 >= 18]
        answer = own.search({"category": ["news", "sport"], "year": [2001]}, metric="cosine")
        assert ids_of(answer) == [i for i in range(300) if i % 3 < 2 and i % 20 == 1]
        for text in ("'; drop table x; --", "' or '1'='1", "o'clock; --", "`", "\\", "news%"):
            expected = list(range(2, 300, 3)) if text == "o'clock; --" else []
            assert ids_of(own.search({"category": text})) == expected
        wrong: list[Any] = ["1 = 1", {}, {"title": "x"}, {"1 = 1 or category": "x"}, {"year": {}}]
        for conditions in wrong:
            refused = own.search(conditions)
            assert refused.status_code == 400, refused.text
            assert "filter" in refused.text


def test_a_store_without_metadata_refuses_a_filter(served: Running) -> None:
    asked = {"vector": VECTOR, "version": 0, "filter": {"category": "news"}}
    answer = served.post("/v1/search", asked)
    assert answer.status_code == 400
    assert "ids and vectors alone" in answer.json()["error"]["message"]


def test_the_client_filters(tmp_path: Path) -> None:
    app = create_app(service_of(tmp_path / "line")[0], ServiceSettings())
    with server(app) as url, Client(url) as client:
        query = vectors_of(0).numpy()[3]
        (hits,) = client.search(query, 2, 0, metric="l2", filter={"category": "news"})
        assert hits.ids.to_pylist()[0] == 3
        assert all(i % 3 == 0 for i in hits.ids.to_pylist())
        year = np.int64(2003)
        (hits,) = client.search(query, 300, 0, filter={"year": {"gte": 2003, "lte": year.item()}})
        assert len(hits) == 15


def test_a_column_that_goes_is_the_services_fault_and_its_log_says_which(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lineage_of(tmp_path / "line", canaries=2)
    table = own_table()
    served = Service.open(tmp_path / "line", {"object": address_of(table)})
    app = create_app(served, ServiceSettings())
    with TestClient(app, ADDRESS, raise_server_exceptions=False) as http:
        asked = {"vector": VECTOR, "version": 0}
        assert http.post("/v1/search", json=asked).status_code == 200
        postgres().sql(f"alter table {table} drop column e0")
        with caplog.at_level(logging.ERROR):
            answer = http.post("/v1/search", json=asked)
        assert answer.status_code == 503
        assert table not in answer.text
        assert "'e0' for vectors, which the table does not have" in caplog.text
        served.check_stores()
        assert served.store_problem == "The store of side 'object' does not answer."
