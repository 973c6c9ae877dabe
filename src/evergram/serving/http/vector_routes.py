"""The routes of vectors, from a request's bytes to an answer's, in a worker's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
from evergram.migration.cascade import KeptVectors
from evergram.migration.reranked_search import (
    EncodingLimitError,
    Reranked,
    reranked_search,
)
from evergram.retrieval.text_vectors import texts_at
from evergram.serving.documents import MissingTextError
from evergram.serving.features import Features
from evergram.serving.http import arrow_stream
from evergram.serving.http.call import (
    Answer,
    Call,
    EncoderWaitError,
    Sources,
    hits_answer,
    looked_up,
    vectors_answer,
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
from evergram.serving.text_encoders import TextEncoderError, UnencodableTextError
from evergram.stores.store import Floats, Hits
from evergram.texts.record import checked_dims, cut
from evergram.texts.text_encoder import Role
from evergram.tracing import span

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

    def encode() -> Floats:
        with _refusals(texts):
            return served.encode(source, texts, role, record)

    if call.may_wait:
        return encode
    with _refusals(texts):
        vectors = served.cached(source, texts, role, record)
    if vectors is None:
        raise EncoderWaitError
    return lambda: vectors


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
def _refusals(texts: Sequence[str] | None = None) -> Iterator[None]:
    """Raise errors of an encoder as refusals of the request: of its texts, or else of hits."""
    try:
        yield
    except TextEncoderError as error:
        raise RefusedError(503, "text_encoder", str(error)) from error
    except UnencodableTextError as error:
        if texts is not None:
            text = error.text
            which = "one of the texts" if text is None else f"the text at {texts.index(text)}"
            reason = f"{error.subject} {which} of 'input'; leave it out."
            raise RefusedError(400, "data", reason, "input") from error
        reason = (
            f"{error.subject} the text of a hit, so that it cannot be re-ranked; change it in the "
            "file of --texts, or leave 'rerank' out."
        )
        raise RefusedError(409, "no_text", reason, "rerank") from error
    except MissingTextError as error:
        raise RefusedError(409, "no_text", str(error), "rerank") from error
    except EncodingLimitError as error:
        raise RefusedError(413, "limit", str(error), "rerank") from error
