"""A PostgreSQL server of this process, and a store in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.postgres_rows import NAMES
from tests.support.postgres_server import PostgresServer, postgres

from evergram.stores.postgres.pgvector_store import PgvectorStore
from evergram.stores.store import Space


@pytest.fixture(scope="module")
def server() -> PostgresServer:
    return postgres()


@pytest.fixture
def store(server: PostgresServer) -> Iterator[PgvectorStore]:
    with PgvectorStore.open(server.address(next(NAMES)), "int64") as opened:
        opened.add_space(Space(0, 4, "sha256:zero"))
        yield opened
