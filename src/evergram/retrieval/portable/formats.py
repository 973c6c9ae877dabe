"""The formats in which a past version can be read without Evergram."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from evergram.lineage.read_only_lineage import ReadOnlyLineage
from evergram.retrieval.portable.affine_map import AffineMap, affine_map
from evergram.retrieval.portable.duckdb_macro import write_duckdb_macro
from evergram.retrieval.portable.folder_card import folder_card
from evergram.retrieval.portable.map_steps import MapSteps, map_steps
from evergram.retrieval.portable.onnx_graph import write_onnx_graph
from evergram.retrieval.portable.pgvector_function import write_pgvector_function
from evergram.retrieval.pretrained.model_card import CardPlace

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
    lineage: ReadOnlyLineage,
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
        version: j, or its label. source: k, or its label. Both by default as of `Lineage.view`.
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
    way: AffineMap | MapSteps
    if form == GRAPH:
        way = map_steps(view, lineage.name, name)
        _check_place(path, overwrite=overwrite)
        write_onnx_graph(path, way)
        return Written(path, way.name, view.source, view.version, (way.source_dim, way.dim))
    way = affine_map(view, lineage.name, name)
    if form == FOLDER:
        # Imported here, as it needs an extra and loads transformers.
        from evergram.retrieval.portable.sentence_transformer_folder import (
            write_sentence_transformer,
        )

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
