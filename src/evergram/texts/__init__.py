"""Encoders of text that somebody else made, and the record by which a version knows its own again.

Read in this order:

1. `text_encoder`: `TextEncoder`, from texts to vectors [n, D], with prompts for queries and
   documents. `addresses` opens one by its address.
2. One file a kind: `sentence_transformer`, `static_models` (model2vec, wordllama), `endpoint`
   (an OpenAI-compatible server) and `callable_encoder` (a Python function).
3. `weights`: the fingerprint of weights that are at hand. `canaries`: texts whose vectors show
   whether an encoder is still the same. `record`: both, as they are kept with vectors and versions.
   `recorded_encoder` opens the encoder of a record, and notices when it is replaced.
4. `text_files`: ids and texts from Parquet, Arrow, CSV and JSON lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.texts.addresses import open_text_encoder
    from evergram.texts.record import TextEncoderRecord, record_of
    from evergram.texts.text_encoder import Prompts, TextEncoder

__all__ = [
    "Prompts",
    "TextEncoder",
    "TextEncoderRecord",
    "open_text_encoder",
    "record_of",
]

export_lazily(
    __name__,
    {
        "addresses": "open_text_encoder",
        "record": "TextEncoderRecord record_of",
        "text_encoder": "Prompts TextEncoder",
    },
)
