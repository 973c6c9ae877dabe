"""A past version in DuckDB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.lineages import DIMS, read_as, vectors_of
from tests.support.real_text_encoders import need
from tests.support.without_evergram import elsewhere

from evergram.lineage.lineage import Lineage
from evergram.retrieval.portable.formats import export_transform


@pytest.mark.parametrize("target", [0, 1, 2])
def test_duckdb_reads_without_evergram(lineage: Lineage, tmp_path: Path, target: int) -> None:
    need("duckdb")
    written = export_transform(lineage, tmp_path / "way.sql", "duckdb", target)
    assert (written.name, written.dims) == (f"evergram_line_as_v{target}", (DIMS[2], DIMS[target]))
    export_transform(lineage, tmp_path / "reserved.sql", "duckdb", target, name="select")
    np.save(tmp_path / "new.npy", vectors_of(2).numpy())
    code = """
import duckdb, numpy as np
way, new, out, name = sys.argv[1:]
database = duckdb.connect()
for _ in range(2):  # a second time it replaces itself
    database.execute(open(way).read())
    database.execute(open(way.replace("way.sql", "reserved.sql")).read())
database.execute("CREATE TABLE items (id INTEGER, embedding FLOAT[])")
rows = np.load(new)
items = [[n, row.tolist()] for n, row in enumerate(rows)]
database.executemany("INSERT INTO items VALUES (?, ?)", items)
assert database.execute(f"SELECT {name}(NULL)").fetchall() == [(None,)]
read = database.execute(f"SELECT {name}(embedding) FROM items ORDER BY id").fetchall()
np.save(out, np.array([row[0] for row in read], dtype=np.float32))
"""
    elsewhere(code, tmp_path / "way.sql", tmp_path / "new.npy", tmp_path / "old.npy", written.name)
    read = np.load(tmp_path / "old.npy")
    assert read.shape == (300, DIMS[target])
    np.testing.assert_allclose(read, read_as(2, target).numpy(), rtol=1e-5, atol=1e-5)


def test_a_macro_reads_its_own_rows_whatever_database_and_schema_are_current(
    lineage: Lineage, tmp_path: Path
) -> None:
    need("duckdb")
    import duckdb

    scripts = {}
    for place, version in (("here.main", 0), ("here.other", 1), ("there.main", 2)):
        export_transform(lineage, tmp_path / place, "duckdb", version, name="as_old")
        scripts[place] = (version, (tmp_path / place).read_text())
    values = vectors_of(2, 1)[0].tolist()
    with duckdb.connect() as database:
        database.execute(f"ATTACH '{tmp_path / 'here.db'}' AS here")
        database.execute(f"ATTACH '{tmp_path / 'there.db'}' AS there; CREATE SCHEMA here.other")
        for place, (_, script) in scripts.items():
            database.execute(f"USE {place}; {script}")
        for current in ("memory.main", *scripts):
            database.execute(f"USE {current}")
            for place, (version, _) in scripts.items():
                read = database.execute(f"SELECT {place}.as_old({values})").fetchone()
                assert read is not None
                np.testing.assert_allclose(read[0], read_as(2, version, 1)[0], rtol=1e-5, atol=1e-5)
