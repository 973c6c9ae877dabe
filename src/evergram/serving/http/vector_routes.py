"""The routes of vectors, from a request's bytes to an answer's, in a worker's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, ShapeError
from evergram.lineage.fold_in import unknown_candidates
from evergram.lineage.score_maps import QueryVectors
from evergram.serving.features import Features
from evergram.serving.http import arrow_stream
from evergram.serving.http.call import (
    Answer,
    Call,
    hits_answer,
    looked_up,
    vectors_answer,
)
from evergram.serving.http.encoding import (
    check_rerank,
    encoded,
    own_vector,
    reranked,
    text_queries,
)
from evergram.serving.http.errors import RefusedError
from evergram.serving.http.json_body import Parsed, parse
from evergram.serving.http.request_schemas import (
    NUMBER_LISTS,
    TEXT_LISTS,
    VECTORS,
    EmbeddingsOptions,
    EmbeddingsRequest,
    FoldInRequest,
    SearchOptions,
    SearchRequest,
    TransformOptions,
    TransformRequest,
)
from evergram.serving.http.request_values import (
    as_ids,
    check_count,
    check_texts,
    embedded_ids,
    ids_of,
    missing_ids,
    model_version,
    objects_of,
    strings_are_texts,
    text_role,
    vector_of,
    vectors_of,
)
from evergram.stores.store import Floats, Hits
from evergram.texts.record import checked_dims, cut
from evergram.texts.text_encoder import Role

QUERY, CANDIDATE = "query", "candidate"
# Candidates that the queries of a full request may have on average.
MET = 32


def embeddings(call: Call) -> Answer:
    """Answer `POST /v1/embeddings`. Raises: EvergramError."""
    options: EmbeddingsOptions
    inputs: Any
    if call.arrow_in:
        stream = arrow_stream.read_stream(call.content(), "id", call.settings.max_batch)
        inputs = stream.column.combine_chunks()
        if not len(inputs):
            inputs = pa.array([], pa.null())
        options = parse(EmbeddingsOptions, stream.request, call.settings).request
    else:
        parsed = parse(EmbeddingsRequest, call.content(), call.settings)
        options, inputs = parsed.request, objects_of(parsed, call.settings)
    version = model_version(call.lineage, call.access, options)
    dims = _dims(call, version, options.dimensions)
    side = call.state.reader.default_side if options.side is None else options.side
    role = text_role(inputs, options, call.lineage, call.settings)
    if role is not None or (isinstance(inputs, list) and isinstance(inputs[0], Features)):
        ids = counts = None
        vectors, sources = encoded(call, version, side, inputs, role)
    else:
        ids = as_ids(call.state.reader.store(side), inputs)
        embedded = looked_up(lambda: embedded_ids(call.state.reader, ids, version, side))
        vectors, sources, counts = embedded.vectors, embedded.sources, embedded.counts
        if options.missing == "error" and -1 in counts:
            missing = [inputs[row] for row in np.flatnonzero(sources < 0).tolist()]
            raise missing_ids(missing, len(ids), side, integers=ids.null_count > 0)
        call.drift.note(side, ids, sources)
    # After the backward transform: the coordinates that are kept are the version's own first ones.
    vectors = cut(vectors, dims)
    encoding = options.encoding_format
    return vectors_answer(
        call, version, side, vectors, sources, counts=counts, ids=ids, encoding=encoding
    )


@dataclass(frozen=True)
class _Search:
    """A search whose queries are known.

    Args:
        queries: vectors [Q, D], or texts that are encoded after every limit was checked.
        whose: the version whose model made the queries, as of `Reader.search`.
    """

    options: SearchOptions
    version: int
    side: str
    queries: Floats | list[str]
    whose: QueryVectors | int | None
    ids: pa.Array | None
    role: Role


def search(call: Call) -> Answer:
    """Answer `POST /v1/search`. Raises: EvergramError."""
    asked = _search(call)
    options, version, side, queries = asked.options, asked.version, asked.side, asked.queries
    encode: Callable[[int], Floats] | None = None
    if isinstance(queries, list):
        encode = partial(text_queries, call, texts=queries, role=asked.role)
        queries = encode(version)
    query_side = None
    if isinstance(options, SearchRequest) and options.id is not None:
        query_side = side if options.id_side is None else options.id_side
    calibrated, reader = options.scores == "calibrated", call.state.reader
    made: Any = {"query_side": query_side, "query_vectors": asked.whose}
    if options.rerank is None:
        made |= {"metric": options.metric, "filter": options.filter, "scores": options.scores}
        made["ids"] = asked.ids
        hits = looked_up(lambda: reader.search(queries, options.k, version, side, **made))
        return hits_answer(call, version, side, hits, calibrated=calibrated)
    ranking = looked_up(lambda: reranked(call, options, queries, version, side, asked.ids, encode))
    hits = ranking.hits
    if calibrated:
        hits = reader.calibrated(hits, version, side, options.metric, **made)
    counts = ranking.counts
    return hits_answer(call, version, side, hits, calibrated=calibrated, reranked=counts)


def _search(call: Call) -> _Search:
    """Read a search within the limits of one request. Raises: EvergramError."""
    reader, settings = call.state.reader, call.settings
    options: SearchOptions
    parsed: Parsed[Any]
    queries: Floats | list[str] | None = None
    claimed = None
    if call.arrow_in:
        stream = arrow_stream.read_stream(call.content(), "vector", settings.max_batch)
        claimed, parsed = stream.fingerprint, parse(SearchOptions, stream.request, settings)
        queries = arrow_stream.vectors_of(stream.column)
    else:
        parsed = parse(SearchRequest, call.content(), settings)
    options = parsed.request
    version = call.access.version(call.lineage, options.version)
    _check_fingerprints(call, [call.fingerprint, claimed, options.fingerprint], version)
    side = reader.default_side if options.side is None else options.side
    store, whose = reader.store(side), options.query_vectors
    if queries is None and parsed.request.input is not None:
        queries, whose = _texts(call, parsed), "read_back"
        if version >= call.lineage.production:
            whose = "own"
    elif queries is None and parsed.request.id is not None:
        queries, whose = _of_id(call, parsed, version, side)
    elif queries is None and parsed.request.vector is not None:
        queries = vector_of(parsed, settings)
    elif queries is None:
        queries = vectors_of(parsed, settings)
    check_rerank(call, options, version, len(queries))
    _check_hits(call, len(queries), options.k, options.k)
    ids = None
    if options.ids is not None:
        check_count(parsed.count("ids"), settings.max_batch, "ids", "id")
        ids = as_ids(store, ids_of(parsed, "ids")).drop_null()
    role: Role = getattr(options, "input_type", None) or "query"
    return _Search(options, version, side, queries, whose, ids, role)


def _check_hits(call: Call, queries: int, k: int, wider: int) -> None:
    """Refuse more results than one request may ask for; `wider` are searched to give k."""
    most_k, most = call.settings.max_k, call.settings.max_hits
    if k > most_k:
        raise RefusedError(400, "limit", f"k is {k}; it may be at most {most_k}.", "k")
    if queries * wider > most:
        raise RefusedError(
            413,
            "limit",
            f"{queries} queries of {wider} results each are more than the {most} results that one "
            "request may ask for; send fewer at a time.",
        )


def transform(call: Call) -> Answer:
    """Answer `POST /v1/transform`. Raises: EvergramError."""
    options: TransformOptions
    claimed = None
    if call.arrow_in:
        stream = arrow_stream.read_stream(call.content(), "vector", call.settings.max_batch)
        claimed = stream.fingerprint
        options = parse(TransformOptions, stream.request, call.settings).request
        vectors = arrow_stream.vectors_of(stream.column)
    else:
        parsed = parse(TransformRequest, call.content(), call.settings)
        options, vectors = parsed.request, vectors_of(parsed, call.settings)
    source = call.access.version(call.lineage, options.source)
    target = call.access.version(call.lineage, options.target)
    _check_fingerprints(call, [call.fingerprint, claimed, options.fingerprint], source)
    # Values that overflow are refused when the answer is written.
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = call.state.reader.transform(vectors, source, target)
    sources = np.full(len(vectors), source, dtype=np.int64)
    return vectors_answer(call, target, None, vectors, sources)


def fold_in(call: Call) -> Answer:
    """Answer `POST /v1/fold-in`. Raises: EvergramError."""
    if call.arrow_in:
        raise RefusedError(415, "request", "Candidates of new queries are sent as JSON.")
    reader, settings = call.state.reader, call.settings
    parsed = parse(FoldInRequest, call.content(), settings)
    options = parsed.request
    version = call.access.version(call.lineage, options.version)
    store = reader.store(CANDIDATE)
    check_count(parsed.count("candidates"), settings.max_batch, "candidates", "list")
    texts = bool(options.candidates[0]) and isinstance(options.candidates[0][0], str)
    lists: list[list[Any]] = _elements(parsed, "candidates", TEXT_LISTS if texts else NUMBER_LISTS)
    check_count(sum(map(len, lists)), MET * settings.max_batch, "candidates", "candidate")
    keys = list(chain.from_iterable(lists))
    ids = as_ids(store, keys)
    ends = np.cumsum([0, *map(len, lists)]).tolist()
    met = [ids[a:b] for a, b in pairwise(ends)]
    numbers = [
        None if getattr(options, name) is None else _elements(parsed, name, VECTORS)
        for name in ("weights", "values")
    ]
    if ids.null_count:
        if options.missing == "error":
            unknown = np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False)).tolist()
            raise unknown_candidates([keys[row] for row in unknown], len(ids))
        numbers = [None if rows is None else _where_known(rows, met) for rows in numbers]
        met = [row.drop_null() for row in met]
    vectors, source = looked_up(
        lambda: reader.fold_in_with_source(met, *numbers, version=version, missing=options.missing)
    )
    if options.k is not None:
        return hits_answer(
            call, version, CANDIDATE, _new_hits(call, vectors, met, version, options)
        )
    sources = np.full(len(vectors), source, dtype=np.int64)
    return vectors_answer(call, version, QUERY, vectors, sources)


def _elements(parsed: Parsed[FoldInRequest], name: str, kind: Any) -> list[Any]:
    """Return the lists of a field. Raises: RefusedError: one is not valid."""
    return [element for part in parsed.parts(name, kind) for element in part]


def _where_known(numbers: list[list[float]], met: Sequence[pa.Array]) -> list[list[float]]:
    """Return the numbers of the ids that are not null. Raises: ShapeError: there are too few."""
    if [*map(len, numbers)] != [*map(len, met)]:
        raise ShapeError("weights and values must be as long as the candidates.")
    return [
        [number for number, known in zip(row, ids.is_valid().to_pylist(), strict=True) if known]
        for row, ids in zip(numbers, met, strict=True)
    ]


def _new_hits(
    call: Call, vectors: Floats, met: Sequence[pa.Array], version: int, options: FoldInRequest
) -> list[Hits]:
    """Return the k candidates that each query has not met with the largest inner product."""
    k = options.k
    assert k is not None
    wider = k if options.include_met else k + max(map(len, met))
    _check_hits(call, len(met), k, wider)
    nearest = looked_up(lambda: call.state.reader.search(vectors, wider, version, CANDIDATE, "ip"))
    if options.include_met:
        return nearest
    results = []
    for hits, known in zip(nearest, met, strict=True):
        new = pc.invert(pc.is_in(hits.ids, value_set=known)).to_numpy(zero_copy_only=False)
        results.append(hits.where(new).first(k))
    return results


def _dims(call: Call, version: int, asked: int | None) -> int | None:
    """Return how many coordinates vectors are cut to; None for all. Raises: RefusedError."""
    manifest = call.lineage.manifest(version)
    try:
        return checked_dims(asked, manifest.dim, manifest.cuts, version)
    except DataError as error:
        raise RefusedError(400, "dimensions", str(error), "dimensions") from None


def _texts(call: Call, parsed: Parsed[SearchRequest]) -> list[str]:
    """Return the texts of a search in JSON. Raises: RefusedError: they cannot be encoded."""
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
        # Calibrated scores are of rows read by the backward transform, and so is their query.
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
    """Refuse vectors that claim the fingerprint of another version. Raises: RefusedError."""
    own = call.lineage.manifest(version).fingerprint
    for fingerprint in claimed:
        if fingerprint is not None and fingerprint != own:
            raise RefusedError(
                409,
                "fingerprint",
                f"The vectors carry the fingerprint {fingerprint[:80]}; that of version {version} "
                f"is {own}. They are of another space; name the version they are of.",
            )
