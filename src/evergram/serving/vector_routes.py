"""The routes of vectors, from a request's bytes to an answer's, in a worker's thread."""

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
# Candidates of the queries that a full request may have on average.
MET = 32
# Ids that an error names, at most.
_NAMED = 5
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
        if ids.null_count:  # strings that are no id that could be stored
            valid = ids.is_valid().to_numpy(zero_copy_only=False)
            vectors = np.zeros((len(ids), vectors.shape[1]), dtype=np.float32)
            sources = np.full(len(ids), -1, dtype=np.int64)
            vectors[valid], sources[valid] = found.vectors, found.sources
        if options.missing == "error" and (sources < 0).any():
            missing = [str(inputs[row])[:40] for row in np.flatnonzero(sources < 0).tolist()]
            first = ", ".join(missing[:_NAMED]) + (", …" if len(missing) > _NAMED else "")
            what = f"{len(missing)} of {len(ids)} ids are not stored on side {side!r}: {first}."
            unknown = f"{what} Leave them out, or ask with 'missing': 'zeros'."
            raise RefusedError(404, "unknown_id", unknown, "input")
    # After the backward transform: the coordinates that are kept are the version's own first ones.
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
    store, whose = reader.store(side), options.query_vectors
    queries: Floats | list[str]
    query_side: str | None = None
    encode: Callable[[int], Floats] | None = None
    if stream is not None:
        queries = column_vectors(stream.column)
    elif options.input is not None:
        if options.input_type is None and not _strings_are_texts(call.lineage):
            what = "The first version of this lineage records no encoder of text, so texts"
            raise wrong(f"{what} need an 'input_type', query or document.", "input")
        queries = [options.input] if isinstance(options.input, str) else options.input
        _check_count(len(queries), settings.max_batch, "input", "input")
        _check_texts(queries, settings)
        whose = "own" if version >= call.lineage.production else "read_back"
    elif options.id is not None:
        query_side = side if options.id_side is None else options.id_side
        queries, whose = _of_id(call, options, version, side)
    else:
        queries = _vectors(options.vectors or [options.vector or []], settings)
    _check_rerank(call, options, version)
    wider, most_k, most = options.rerank or options.k, settings.max_k, settings.max_hits
    if options.k > most_k:
        reason = f"k is {options.k}; it may be at most {most_k}."
        raise RefusedError(400, "limit", reason, "k")
    if len(queries) * wider > most:
        many = f"{len(queries)} queries of {wider} results each are more than the {most} results "
        raise too_much(f"{many}of one request.")
    ids = None
    if options.ids is not None:
        _check_count(len(options.ids), settings.max_batch, "ids", "id")
        ids = _as_ids(store, options.ids).drop_null()
    if isinstance(queries, list):  # texts are encoded after every limit was checked
        role, texts = options.input_type or "query", queries
        encode = lambda version: _encoded(call, version, texts, role)  # noqa: E731
        queries = encode(version)
    calibrated = options.scores == "calibrated"
    if calibrated and isinstance(options.query_vectors, int):
        call.lineage.resolve(options.query_vectors)  # one that is unknown is a slip, and stays one
    made: Any = {"query_side": query_side, "query_vectors": whose}
    with _looking_up():
        if options.rerank is None:
            made |= {"metric": options.metric, "filter": options.filter, "scores": options.scores}
            hits = reader.search(queries, options.k, version, side, ids=ids, **made)
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
    # Values that overflow are refused when the answer is written.
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = call.state.reader.transform(vectors, source, target)
    sources = np.full(len(vectors), source, dtype=np.int64)
    return vectors_answer(call, target, None, vectors, sources)


def fold_in(call: Call) -> Answer:
    """Answer `POST /v1/fold-in`."""
    if call.arrow_in:
        raise RefusedError(415, "request", "Candidates of new queries are sent as JSON.")
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
        numbers = [None if rows is None else _where_known(rows, met) for rows in numbers]
        met = [row.drop_null() for row in met]
    how: Any = {"version": version, "missing": options.missing}
    with _looking_up():
        vectors, source = reader.fold_in_with_source(met, *numbers, **how)
    sources = np.full(len(vectors), source, dtype=np.int64)
    return vectors_answer(call, version, QUERY, vectors, sources)


@contextmanager
def _looking_up() -> Iterator[None]:
    """Refuse rows of the stores that are of a version that the service has not loaded yet."""
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
    """Return the answer of vectors [n, D], computed from the versions `sources` [n]. The `encoding`
    is "float" or "base64" (little-endian float32) of OpenAI's form, or None of plain vectors."""
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
    """Return the answer of the hits of each query."""
    if not all(np.isfinite(hits.scores).all() for hits in results):
        raise DataError("A score is not finite; give shorter vectors.")
    counts = Counter(source for hits in results for source in hits.versions.tolist())
    origin: dict[str, object] = {"side": side}
    if calibrated:
        origin["scores"] = "calibrated"
    answer: dict[str, Any]
    if call.arrow_out:
        # One row a hit, with the number of its query.
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
    """Return an answer of these columns or, in JSON, of these fields."""
    fingerprint = call.lineage.manifest(version).fingerprint
    named = {"version": version, **origin, "fingerprint": fingerprint}
    model = f"{call.lineage.name}@v{version}"
    if call.arrow_out:
        every = {"model": model, **named}
        metadata = {f"evergram.{k}": str(v) for k, v in every.items() if v is not None}
        batch = pa.record_batch(list(answer.values()), names=list(answer))
        batch = batch.replace_schema_metadata(metadata)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        return Answer(sink.getvalue().to_pybytes(), ARROW, version, fingerprint, counts)
    named["computed_from"] = answer.pop("computed_from")
    fields = {"object": "list", **answer, "model": model, "evergram": named}
    # A float32 has the fewest digits that give the same float32 again.
    body = orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
    return Answer(body, JSON, version, fingerprint, counts)


def _read(call: Call, column: str, kind: type[M], rows: dict[str, Any]) -> tuple[M, Stream | None]:
    """Return a request, and the stream that has its rows, in place of which it has `rows`."""
    if not call.arrow_in:
        return parse(kind, call.body, call.settings), None
    stream = read_stream(call.body, column, call.settings.max_batch)
    return parse(kind, stream.request, call.settings, rows), stream


def _as_ids(store: ReadableStore, keys: pa.Array | Sequence[Any]) -> pa.Array:
    """Return ids in the store's type, null where a string cannot be an id that is stored. OpenAI's
    client sends strings. Where the store's ids are integers, a string stands for one if it is
    written as `evergram.ids` writes integers: "17" is 17, and "017" is another id."""
    numbers = pa.types.is_int64(store.id_type)
    if isinstance(keys, pa.Array):
        if not pa.types.is_null(keys.type) and numbers != pa.types.is_integer(keys.type):
            expected = "whole numbers" if numbers else "strings"
            raise DataError(f"Ids are {expected} here; {keys.type} was given.")
        return store.as_ids(keys)
    given_numbers = not len(keys) or isinstance(keys[0], int)
    if not numbers:
        if len(keys) and given_numbers:
            raise DataError("Ids are strings here; whole numbers were given.")
        return store.as_ids(keys)
    if given_numbers:
        return pa.array(keys, pa.int64())
    integers = [int(key) if len(key) <= 20 and _INTEGER.fullmatch(key) else 2**63 for key in keys]
    return pa.array([n if -(2**63) <= n < 2**63 else None for n in integers], pa.int64())


def _vectors(rows: Sequence[Sequence[float]], settings: ServiceSettings) -> Floats:
    """Return a request's vectors, [n, D]."""
    _check_count(len(rows), settings.max_batch, "vectors", "vector")
    longest = max(map(len, rows))
    if longest > settings.max_dim:
        long = f"A vector has {longest} coordinates; at most {settings.max_dim} are read."
        raise too_much(long, "vectors")
    if any(len(row) != longest for row in rows):
        raise ShapeError("The vectors are not all of one length.")
    # A float64 beyond float32's range becomes infinite; the reader refuses it.
    with np.errstate(over="ignore"):
        return np.asarray(rows, dtype=np.float64).astype(np.float32)


def _check_count(count: int, limit: int, field: str, what: str) -> None:
    """Refuse more elements than one request may have."""
    if count > limit:
        raise too_much(f"{count} {what}s are more than the {limit} of one request.", field)


def _model_version(call: Call, options: EmbeddingsRequest) -> int:
    """Return the version that `model` or `version` names."""
    name, access, lineage = call.lineage.name, call.access, call.lineage
    if options.model is None or options.model == name:
        return access.version(lineage, options.version)
    named, at, what = options.model.rpartition("@")
    if not at or named != name:
        known = f"there is {name!r}, and its versions as '{name}@v0'"
        raise UnknownVersionError(f"There is no model {options.model!r} here; {known}.")
    return access.version(lineage, what)


def _strings_are_texts(lineage: Lineage) -> bool:
    """Return whether strings are texts where a request does not say: as the first version says, so
    that nothing that is published later changes what a client sends."""
    return lineage.versions[0].text_encoder is not None


def _text_role(call: Call, options: EmbeddingsRequest, inputs: Any) -> Role | None:
    """Return whether the inputs of a request are queries or documents; None if they are ids."""
    role = options.input_type
    if call.arrow_in:
        if role in ("query", "document"):
            what = "texts are sent as strings in JSON; leave 'input_type' out."
            raise wrong(f"'input' holds no texts: {what}", "input_type")
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
        what = "'input' holds whole numbers, not texts; ids need the 'input_type' 'id'."
        raise wrong(what, "input")
    if options.side is not None:
        raise wrong("'side' is of ids; texts have an 'input_type', query or document.", "side")
    _check_texts(inputs, call.settings)
    return role


def _check_texts(texts: Sequence[str], settings: ServiceSettings) -> None:
    """Refuse texts that are empty or too long."""
    for number, text in enumerate(texts):
        if not text.strip():
            raise wrong(f"'input' has an empty text at {number}; leave it out.", "input")
        if len(text) > settings.max_text:
            long = f"The text at {number} has {len(text)} characters, more than {settings.max_text}"
            raise too_much(f"{long}; cut it into parts.", "input")


def _where_known(numbers: list[list[float]], met: Sequence[pa.Array]) -> list[list[float]]:
    """Return the numbers of the ids that are not null."""
    if [*map(len, numbers)] != [*map(len, met)]:
        raise ShapeError("weights and values must be as long as the candidates.")
    return [
        [number for number, known in zip(row, ids.is_valid().to_pylist(), strict=True) if known]
        for row, ids in zip(numbers, met, strict=True)
    ]


def _of_id(call: Call, request: SearchRequest, version: int, side: str) -> tuple[Floats, int]:
    """Return the vector [1, D] of the id of a search, read as a version, and the version whose
    model made it."""
    reader = call.state.reader
    id_side = side if request.id_side is None else request.id_side
    ids = _as_ids(reader.store(id_side), [request.id])
    if not ids.null_count:
        if request.rerank is not None and id_side == side:
            _check_rerank(call, request, version)
            own, vectors = reader.own_rows(ids, version, side)
            # A text is not enough to be encoded: the object must be stored at some version.
            if not len(own) and any(len(rows) > 0 for rows in reader.store(side).fetch(ids)):
                with _refusals():
                    return _kept(call, version).of(ids), version
            if len(own):
                return vectors, version
        # Calibrated scores are of rows read by the backward transform, and so is their query.
        with _looking_up():
            embedded = reader.embed(ids, version, id_side, sidecars=request.scores == "raw")
        if embedded.sources[0] >= 0:
            return embedded.vectors, int(embedded.sources[0])
    unknown = f"The id {str(request.id)[:40]} is not stored on side {id_side!r}; see 'id_side'."
    raise RefusedError(404, "unknown_id", unknown, "id")


def _check_fingerprints(
    call: Call, options: SearchRequest | TransformRequest, stream: Stream | None, version: int
) -> None:
    """Refuse vectors that claim the fingerprint of another version."""
    own = call.lineage.manifest(version).fingerprint
    of_stream = None if stream is None else stream.fingerprint
    for fingerprint in (call.fingerprint, of_stream, options.fingerprint):
        if fingerprint is not None and fingerprint != own:
            what = f"The vectors are of another space: their fingerprint is {fingerprint[:80]}"
            refusal = f"{what}, and version {version} has {own}; name the right version."
            raise RefusedError(409, "fingerprint", refusal)


def _encoded(call: Call, version: int, texts: Sequence[str], role: Role) -> Floats:
    """Return vectors [n, D] of texts of a role, read as a version: production encodes them, or a
    later version itself."""
    source, served = max(version, call.lineage.production), call.state.texts
    if served is None:
        what = "This service was started without an encoder of text (--encoder); ask for ids."
        raise RefusedError(400, "text_encoder", what, "input")
    record = call.lineage.manifest(source).text_encoder
    with _refusals(texts):
        vectors = served.encode(source, texts, role, record, wait=call.may_wait)
    return call.state.reader.transform(vectors, source, version)


def _check_rerank(call: Call, options: SearchRequest, version: int) -> None:
    """Refuse a search that cannot be re-ranked, or for whose texts this thread may not wait."""
    rerank, most = options.rerank, call.settings.max_k
    if rerank is None:
        return
    if not options.k <= rerank <= most:
        reason = f"rerank is {rerank}; it must be at least k ({options.k}) and at most {most}."
        raise RefusedError(400, "limit", reason, "rerank")
    texts, production = call.state.texts, call.lineage.production
    problem = None
    if version < production:
        problem = f"Version {version} is before production, version {production}; name a later one"
    elif texts is None or texts.documents is None:
        problem = "This service was started without --encoder, or without the texts (--texts)"
    elif call.lineage.manifest(version).text_encoder is None:
        problem = f"Version {version} records no encoder of text; name a version that does"
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
    """Return the hits of a search that `_check_rerank` let pass, by the version's own vectors.
    `encode` encodes the queries as a version's own model does; None if they are not texts."""
    texts = call.state.texts

    def old_queries(older: int) -> Floats | None:
        if encode is None or texts is None or not texts.can_encode(older):
            return None
        return encode(older)

    how: Any = {"rerank": options.rerank, "side": side, "metric": options.metric, "ids": ids}
    how |= {"filter": options.filter, "most": call.settings.max_batch, "old_queries": old_queries}
    with _refusals():
        kept = _kept(call, version)
        return reranked_search(call.state.reader, queries, kept, options.k, version, **how)


def _kept(call: Call, version: int) -> KeptVectors:
    """Return the kept vectors of a version, and its encoder."""
    texts, manifest = call.state.texts, call.lineage.manifest(version)
    assert texts is not None
    assert texts.documents is not None
    record = manifest.text_encoder
    encode = lambda some: texts.encode(version, some, "document", record)  # noqa: E731
    return texts.documents.kept(version, manifest.fingerprint, manifest.dim, encode, record)


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
        reason = f"{error.subject} the text of a hit; change it, or leave 'rerank' out."
        raise RefusedError(409, "no_text", reason, "rerank") from error
    except MissingTextError as error:
        raise RefusedError(409, "no_text", str(error), "rerank") from error
    except EncodingLimitError as error:
        raise too_much(str(error), "rerank") from error
