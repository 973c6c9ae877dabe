"""Filters over HTTP, of a service on a table of somebody's own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.support.lineages import DIMS, lineage_of, vectors_of
from tests.support.own_tables import OWN, address_of, own_store, own_table
from tests.support.postgres_server import postgres
from tests.support.running_service import Running, client_of, http_of

VECTOR = [1.0] * DIMS[0]
HELD = {0: range(300), 1: range(100)}
# Texts that would end a statement of SQL, or match more than themselves; one is a row's.
ODD = ("'; drop table x; --", "%s", "%", "' or '1'='1", "\\", "o'clock; --", "{x}", "news%", "`")


def search(http: TestClient, conditions: Any, **more: Any) -> Any:
    asked = {"vector": VECTOR, "version": 0, "k": 300, "filter": conditions, **more}
    return http.post("/v1/search", json=asked)


def ids_of(answer: Any) -> list[int]:
    assert answer.status_code == 200, answer.text
    return sorted(row["id"] for row in answer.json()["data"][0]["hits"])


@pytest.fixture(scope="module")
def adopted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, str]]:
    """A service on a table of PostgreSQL, and the table's name."""
    lineage = lineage_of(tmp_path_factory.mktemp("adopted") / "line", canaries=2)
    table = own_table(300, HELD)
    with http_of(lineage.path, {"object": address_of(table, [0, 1], "&filter=category,year")}) as h:
        yield h, table


def check_filters(http: TestClient) -> None:
    for metric in ("ip", "l2", "cosine"):
        found = ids_of(search(http, {"category": "news", "year": {"gte": 2018}}, metric=metric))
        assert found == [i for i in range(300) if i % 3 == 0 and i % 20 >= 18]
        listed = {"category": ["news", "sport"], "year": [2001]}
        assert ids_of(search(http, listed, metric=metric)) == [
            i for i in range(300) if i % 3 < 2 and i % 20 == 1
        ]
    assert ids_of(search(http, {"category": "none"})) == []
    for text in ODD:
        expected = list(range(2, 300, 3)) if text == "o'clock; --" else []
        assert ids_of(search(http, {"category": text})) == expected
    wrong: list[Any] = ["1 = 1", {}, {"title": "x"}, {"1 = 1 or category": "x"}, {"year": {}}]
    for conditions in wrong:
        refused = search(http, conditions)
        assert refused.status_code == 400, refused.text
        assert "filter" in refused.text


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(set(OWN) - {"pgvector-table"}))
def test_each_kind_of_own_table_filters(kind: str, tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", canaries=2)
    with http_of(lineage.path, {"object": own_store(kind, tmp_path / "own", 300, HELD)}) as http:
        check_filters(http)


def test_a_table_of_postgresql_filters_and_is_not_changed(adopted: tuple[TestClient, str]) -> None:
    http, table = adopted
    check_filters(http)
    assert postgres().sql(f"select count(*) from {table}") == [(300,)]
    client = client_of(http)
    query = vectors_of(0).numpy()[3]
    (hits,) = client.search(query, 2, 0, metric="l2", filter={"category": "news"})
    assert hits.ids.to_pylist()[0] == 3
    assert all(i % 3 == 0 for i in hits.ids.to_pylist())
    (hits,) = client.search(query, 300, 0, filter={"year": {"gte": 2003, "lte": 2003}})
    assert len(hits) == 15


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        (["category = 'news'", []], "filter"),
        ({"category": {"like": "n%"}}, "filter"),
        ({"title": "Title 1"}, "may name category, year"),
        ({"category\" = 'news' or \"category": "x"}, "may name category, year"),
        ({"year": "2001"}, "of type int4, with a text"),
        ({"year": {"gte": True}}, "filter"),
        ({"category": "x\0"}, "no text has"),
    ],
)
def test_what_is_no_filter_is_refused(
    adopted: tuple[TestClient, str], conditions: Any, words: str
) -> None:
    answer = search(adopted[0], conditions)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]


def test_a_store_without_metadata_refuses_a_filter(served: Running) -> None:
    answer = search(served.http, {"category": "news"})
    assert answer.status_code == 400
    assert "ids and vectors alone" in answer.json()["error"]["message"]


def test_a_column_that_goes_is_the_services_fault_and_its_log_says_which(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lineage = lineage_of(tmp_path / "line", canaries=2)
    table = own_table()
    with http_of(lineage.path, {"object": address_of(table)}) as http:
        asked = {"vector": VECTOR, "version": 0}
        assert http.post("/v1/search", json=asked).status_code == 200
        postgres().sql(f"alter table {table} drop column e0")
        with caplog.at_level(logging.ERROR):
            answer = http.post("/v1/search", json=asked)
        assert answer.status_code == 503
        assert table not in answer.text
        assert "'e0' for vectors, which the table does not have" in caplog.text
        service = http.app.state.handler.service  # type: ignore[attr-defined]
        service.check_stores()
        assert service.store_problem == "The store of side 'object' does not answer."
