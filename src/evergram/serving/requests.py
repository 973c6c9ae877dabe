"""Schemas of requests for vectors, in JSON or with their rows as an Arrow stream.

A request may send its rows as an Arrow stream instead of `input`, `vector` or `vectors`. The other
fields are then JSON under `evergram.request` in the stream's metadata. Clients are not trusted:
limits on anything that costs memory or time are checked before parsing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticUseDefault, from_json

from evergram.errors import DataError
from evergram.serving.errors import too_much, wrong
from evergram.serving.settings import ServiceSettings
from evergram.stores.filters import FORM, read_conditions
from evergram.stores.store import Floats
from evergram.texts.text_encoder import Role

Int64 = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
Text = Annotated[StrictStr, Field(max_length=1024)]
# A number, "v0", or a label.
Version = Annotated[StrictInt, Field(ge=0, lt=2**31)] | Annotated[StrictStr, Field(max_length=64)]
SideName = Annotated[StrictStr, Field(max_length=64)]
# Validation of a list stops at the first invalid element, because an error takes far more memory
# than the element.
Vector = Annotated[list[float], Field(min_length=1, fail_fast=True)]
Vectors = Annotated[list[Vector], Field(fail_fast=True)]
Numbers = Annotated[list[Int64], Field(fail_fast=True)]
Texts = Annotated[list[Text], Field(fail_fast=True)]
# A text to encode; each service also has a limit, `ServiceSettings.max_text`.
LONGEST_ID, LONGEST_TEXT = 1024, 1 << 17
InputText = Annotated[StrictStr, Field(max_length=LONGEST_TEXT)]
InputTexts = Annotated[list[InputText], Field(fail_fast=True)]
Fingerprint = Annotated[StrictStr, Field(max_length=256)]
Metric = Literal["ip", "l2", "cosine"]
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

MEMBERS = 64  # maximum number of fields of a request
# Limits on the number of brackets, quotes and commas in a JSON body, outside its strings: `FREE`,
# and more for each row of `max_batch`. Real requests have far fewer: 1,024 values per row is a
# vector of 1,024 coordinates, and larger requests should be Arrow streams.
FREE, OF_A_ROW = 1 << 17, {"lists and objects": 64, "texts": 512, "values": 1024}
_NAMED = 5  # maximum number of columns that an error lists


def _default_of_null(value: Any) -> Any:
    if value is None:
        raise PydanticUseDefault
    return value


# A field where null means the default: some clients send null for fields that are not set.
OrDefault = Annotated[T, BeforeValidator(_default_of_null)]


class _RequestModel(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False
    )


class EmbeddingsRequest(_RequestModel):
    """A request for embeddings of ids, or of texts.

    Integers are ids, not OpenAI's tokens. If the lineage's ids are integers, "17" is the id 17, but
    "017" is a different id.

    Args:
        model: "name@v0", "name@stable", or "name" for the token's pinned version, else production.
        version: the version, instead of `model`.
        side: "query" or "candidate"; "object" in a lineage made from files.
        dimensions: the version's dimension, or a smaller one that its text encoder allows: vectors
            are cut to their first coordinates and scaled to length 1.
        missing: "zeros" returns zeros and `computed_from` -1 for ids that are not stored.
        user: ignored.
        input_type: "id" for ids; "query" or "document" for texts to encode. By default strings are
            texts if the lineage's first version records a text encoder, otherwise ids.
    """

    model: Annotated[StrictStr, Field(max_length=256)] | None = None
    version: Version | None = None
    side: SideName | None = None
    encoding_format: OrDefault[Literal["float", "base64"]] = "float"
    dimensions: Annotated[StrictInt, Field(ge=1, lt=2**31)] | None = None
    missing: OrDefault[Literal["error", "zeros"]] = "error"
    user: Text | None = None
    input_type: Literal["id", "query", "document"] | None = None

    input: (
        Annotated[Numbers, Field(min_length=1)]
        | Annotated[InputTexts, Field(min_length=1)]
        | InputText
        | Int64
    ) = Field(union_mode="left_to_right")

    @field_validator("input", mode="before")
    @classmethod
    def _no_tokens(cls, value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], list):
            todo = "send the texts themselves (check_embedding_ctx_length=False in LangChain)"
            raise ValueError(f"'input' holds arrays of tokens; {todo}")
        return value

    @model_validator(mode="after")
    def _one_version(self) -> Self:
        if self.model is not None and self.version is not None:
            raise ValueError("name the version in 'model' or in 'version', not in both")
        return self


class SearchRequest(_RequestModel):
    """A search by exactly one of `input`, `vector`, `vectors` and `id`.

    Args:
        input: a text or a list of texts, which are encoded as by `POST /v1/embeddings`.
        input_type: whether to encode the texts as queries (the default) or as documents.
        id: an id whose stored embedding is the query.
        id_side: the side of `id`; by default the searched side.
        version: the version of the queries' vectors.
        ids: search only these ids.
        filter: search only rows that match all conditions: a field equals a value or one of a list
            of values, or lies within the bounds "gt", "gte", "lt" and "lte".
        fingerprint: the queries' fingerprint; the request is refused if the version's differs.
        rerank: re-rank this many hits of each query, at least `k`, by the version's own vectors,
            which are computed from texts if needed.
        scores: "calibrated" maps scores to the scale of the version's own model.
        metric: by default the inner product, or cosine where rows of another version are read as
            one whose vectors have length 1.
        query_vectors: for calibrated scores of `vector` or `vectors`, which model made them: "own"
            (the version's), "read_back" (production's, transformed back), or a version's number.
    """

    k: OrDefault[Annotated[StrictInt, Field(ge=1)]] = 10
    version: Version | None = None
    side: SideName | None = None
    metric: Metric | None = None
    ids: Numbers | Texts | None = Field(default=None, union_mode="left_to_right")
    filter: dict[str, Any] | None = None
    fingerprint: Fingerprint | None = None
    rerank: Annotated[StrictInt, Field(ge=1)] | None = None
    scores: OrDefault[Literal["raw", "calibrated"]] = "raw"
    query_vectors: Literal["own", "read_back"] | Annotated[StrictInt, Field(ge=0)] | None = None
    vector: Vector | None = None
    vectors: Annotated[Vectors, Field(min_length=1)] | None = None
    id: Int64 | Text | None = None
    id_side: SideName | None = None
    input: Annotated[InputTexts, Field(min_length=1)] | InputText | None = Field(
        default=None, union_mode="left_to_right"
    )
    input_type: Role | None = None

    @model_validator(mode="after")
    def _one_query(self) -> Self:
        queries = (self.input, self.vector, self.vectors, self.id)
        if sum(query is not None for query in queries) != 1:
            raise ValueError("give one of 'input', 'vector', 'vectors' and 'id'")
        if self.input is None and self.input_type is not None:
            raise ValueError("'input_type' is for texts in 'input'; leave it out")
        if self.query_vectors is not None and self.vector is None and self.vectors is None:
            raise ValueError("'query_vectors' is for 'vector' and 'vectors'; leave it out")
        if self.rerank is not None and self.scores == "calibrated":
            raise ValueError("scores of 'rerank' are the version's own; leave 'scores' out")
        return self

    @field_validator("filter", mode="before")
    @classmethod
    def _conditions(cls, value: Any) -> Any:
        """Refuse malformed filters. A filter is never SQL: its values are bound parameters."""
        if isinstance(value, dict):
            read_conditions(value)
        elif value is not None:
            raise ValueError(FORM)
        return value

    @field_validator("input", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        strings = value if isinstance(value, list) else [value]
        texts = bool(strings) and all(isinstance(text, str) for text in strings)
        if value is not None and not texts:
            raise ValueError("'input' is a text or a list of texts; to search by an id, use 'id'")
        return value


class TransformRequest(_RequestModel):
    """Transform vectors of version `source` to version `target`.

    Args:
        target: by default the token's pinned version, else production.
        fingerprint: the vectors' fingerprint; the request is refused if `source` has another one.
    """

    source: Version
    target: Version | None = None
    fingerprint: Fingerprint | None = None
    vectors: Annotated[Vectors, Field(min_length=1)]


class FoldInRequest(_RequestModel):
    """The candidates that new queries met, one list per query.

    Args:
        weights: how often each was met, above 0; lists of the same lengths as `candidates`.
        values: the pairs' values, if the version was trained on values.
        missing: "skip" leaves out candidates that are not stored.
    """

    candidates: (
        Annotated[list[Numbers], Field(min_length=1, fail_fast=True)]
        | Annotated[list[Texts], Field(min_length=1, fail_fast=True)]
    ) = Field(union_mode="left_to_right")
    weights: Vectors | None = None
    values: Vectors | None = None
    version: Version | None = None
    missing: OrDefault[Literal["error", "skip"]] = "error"


REQUESTS: tuple[Any, ...] = (EmbeddingsRequest, SearchRequest, TransformRequest, FoldInRequest)


def parse(kind: type[M], body: bytes, settings: ServiceSettings, rows: Any = None) -> M:
    """Parse a request into its schema; `rows` are placeholder fields if the rows are a stream."""
    # Remove escapes. A backslash outside a string is invalid, so nothing after it is parsed.
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    _refuse_many("texts", bare.count(b'"'), settings)
    bare = b"".join(bare.split(b'"')[::2])
    _refuse_many("lists and objects", bare.count(b"[") + bare.count(b"{"), settings)
    _refuse_many("values", bare.count(b","), settings)
    try:
        fields = from_json(body)
    except ValueError as error:
        raise wrong(f"The body is not JSON: {error}.") from None
    if not isinstance(fields, dict) or len(fields) > MEMBERS:
        raise wrong(f"The body is not a JSON object of at most {MEMBERS} fields.")
    if rows is not None and rows.keys() & fields.keys():
        raise wrong("The rows are in the Arrow stream; leave them out of 'evergram.request'.")
    try:
        return kind.model_validate({**fields, **(rows or {})})
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        raise wrong(*problem_of(errors)) from None


def _refuse_many(what: str, count: int, settings: ServiceSettings) -> None:
    if count > FREE + OF_A_ROW[what] * settings.max_batch:
        raise too_much(f"The body has too many {what}; send fewer, or an Arrow stream.")


def problem_of(errors: list[Any]) -> tuple[str, str | None]:
    """Return a sentence on the most relevant of pydantic's errors, and the name of its field."""
    # If a field allows several types, each gives an error. The type closest to the value sent gives
    # an error other than "wrong type", or the most deeply nested one.
    first = min(errors, key=lambda e: (e["type"].endswith("_type"), -len(e["loc"])))
    where = [part for part in first["loc"] if isinstance(part, int) or part.isidentifier()]
    where = [part if isinstance(part, int) else part[:80] for part in where]
    field = str(where[0]) if where else None
    reason = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    if field == "input" and first["type"] == "value_error":
        return f"{reason}.", field
    reason = f"{reason[:1].lower()}{reason[1:]}"
    if field == "input":
        return f"'input' is an id or a text, or a list of either: {reason}.", field
    path = "The request" if field is None else f"'{'.'.join(map(str, where))}'"
    return f"{path} is wrong: {reason}.", field


REQUEST, FINGERPRINT = b"evergram.request", b"evergram.fingerprint"


@dataclass(frozen=True)
class Stream:
    """A request sent as an Arrow stream: its rows, the JSON of the other fields, and the
    fingerprint that it claims for the rows, or None."""

    column: pa.ChunkedArray
    request: bytes
    fingerprint: str | None


def read_stream(body: bytes | bytearray, column: str, limit: int) -> Stream:
    """Return the column of a request of at most `limit` rows, and its metadata.

    Compressed batches are refused, because a few bytes can expand to any number of rows. Each
    message's type is checked first, because Arrow crashes the process if it reads a record batch as
    a schema."""
    rows, batches = 0, list[pa.RecordBatch]()
    try:
        messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(body))
        first = messages.read_next_message()
        if first.type != "schema":
            raise DataError(f"The Arrow stream begins with a {first.type}; send its schema first.")
        schema = pa.ipc.read_schema(first)
        _check_schema(schema, column)
        for message in messages:
            if message.type != "record batch":
                raise DataError(f"The Arrow stream holds a {message.type}; send record batches.")
            if _is_compressed(message.metadata.to_pybytes()):
                raise DataError("The Arrow stream is compressed; send it without compression.")
            batch = pa.ipc.read_record_batch(message, schema)
            rows += batch.num_rows
            if rows > limit or len(batches) >= limit:
                raise DataError(f"The Arrow stream has more than {limit} rows; send fewer.")
            batch.validate(full=True)
            batches.append(batch)
    except (pa.ArrowException, OSError, ValueError, struct.error, StopIteration) as error:
        if isinstance(error, DataError):
            raise
        raise DataError("The body is not a valid Arrow stream.") from error
    rows_column = pa.Table.from_batches(batches, schema)[column]
    if rows_column.null_count:
        row = pc.index(pc.is_null(rows_column), True).as_py() + 1
        raise DataError(f"The column {column!r} has a null in row {row}.")
    metadata = schema.metadata or {}
    claimed = metadata.get(FINGERPRINT)
    fingerprint = None if claimed is None else claimed.decode(errors="replace")
    return Stream(rows_column, metadata.get(REQUEST, b"{}"), fingerprint)


def column_vectors(column: pa.ChunkedArray) -> Floats:
    """Return a column of lists as vectors [n, D]."""
    rows = column.combine_chunks()
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    flat = pc.list_flatten(rows)
    if flat.null_count:
        raise DataError("A vector has a null in it; send numbers only.")
    lengths = pc.unique(pc.list_value_length(rows)).to_pylist()
    if len(lengths) > 1:
        raise DataError("The vectors do not all have the same length.")
    # A float64 beyond float32's range becomes infinite; the reader refuses it.
    with np.errstate(over="ignore"):
        numbers: Floats = np.asarray(flat.to_numpy(zero_copy_only=False), dtype=np.float32)
    return numbers.reshape(len(rows), lengths[0] if lengths else 0)


def _check_schema(schema: pa.Schema, column: str) -> None:
    if schema.names != [column]:
        has = ", ".join(name[:40] for name in schema.names[:_NAMED]) or "none"
        has += ", …" if len(schema.names) > _NAMED else ""
        raise DataError(f"The Arrow stream has the columns {has}; it must have only {column!r}.")
    kind = schema.field(column).type
    if column == "id":
        fits = kind in (pa.int64(), pa.int32(), pa.string(), pa.large_string(), pa.null())
        wanted = "int64 or string"
    else:
        lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        fits = any(is_list(kind) for is_list in lists) and pa.types.is_floating(kind.value_type)
        wanted = "lists of float32"
    if not fits:
        raise DataError(f"The column {column!r} is {kind}; it must be {wanted}.")


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the flatbuffer of a record batch has the field `compression`.

    pyarrow tells only after decompressing. Source: Arrow's `Message.fbs`: the header is the third
    field of Message, the compression the fourth of RecordBatch.
    """
    header = _field(metadata, struct.unpack_from("<I", metadata, 0)[0], 2)
    if header is None:
        return False
    return _field(metadata, header + struct.unpack_from("<I", metadata, header)[0], 3) is not None


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Return the position of a field of a flatbuffer's table; None if it is absent."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    entry = 4 + 2 * number
    if entry >= struct.unpack_from("<H", metadata, vtable)[0]:
        return None
    offset: int = struct.unpack_from("<H", metadata, vtable + entry)[0]
    return table + offset if offset else None
