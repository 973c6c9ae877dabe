"""Schemas of requests for vectors in JSON.

A request may send its rows as an Arrow stream instead of `input`, `vector` or `vectors`. The other
fields are then JSON under `evergram.request` in the stream's metadata.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticUseDefault

from evergram.serving.features import LONGEST_VALUE, Features, Id, Int64, Text
from evergram.stores.filters import FORM, MOST_FIELDS, MOST_VALUES
from evergram.texts.text_encoder import Role

# A number, "v0", or a label.
Version = Annotated[StrictInt, Field(ge=0, lt=2**31)] | Annotated[StrictStr, Field(max_length=64)]
SideName = Annotated[StrictStr, Field(max_length=64)]
# Validation of a list stops at the first wrong element: an error takes far more memory than the
# element that it is about.
Vector = Annotated[list[float], Field(min_length=1, fail_fast=True)]
Vectors = Annotated[list[Vector], Field(fail_fast=True)]
Numbers = Annotated[list[Int64], Field(fail_fast=True)]
Texts = Annotated[list[Text], Field(fail_fast=True)]
# A text to encode; the service's own limit is `ServiceSettings.max_text`.
LONGEST_ID, LONGEST_TEXT = 1024, 1 << 17
InputText = Annotated[StrictStr, Field(max_length=LONGEST_TEXT)]
InputTexts = Annotated[list[InputText], Field(fail_fast=True)]
Fingerprint = Annotated[StrictStr, Field(max_length=256)]
Metric = Literal["ip", "l2", "cosine"]
T = TypeVar("T")


def _default_of_null(value: Any) -> Any:
    if value is None:
        raise PydanticUseDefault
    return value


# A field whose default is not null, which null stands for: clients send null for what is not set.
OrDefault = Annotated[T, BeforeValidator(_default_of_null)]

# Values of a filter, which is never SQL: the store gets them as bound parameters.
LONGEST_FIELD = 256
FieldName = Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_FIELD)]
FilterValue = StrictBool | Int64 | StrictFloat | Text
FilterValues = Annotated[list[FilterValue], Field(min_length=1, max_length=MOST_VALUES)]
Bound = Literal["gt", "gte", "lt", "lte"]
Bounds = Annotated[dict[Bound, Int64 | StrictFloat | Text], Field(min_length=1)]
Conditions = Annotated[
    dict[FieldName, FilterValue | FilterValues | Bounds],
    Field(min_length=1, max_length=MOST_FIELDS),
]


class _RequestModel(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False
    )


Objects = Annotated[list[Features], Field(fail_fast=True)]


class EmbeddingsOptions(_RequestModel):
    """OpenAI's fields of a request for embeddings, and a few more.

    Args:
        model: "name@v0", "name@stable", or "name" for the token's pinned version, else production.
        version: names the version in place of `model`.
        side: "query" or "candidate"; "object" of a lineage of files.
        dimensions: the version's own, or one that its encoder's record allows: vectors are cut to
            their first coordinates and scaled to length 1.
        missing: "zeros" answers an id that is not stored with zeros and `computed_from` -1.
        user: ignored.
        input_type: "id" for ids; "query" or "document" for texts to encode. By default strings are
            texts in a lineage whose first version records an encoder of text, and ids in any other.
    """

    model: Annotated[StrictStr, Field(max_length=256)] | None = None
    version: Version | None = None
    side: SideName | None = None
    encoding_format: OrDefault[Literal["float", "base64"]] = "float"
    dimensions: Annotated[StrictInt, Field(ge=1, lt=2**31)] | None = None
    missing: OrDefault[Literal["error", "zeros"]] = "error"
    user: Text | None = None
    input_type: Literal["id", "query", "document"] | None = None

    @model_validator(mode="after")
    def _one_version(self) -> Self:
        if self.model is not None and self.version is not None:
            raise ValueError("name the version in 'model' or in 'version', not in both")
        return self


class EmbeddingsRequest(EmbeddingsOptions):
    """A request for embeddings of ids, of texts, or of objects with features.

    Whole numbers are ids, not OpenAI's tokens. In a lineage whose ids are integers, "17" is 17,
    and "017" is another id.
    """

    input: (
        Annotated[Numbers, Field(min_length=1)]
        | Annotated[InputTexts, Field(min_length=1)]
        | Annotated[Objects, Field(min_length=1)]
        | InputText
        | Int64
        | Features
    ) = Field(union_mode="left_to_right")

    @field_validator("input", mode="before")
    @classmethod
    def _no_tokens(cls, value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], list):
            raise ValueError(
                "'input' holds arrays of tokens, which belong to one model's tokenizer; send the "
                "texts themselves (check_embedding_ctx_length=False in LangChain)"
            )
        return value


class SearchOptions(_RequestModel):
    """A search without its queries.

    Args:
        version: the version whose space the queries are in.
        side: the side that is searched.
        ids: search among these ids only.
        filter: search among rows whose metadata fulfil all of these: a field is a value, one of a
            list of values, or within bounds.
        fingerprint: the queries' fingerprint; the request is refused where the version's differs.
        rerank: rank this many hits of each query, at least `k`, by the version's own vectors,
            which are computed from texts where they are not stored, and kept.
        scores: "calibrated" takes scores to those that the version itself gave.
        metric: by default the inner product, or cosine at a version before production whose own
            vectors have length 1.
        query_vectors: with calibrated scores, whether the version's own model made the vectors, or
            production's, which were read back; or the number of the version whose model did. For
            texts and ids it is known.
    """

    k: OrDefault[Annotated[StrictInt, Field(ge=1)]] = 10
    version: Version | None = None
    side: SideName | None = None
    metric: Metric | None = None
    ids: Numbers | Texts | None = Field(default=None, union_mode="left_to_right")
    filter: Conditions | None = None
    fingerprint: Fingerprint | None = None
    rerank: Annotated[StrictInt, Field(ge=1)] | None = None
    scores: OrDefault[Literal["raw", "calibrated"]] = "raw"
    query_vectors: Literal["own", "read_back"] | Annotated[StrictInt, Field(ge=0)] | None = None


class SearchRequest(SearchOptions):
    """A search for one of `input`, `vector`, `vectors` and `id`.

    Args:
        input: a text or a list of texts, encoded by the newest version's encoder and read as the
            version, as `POST /v1/embeddings` does.
        input_type: whether the texts are encoded as queries or as documents; as queries where it
            is not given.
        id: an id whose stored embedding is the query.
        id_side: the side of `id`; by default the searched side.
    """

    vector: Vector | None = None
    vectors: Annotated[Vectors, Field(min_length=1)] | None = None
    id: Id | None = None
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
        return self

    @field_validator("input", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        strings = value if isinstance(value, list) else [value]
        texts = bool(strings) and all(isinstance(text, str) for text in strings)
        if value is not None and not texts:
            raise ValueError(
                "'input' of a search is a text or a list of texts; ids are searched by with 'id'"
            )
        return value


class TransformOptions(_RequestModel):
    """Read vectors of version `source` as version `target`, without the vectors.

    Args:
        target: by default the token's pinned version, else production.
        fingerprint: the vectors' fingerprint; the request is refused where that of `source`
            differs.
    """

    source: Version
    target: Version | None = None
    fingerprint: Fingerprint | None = None


class TransformRequest(TransformOptions):
    vectors: Annotated[Vectors, Field(min_length=1)]


NumberLists = Annotated[list[Numbers], Field(fail_fast=True)]
TextLists = Annotated[list[Texts], Field(fail_fast=True)]


class FoldInRequest(_RequestModel):
    """The candidates that new queries met, one list a query.

    Args:
        weights: how often each was met, above 0; in lists as long as those of `candidates`.
        values: of the pairs, for a version that was trained on values.
        missing: "skip" leaves out candidates that are not stored.
        k: answer this many hits of each query, in place of its vector.
        include_met: let the hits have candidates that the query met.
    """

    candidates: (
        Annotated[NumberLists, Field(min_length=1)] | Annotated[TextLists, Field(min_length=1)]
    ) = Field(union_mode="left_to_right")
    weights: Vectors | None = None
    values: Vectors | None = None
    version: Version | None = None
    missing: OrDefault[Literal["error", "skip"]] = "error"
    k: Annotated[StrictInt, Field(ge=1)] | None = None
    include_met: OrDefault[StrictBool] = False


# Validators of the lists that are parsed by themselves, piece by piece.
_FINITE = ConfigDict(allow_inf_nan=False)
NUMBERS: TypeAdapter[list[int]] = TypeAdapter(Numbers)
TEXTS: TypeAdapter[list[str]] = TypeAdapter(InputTexts)
OBJECTS: TypeAdapter[list[Features]] = TypeAdapter(Objects)
VECTOR: TypeAdapter[list[float]] = TypeAdapter(Vector, config=_FINITE)
VECTORS: TypeAdapter[list[list[float]]] = TypeAdapter(Vectors, config=_FINITE)
NUMBER_LISTS: TypeAdapter[list[list[int]]] = TypeAdapter(NumberLists)
TEXT_LISTS: TypeAdapter[list[list[str]]] = TypeAdapter(TextLists)

REQUESTS: tuple[type[BaseModel], ...] = (
    EmbeddingsRequest,
    SearchRequest,
    TransformRequest,
    FoldInRequest,
)


def problem_of(errors: list[Any]) -> tuple[str, str | None]:
    """Return a sentence on the first of pydantic's errors, and the field that has it."""
    # A field may be of several kinds, and each kind has its error. The one nearest to what was sent
    # has more wrong with it than the type, or lies deepest.
    first = min(errors, key=lambda e: (e["type"].endswith("_type"), -len(e["loc"])))
    where = [part for part in first["loc"] if isinstance(part, int) or part.isidentifier()]
    where = [part if isinstance(part, int) else part[:80] for part in where]
    field = str(where[0]) if where else None
    reason = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return f"The body is not JSON: {reason}.", None
    if field == "input" and first["type"] == "value_error":
        return f"{reason}.", field
    if field == "input":
        return (
            "'input' is an id or a text, a list of these of one type, or objects with 'features': "
            f"{reason[:1].lower()}{reason[1:]}.",
            field,
        )
    if field == "filter" and first["type"] != "dict_type":
        return _filter_problem([e for e in errors if e["loc"][0] == field]), field
    place = "The request" if field is None else f"'{'.'.join(map(str, where))}'"
    return f"{place} is wrong: {reason[:1].lower()}{reason[1:]}.", field


def _filter_problem(errors: list[Any]) -> str:
    """Return a sentence on a wrong filter: the limit that it exceeds, or its form."""
    beyond = [(e, _limit_of(e)) for e in errors]
    over, limit = next((pair for pair in beyond if pair[1]), (errors[0], None))
    place = f", field {str(over['loc'][1])[:80]!r}," if len(over["loc"]) > 1 else ""
    return f"'filter'{place} is wrong: {limit or FORM}."


def _limit_of(error: Any) -> str | None:
    """Return the limit that a part of a filter exceeds; None if it is wrong otherwise."""
    match error["type"], len(error["loc"]):
        case "too_long", 1:
            return f"a filter has at most {MOST_FIELDS} fields"
        case "too_long", _:
            return f"a field has at most {MOST_VALUES:,} values; search several times"
        case "string_too_long", _:
            if error["loc"][-1] == "[key]":
                return f"the name of a field has at most {LONGEST_FIELD} characters"
            return f"a text has at most {LONGEST_VALUE:,} characters"
    return None
