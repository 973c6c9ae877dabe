"""Read a service from Python, with the names and the results of `Reader`."""

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
    """A service at an address. Several threads may use one.

    Every call only reads, so a call that did not arrive, or was answered 502 or 503, is retried.

    >>> from evergram import Client
    >>> client = Client("http://127.0.0.1:8000", token="…")  # doctest: +SKIP
    >>> client.embed([12, 7], version=0, side="candidate").vectors.shape  # doctest: +SKIP
    (2, 4)

    Args:
        token: the consumer's token, where the service asks for one.
        timeout: seconds of one try.
        retries: tries after the first.
        transport: httpx's transport, in place of the network.
    Raises: in any call, the errors of `Reader`, with the service's sentence. ServiceError: the
        service cannot be reached, or the token is not known or may not read the version.
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
        # Checked here, as httpx's own error would show the token.
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
        """Return the embeddings of ids at a version; zeros and source -1 where an id is not stored.

        Args:
            version: a number, "v0" or a label; by default the version that the token is pinned to,
                else production.
            side: "query" or "candidate"; by default the service's own.
            dimensions: as of `Reader.embed`.
        """
        try:
            column = ids if isinstance(ids, pa.Array) else pa.array(_listed(ids, "ids"))
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise DataError(f"Ids must all be whole numbers, or all strings: {error}.") from None
        asked = {"version": version, "side": side, "missing": "zeros", "dimensions": dimensions}
        table = self._stream("/v1/embeddings", {"id": column}, asked)
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
        """Return the vectors [n, D] of texts at a version, which the service encodes.

        Args:
            version: as for `embed`.
            role: chooses the encoder's prompt.
            dimensions: as of `Reader.embed`.
        """
        asked = {"input": _listed(texts, "texts"), "version": version, "input_type": role}
        return _vectors(self._json("/v1/embeddings", {**asked, "dimensions": dimensions}))

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
            side: the side that is searched.
            metric: by default as of `Reader.default_metric`.
            ids: search among these ids only.
            filter: search among rows whose metadata fulfil it, such as {"category": "news"}; see
                docs/serving.md, "Filters".
            rerank: rank this many hits by the version's own vectors, see docs/serving.md.
            scores, query_vectors: "calibrated" as the version itself gave them, which depends on
                whose the vectors are, see `Reader.search`.
        """
        chosen = ids.to_pylist() if isinstance(ids, pa.Array) else ids
        asked = {
            **{"k": k, "version": version, "side": side, "metric": metric, "rerank": rerank},
            **{"scores": scores, "query_vectors": query_vectors},
            "ids": None if chosen is None else _listed(chosen, "ids"),
            "filter": None if filter is None else dict(filter),
        }
        columns = {"vector": _vector_column(queries)}
        return _hits(self._stream("/v1/search", columns, asked))

    def search_texts(
        self,
        texts: Sequence[str],
        k: int = 10,
        version: int | str | None = None,
        role: Literal["query", "document"] = "query",
        **options: Any,
    ) -> list[Hits]:
        """Return the k stored objects nearest to each of the texts, which the service encodes.

        Args:
            version: at which the texts and the objects are read; default as for `embed`.
            role: chooses the encoder's prompt.
            options: of `search`: side, metric, ids, filter, rerank and scores.
        """
        own = {"input": _listed(texts, "texts"), "input_type": role, "k": k, "version": version}
        return _hits(self._json("/v1/search", {**own, **options}))

    def transform(
        self, vectors: npt.ArrayLike, source: int | str, target: int | str | None = None
    ) -> Floats:
        """Return vectors [n, D_source] of one version as another reads them, [n, D_target]."""
        asked = {"source": source, "target": target}
        return _vectors(self._stream("/v1/transform", {"vector": _vector_column(vectors)}, asked))

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
            version: that they are read as; default as for `embed`.
            values: of the pairs, of a version that was trained on values.
            missing: "skip" leaves out candidates that are not stored.
        """
        given = {"candidates": candidates, "weights": weights, "values": values}
        lists = {name: as_lists(x, name) for name, x in given.items() if x is not None}
        asked = {**lists, "version": version, "missing": missing}
        return _vectors(self._json("/v1/fold-in", asked))

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
        self, path: str, columns: Mapping[str, pa.Array], asked: Mapping[str, Any]
    ) -> pa.Table:
        table = pa.table(dict(columns)).replace_schema_metadata({"evergram.request": _json(asked)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return self._table(path, sink.getvalue().to_pybytes(), ARROW)

    def _json(self, path: str, asked: Mapping[str, Any]) -> pa.Table:
        return self._table(path, _json(asked), JSON)

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
    """Return an answer that is no success as the error that it names."""
    try:
        error = answer.json()["error"]
        message, code = str(error["message"]), str(error["code"])
    except (ValueError, KeyError, TypeError):
        return ServiceError(f"{answer.url} answered {answer.status_code}.")
    return RAISED.get(code, ServiceError)(message)


def _json(asked: Mapping[str, Any]) -> bytes:
    """Return the fields of a request that are set."""

    def plain(value: object) -> object:
        if isinstance(value, np.generic):
            return value.item()
        raise DataError(f"{value!r} is no id, version or number; give a whole number or a text.")

    named = {name: value for name, value in asked.items() if value is not None}
    return json.dumps(named, default=plain).encode()


def _vector_column(vectors: npt.ArrayLike) -> pa.Array:
    try:
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
    except (ValueError, TypeError):
        raise ShapeError("Vectors must be numbers, all of one length.") from None
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or not rows.shape[1]:
        raise ShapeError(f"Vectors are {list(rows.shape)}; they must be [n, D].")
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])


def _hits(table: pa.Table) -> list[Hits]:
    """Return the hits of each query of an answer."""
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
        raise DataError(f"{name} is the text {values[:40]!r}; give a list.")
    return list(values)
