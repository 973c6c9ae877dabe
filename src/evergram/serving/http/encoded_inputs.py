"""Texts and objects with features of a request, encoded by the newest version's encoder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from evergram.retrieval.text_vectors import texts_at
from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.call import Call
from evergram.serving.texts.checked_encoder import TextEncoderError
from evergram.stores.store import Floats
from evergram.texts.text_encoder import Role
from evergram.tracing import span


def encoded(
    call: Call, version: int, side: str, objects: Sequence[Any], role: Role | None
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Encode objects with features, or texts of a role, and read them as a version.

    Production's encoder is used, as if the objects were stored; a later version's own encoder.
    Returns: vectors [n, D], and the version that each was computed from.
    """
    source = max(version, call.lineage.production)
    with span("encoder", version=source, side=side, rows=len(objects)):
        if role is None:
            vectors = call.state.shared.encoders.encode(source, side, objects)
        else:
            vectors = _text_vectors(call, source, objects, role)
    call.drift.note_vectors(side, source, vectors)
    sources = np.full(len(vectors), source, dtype=np.int64)
    return call.state.reader.transform(vectors, source, version), sources


def text_queries(call: Call, version: int, texts: Sequence[str], role: Role) -> Floats:
    """Return the texts of a search as queries [Q, D] of a version, encoded as `encoded` does.

    They are not what is served, so drift does not see them.
    """
    return texts_at(
        version,
        texts,
        role,
        production=call.lineage.production,
        encode=partial(_text_vectors, call),
        transform=call.state.reader.transform,
    )


def _text_vectors(call: Call, source: int, texts: Sequence[str], role: Role) -> Floats:
    """Return texts as version `source` encodes them. Raises: RefusedError: it cannot."""
    if call.state.texts is None:
        raise RefusedError(
            400,
            "text_encoder",
            "This service was started without an encoder of text (--encoder), so strings cannot be "
            "encoded; ids are read with 'input_type': 'id', and searched by with 'id'.",
            "input",
        )
    try:
        return call.state.texts.encode(source, texts, role)
    except TextEncoderError as error:
        raise RefusedError(503, "text_encoder", str(error)) from error
