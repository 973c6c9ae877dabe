"""Texts and objects with features of a request, encoded by a version's own encoder: as rows, as the
queries of a search, or to re-rank its hits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from evergram.migration.cascade import KeptVectors
from evergram.migration.reranked_search import (
    EncodingLimitError,
    Reranked,
    reranked_search,
)
from evergram.retrieval.text_vectors import texts_at
from evergram.serving.documents import MissingTextError
from evergram.serving.http.call import Call, EncoderWaitError, Sources
from evergram.serving.http.errors import RefusedError
from evergram.serving.http.request_schemas import SearchOptions
from evergram.serving.http.request_values import missing_ids
from evergram.serving.text_encoders import TextEncoderError, UnencodableTextError
from evergram.stores.store import Floats
from evergram.texts.text_encoder import Role
from evergram.tracing import span

T = TypeVar("T")


def encoded(
    call: Call, version: int, side: str, objects: Sequence[Any], role: Role | None
) -> tuple[Floats, Sources]:
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
        # Drift sees no texts: those of queries are of another distribution than the stored ones.
        fingerprint = call.lineage.manifest(source).fingerprint
        call.drift.note_vectors(side, source, fingerprint, vectors)
    sources = np.full(len(vectors), source, dtype=np.int64)
    return call.state.reader.transform(vectors, source, version), sources


def text_queries(call: Call, version: int, texts: Sequence[str], role: Role) -> Floats:
    """Return the texts of a search as queries [Q, D] of a version, encoded as `encoded` does."""
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
    """Return what encodes texts as version `source` does. Raises, also later: as `encoded`."""
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
        text = error.text
        which = "one of the texts" if text is None else f"the text at {texts.index(text)}"
        reason = f"{error.subject} {which} of 'input'; leave it out."
        raise RefusedError(400, "data", reason, "input") from error


def check_rerank(call: Call, options: SearchOptions, version: int, queries: int) -> None:
    """Refuse a search that cannot be re-ranked.

    Raises: RefusedError: it cannot. EncoderWaitError: this thread may not wait for its texts.
    """
    rerank, settings = options.rerank, call.settings
    if rerank is None:
        return
    if not options.k <= rerank <= settings.max_k:
        allowed = f"at least k ({options.k}) and at most {settings.max_k}"
        reason = f"rerank is {rerank}; it must be {allowed}."
        raise RefusedError(400, "limit", reason, "rerank")
    if queries * rerank > settings.max_hits:
        raise RefusedError(
            413,
            "limit",
            f"{queries} queries that re-rank {rerank} hits each are more than the "
            f"{settings.max_hits} hits of one request; send fewer at a time.",
            "rerank",
        )
    texts, production = call.state.texts, call.lineage.production
    problem = None
    if version < production:
        problem = (
            f"Version {version} is before production, version {production}, and its model does not "
            "run here, so hits cannot be ranked by its own vectors; name production or a later "
            "version, or leave 'rerank' out."
        )
    elif texts is None or texts.documents is None:
        problem = (
            "This service was started without an encoder (--encoder) or without the texts of its "
            "objects (--texts), so new vectors cannot be computed; leave 'rerank' out."
        )
    elif call.lineage.manifest(version).text_encoder is None:
        problem = (
            f"Version {version} records no encoder of text, so its own vectors cannot be computed; "
            "leave 'rerank' out."
        )
    if problem is not None:
        raise RefusedError(400, "rerank", problem, "rerank")
    if not call.may_wait:
        raise EncoderWaitError


def reranked(
    call: Call,
    options: SearchOptions,
    queries: Floats,
    version: int,
    side: str,
    ids: pa.Array,
    encode: Callable[[int], Floats] | None = None,
) -> Reranked:
    """Return the hits of a search that `check_rerank` let pass, by the version's own vectors.

    Args:
        ids: to search among; None for all.
        encode: encodes the queries as a version's own model does; None if they are not texts.
    Raises: RefusedError: an object has no text, the encoder does not work, or too many texts would
        have to be encoded. EvergramError: as `reranked_search`.
    """
    assert options.rerank is not None
    texts = call.state.texts

    def old_queries(older: int) -> Floats | None:
        if encode is None or texts is None or not texts.can_encode(older):
            return None
        return encode(older)

    with _refusals():
        return reranked_search(
            call.state.reader,
            queries,
            _kept(call, version),
            options.k,
            version,
            rerank=options.rerank,
            side=side,
            metric=options.metric,
            ids=ids,
            filter=options.filter,
            most=call.settings.max_batch,
            old_queries=old_queries,
        )


def own_vector(call: Call, ids: pa.Array, version: int, side: str) -> Floats:
    """Return the vector [1, D] of one id by a version's own model, stored or computed.

    Raises: RefusedError: it is not stored; or as `reranked`.
    """
    reader = call.state.reader
    own, vectors = reader.own_rows(ids, version, side)
    if len(own):
        return vectors
    # A text is not enough: the object must be stored at some version.
    if not sum(len(rows) for rows in reader.store(side).fetch(ids)):
        raise missing_ids(ids, 1, side)
    with _refusals():
        return _kept(call, version).of(ids)


def _kept(call: Call, version: int) -> KeptVectors:
    """Return the kept vectors of a version, and its encoder."""
    texts, manifest = call.state.texts, call.lineage.manifest(version)
    assert texts is not None
    assert texts.documents is not None
    return texts.documents.kept(
        version,
        manifest.fingerprint,
        manifest.dim,
        lambda some: texts.encode(version, some, "document", manifest.text_encoder),
        manifest.text_encoder,
    )


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise errors of texts and of their encoder as refusals of the request."""
    try:
        yield
    except TextEncoderError as error:
        raise RefusedError(503, "text_encoder", str(error)) from error
    except UnencodableTextError as error:
        reason = (
            f"{error.subject} the text of a hit, so that it cannot be re-ranked; change it in the "
            "file of --texts, or leave 'rerank' out."
        )
        raise RefusedError(409, "no_text", reason, "rerank") from error
    except MissingTextError as error:
        raise RefusedError(409, "no_text", str(error), "rerank") from error
    except EncodingLimitError as error:
        raise RefusedError(413, "limit", str(error), "rerank") from error
