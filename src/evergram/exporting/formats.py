"""A past version for programs without Evergram: SQL functions, ONNX graphs, and models of
sentence-transformers."""

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

# PostgreSQL and DuckDB cut or refuse longer names.
LONGEST_NAME = 50


@dataclass(frozen=True)
class ExportedMap:
    """z̃ = W z + b from a stored version to a past one: W is float32 [D_j, D_k], b [D_j]."""

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
    """Return how a view reads vectors, if its transforms are affine."""
    try:
        weight, offset = view.affine()
    except ShapeError as error:
        raise ShapeError(
            f"{str(error).rstrip('.')}, and this format holds a matrix; read the vectors by "
            "Evergram, or refit that version's transform as 'linear' or 'affine'."
        ) from None
    arrays = [np.ascontiguousarray(t.to(torch.float32).numpy()) for t in (weight, offset)]
    return ExportedMap(name, about, *arrays)


def checked_name(view: View, lineage: str, name: str | None) -> str:
    """Return a name of functions and graphs, by default evergram_LINEAGE_as_vN."""
    name = f"evergram_{lineage}_as_v{view.version}" if name is None else name
    if re.fullmatch(rf"[a-z][a-z0-9_]{{0,{LONGEST_NAME - 1}}}", name) is None:
        raise DataError(
            f"The name {name!r} cannot be that of a function in SQL or of a graph; give one "
            "(--name): a letter and then letters, digits and _, in lower case, at most "
            f"{LONGEST_NAME}."
        )
    return name


def literal_rows(way: ExportedMap) -> Iterator[tuple[int, str, str]]:
    """Yield each coordinate's number from 1, its row of W as "[…]", and its offset, as numbers that
    read back as the same float32."""
    for number, (row, offset) in enumerate(zip(way.weight, way.offset, strict=True), 1):
        yield number, f"[{','.join(map(str, row))}]", str(offset)


def comment(way: ExportedMap) -> str:
    """Return what the file is, as lines of comments, whatever the lineage is called."""
    about = " ".join(way.about.split()).rstrip(".")
    return "\n".join(f"-- {sentence}." for sentence in about.split(". "))


def write_duckdb_macro(path: Path, way: ExportedMap) -> None:
    """Write a script that makes the macro NAME(list or array of numbers), or replaces it. W is in
    its own text, as a table would be looked up in the caller's schema; each row is one string, as
    DuckDB is slow to parse long lists of numbers."""
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
    write_text(path, script.rstrip())


def write_pgvector_function(path: Path, way: ExportedMap) -> None:
    """Write a script that makes the function NAME(vector), or replaces it where it stands: views
    and grants stay. It reads no table, and its search path is that of the installation, as
    refreshing a materialised view has another. PL/pgSQL keeps a parsed function for the whole
    session."""
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
    write_text(path, script.rstrip())


# Read by ONNX Runtime since 1.8.
OPSET, IR_VERSION = 13, 7
INPUT, OUTPUT = "vectors", "vectors_as"


def write_onnx_graph(path: Path, way: ExportedMap) -> None:
    """Write a graph with the input "vectors" and the output "vectors_as", float32."""
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ModuleNotFoundError:
        raise DataError("A graph needs onnx: pip install 'evergram[onnx]'.") from None

    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", dim))
        for name, dim in ((INPUT, way.source_dim), (OUTPUT, way.dim))
    ]
    tensors = [
        numpy_helper.from_array(way.weight, "weight"),
        numpy_helper.from_array(way.offset, "offset"),
    ]
    node = helper.make_node("Gemm", [INPUT, "weight", "offset"], [OUTPUT], transB=1)
    model = helper.make_model(
        helper.make_graph([node], way.name, ends[:1], ends[1:], tensors),
        producer_name="evergram",
        doc_string=way.about,
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
    """What was written: the name of the function, macro or graph; `source` and `version` are k and
    j, `dims` D_k and D_j."""

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
    """Write what reads vectors of one version as those of a past one, without Evergram.

    Args:
        path: a file; of "sentence-transformers" a folder.
        form: one of `FORMATS`.
        version: j, or its label. source: k, or its label. Both by default as for `Lineage.view`.
        name: of the function in SQL; None is evergram_LINEAGE_as_vN.
        overwrite: whether to write over a file that is there.
    Raises: DataError: another format, a file or folder that is there, or a version without an
        encoder that the format can hold; or the format's library is not installed. ShapeError: the
        way is not affine. LineageError.
    """
    if form not in FORMATS:
        raise DataError(
            f"There is no format {form!r}; give one of {', '.join(FORMATS)}"
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
        raise DataError(f"{path.parent} is not there; make the folder first.")
    if path.is_dir() or (path.exists() and not (overwrite and form != FOLDER)):
        raise DataError(
            f"{path} is there already and is not written over; give another name, or remove it "
            "first (--force of the command replaces a file)."
        )
    way = affine_map(view, name, about)
    if form == FOLDER:
        # Imported here, as it needs an extra and loads transformers.
        from evergram.exporting.sentence_transformer_folder import write_sentence_transformer

        write_sentence_transformer(path, lineage, view, name, about)
    else:
        MATRIX_FILES[form](path, way)
    return Written(path, name, view.source, view.version, (dim, view.dim))
