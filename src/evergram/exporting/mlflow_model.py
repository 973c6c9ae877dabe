"""A side's vectors at one version as a model of MLflow (pyfunc): ids in, vectors out.

The model stands alone: a Parquet file of the vectors and a JSON record, no pickle. Loading it needs
`evergram[mlflow]` and no lineage.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import evergram
from evergram.errors import DataError, IntegrityError
from evergram.lineage.record import sha256
from evergram.lineage.view import View
from evergram.retrieval.id_lookup import IdLookup

try:
    import mlflow.pyfunc
    import pandas as pd
except ModuleNotFoundError as error:
    raise DataError(f"{error.name} is missing: pip install 'evergram[mlflow]'.") from error

_VECTORS, _RECORD = "vectors.parquet", "version.json"


def save_model(view: View, path: str | Path, side: str) -> Path:
    """Write a side's vectors at a view's version as a folder that MLflow loads as a pyfunc.

    `mlflow.pyfunc.load_model(path).predict(ids)` returns a frame with the columns `id` and
    `vector`: lists of D_j float32, None for an id that is not stored.

    Args:
        path: a folder that is not there yet.
    Raises: LineageError: there is no such side, or its vectors are not stored. DataError: the
        folder is there.
    """
    if Path(path).exists():
        raise DataError(f"{path} is there already; name a folder that is not, or remove it.")
    with TemporaryDirectory() as temporary:
        mlflow.pyfunc.save_model(path=str(path), **_parts(view, side, Path(temporary)))
    return Path(path)


def log_model(view: View, side: str, name: str = "vectors", **options: Any) -> Any:
    """Log the model of `save_model` to the active run of MLflow.

    Args:
        name: of the model in the run.
        options: further ones of `mlflow.pyfunc.log_model`, such as `registered_model_name`.
    Returns: MLflow's `ModelInfo`; its metadata has the version and its fingerprint.
    Raises: as `save_model`.
    """
    with TemporaryDirectory() as temporary:
        parts = _parts(view, side, Path(temporary))
        return mlflow.pyfunc.log_model(name=name, **parts, **options)


def _parts(view: View, side: str, folder: Path) -> dict[str, Any]:
    """Write the model's data, and return what MLflow needs beside its place."""
    data = folder / "evergram"
    data.mkdir()
    rows = view.export(data / _VECTORS, side)
    facts = {
        "version": view.version,
        "fingerprint": view.fingerprint,
        "computed_from": view.computed_from,
        "side": side,
        "rows": rows,
        "dim": view.dim,
    }
    record = {**facts, "sha256": sha256(data / _VECTORS)}
    (data / _RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return {
        "loader_module": __name__,
        "data_path": str(data),
        "metadata": {"evergram": facts},
        "pip_requirements": [f"evergram[mlflow]=={evergram.__version__}"],
    }


@dataclass(frozen=True)
class VersionModel:
    """What MLflow loads: the vectors of one side at one version, [N] lists of D_j float32."""

    lookup: IdLookup
    vectors: pa.Array
    id_type: pa.DataType

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return the vectors of ids: of a frame's column `id`, or a series, an array or a list."""
        if isinstance(model_input, pd.DataFrame):
            if "id" not in model_input.columns:
                has = ", ".join(map(str, model_input.columns)) or "none"
                raise DataError(f"The frame has no column 'id'; it has {has}. Rename one.")
            model_input = model_input["id"]
        keys = list(model_input)
        try:
            ids = pa.array(keys, self.id_type)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise DataError(f"The stored ids are {self.id_type}; give such ids.") from None
        rows = self.lookup.rows(ids)
        taken = self.vectors.take(pa.array(rows, mask=rows < 0))
        return pd.DataFrame({"id": keys, "vector": taken.to_pylist()})


def _load_pyfunc(data_path: str) -> VersionModel:
    """Load the data of a model; MLflow calls it."""
    folder = Path(data_path)
    record = json.loads((folder / _RECORD).read_text())
    if sha256(folder / _VECTORS) != record["sha256"]:
        raise IntegrityError(
            f"{folder / _VECTORS} differs from its hash in {_RECORD}; save or log the model again."
        )
    table = pq.read_table(folder / _VECTORS).combine_chunks()
    ids = table["id"].combine_chunks()
    return VersionModel(IdLookup(ids), table["vector"].combine_chunks(), ids.type)
