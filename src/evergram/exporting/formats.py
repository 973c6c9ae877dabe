"""The formats in which a past version can be read without Evergram, and their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from evergram.atomic_files import replacing, write_bytes
from evergram.compatibility.transforms import ResidualMLPTransform, Transform
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, ShapeError
from evergram.exporting.affine_map import AffineMap, about_view, affine_map, checked_name
from evergram.exporting.encoder_folder import CardPlace
from evergram.exporting.sentence_transformer_folder import folder_card
from evergram.lineage.lineage import Lineage
from evergram.lineage.view import View


def literal_rows(way: AffineMap) -> Iterator[tuple[int, str, str]]:
    """Yield each coordinate's number from 1, its row of W as "[…]", and its offset.

    The numbers are those that read back as the same float32.
    """
    for number, (row, offset) in enumerate(zip(way.weight, way.offset, strict=True), 1):
        yield number, f"[{','.join(map(_number, row))}]", _number(offset)


def comment(way: AffineMap) -> str:
    """Return what the file is, as lines of comments, whatever the lineage is called."""
    about = " ".join(way.about.split()).rstrip(".")
    return "\n".join(f"-- {sentence}." for sentence in about.split(". "))


def _number(value: object) -> str:
    return str(value)


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


# Read by ONNX Runtime since 1.8.
OPSET, IR_VERSION = 13, 7
INPUT, OUTPUT = "vectors", "vectors_as"


def write_onnx_graph(path: Path, view: View, source_dim: int, name: str, about: str) -> None:
    """Write a graph with the input "vectors" and the output "vectors_as", float32.

    Affine transforms that follow each other are one node; one of kind residual_mlp is five.

    Raises: DataError: onnx is not installed. ShapeError: a transform is of another kind.
    """
    try:
        from onnx import TensorProto, checker, helper
    except ModuleNotFoundError:
        raise DataError("A graph needs onnx: pip install 'evergram[onnx]'.") from None

    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", dim))
        for name, dim in ((INPUT, source_dim), (OUTPUT, view.dim))
    ]
    nodes, weights = _nodes(view.steps())
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:], weights)
    model = helper.make_model(
        graph,
        producer_name="evergram",
        doc_string=about,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    checker.check_model(model)
    write_bytes(path, model.SerializeToString())


def _nodes(steps: Sequence[tuple[Tensor, Tensor] | Transform]) -> tuple[list[Any], list[Any]]:
    """Return the nodes of all steps and their tensors; the last node's output is the graph's."""
    from onnx import helper, numpy_helper

    nodes: list[Any] = []
    tensors: list[Any] = []

    def product(source: str, name: str, *parts: Tensor) -> str:
        """Add W z, or W z + b."""
        keys = [f"{name}_{part}" for part, _ in zip(("weight", "offset"), parts, strict=False)]
        for key, part in zip(keys, parts, strict=True):
            array = part.detach().cpu().float().contiguous().numpy()
            tensors.append(numpy_helper.from_array(array, key))
        nodes.append(helper.make_node("Gemm", [source, *keys], [name], transB=1))
        return name

    last = INPUT
    for number, step in enumerate(steps, 1):
        name = OUTPUT if number == len(steps) else f"step_{number}"
        if isinstance(step, tuple):
            last = product(last, name, *step)
            continue
        if not isinstance(step, ResidualMLPTransform):
            raise ShapeError(
                f"A transform on the way is of kind {step.kind}, and an ONNX graph holds affine "
                "ones and residual_mlp; read the vectors by Evergram, or refit that version's "
                "transform as one of these."
            )
        straight = product(last, f"{name}_straight", step.weight)
        hidden = product(last, f"{name}_inner", step.inner.weight, step.inner.bias)
        nodes.append(helper.make_node("Relu", [hidden], [f"{name}_relu"]))
        bent = product(f"{name}_relu", f"{name}_outer", step.outer.weight, step.outer.bias)
        nodes.append(helper.make_node("Add", [straight, bent], [name]))
        last = name
    return nodes, tensors


# Of a matrix; a graph has all that the way is made of.
MATRIX_FILES: dict[str, Callable[[Path, AffineMap], None]] = {
    "pgvector": write_pgvector_function,
    "duckdb": write_duckdb_macro,
}
FOLDER = "sentence-transformers"
GRAPH = "onnx"
FORMATS = (GRAPH, *MATRIX_FILES, FOLDER)


@dataclass(frozen=True)
class Written:
    """What was written.

    Args:
        name: of the function, macro or graph.
        source, version: k and j.
        dims: D_k and D_j.
    """

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
    license: str | None = None,
) -> Written:
    """Write what reads vectors of one version as those of a past one, without Evergram.

    Args:
        path: a file; of "sentence-transformers" a folder.
        form: one of `FORMATS`.
        version: j, or its label. source: k, or its label. Both by default as for `Lineage.view`.
        name: of the function in SQL; None is evergram_LINEAGE_as_vN.
        overwrite: whether to write over a file that is there.
        license: for the model card of a folder, such as "apache-2.0".
    Raises: DataError: another format, a file or folder that is there, or a version without an
        encoder that the format can hold; or the format's library is not installed. ShapeError: the
        way is not affine (of "onnx": nor of kind residual_mlp). LineageError.
    """
    if form not in FORMATS:
        raise DataError(
            f"There is no format {form!r}; give one of {', '.join(FORMATS)}"
            f"{did_you_mean(form, FORMATS)}."
        )
    if license is not None and form != FOLDER:
        raise DataError(f"A licence stands in the model card of {FOLDER}; leave it out.")
    path = Path(path)
    place = CardPlace(path.name, license)
    view = lineage.view(version, source)
    if form == GRAPH:
        name, dim = checked_name(view, lineage.name, name), lineage.manifest(view.source).dim
        _check_place(path, overwrite=overwrite)
        write_onnx_graph(path, view, dim, name, about_view(view, lineage.name, dim))
        return Written(path, name, view.source, view.version, (dim, view.dim))
    way = affine_map(view, lineage.name, name)
    if form == FOLDER:
        # Imported here, as it needs an extra and loads transformers.
        from evergram.exporting.sentence_transformer_folder import write_sentence_transformer

        _check_place(path, overwrite=False)
        newest, past = (lineage.manifest(v).text_encoder for v in (view.source, view.version))
        card = folder_card(way, view.version, lineage.metrics(view.source), place)
        write_sentence_transformer(path, way, newest, past, card)
    else:
        _check_place(path, overwrite=overwrite)
        MATRIX_FILES[form](path, way)
    return Written(path, way.name, view.source, view.version, (way.source_dim, way.dim))


def _check_place(path: Path, *, overwrite: bool) -> None:
    """Raises: DataError: nothing can be written there, or something is there already."""
    if not path.parent.is_dir():
        raise DataError(f"{path.parent} is not there; make the folder first.")
    if path.is_dir() and any(path.iterdir()):
        raise DataError(
            f"{path} is a folder with files in it and is not written over; give another name."
        )
    if path.is_dir() or (path.exists() and not overwrite):
        raise DataError(
            f"{path} is there already and is not written over; give another name, or remove it "
            "first (--force of the command replaces a file)."
        )
