"""Export the backward transform for programs without Evergram: SQL functions, ONNX graphs, and
sentence-transformers models."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from evergram.atomic_files import write_bytes, write_text
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, ShapeError
from evergram.lineage.lineage import Lineage
from evergram.lineage.view import View

# PostgreSQL and DuckDB truncate or refuse longer names.
LONGEST_NAME = 50


@dataclass(frozen=True)
class ExportedMap:
    """z̃ = W z + b, from a stored version to a past one: W is float32 [D_j, D_k], b [D_j]."""

    name: str
    about: str
    weight: npt.NDArray[np.float32]
    offset: npt.NDArray[np.float32]

    @property
    def source_dim(self) -> int:
        """D_k."""
        return int(self.weight.shape[1])

    @property
    def dim(self) -> int:
        """D_j."""
        return int(self.weight.shape[0])


def affine_map(view: View, name: str, about: str) -> ExportedMap:
    """Return a view's transform as one affine map. Raises: ShapeError: it is not affine."""
    try:
        weight, offset = view.affine()
    except ShapeError as error:
        raise ShapeError(
            f"{str(error).rstrip('.')}, but this format needs a matrix; read the vectors with "
            "Evergram, or refit that version's transform as 'linear' or 'affine'."
        ) from None
    arrays = [np.ascontiguousarray(t.to(torch.float32).numpy()) for t in (weight, offset)]
    return ExportedMap(name, about, *arrays)


def checked_name(view: View, lineage: str, name: str | None) -> str:
    """Return the name of a function or graph, by default evergram_LINEAGE_as_vN."""
    name = f"evergram_{lineage}_as_v{view.version}" if name is None else name
    if re.fullmatch(rf"[a-z][a-z0-9_]{{0,{LONGEST_NAME - 1}}}", name) is None:
        raise DataError(
            f"{name!r} cannot name an SQL function or a graph; give a name (--name) that starts "
            "with a letter and has only lower-case letters, digits and _, at most "
            f"{LONGEST_NAME} characters."
        )
    return name


def literal_rows(affine: ExportedMap) -> Iterator[tuple[int, str, str]]:
    """Yield each coordinate's number from 1, row of W as "[…]" and offset, in exact decimals."""
    for number, (row, offset) in enumerate(zip(affine.weight, affine.offset, strict=True), 1):
        yield number, f"[{','.join(map(str, row))}]", str(offset)


def comment(affine: ExportedMap) -> str:
    """Return the description as SQL comment lines, safe for any name of a lineage."""
    about = " ".join(affine.about.split()).rstrip(".")
    return "\n".join(f"-- {sentence}." for sentence in about.split(". "))


def write_duckdb_macro(path: Path, affine: ExportedMap) -> None:
    """Write a script that creates or replaces the macro NAME(list or array of numbers). The script
    contains W, because DuckDB would look up a table in the caller's schema. Each row of W is one
    string, because DuckDB parses long lists of numbers slowly."""
    rows = ",\n".join(f"    ({n}, '{w}', {b}::DOUBLE)" for n, w, b in literal_rows(affine))
    # Quoted, because the name may be an SQL keyword.
    name = f'"{affine.name}"'
    script = f"""{comment(affine)}
-- SELECT {name}(embedding) FROM items;
CREATE OR REPLACE MACRO {name}(embedding) AS (
  SELECT CASE WHEN embedding IS NULL THEN NULL ELSE
    list("offset" + array_inner_product(weights, embedding::DOUBLE[{affine.source_dim}])
      ORDER BY place)::FLOAT[{affine.dim}] END
  FROM (SELECT place, weights::DOUBLE[{affine.source_dim}] AS weights, "offset" FROM (VALUES
{rows}
  ) AS literals(place, weights, "offset"))
);
"""
    write_text(path, script.rstrip())


def write_pgvector_function(path: Path, affine: ExportedMap) -> None:
    """Write a script that creates the function NAME(vector), or replaces it and keeps its views and
    grants. The function reads no table, and fixes the search path of its installation, because
    refreshing a materialised view uses another. It is in PL/pgSQL, which parses a function once per
    session."""
    rows = ",\n".join(
        f"    {offset} - ('{weights}'::vector <#> whole)"
        for _, weights, offset in literal_rows(affine)
    )
    # Quoted, because the name may be an SQL keyword.
    name = f'"{affine.name}"'
    script = f"""{comment(affine)}
-- SELECT {name}(embedding) FROM items;
CREATE OR REPLACE FUNCTION {name}(embedding vector) RETURNS vector
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path FROM CURRENT AS $$
DECLARE
  -- Long vectors are stored out of line or compressed; detoast once, not for each coordinate.
  whole vector := embedding::real[]::vector;
BEGIN
  RETURN (ARRAY[
{rows}
  ])::real[]::vector;
END
$$;
"""
    write_text(path, script.rstrip())


# Supported by ONNX Runtime since 1.8.
OPSET, IR_VERSION = 13, 7
INPUT, OUTPUT = "vectors", "vectors_as"


def write_onnx_graph(path: Path, affine: ExportedMap) -> None:
    """Write a graph with the input "vectors" and the output "vectors_as", both float32."""
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ModuleNotFoundError:
        raise DataError("An ONNX graph needs onnx: pip install 'evergram[onnx]'.") from None

    source, target = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", dim))
        for name, dim in ((INPUT, affine.source_dim), (OUTPUT, affine.dim))
    )
    tensors = [
        numpy_helper.from_array(affine.weight, "weight"),
        numpy_helper.from_array(affine.offset, "offset"),
    ]
    node = helper.make_node("Gemm", [INPUT, "weight", "offset"], [OUTPUT], transB=1)
    model = helper.make_model(
        helper.make_graph([node], affine.name, [source], [target], tensors),
        producer_name="evergram",
        doc_string=affine.about,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    checker.check_model(model)
    write_bytes(path, model.SerializeToString())


MATRIX_FILES: dict[str, Callable[[Path, ExportedMap], None]] = {
    "onnx": write_onnx_graph,
    "pgvector": write_pgvector_function,
    "duckdb": write_duckdb_macro,
}
FOLDER = "sentence-transformers"
FORMATS = (*MATRIX_FILES, FOLDER)


@dataclass(frozen=True)
class Written:
    """What an export wrote: `name` is the name of the function, macro or graph, `source` and
    `version` are k and j, and `dims` are D_k and D_j."""

    path: Path
    name: str
    source: int
    version: int
    dims: tuple[int, int]


def export_transform(
    lineage: Lineage,
    path: str | Path,
    form: str,
    version: int | str | None = None,
    *,
    source: int | str | None = None,
    name: str | None = None,
    overwrite: bool = False,
) -> Written:
    """Export a transform that reads vectors of one version as a past one, without Evergram.

    Args:
        path: a file; for "sentence-transformers", a folder.
        form: one of `FORMATS`.
        version: j, or its label. source: k, or its label. Defaults as in `Lineage.view`.
        name: the name of the SQL function; None is evergram_LINEAGE_as_vN.
    Raises: DataError: the format is unknown, the path exists, the format cannot contain the
        version's encoder, or its library is not installed. ShapeError: the transform is not affine.
        LineageError.
    """
    if form not in FORMATS:
        raise DataError(
            f"The format {form!r} is unknown; give one of {', '.join(FORMATS)}"
            f"{did_you_mean(form, FORMATS)}."
        )
    path, view = Path(path), lineage.view(version, source)
    if form != FOLDER:
        name = checked_name(view, lineage.name, name)
    name, dim = name or f"{lineage.name} as v{view.version}", lineage.manifest(view.source).dim
    about = (
        f"Reads vectors of version {view.source} of {lineage.name} ({dim} dims) as version "
        f"{view.version} ({view.dim} dims). Written by Evergram; fingerprints "
        f"{view.computed_from} and {view.fingerprint}."
    )
    if not path.parent.is_dir():
        raise DataError(f"The folder {path.parent} does not exist; create it first.")
    if path.is_dir() or (path.exists() and not (overwrite and form != FOLDER)):
        raise DataError(
            f"{path} already exists; give another name, or remove it first (the command's --force "
            "replaces a file)."
        )
    affine = affine_map(view, name, about)
    if form == FOLDER:
        # Imported here because it needs an extra and loads transformers.
        from evergram.exporting.sentence_transformer_folder import write_sentence_transformer

        write_sentence_transformer(path, lineage, view, name, about)
    else:
        MATRIX_FILES[form](path, affine)
    return Written(path, name, view.source, view.version, (dim, view.dim))
