"""The way back as a macro of DuckDB."""

from __future__ import annotations

from pathlib import Path

from evergram.atomic_files import replacing
from evergram.retrieval.portable.affine_map import AffineMap
from evergram.retrieval.portable.sql_literals import comment, literal_rows


def write_duckdb_macro(path: Path, way: AffineMap) -> None:
    """Write a script that makes the macro NAME(list or array of numbers) and its table NAME_rows,
    in one transaction; it replaces those of an earlier script."""
    rows = ",\n".join(f"  ({n}, {w}, {b})" for n, w, b in literal_rows(way))
    # In quotation marks a word that SQL reserves is a name, too.
    name, table = f'"{way.name}"', f'"{way.name}_rows"'
    script = f"""{comment(way)}
-- SELECT {name}(embedding) FROM items;
BEGIN;
CREATE OR REPLACE TABLE {table} (
  place INTEGER, weights DOUBLE[{way.source_dim}], "offset" DOUBLE
);
INSERT INTO {table} VALUES
{rows};
CREATE OR REPLACE MACRO {name}(embedding) AS (
  SELECT CASE WHEN embedding IS NULL THEN NULL ELSE
    list("offset" + array_inner_product(weights, embedding::DOUBLE[{way.source_dim}])
      ORDER BY place)::FLOAT[{way.dim}] END
  FROM {table}
);
COMMIT;
"""
    with replacing(path) as file:
        file.write(script.encode())
