"""Versions for other programs.

`pretrained_encoder`: the encoder of a version in a folder of its own (`encoder_folder`). `formats`:
the backward transform for ONNX, pgvector and DuckDB, and with the newest encoder for
sentence-transformers. `arrow_function`: a view that engines such as DuckDB and Spark apply to whole
tables. `mlflow_model` and `feast_source`: a version's vectors as a model and as a feature view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.exporting.arrow_function import ArrowFunction, arrow_function
    from evergram.exporting.formats import export_transform
    from evergram.exporting.pretrained_encoder import PretrainedEncoder

__all__ = ["ArrowFunction", "PretrainedEncoder", "arrow_function", "export_transform"]

export_lazily(
    __name__,
    {
        "arrow_function": "ArrowFunction arrow_function",
        "formats": "export_transform",
        "pretrained_encoder": "PretrainedEncoder",
    },
)
