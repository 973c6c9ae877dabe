"""Texts and objects with features of a request, encoded by the newest version's encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from evergram.retrieval.text_vectors import texts_at
from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.call import Call, EncoderWaitError
from evergram.serving.texts.checked_encoder import TextEncoderError, UnencodableTextError
from evergram.stores.store import Floats
from evergram.texts.text_encoder import Role
from evergram.tracing import span

T = TypeVar("T")


def encoded(
    call: Call, version: int, side: str, objects: Sequence[Any], role: Role | None
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Encode objects with features, or texts of a role, and read them as a version.

    Production's encoder is used, as if the objects were stored; a later version's own encoder.
    Returns: vectors [n, D], and the version that each was computed from.
    Raises: EncoderWaitError: texts must be encoded, for which this thread may not wait.
    """
    source = max(version, call.lineage.production)
    encode: Callable[[], Floats]
    if role is None:
        encode = partial(call.state.shared.encoders.encode, source, side, objects)
    else:
        encode = _text_vectors(call, source, objects, role)
    with span("encoder", version=source, side=side, rows=len(objects)):
        vectors = encode()
    if role is None:
        # A text need be none of those that are stored: a query is of another distribution.
        fingerprint = call.lineage.manifest(source).fingerprint
        call.drift.note_vectors(side, source, fingerprint, vectors)
    sources = np.full(len(vectors), source, dtype=np.int64)
    return call.state.reader.transform(vectors, source, version), sources


def text_queries(call: Call, version: int, texts: Sequence[str], role: Role) -> Floats:
    """Return the texts of a search as queries [Q, D] of a version, encoded as `encoded` does.

    They are not what is served, so drift does not see them.
    """
    production = call.lineage.production
    encode = _text_vectors(call, max(version, production), texts, role)
    return texts_at(
        version,
        texts,
        role,
        production=production,
        encode=lambda *_: encode(),
        transform=call.state.reader.transform,
    )


def _text_vectors(
    call: Call, source: int, texts: Sequence[str], role: Role
) -> Callable[[], Floats]:
    """Return what gives texts as version `source` encodes them.

    Raises, also later: RefusedError: it cannot. EncoderWaitError: as `encoded`.
    """
    served = call.state.texts
    if served is None:
        raise RefusedError(
            400,
            "text_encoder",
            "This service was started without an encoder of text (--encoder), so strings cannot be "
            "encoded; ids are read with 'input_type': 'id', and searched by with 'id'.",
            "input",
        )
    record = call.lineage.manifest(source).text_encoder
    if call.may_wait:
        return partial(_refusing, texts, partial(served.encode, source, texts, role, record))
    vectors = _refusing(texts, partial(served.cached, source, texts, role, record))
    if vectors is None:
        raise EncoderWaitError
    return lambda: vectors


def _refusing(texts: Sequence[str], encode: Callable[[], T]) -> T:
    """Return the vectors of texts. Raises: RefusedError: they cannot be encoded."""
    try:
        return encode()
    except TextEncoderError as error:
        raise RefusedError(503, "text_encoder", str(error)) from error
    except UnencodableTextError as error:
        which = (
            "one of the texts" if error.text is None else f"the text at {texts.index(error.text)}"
        )
        raise RefusedError(
            400, "data", f"{error.subject} {which} of 'input'; leave it out.", "input"
        ) from error
