"""The way back as a function of PostgreSQL with pgvector."""

from __future__ import annotations

from pathlib import Path

from evergram.atomic_files import replacing
from evergram.retrieval.portable.affine_map import AffineMap
from evergram.retrieval.portable.sql_literals import comment, literal_rows


def write_pgvector_function(path: Path, way: AffineMap) -> None:
    """Write a script that makes the function NAME(vector), or replaces that of an earlier script
    where it stands: views that use it and grants stay.

    The rows of W are in the function's own text, each in an inner product by pgvector's operator.
    So it reads no table, which another schema could have under the same name. Its search path is
    that of the installation, as refreshing a materialised view or building an index has another.
    PL/pgSQL keeps a parsed function for the whole session, where SQL parses it for each query.
    """
    rows = ",\n".join(
        f"    {offset} - ('{weights}'::vector <#> whole)"
        for _, weights, offset in literal_rows(way)
    )
    # In quotation marks a word that SQL reserves is a name, too.
    name = f'"{way.name}"'
    script = f"""{comment(way)}
-- SELECT {name}(embedding) FROM items;
CREATE OR REPLACE FUNCTION {name}(embedding vector) RETURNS vector
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path FROM CURRENT AS $$
DECLARE
  -- A long vector is stored compressed or apart, and would be fetched for each coordinate.
  whole vector := embedding::real[]::vector;
BEGIN
  RETURN (ARRAY[
{rows}
  ])::real[]::vector;
END
$$;
"""
    with replacing(path) as file:
        file.write(script.encode())
