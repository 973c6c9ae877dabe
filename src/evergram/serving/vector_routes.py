"""The routes for vectors: from a request's bytes to the answer's bytes, in a worker thread."""

from __future__ import annotations

import binascii
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from evergram.errors import DataError, ShapeError, UnknownVersionError
from evergram.ids import INTEGER
from evergram.lineage.lineage import Lineage
from evergram.lineage.view import unknown_candidates
from evergram.migration.cascade import EncodingLimitError, KeptVectors, reranked_search
from evergram.serving.answers import Answer, Call
from evergram.serving.errors import ARROW, JSON, RefusedError, too_much, wrong
from evergram.serving.requests import (
    LONGEST_ID,
    EmbeddingsRequest,
    FoldInRequest,
    M,
    SearchRequest,
    Stream,
    TransformRequest,
    column_vectors,
    parse,
    read_stream,
)
from evergram.serving.settings import ServiceSettings
from evergram.serving.texts import (
    EncoderWaitError,
    MissingTextError,
    TextEncoderError,
    UnencodableTextError,
)
from evergram.stores.store import Floats, Hits, ReadableStore
from evergram.texts.record import checked_dims, cut
from evergram.texts.text_encoder import Role

Sources = npt.NDArray[np.int64]
QUERY, CANDIDATE = "query", "candidate"
# A fold-in request may have this many candidates per query, on average over `max_batch` queries.
MET = 32
_NAMED = 5  # maximum number of ids that an error lists
_INTEGER = re.compile(INTEGER, re.ASCII)


def embeddings(call: Call) -> Answer:
    """Answer `POST /v1/embeddings`."""
    options, stream = _read(call, "id", EmbeddingsRequest, {"input": 0})
    inputs: Any
    if stream is None:
        inputs = options.input if isinstance(options.input, list) else [options.input]
        _check_count(len(inputs), call.settings.max_batch, "input", "input")
    else:
        inputs = stream.column.combine_chunks() if len(stream.column) else pa.array([], pa.null())
    version, reader = _model_version(call, options), call.state.reader
    manifest = call.lineage.manifest(version)
    try:
        dims = checked_dims(options.dimensions, manifest.dim, manifest.cuts, version)
    except DataError as error:
        raise RefusedError(400, "dimensions", str(error), "dimensions") from None
    side = reader.default_side if options.side is None else options.side
    role, ids = _text_role(call, options, inputs), None
    if role is not None:
        vectors = _encoded(call, version, inputs, role)
        sources = np.full(len(vectors), max(version, call.lineage.production), dtype=np.int64)
    else:
        ids = _as_ids(reader.store(side), inputs)
        with _looking_up():
            found = reader.embed(ids.drop_null(), version, side)
        vectors, sources = found.vectors, found.sources
        if ids.null_count:  # strings that cannot be ids of this store
            valid = ids.is_valid().to_numpy(zero_copy_only=False)
            vectors = np.zeros((len(ids), vectors.shape[1]), dtype=np.float32)
            sources = np.full(len(ids), -1, dtype=np.int64)
            vectors[valid], sources[valid] = found.vectors, found.sources
        if options.missing == "error" and (sources < 0).any():
            missing = [str(inputs[row])[:40] for row in np.flatnonzero(sources < 0).tolist()]
            first = ", ".join(missing[:_NAMED]) + (", …" if len(missing) > _NAMED else "")
            what = f"{len(missing)} of {len(ids)} ids are not stored on side {side!r}: {first}"
            unknown = f"{what}{_sides(reader.sides)}. Leave them out, or send 'missing': 'zeros'."
            raise RefusedError(404, "unknown_id", unknown, "input")
    # Cut after the backward transform, so that these are the version's first coordinates.
    vectors = vectors if dims is None else cut(vectors, dims)
    encoding = options.encoding_format
    return vectors_answer(call, version, side, vectors, sources, ids=ids, encoding=encoding)


def search(call: Call) -> Answer:
    """Answer `POST /v1/search`."""
    options, stream = _read(call, "vector", SearchRequest, {"vector": [0.0]})
    reader, settings = call.state.reader, call.settings
    version = call.access.version(call.lineage, options.version)
    _check_fingerprints(call, options, stream, version)
    side = reader.default_side if options.side is None else options.side
    store, query_vectors = reader.store(side), options.query_vectors
    queries: Floats | list[str]
    query_side: str | None = None
    encode: Callable[[int], Floats] | None = None
    if stream is not None:
        queries = column_vectors(stream.column)
    elif options.input is not None:
        if options.input_type is None and not _strings_are_texts(call.lineage):
            what = "The first version of this lineage records no text encoder, so texts"
            raise wrong(f"{what} need an 'input_type', query or document.", "input")
        queries = [options.input] if isinstance(options.input, str) else options.input
        _check_count(len(queries), settings.max_batch, "input", "input")
        _check_texts(queries, settings)
        query_vectors = "own" if version >= call.lineage.production else "read_back"
    elif options.id is not None:
        query_side = side if options.id_side is None else options.id_side
        queries, query_vectors = _id_query(call, options, version, side)
    else:
        queries = _vectors(options.vectors or [options.vector or []], settings)
    _check_rerank(call, options, version)
    depth, most_k, most = options.rerank or options.k, settings.max_k, settings.max_hits
    if options.k > most_k:
        reason = f"k is {options.k}; it may be at most {most_k}."
        raise RefusedError(400, "limit", reason, "k")
    if len(queries) * depth > most:
        reason = f"{len(queries)} queries with {depth} results each exceed the limit of {most}"
        raise too_much(f"{reason} results per request.")
    ids = None
    if options.ids is not None:
        _check_count(len(options.ids), settings.max_batch, "ids", "id")
        ids = _as_ids(store, options.ids).drop_null()
    if isinstance(queries, list):  # encode texts only after checking all limits
        role, texts = options.input_type or "query", queries
        encode = lambda version: _encoded(call, version, texts, role)  # noqa: E731
        queries = encode(version)
    calibrated = options.scores == "calibrated"
    if calibrated and isinstance(options.query_vectors, int):
        # Outside `_looking_up`: an unknown version here is the client's error, so no retry.
        call.lineage.resolve(options.query_vectors)
    how: Any = {"query_side": query_side, "query_vectors": query_vectors}
    with _looking_up():
        if options.rerank is None:
            how |= {"metric": options.metric, "filter": options.filter, "scores": options.scores}
            hits = reader.search(queries, options.k, version, side, ids=ids, **how)
            return _hits_answer(call, version, side, hits, calibrated=calibrated)
        hits = _reranked(call, options, queries, version, side, ids, encode)
    return _hits_answer(call, version, side, hits)


def transform(call: Call) -> Answer:
    """Answer `POST /v1/transform`."""
    options, stream = _read(call, "vector", TransformRequest, {"vectors": [[0.0]]})
    if stream is None:
        vectors = _vectors(options.vectors, call.settings)
    else:
        vectors = column_vectors(stream.column)
    source = call.access.version(call.lineage, options.source)
    target = call.access.version(call.lineage, options.target)
    _check_fingerprints(call, options, stream, source)
    # Overflows are refused when the answer is written.
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = call.state.reader.transform(vectors, source, target)
    sources = np.full(len(vectors), source, dtype=np.int64)
    return vectors_answer(call, target, None, vectors, sources)


def fold_in(call: Call) -> Answer:
    """Answer `POST /v1/fold-in`."""
    if call.arrow_in:
        raise RefusedError(415, "request", "Send the candidates of new queries as JSON.")
    reader, settings = call.state.reader, call.settings
    options = parse(FoldInRequest, call.body, settings)
    version = call.access.version(call.lineage, options.version)
    lists: Sequence[Sequence[Any]] = options.candidates
    _check_count(len(lists), settings.max_batch, "candidates", "list")
    keys = list(chain.from_iterable(lists))
    _check_count(len(keys), MET * settings.max_batch, "candidates", "candidate")
    ids = _as_ids(reader.store(CANDIDATE), keys)
    ends = np.cumsum([0, *map(len, lists)]).tolist()
    met = [ids[a:b] for a, b in pairwise(ends)]
    numbers = [options.weights, options.values]
    if ids.null_count:
        if options.missing == "error":
            unknown = np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False)).tolist()
            raise unknown_candidates([keys[row] for row in unknown], len(ids))
        numbers = [None if rows is None else _of_known_ids(rows, met) for rows in numbers]
        met = [row.drop_null() for row in met]
    how: Any = {"version": version, "missing": options.missing}
    with _looking_up():
        vectors, source = reader.fold_in_with_source(met, *numbers, **how)
    sources = np.full(len(vectors), source, dtype=np.int64)
    return vectors_answer(call, version, QUERY, vectors, sources)


@contextmanager
def _looking_up() -> Iterator[None]:
    """Refuse the request if the store has rows of a version that is not loaded yet."""
    try:
        yield
    except UnknownVersionError as error:
        busy = "The service is loading a new version; try again."
        raise RefusedError(503, "taking_up", busy) from error


def vectors_answer(
    call: Call,
    version: int,
    side: str | None,
    vectors: Floats,
    sources: Sources,
    *,
    ids: pa.Array | None = None,
    encoding: str | None = None,
) -> Answer:
    """Return the answer with vectors [n, D], computed from the versions `sources` [n]. `encoding`
    is "float" or "base64" (little-endian float32) for OpenAI's format, None for plain vectors."""
    if not np.isfinite(vectors).all():
        raise DataError("A vector is not finite at its version; give shorter vectors.")
    vectors = np.ascontiguousarray(vectors, dtype="<f4")
    answer: dict[str, Any]
    if call.arrow_out:
        answer = {} if ids is None else {"id": ids}
        flat = pa.array(vectors.ravel())
        answer["vector"] = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    elif encoding is None:
        answer = {"vectors": vectors}
    else:
        rows: Any = vectors
        if encoding == "base64":
            rows = [binascii.b2a_base64(row.data, newline=False).decode() for row in vectors]
        data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
        answer = {"data": data, "usage": {"prompt_tokens": 0, "total_tokens": 0}}
    answer["computed_from"] = pa.array(sources) if call.arrow_out else sources
    return _answer(call, version, {"side": side}, answer, Counter(sources.tolist()))


def _hits_answer(
    call: Call, version: int, side: str, results: Sequence[Hits], *, calibrated: bool = False
) -> Answer:
    if not all(np.isfinite(hits.scores).all() for hits in results):
        raise DataError("A score is not finite; give shorter vectors.")
    counts = Counter(source for hits in results for source in hits.versions.tolist())
    origin: dict[str, object] = {"side": side}
    if calibrated:
        origin["scores"] = "calibrated"
    answer: dict[str, Any]
    if call.arrow_out:
        # One row per hit, with the number of its query.
        lengths = [len(hits) for hits in results]
        id_type = call.state.reader.store(side).id_type
        scores = np.concatenate([hits.scores for hits in results]).astype(np.float32, copy=False)
        answer = {
            "query": pa.array(np.repeat(np.arange(len(results), dtype=np.int32), lengths)),
            "id": pa.concat_arrays([hits.ids.cast(id_type) for hits in results]),
            "score": pa.array(scores),
            "computed_from": pa.array(np.concatenate([hits.versions for hits in results])),
        }
        origin["queries"] = len(results)
    else:
        names, data = ("id", "score", "computed_from"), list[Any]()
        for i, hits in enumerate(results):
            columns = hits.ids.to_pylist(), hits.scores.tolist(), hits.versions.tolist()
            rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            data.append({"object": "search_result", "index": i, "hits": rows})
        answer = {"data": data, "computed_from": sorted(counts)}
    return _answer(call, version, origin, answer, counts)


def _answer(
    call: Call,
    version: int,
    origin: Mapping[str, object],
    answer: dict[str, Any],
    counts: Mapping[int, int],
) -> Answer:
    fingerprint = call.lineage.manifest(version).fingerprint
    evergram = {"version": version, **origin, "fingerprint": fingerprint}
    model = f"{call.lineage.name}@v{version}"
    if call.arrow_out:
        fields = {"model": model, **evergram}
        metadata = {f"evergram.{k}": str(v) for k, v in fields.items() if v is not None}
        batch = pa.record_batch(list(answer.values()), names=list(answer))
        batch = batch.replace_schema_metadata(metadata)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        return Answer(sink.getvalue().to_pybytes(), ARROW, version, fingerprint, counts)
    evergram["computed_from"] = answer.pop("computed_from")
    fields = {"object": "list", **answer, "model": model, "evergram": evergram}
    # orjson writes a float32 with the fewest digits that round-trip.
    body = orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
    return Answer(body, JSON, version, fingerprint, counts)


def _read(call: Call, column: str, kind: type[M], rows: dict[str, Any]) -> tuple[M, Stream | None]:
    """Return the parsed request and, if its rows are an Arrow stream, that stream; the request then
    has the placeholder fields `rows`."""
    if not call.arrow_in:
        return parse(kind, call.body, call.settings), None
    stream = read_stream(call.body, column, call.settings.max_batch)
    return parse(kind, stream.request, call.settings, rows), stream


def _as_ids(store: ReadableStore, keys: pa.Array | Sequence[Any]) -> pa.Array:
    """Return ids in the store's type, null for strings that cannot be stored ids. OpenAI's client
    sends only strings, so if the store's ids are integers, a string is converted if it is the form
    that `evergram.ids` writes: "17" is 17, but "017" is a different id."""
    integer_ids = pa.types.is_int64(store.id_type)
    if isinstance(keys, pa.Array):
        if not pa.types.is_null(keys.type) and integer_ids != pa.types.is_integer(keys.type):
            expected = "integers" if integer_ids else "strings"
            raise DataError(f"Ids are {expected} here; {keys.type} was given.")
        return store.as_ids(keys)
    integer_keys = not len(keys) or isinstance(keys[0], int)
    if not integer_ids:
        if len(keys) and integer_keys:
            given = f'integers were given; send {keys[0]} as "{keys[0]}"'
            raise DataError(f"Ids are strings here; {given}.")
        return store.as_ids(keys)
    if integer_keys:
        return pa.array(keys, pa.int64())
    integers = [int(key) if len(key) <= 20 and _INTEGER.fullmatch(key) else 2**63 for key in keys]
    return pa.array([n if -(2**63) <= n < 2**63 else None for n in integers], pa.int64())


def _sides(sides: Sequence[str], field: str = "side") -> str:
    """Return a clause with the sides that a request may name in this field, if it has a choice."""
    return f"; {field!r} may be {' or '.join(map(repr, sides))}" if len(sides) > 1 else ""


def _vectors(rows: Sequence[Sequence[float]], settings: ServiceSettings) -> Floats:
    """Return a request's vectors, [n, D]."""
    _check_count(len(rows), settings.max_batch, "vectors", "vector")
    longest = max(map(len, rows))
    if longest > settings.max_dim:
        long = f"A vector has {longest} coordinates; the limit is {settings.max_dim}."
        raise too_much(long, "vectors")
    if any(len(row) != longest for row in rows):
        raise ShapeError("The vectors do not all have the same length.")
    # A float64 beyond float32's range becomes infinite; the reader refuses it.
    with np.errstate(over="ignore"):
        return np.asarray(rows, dtype=np.float64).astype(np.float32)


def _check_count(count: int, limit: int, field: str, what: str) -> None:
    """Refuse a request with more than `limit` elements of a kind."""
    if count > limit:
        raise too_much(f"{count} {what}s exceed the limit of {limit} per request.", field)


def _model_version(call: Call, options: EmbeddingsRequest) -> int:
    """Return the version that `model` or `version` names."""
    name, access, lineage = call.lineage.name, call.access, call.lineage
    if options.model is None or options.model == name:
        return access.version(lineage, options.version)
    prefix, at, version = options.model.rpartition("@")
    if not at or prefix != name:
        models = f"this service has {name!r}, with versions such as '{name}@v0'"
        raise UnknownVersionError(f"There is no model {options.model!r}; {models}.")
    return access.version(lineage, version)


def _strings_are_texts(lineage: Lineage) -> bool:
    """Return whether strings are texts by default. The first version decides, so that a later
    publication does not change the meaning of requests."""
    return lineage.versions[0].text_encoder is not None


def _text_role(call: Call, options: EmbeddingsRequest, inputs: Any) -> Role | None:
    """Return the role if the inputs of a request are texts; None if they are ids."""
    role = options.input_type
    if call.arrow_in:
        if role in ("query", "document"):
            what = "An Arrow stream holds ids; send texts as JSON, or leave 'input_type' out."
            raise wrong(what, "input_type")
        return None
    strings = isinstance(inputs[0], str)
    if role is None:
        role = "document" if _strings_are_texts(call.lineage) else "id"
    if role == "id":
        if strings and max(map(len, inputs)) > LONGEST_ID:
            what = f"an id has at most {LONGEST_ID} characters; a longer one was sent."
            raise wrong(f"'input' is wrong: {what}", "input")
        return None
    if not strings:
        what = "'input' has integers, not texts; ids need the 'input_type' 'id'."
        raise wrong(what, "input")
    if options.side is not None:
        raise wrong("'side' is for ids; texts have an 'input_type', query or document.", "side")
    _check_texts(inputs, call.settings)
    return role


def _check_texts(texts: Sequence[str], settings: ServiceSettings) -> None:
    """Refuse texts that are empty or too long."""
    for number, text in enumerate(texts):
        if not text.strip():
            raise wrong(f"'input' has an empty text at {number}; leave it out.", "input")
        if len(text) > settings.max_text:
            long = f"The text at {number} has {len(text)} characters, more than {settings.max_text}"
            raise too_much(f"{long}; split it.", "input")


def _of_known_ids(numbers: list[list[float]], met: Sequence[pa.Array]) -> list[list[float]]:
    """Return only the numbers that belong to ids that are not null."""
    if [*map(len, numbers)] != [*map(len, met)]:
        raise ShapeError("weights and values must be as long as the candidates.")
    return [
        [number for number, valid in zip(row, ids.is_valid().to_pylist(), strict=True) if valid]
        for row, ids in zip(numbers, met, strict=True)
    ]


def _id_query(call: Call, request: SearchRequest, version: int, side: str) -> tuple[Floats, int]:
    """Return the vector [1, D] of a search's id at a version, and the version of its model."""
    reader = call.state.reader
    id_side = side if request.id_side is None else request.id_side
    ids = _as_ids(reader.store(id_side), [request.id])
    if not ids.null_count:
        if request.rerank is not None and id_side == side:
            _check_rerank(call, request, version)
            own_ids, vectors = reader.own_rows(ids, version, side)
            # Encode the text only if the object is stored at some version.
            if not len(own_ids) and any(len(rows) > 0 for rows in reader.store(side).fetch(ids)):
                with _refusals():
                    return _cached_vectors(call, version).of(ids), version
            if len(own_ids):
                return vectors, version
        # Calibration expects the backward transform's vectors, so sidecars are not used for it.
        with _looking_up():
            embedded = reader.embed(ids, version, id_side, sidecars=request.scores == "raw")
        if embedded.sources[0] >= 0:
            return embedded.vectors, int(embedded.sources[0])
    what = f"The id {str(request.id)[:40]} is not stored on side {id_side!r}"
    unknown = f"{what}{_sides(reader.sides, 'id_side')}."
    raise RefusedError(404, "unknown_id", unknown, "id")


def _check_fingerprints(
    call: Call, options: SearchRequest | TransformRequest, stream: Stream | None, version: int
) -> None:
    """Refuse vectors that claim another version's fingerprint."""
    expected = call.lineage.manifest(version).fingerprint
    of_stream = None if stream is None else stream.fingerprint
    for fingerprint in (call.fingerprint, of_stream, options.fingerprint):
        if fingerprint is not None and fingerprint != expected:
            what = f"The vectors are not of version {version}: their fingerprint is"
            refusal = f"{what} {fingerprint[:80]}, not {expected}; name the right version."
            raise RefusedError(409, "fingerprint", refusal)


def _encoded(call: Call, version: int, texts: Sequence[str], role: Role) -> Floats:
    """Return vectors [n, D] of texts at a version. Texts for versions before production are encoded
    by production's encoder and transformed."""
    source, encoders = max(version, call.lineage.production), call.state.texts
    if encoders is None:
        what = "This service was started without a text encoder (--encoder); send ids."
        raise RefusedError(400, "text_encoder", what, "input")
    record = call.lineage.manifest(source).text_encoder
    with _refusals(texts):
        vectors = encoders.encode(source, texts, role, record, wait=call.may_wait)
    return call.state.reader.transform(vectors, source, version)


def _check_rerank(call: Call, options: SearchRequest, version: int) -> None:
    """Refuse a search that cannot be re-ranked. Raises: EncoderWaitError: this thread may not wait
    for the text encoder."""
    rerank, most = options.rerank, call.settings.max_k
    if rerank is None:
        return
    if not options.k <= rerank <= most:
        reason = f"rerank is {rerank}; it must be at least k ({options.k}) and at most {most}."
        raise RefusedError(400, "limit", reason, "rerank")
    texts, production = call.state.texts, call.lineage.production
    problem = None
    if version < production:
        problem = f"Version {version} is older than production ({production}); name a later one"
    elif texts is None or texts.documents is None:
        problem = "This service was started without --encoder or --texts"
    elif call.lineage.manifest(version).text_encoder is None:
        problem = f"Version {version} records no text encoder; name a version that does"
    if problem is not None:
        raise RefusedError(400, "rerank", f"{problem}, or leave 'rerank' out.", "rerank")
    if not call.may_wait:
        raise EncoderWaitError


def _reranked(
    call: Call,
    options: SearchRequest,
    queries: Floats,
    version: int,
    side: str,
    ids: pa.Array,
    encode: Callable[[int], Floats] | None = None,
) -> list[Hits]:
    """Return the hits of a search that passed `_check_rerank`, ranked by the version's own vectors.
    `encode` encodes the queries with a version's own model; None if they are not texts."""
    texts = call.state.texts

    def old_queries(older: int) -> Floats | None:
        if encode is None or texts is None or not texts.can_encode(older):
            return None
        return encode(older)

    how: Any = {"rerank": options.rerank, "side": side, "metric": options.metric, "ids": ids}
    how |= {"filter": options.filter, "most": call.settings.max_batch, "old_queries": old_queries}
    with _refusals():
        vectors = _cached_vectors(call, version)
        return reranked_search(call.state.reader, queries, vectors, options.k, version, **how)


def _cached_vectors(call: Call, version: int) -> KeptVectors:
    """Return the cached vectors of a version, which encode missing ones when needed."""
    texts, manifest = call.state.texts, call.lineage.manifest(version)
    assert texts is not None
    assert texts.documents is not None
    record = manifest.text_encoder
    encode = lambda batch: texts.encode(version, batch, "document", record)  # noqa: E731
    return texts.documents.kept(version, manifest.fingerprint, manifest.dim, encode, record)


@contextmanager
def _refusals(texts: Sequence[str] | None = None) -> Iterator[None]:
    """Convert encoder errors to refusals. `texts` are the request's texts; None if the encoder
    worked on the texts of hits."""
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
        reason = f"{error.subject} the text of a hit; change it, or leave 'rerank' out."
        raise RefusedError(409, "no_text", reason, "rerank") from error
    except MissingTextError as error:
        raise RefusedError(409, "no_text", str(error), "rerank") from error
    except EncodingLimitError as error:
        raise too_much(str(error), "rerank") from error
