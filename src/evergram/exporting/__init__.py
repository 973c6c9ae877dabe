"""Export versions to other programs.

`pretrained_encoder`: a version's encoder, from a lineage or a folder. `formats`: the backward
transform for ONNX, pgvector and DuckDB, or together with the newest encoder for
sentence-transformers (`sentence_transformer_folder`). `arrow_function`: a view as a function that
engines such as DuckDB apply to whole tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.exporting.arrow_function import ArrowFunction as ArrowFunction
    from evergram.exporting.arrow_function import arrow_function as arrow_function
    from evergram.exporting.formats import export_transform as export_transform
    from evergram.exporting.pretrained_encoder import PretrainedEncoder as PretrainedEncoder

export_lazily(__name__)
