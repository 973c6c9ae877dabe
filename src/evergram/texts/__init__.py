"""Pretrained text encoders, and records that identify the encoder of a version.

`text_encoder`: `TextEncoder` maps texts to vectors [n, D], with prompts for queries and documents.
`addresses` opens one by address: a model of an installed package, an OpenAI-compatible endpoint, or
a Python function. `record` stores an encoder's address and canary vectors with vectors and
versions, to open the same encoder again and notice if it was replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.texts.addresses import open_text_encoder as open_text_encoder
    from evergram.texts.record import TextEncoderRecord as TextEncoderRecord
    from evergram.texts.record import record_of as record_of
    from evergram.texts.text_encoder import Prompts as Prompts
    from evergram.texts.text_encoder import TextEncoder as TextEncoder

export_lazily(__name__)
