"""What is asked and answered, as JSON. Rows of an Arrow stream take the place of `input`, `vector`
and `vectors`; all else is then JSON under `evergram.request` in the schema's metadata."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

Int64 = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
Text = Annotated[StrictStr, Field(max_length=1024)]
Id = Int64 | Text
# A number, "v0", or a label.
Version = Annotated[StrictInt, Field(ge=0, lt=2**31)] | Annotated[StrictStr, Field(max_length=64)]
SideName = Annotated[StrictStr, Field(max_length=64)]
# Of every list no more than the first wrong element is looked at: an error takes far more memory
# than what it is about.
Vector = Annotated[list[float], Field(min_length=1, fail_fast=True)]
Vectors = Annotated[list[Vector], Field(fail_fast=True)]
Numbers = Annotated[list[Int64], Field(fail_fast=True)]
Texts = Annotated[list[Text], Field(fail_fast=True)]
Fingerprint = Annotated[StrictStr, Field(max_length=256)]
# Features of one object.
MOST_FEATURES = 256
Metric = Literal["ip", "l2", "cosine"]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Features(_Asked):
    """An object that is encoded on the spot.

    Args:
        features: name to a key, or to several.
        id: of the object, where the encoder may know it; nothing is looked up in a store.
    """

    features: Annotated[
        dict[str, Id | Annotated[list[Id], Field(fail_fast=True)]], Field(max_length=MOST_FEATURES)
    ]
    id: Id | None = None

    @field_validator("features", mode="wrap")
    @classmethod
    def _first_wrong(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, dict):
            if len(value) > MOST_FEATURES:
                raise ValueError(f"an object has at most {MOST_FEATURES} features")
            for name, keys in value.items():
                if type(keys) not in (int, str, list):
                    return check({name: keys})
        return check(value)


Objects = Annotated[list[Features], Field(fail_fast=True)]


class EmbeddingsOptions(_Asked):
    """As OpenAI's, and a few words more.

    Args:
        model: "name@v0", "name@stable", or "name": the token's default version, else production's.
        version: in place of `model`.
        side: "query" or "candidate"; "object" of a lineage of files.
        dimensions: only that of the version, nothing is cut off.
        missing: "zeros" answers an id that is not stored by zeros and `computed_from` -1.
        user: is not read.
    """

    model: Annotated[StrictStr, Field(max_length=256)] | None = None
    version: Version | None = None
    side: SideName | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[StrictInt, Field(ge=1, lt=2**31)] | None = None
    missing: Literal["error", "zeros"] = "error"
    user: Text | None = None

    @model_validator(mode="after")
    def _one_version(self) -> Self:
        if self.model is not None and self.version is not None:
            raise ValueError("name the version in 'model' or in 'version', not in both")
        return self


class EmbeddingsRequest(EmbeddingsOptions):
    """Whole numbers are ids, not OpenAI's tokens; where ids are numbers, "17" is 17."""

    input: (
        Annotated[Numbers, Field(min_length=1)]
        | Annotated[Texts, Field(min_length=1)]
        | Annotated[Objects, Field(min_length=1)]
        | Text
        | Int64
        | Features
    ) = Field(union_mode="left_to_right")


class SearchOptions(_Asked):
    """Which version's space the vectors are of, and what to look for.

    Args:
        side: that is searched.
        ids: search among these alone.
        fingerprint: of the vectors; refused where the version has another.
    """

    k: Annotated[StrictInt, Field(ge=1)] = 10
    version: Version | None = None
    side: SideName | None = None
    metric: Metric = "ip"
    ids: Numbers | Texts | None = Field(default=None, union_mode="left_to_right")
    fingerprint: Fingerprint | None = None


class SearchRequest(SearchOptions):
    """One of `vector`, `vectors` and `id`.

    Args:
        id: its own stored embedding is the query.
        id_side: of `id`; the searched side where it is left out.
    """

    vector: Vector | None = None
    vectors: Annotated[Vectors, Field(min_length=1)] | None = None
    id: Id | None = None
    id_side: SideName | None = None

    @model_validator(mode="after")
    def _one_query(self) -> Self:
        if sum(q is not None for q in (self.vector, self.vectors, self.id)) != 1:
            raise ValueError("give one of 'vector', 'vectors' and 'id'")
        return self


class TransformOptions(_Asked):
    """Vectors of version `source` as version `target` reads them.

    Args:
        target: the token's default, else production, where it is left out.
        fingerprint: of the vectors; refused where `source` has another.
    """

    source: Version
    target: Version | None = None
    fingerprint: Fingerprint | None = None


class TransformRequest(TransformOptions):
    vectors: Annotated[Vectors, Field(min_length=1)]


# Of a list that is parsed by itself, piece by piece.
_FINITE = ConfigDict(allow_inf_nan=False)
NUMBERS: TypeAdapter[list[int]] = TypeAdapter(Numbers)
TEXTS: TypeAdapter[list[str]] = TypeAdapter(Texts)
OBJECTS: TypeAdapter[list[Features]] = TypeAdapter(Objects)
VECTOR: TypeAdapter[list[float]] = TypeAdapter(Vector, config=_FINITE)
VECTORS: TypeAdapter[list[list[float]]] = TypeAdapter(Vectors, config=_FINITE)


class _Answered(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Origin(_Answered):
    """What an answer is, and what it was computed from.

    Args:
        version: it is read as.
        computed_from: of each row, the version whose encoder made it; -1 where it is not stored.
        fingerprint: of `version`.
    """

    version: int
    computed_from: list[int]
    side: str | None
    fingerprint: str


class Embedding(_Answered):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(_Answered):
    """OpenAI's; no tokens are read here, so both are 0."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(_Answered):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage
    evergram: Origin


class Hit(_Answered):
    id: int | str
    score: float
    computed_from: int


class Found(_Answered):
    object: Literal["search_result"]
    index: int
    hits: list[Hit]


class SearchAnswer(_Answered):
    """`evergram.computed_from` names each version that a hit was computed from, once."""

    object: Literal["list"]
    data: list[Found]
    model: str
    evergram: Origin


class TransformAnswer(_Answered):
    object: Literal["list"]
    vectors: list[list[float]]
    model: str
    evergram: Origin


class VersionAnswer(_Answered):
    version: int
    name: str
    dim: int
    created: str
    fingerprint: str
    labels: list[str]
    default: bool
    computed_from: list[int]
    warnings: list[str]
    checked: list[str]
    unchecked: list[str]


class VersionsAnswer(_Answered):
    """`default` is what is read where no version is named; `computed_from` what the stores hold;
    `warnings` what a reader should know: few objects in common with the past, no certificate;
    `checked` are the published files that were compared with their hashes, `unchecked` the others,
    which are compared when they are first read."""

    object: Literal["list"]
    name: str
    data: list[VersionAnswer]


class ConsumerAnswer(_Answered):
    """`version` is None where the label that it is pinned to is no more."""

    name: str
    pinned: str
    version: int | None
    allowed: list[str]
    since: str


class ConsumersAnswer(_Answered):
    object: Literal["list"]
    data: list[ConsumerAnswer]


class ModelAnswer(_Answered):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsAnswer(_Answered):
    object: Literal["list"]
    data: list[ModelAnswer]


class Health(_Answered):
    status: Literal["ok"]


class Ready(_Answered):
    """`problem` says what could not be taken up, or which store does not answer."""

    ready: bool
    version: int
    problem: str | None


class Problem(_Answered):
    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(_Answered):
    error: Problem


ASKED: tuple[type[BaseModel], ...] = (EmbeddingsRequest, SearchRequest, TransformRequest)


def problem_of(errors: list[Any]) -> tuple[str, str | None]:
    """The first thing that is wrong with a request, in a sentence, and its field."""
    # Of the kinds that something may be, the one that it is nearly: where more than the type is
    # wrong, or what it was understood of the deepest.
    first = min(errors, key=lambda e: (e["type"].endswith("_type"), -len(e["loc"])))
    where = [part for part in first["loc"] if isinstance(part, int) or part.isidentifier()]
    where = [part if isinstance(part, int) else part[:80] for part in where]
    field = str(where[0]) if where else None
    said = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return f"The body is not JSON: {said}.", None
    if field == "input":
        return (
            "'input' is an id, a list of ids of one type, or objects with 'features': "
            f"{said[:1].lower()}{said[1:]}.",
            field,
        )
    place = "The request" if field is None else f"'{'.'.join(map(str, where))}'"
    return f"{place} is wrong: {said[:1].lower()}{said[1:]}.", field
