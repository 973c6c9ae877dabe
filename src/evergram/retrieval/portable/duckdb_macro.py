"""The way back as a macro of DuckDB."""

from __future__ import annotations

from pathlib import Path

from evergram.atomic_files import replacing
from evergram.retrieval.portable.affine_map import AffineMap
from evergram.retrieval.portable.sql_literals import comment, literal_rows


def write_duckdb_macro(path: Path, way: AffineMap) -> None:
    """Write a script that makes the macro NAME(list or array of numbers), or replaces that of an
    earlier script.

    The rows of W are in the macro's own text: a table would be looked up in the database and the
    schema of whoever calls the macro. A row is one string, as DuckDB is slow to parse and to fold
    long lists of numbers.
    """
    rows = ",\n".join(f"    ({n}, '{w}', {b}::DOUBLE)" for n, w, b in literal_rows(way))
    # In quotation marks a word that SQL reserves is a name, too.
    name = f'"{way.name}"'
    script = f"""{comment(way)}
-- SELECT {name}(embedding) FROM items;
CREATE OR REPLACE MACRO {name}(embedding) AS (
  SELECT CASE WHEN embedding IS NULL THEN NULL ELSE
    list("offset" + array_inner_product(weights, embedding::DOUBLE[{way.source_dim}])
      ORDER BY place)::FLOAT[{way.dim}] END
  FROM (SELECT place, weights::DOUBLE[{way.source_dim}] AS weights, "offset" FROM (VALUES
{rows}
  ) AS literals(place, weights, "offset"))
);
"""
    with replacing(path) as file:
        file.write(script.encode())
