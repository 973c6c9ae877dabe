"""The route of new queries: from the candidates that they met to vectors, or to hits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import ShapeError
from evergram.lineage.fold_in import unknown_candidates
from evergram.serving.http.answers import arrow_answers, json_answers
from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.call import Answer, Call
from evergram.serving.http.requests.ids import as_ids, check_count
from evergram.serving.http.requests.parsing import Parsed, parse
from evergram.serving.http.requests.schemas import (
    NUMBER_LISTS,
    TEXT_LISTS,
    WEIGHT_LISTS,
    FoldInRequest,
)
from evergram.serving.http.vector_answers import (
    answer,
    arrow_metadata,
    looked_up,
    model_name,
    origin,
)
from evergram.stores.store import Floats, Hits

QUERY, CANDIDATE = "query", "candidate"
# Candidates that the queries of a full request may have on average.
MET = 32


def fold_in(call: Call) -> Answer:
    """Answer `POST /v1/fold-in`. Raises: EvergramError."""
    if call.arrow_in:
        raise RefusedError(415, "request", "Candidates of new queries are sent as JSON.")
    reader, settings = call.state.reader, call.settings
    parsed = parse(FoldInRequest, call.body, settings)
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
        None if getattr(options, name) is None else _elements(parsed, name, WEIGHT_LISTS)
        for name in ("weights", "values")
    ]
    missing = options.missing
    if ids.null_count:
        if missing == "error":
            unknown = np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False)).tolist()
            raise unknown_candidates([keys[row] for row in unknown], len(ids))
        numbers = [None if rows is None else _where_known(rows, met) for rows in numbers]
        met = [row.drop_null() for row in met]
    vectors, source = looked_up(
        lambda: reader.fold_in_with_source(met, *numbers, version=version, missing=missing)
    )
    described, model = origin(call, version, QUERY), model_name(call, version)
    if options.k is None:
        counts = {source: len(vectors)}
        sources = np.full(len(vectors), source, dtype=np.int64)
        if call.arrow_out:
            columns = arrow_answers.vector_columns(None, json_answers.finite(vectors), sources)
            body = arrow_answers.write_stream(columns, arrow_metadata(call, version, QUERY))
        else:
            body = json_answers.transform_json(vectors, sources, described, model)
        return answer(call, version, counts, body)
    results = _hits(call, vectors, met, version, options)
    counts = Counter(v for hits in results for v in hits.versions.tolist())
    if call.arrow_out:
        metadata = arrow_metadata(call, version, CANDIDATE)
        metadata["evergram.queries"] = str(len(results))
        columns = arrow_answers.hit_columns(results, store.id_type)
        return answer(call, version, counts, arrow_answers.write_stream(columns, metadata))
    described = origin(call, version, CANDIDATE)
    return answer(
        call, version, counts, json_answers.search_json(results, sorted(counts), described, model)
    )


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


def _hits(
    call: Call, vectors: Floats, met: Sequence[pa.Array], version: int, options: FoldInRequest
) -> list[Hits]:
    """Return the k candidates that each query has not met with the largest inner product.

    Raises: RefusedError: more are asked for than one request may.
    """
    settings, k = call.settings, options.k
    assert k is not None
    if k > settings.max_k:
        raise RefusedError(400, "limit", f"k is {k}; it may be at most {settings.max_k}.", "k")
    wider = k if options.include_met else k + max(map(len, met))
    if len(met) * wider > settings.max_hits:
        raise RefusedError(
            413,
            "limit",
            f"{len(met)} queries of {k} results, beside the candidates that they met, are more "
            f"than the {settings.max_hits} results that one request may ask for; send fewer.",
        )
    nearest = looked_up(lambda: call.state.reader.search(vectors, wider, version, CANDIDATE, "ip"))
    if options.include_met:
        return nearest
    results = []
    for hits, known in zip(nearest, met, strict=True):
        new = pc.invert(pc.is_in(hits.ids, value_set=known)).to_numpy(zero_copy_only=False)
        results.append(hits.where(new).first(k))
    return results
