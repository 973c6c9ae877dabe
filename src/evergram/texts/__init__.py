"""Text encoders of others, and the record by which a version recognises its own.

`text_encoder`: `TextEncoder`, from texts to vectors [n, D], with prompts for queries and documents.
`addresses` opens one by its address: of an installed package, behind an OpenAI-compatible
endpoint, or a Python function. `record` keeps canaries with vectors and versions, by which it
opens the recorded encoder and notices when it is replaced.
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
