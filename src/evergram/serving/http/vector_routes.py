"""The three routes of vectors, from a request's bytes to an answer's, in a worker's thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from evergram.errors import DataError
from evergram.lineage.score_maps import QueryVectors
from evergram.serving.http.answers import arrow_answers, json_answers
from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.call import Answer, Call
from evergram.serving.http.encoded_inputs import encoded, text_queries
from evergram.serving.http.requests import arrow_stream
from evergram.serving.http.requests.ids import (
    as_ids,
    check_count,
    embedded_ids,
    ids_of,
    missing_ids,
    model_version,
    objects_of,
    vector_of,
    vectors_of,
)
from evergram.serving.http.requests.parsing import Parsed, parse
from evergram.serving.http.requests.schemas import (
    EmbeddingsOptions,
    EmbeddingsRequest,
    SearchOptions,
    SearchRequest,
    TransformOptions,
    TransformRequest,
)
from evergram.serving.http.requests.texts import check_texts, strings_are_texts, text_role
from evergram.serving.http.reranking import check_rerank, own_vector, reranked
from evergram.serving.http.vector_answers import (
    answer,
    arrow_metadata,
    looked_up,
    model_name,
    origin,
)
from evergram.serving.object_features import Features
from evergram.stores.store import Floats
from evergram.texts.record import checked_dims, cut
from evergram.texts.text_encoder import Role


def embeddings(call: Call) -> Answer:
    """Answer `POST /v1/embeddings`. Raises: EvergramError."""
    options: EmbeddingsOptions
    inputs: Any
    if call.arrow_in:
        stream = arrow_stream.read_stream(call.body, "id", call.settings.max_batch)
        inputs = stream.column.combine_chunks()
        if not len(inputs):
            inputs = pa.array([], pa.null())
        options = parse(EmbeddingsOptions, stream.request, call.settings).request
    else:
        parsed = parse(EmbeddingsRequest, call.body, call.settings)
        options, inputs = parsed.request, objects_of(parsed, call.settings)
    version = model_version(call.lineage, call.access, options)
    dims = _dims(call, version, options.dimensions)
    side = call.state.reader.default_side if options.side is None else options.side
    role = text_role(inputs, options, call.lineage, call.settings)
    if role is not None or (isinstance(inputs, list) and isinstance(inputs[0], Features)):
        ids = None
        vectors, sources = encoded(call, version, side, inputs, role)
        counts = {int(sources[0]): len(sources)}
    else:
        ids = as_ids(call.state.reader.store(side), inputs)
        embedded = looked_up(lambda: embedded_ids(call.state.reader, ids, version, side))
        vectors, sources, counts = embedded.vectors, embedded.sources, embedded.counts
        if options.missing == "error" and -1 in counts:
            missing = [inputs[row] for row in np.flatnonzero(sources < 0).tolist()]
            raise missing_ids(missing, len(ids), side, integers=ids.null_count > 0)
        call.drift.note(side, ids, sources)
    # After the way back: the coordinates that are kept are the version's own first ones.
    vectors = cut(vectors, dims)
    if not call.arrow_out:
        body = json_answers.embeddings_json(
            vectors,
            sources,
            origin(call, version, side),
            model_name(call, version),
            options.encoding_format == "base64",
        )
        return answer(call, version, counts, body)
    metadata = arrow_metadata(call, version, side)
    columns = arrow_answers.vector_columns(ids, json_answers.finite(vectors), sources)
    return answer(call, version, counts, arrow_answers.write_stream(columns, metadata))


def search(call: Call) -> Answer:
    """Answer `POST /v1/search`. Raises: EvergramError."""
    reader, settings = call.state.reader, call.settings
    options: SearchOptions
    parsed: Parsed[Any]
    asked: Floats | list[str] | None = None
    fingerprints = [call.fingerprint]
    if call.arrow_in:
        stream = arrow_stream.read_stream(call.body, "vector", settings.max_batch)
        fingerprints.append(stream.fingerprint)
        parsed = parse(SearchOptions, stream.request, settings)
        asked = arrow_stream.vectors_of(stream.column)
    else:
        parsed = parse(SearchRequest, call.body, settings)
    options = parsed.request
    version = call.access.version(call.lineage, options.version)
    _check_fingerprints(call, [*fingerprints, options.fingerprint], version)
    side = reader.default_side if options.side is None else options.side
    store = reader.store(side)
    whose: QueryVectors | int | None = options.query_vectors
    if asked is None:
        if parsed.request.input is not None:
            asked = _texts(call, parsed)
            whose = "own" if version >= call.lineage.production else "read_back"
        elif parsed.request.id is not None:
            asked, whose = _of_id(call, parsed, version, side)
        elif parsed.request.vector is not None:
            asked = vector_of(parsed, settings)
        else:
            asked = vectors_of(parsed, settings)
    count = len(asked)
    check_rerank(call, options, version, count)
    if options.k > settings.max_k:
        raise RefusedError(
            400, "limit", f"k is {options.k}; it may be at most {settings.max_k}.", "k"
        )
    if count * options.k > settings.max_hits:
        raise RefusedError(
            413,
            "limit",
            f"{count} queries of {options.k} results each are more than the "
            f"{settings.max_hits} results that one request may ask for; send fewer at a time.",
        )
    ids = None
    if options.ids is not None:
        check_count(parsed.count("ids"), settings.max_batch, "ids", "id")
        ids = as_ids(store, ids_of(parsed, "ids")).drop_null()
    encode: Callable[[int], Floats] | None = None
    if isinstance(asked, list):  # of texts, encoded after every limit
        role: Role = parsed.request.input_type or "query"
        encode = partial(text_queries, call, texts=asked, role=role)
        asked = encode(version)
    queries = asked
    where: dict[str, int] = {}
    query_side = None
    if isinstance(options, SearchRequest) and options.id is not None:
        query_side = side if options.id_side is None else options.id_side
    if options.rerank is None:
        results = looked_up(
            lambda: reader.search(
                queries,
                options.k,
                version,
                side,
                options.metric,
                ids,
                filter=options.filter,
                scores=options.scores,
                query_side=query_side,
                query_vectors=whose,
            )
        )
    else:
        ranking = looked_up(lambda: reranked(call, options, queries, version, side, ids, encode))
        results, where = ranking.hits, ranking.counts
        if options.scores == "calibrated":
            results = reader.calibrated(
                *(results, version, side, options.metric),
                query_side=query_side,
                query_vectors=whose,
            )
    counts = Counter(source for hits in results for source in hits.versions.tolist())
    if not call.arrow_out:
        distinct = sorted(counts)
        described, model = origin(call, version, side), model_name(call, version)
        if options.scores == "calibrated":
            described["scores"] = options.scores
        body = json_answers.search_json(results, distinct, described, model)
    else:
        columns = arrow_answers.hit_columns(results, store.id_type)
        metadata = arrow_metadata(call, version, side) | {"evergram.queries": str(len(results))}
        if options.scores == "calibrated":
            metadata["evergram.scores"] = options.scores
        body = arrow_answers.write_stream(columns, metadata)
    return replace(answer(call, version, counts, body), reranked=where)


def transform(call: Call) -> Answer:
    """Answer `POST /v1/transform`. Raises: EvergramError."""
    options: TransformOptions
    fingerprints = [call.fingerprint]
    if call.arrow_in:
        stream = arrow_stream.read_stream(call.body, "vector", call.settings.max_batch)
        fingerprints.append(stream.fingerprint)
        options = parse(TransformOptions, stream.request, call.settings).request
        vectors = arrow_stream.vectors_of(stream.column)
    else:
        parsed = parse(TransformRequest, call.body, call.settings)
        options, vectors = parsed.request, vectors_of(parsed, call.settings)
    source = call.access.version(call.lineage, options.source)
    target = call.access.version(call.lineage, options.target)
    _check_fingerprints(call, [*fingerprints, options.fingerprint], source)
    # Values that overflow are refused when the answer is written.
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = call.state.reader.transform(vectors, source, target)
    sources = np.full(len(vectors), source, dtype=np.int64)
    if not call.arrow_out:
        described, model = origin(call, target, None), model_name(call, target)
        body = json_answers.transform_json(vectors, sources, described, model)
    else:
        metadata = arrow_metadata(call, target, None)
        columns = arrow_answers.vector_columns(None, json_answers.finite(vectors), sources)
        body = arrow_answers.write_stream(columns, metadata)
    return answer(call, target, {source: len(vectors)}, body)


def _dims(call: Call, version: int, asked: int | None) -> int | None:
    """Return how many coordinates a version's vectors are cut to; None for all.

    Raises: RefusedError: its record does not allow that number.
    """
    manifest = call.lineage.manifest(version)
    try:
        return checked_dims(asked, manifest.dim, manifest.cuts, version)
    except DataError as error:
        raise RefusedError(400, "dimensions", str(error), "dimensions") from None


def _texts(call: Call, parsed: Parsed[SearchRequest]) -> list[str]:
    """Return the texts of a search in JSON, checked.

    Raises: RefusedError: they are too many, cannot be encoded, or are no texts in this lineage.
    """
    request = parsed.request
    if request.input_type is None and not strings_are_texts(call.lineage):
        raise RefusedError(
            400,
            "request",
            "The first version of this lineage records no encoder of text, so a search takes "
            "'vector', 'vectors' or 'id'; where a later version records one, 'input' is read "
            "with 'input_type': 'query'.",
            "input",
        )
    if isinstance(request.input, str):
        texts = [request.input]
    else:
        check_count(parsed.count("input"), call.settings.max_batch, "input", "input")
        texts = ids_of(parsed, "input")
    check_texts(texts, call.settings)
    return texts


def _of_id(
    call: Call, parsed: Parsed[SearchRequest], version: int, side: str
) -> tuple[Floats, int]:
    """Return the vector [1, D] of the id of a search, read as a version, and the version whose
    model made it."""
    request, reader = parsed.request, call.state.reader
    id_side = side if request.id_side is None else request.id_side
    ids = as_ids(reader.store(id_side), [request.id])
    if not ids.null_count:
        if request.rerank is not None and id_side == side:
            check_rerank(call, request, version, 1)
            return own_vector(call, ids, version, side), version
        # Calibrated scores are of rows that are read by the way back, and so is their query.
        sidecars = request.scores == "raw"
        embedded = looked_up(lambda: reader.embed(ids, version, id_side, sidecars=sidecars))
        if embedded.sources[0] >= 0:
            return embedded.vectors, int(embedded.sources[0])
    raise RefusedError(
        404,
        "unknown_id",
        f"The id {str(request.id)[:40]} is not stored on side {id_side!r}; search by another, by "
        "'vector', or name the side it is of in 'id_side'.",
        "id",
    )


def _check_fingerprints(call: Call, claimed: Iterable[str | None], version: int) -> None:
    """Refuse vectors of another space.

    Args:
        claimed: the fingerprints in the request's header, metadata and fields, None for none.
    Raises: RefusedError: one of them is not the version's.
    """
    own = call.lineage.manifest(version).fingerprint
    for fingerprint in claimed:
        if fingerprint is not None and fingerprint != own:
            raise RefusedError(
                409,
                "fingerprint",
                f"The vectors carry the fingerprint {fingerprint[:80]}; that of version {version} "
                f"is {own}. They are of another space; name the version they are of.",
            )
