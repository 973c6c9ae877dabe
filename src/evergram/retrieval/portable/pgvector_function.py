"""The way back as a function of PostgreSQL with pgvector."""

from __future__ import annotations

from pathlib import Path

from evergram.atomic_files import replacing
from evergram.retrieval.portable.affine_map import AffineMap
from evergram.retrieval.portable.sql_literals import comment, literal_rows


def write_pgvector_function(path: Path, way: AffineMap) -> None:
    """Write a script that makes the function NAME(vector) and its table NAME_rows, in one
    transaction; it replaces those of an earlier script.

    Each coordinate is an inner product with a row of the table, by pgvector's own operator.
    """
    rows = ",\n".join(f"  ({n}, '{w}', {b})" for n, w, b in literal_rows(way))
    # In quotation marks a word that SQL reserves is a name, too.
    name, table = f'"{way.name}"', f'"{way.name}_rows"'
    script = f"""{comment(way)}
-- SELECT {name}(embedding) FROM items;
BEGIN;
DROP FUNCTION IF EXISTS {name}(vector);
DROP TABLE IF EXISTS {table};
CREATE TABLE {table} (
  place integer PRIMARY KEY,
  weights vector({way.source_dim}) NOT NULL,
  "offset" double precision NOT NULL
);
INSERT INTO {table} VALUES
{rows};
CREATE FUNCTION {name}(embedding vector) RETURNS vector
LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$
  SELECT (array_agg("offset" - (weights <#> embedding) ORDER BY place))::real[]::vector
  FROM {table}
$$;
COMMIT;
"""
    with replacing(path) as file:
        file.write(script.encode())
