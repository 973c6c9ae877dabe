"""A Python client for the service, with the methods and results of `Reader`."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evergram.errors import DataError, EvergramError, ServiceError, ShapeError
from evergram.ids import Lists, as_lists
from evergram.reopening import Reopened
from evergram.serving.errors import ARROW, JSON, RAISED
from evergram.stores.store import Embedded, Floats, Hits

if TYPE_CHECKING:
    import httpx

# Seconds before the first retry; each further retry waits twice as long.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
_RETRIED = (502, 503)


class Client(Reopened):
    """A client for the service at a URL. It is thread-safe.

    All calls are read-only, so a call that fails to connect or is answered 502 or 503 is retried.

    >>> from evergram import Client
    >>> client = Client("http://127.0.0.1:8000", token="…")  # doctest: +SKIP
    >>> client.embed([12, 7], version=0, side="candidate").vectors.shape  # doctest: +SKIP
    (2, 4)

    Args:
        token: the consumer's token, if the service needs one.
        timeout: seconds for each attempt.
        retries: attempts after the first.
        transport: an httpx transport to use instead of the network.
    Raises: each method raises the errors of `Reader` with the service's message. ServiceError: the
        service cannot be reached, or the token is unknown or may not read the version.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        retries: int = 4,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise ServiceError("The client needs httpx: pip install 'evergram[client]'.") from None
        # Checked here because httpx's error message would show the token.
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise ServiceError("The token must be printable ASCII without spaces.")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.url: str = url.rstrip("/")
        options: Any = {"timeout": timeout, "transport": transport}
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, **options)
        except httpx.InvalidURL as error:
            example = "http://127.0.0.1:8000"
            raise ServiceError(f"{url!r} is not an address such as {example}: {error}.") from error
        self._retries = retries
        self._opened_by = partial(type(self), retries=retries, **options), (url, token)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._opened_by

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def embed(
        self,
        ids: pa.Array | Sequence[int | str],
        version: int | str | None = None,
        side: str | None = None,
        *,
        dimensions: int | None = None,
    ) -> Embedded:
        """Return the embeddings of ids at a version; ids that are not stored get zeros, source -1.

        Args:
            version: a number, "v0" or a label; by default the version that the token is pinned to,
                else production.
            side: "query" or "candidate"; by default the service's default side.
            dimensions: see `Reader.embed`.
        """
        try:
            column = ids if isinstance(ids, pa.Array) else pa.array(_listed(ids, "ids"))
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise DataError(f"Ids must be all integers or all strings: {error}.") from None
        fields = {"version": version, "side": side, "missing": "zeros", "dimensions": dimensions}
        table = self._stream("/v1/embeddings", {"id": column}, fields)
        number = int(table.schema.metadata[b"evergram.version"])
        sources = table["computed_from"].to_numpy()
        return Embedded(number, table["id"].combine_chunks(), _vectors(table), sources)

    def encode(
        self,
        texts: Sequence[str],
        version: int | str | None = None,
        role: Literal["query", "document"] = "document",
        *,
        dimensions: int | None = None,
    ) -> Floats:
        """Let the service encode texts, and return their vectors [n, D] at a version.

        Args:
            version: see `embed`.
            role: selects the encoder's prompt.
            dimensions: see `Reader.embed`.
        """
        fields = {"input": _listed(texts, "texts"), "version": version, "input_type": role}
        return _vectors(self._json("/v1/embeddings", {**fields, "dimensions": dimensions}))

    def search(
        self,
        queries: npt.ArrayLike,
        k: int = 10,
        version: int | str | None = None,
        side: str | None = None,
        metric: Literal["ip", "l2", "cosine"] | None = None,
        ids: pa.Array | Sequence[int | str] | None = None,
        *,
        filter: Mapping[str, Any] | None = None,
        rerank: int | None = None,
        scores: Literal["raw", "calibrated"] = "raw",
        query_vectors: Literal["own", "read_back"] | int | None = None,
    ) -> list[Hits]:
        """Return the k stored objects nearest to each of the vectors [Q, D] or [D] of a version.

        Args:
            version: the version of the vectors; default as for `embed`.
            metric: default from `Reader.default_metric`.
            ids, filter: search only these ids, and rows with these metadata, such as
                {"category": "news"}; see docs/stores.md, "Filters".
            rerank: rank this many hits by the version's own vectors, see docs/serving.md.
            scores, query_vectors: see `Reader.search`.
        """
        chosen = ids.to_pylist() if isinstance(ids, pa.Array) else ids
        fields = {
            "k": k,
            "version": version,
            "side": side,
            "metric": metric,
            "rerank": rerank,
            "scores": scores,
            "query_vectors": query_vectors,
            "ids": None if chosen is None else _listed(chosen, "ids"),
            "filter": None if filter is None else dict(filter),
        }
        columns = {"vector": _vector_column(queries)}
        return _hits(self._stream("/v1/search", columns, fields))

    def search_texts(
        self,
        texts: Sequence[str],
        k: int = 10,
        version: int | str | None = None,
        role: Literal["query", "document"] = "query",
        **options: Any,
    ) -> list[Hits]:
        """Let the service encode texts, and return the k stored objects nearest to each.

        Args:
            version: as for `embed`.
            role: selects the encoder's prompt.
            options: side, metric, ids, filter, rerank and scores, see `search`.
        """
        fields = {"input": _listed(texts, "texts"), "input_type": role, "k": k, "version": version}
        return _hits(self._json("/v1/search", {**fields, **options}))

    def transform(
        self, vectors: npt.ArrayLike, source: int | str, target: int | str | None = None
    ) -> Floats:
        """Transform vectors [n, D_source] of one version to another, [n, D_target]."""
        fields = {"source": source, "target": target}
        return _vectors(self._stream("/v1/transform", {"vector": _vector_column(vectors)}, fields))

    def fold_in(
        self,
        candidates: Lists,
        weights: Lists | None = None,
        version: int | str | None = None,
        *,
        values: Lists | None = None,
        missing: Literal["error", "skip"] = "error",
    ) -> Floats:
        """Return the vectors of new queries, float32 [Q, D], from the candidates they met.

        Args:
            candidates: ids that a query met, or a list of such lists.
            weights: how often each was met, above 0.
            version: as for `embed`.
            values: the pairs' values, if the version was trained on values.
            missing: "skip" leaves out candidates that are not stored.
        """
        given = {"candidates": candidates, "weights": weights, "values": values}
        lists = {name: as_lists(x, name) for name, x in given.items() if x is not None}
        fields = {**lists, "version": version, "missing": missing}
        return _vectors(self._json("/v1/fold-in", fields))

    def versions(self) -> list[dict[str, Any]]:
        """Return the versions that the token may read, oldest first."""
        rows: list[dict[str, Any]] = self._send("GET", "/v1/versions").json()["data"]
        return rows

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stream(
        self, path: str, columns: Mapping[str, pa.Array], fields: Mapping[str, Any]
    ) -> pa.Table:
        table = pa.table(dict(columns)).replace_schema_metadata({"evergram.request": _json(fields)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return self._table(path, sink.getvalue().to_pybytes(), ARROW)

    def _json(self, path: str, fields: Mapping[str, Any]) -> pa.Table:
        return self._table(path, _json(fields), JSON)

    def _table(self, path: str, body: bytes, media: str) -> pa.Table:
        answer = self._send("POST", path, body, media)
        try:
            return pa.ipc.open_stream(pa.BufferReader(answer.content)).read_all()
        except pa.ArrowException as error:
            raise ServiceError(f"{self.url}{path} did not answer with an Arrow stream.") from error

    def _send(
        self, method: str, path: str, body: bytes | None = None, media: str = ARROW
    ) -> httpx.Response:
        import httpx

        headers = {} if body is None else {"Content-Type": media, "Accept": ARROW}
        for attempt in count():
            pause, last = FIRST_PAUSE * 2**attempt, attempt >= self._retries
            try:
                answer = self._http.request(method, path, content=body, headers=headers)
            except httpx.TransportError as error:
                if last:
                    why = str(error).rstrip(".") or type(error).__name__
                    raise ServiceError(f"{self.url} cannot be reached: {why}.") from error
            else:
                if answer.status_code not in _RETRIED or last:
                    break
                after = answer.headers.get("Retry-After", "")
                pause = max(pause, float(after) if after.isdecimal() else 0.0)
            time.sleep(min(pause, LONGEST_PAUSE) * random.uniform(0.5, 1.0))
        if answer.status_code == 200:
            return answer
        raise _error(answer)


def _error(answer: httpx.Response) -> EvergramError:
    """Return the exception for an answer whose status is not 200."""
    try:
        error = answer.json()["error"]
        message, code = str(error["message"]), str(error["code"])
    except (ValueError, KeyError, TypeError):
        return ServiceError(f"{answer.url} answered {answer.status_code}.")
    return RAISED.get(code, ServiceError)(message)


def _json(fields: Mapping[str, Any]) -> bytes:
    """Return the JSON of a request's fields, without those that are None."""

    def plain(value: object) -> object:
        if isinstance(value, np.generic):
            return value.item()
        raise DataError(f"{value!r} is not an id, version or number; give an integer or a string.")

    present = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(present, default=plain).encode()


def _vector_column(vectors: npt.ArrayLike) -> pa.Array:
    try:
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
    except (ValueError, TypeError):
        raise ShapeError("Vectors must be numbers, all of the same length.") from None
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or not rows.shape[1]:
        raise ShapeError(f"Vectors are {list(rows.shape)}; they must be [n, D].")
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])


def _hits(table: pa.Table) -> list[Hits]:
    ids, scores = table["id"].combine_chunks(), table["score"].to_numpy()
    versions = table["computed_from"].to_numpy()
    queries = np.arange(int(table.schema.metadata[b"evergram.queries"]) + 1)
    ends = np.searchsorted(table["query"].to_numpy(), queries).tolist()
    return [Hits(ids[a:b], scores[a:b], versions[a:b]) for a, b in pairwise(ends)]


def _vectors(table: pa.Table) -> Floats:
    column = table["vector"].combine_chunks()
    flat: Floats = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), column.type.list_size).copy()


def _listed(values: Iterable[Any], name: str) -> list[Any]:
    if isinstance(values, str | bytes):
        raise DataError(f"{name} is the string {values[:40]!r}; give a list.")
    return list(values)
