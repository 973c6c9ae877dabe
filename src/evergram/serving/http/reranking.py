"""A search that re-ranks by the version's own vectors, computed from texts where need be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from evergram.migration.cascade import KeptVectors
from evergram.migration.reranked_search import (
    EncodingLimitError,
    Reranked,
    reranked_search,
)
from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.call import Call, EncoderWaitError
from evergram.serving.http.requests.ids import missing_ids
from evergram.serving.http.requests.schemas import SearchOptions
from evergram.serving.texts.checked_encoder import TextEncoderError, UnencodableTextError
from evergram.serving.texts.documents import MissingTextError
from evergram.stores.store import Floats


def check_rerank(call: Call, options: SearchOptions, version: int, queries: int) -> None:
    """Refuse a search that cannot be re-ranked.

    Raises: RefusedError: it cannot. EncoderWaitError: this thread may not wait for its texts.
    """
    rerank, settings = options.rerank, call.settings
    if rerank is None:
        return
    if not options.k <= rerank <= settings.max_k:
        raise RefusedError(
            400,
            "limit",
            f"rerank is {rerank}; it must be at least k ({options.k}) and at most "
            f"{settings.max_k}.",
            "rerank",
        )
    if queries * rerank > settings.max_hits:
        raise RefusedError(
            413,
            "limit",
            f"{queries} queries that re-rank {rerank} hits each are more than the "
            f"{settings.max_hits} hits of one request; send fewer at a time.",
            "rerank",
        )
    if version < call.lineage.production:
        raise RefusedError(
            400,
            "rerank",
            f"Version {version} is before production, version {call.lineage.production}, and its "
            "model does not run here, so hits cannot be ranked by its own vectors; leave 'rerank' "
            "out, or name production or a later version.",
            "rerank",
        )
    texts = call.state.texts
    if texts is None or texts.documents is None:
        raise RefusedError(
            400,
            "rerank",
            "This service was started without an encoder (--encoder) or without the texts of its "
            "objects (--texts), so that new vectors cannot be computed; leave 'rerank' out.",
            "rerank",
        )
    if call.lineage.manifest(version).text_encoder is None:
        raise RefusedError(
            400,
            "rerank",
            f"Version {version} records no encoder of text, so that its own vectors cannot be "
            "computed; leave 'rerank' out.",
            "rerank",
        )
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
        encode: encodes the queries as a version's own model does; None if they are no texts.
    Raises: RefusedError: an object has no text, the encoder is not at hand, or too many texts would
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
    # A text alone is no object: it must be stored at some version.
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
        raise RefusedError(
            409,
            "no_text",
            f"{error.subject} the text of a hit, so that it cannot be re-ranked; change it in the "
            "file of --texts, or leave 'rerank' out.",
            "rerank",
        ) from error
    except MissingTextError as error:
        raise RefusedError(409, "no_text", str(error), "rerank") from error
    except EncodingLimitError as error:
        raise RefusedError(413, "limit", str(error), "rerank") from error
