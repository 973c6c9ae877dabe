"""The ids, objects, texts, vectors and version that a request names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from evergram.errors import DataError, ShapeError, UnknownVersionError
from evergram.ids import INTEGER
from evergram.lineage.lineage import Lineage
from evergram.retrieval.embedded import Embedded
from evergram.retrieval.reader import Reader
from evergram.serving.features import Features
from evergram.serving.http.access import Access
from evergram.serving.http.errors import RefusedError
from evergram.serving.http.json_body import Parsed
from evergram.serving.http.request_schemas import (
    LONGEST_ID,
    NUMBERS,
    OBJECTS,
    TEXTS,
    VECTOR,
    VECTORS,
    EmbeddingsOptions,
    EmbeddingsRequest,
    SearchRequest,
)
from evergram.serving.settings import ServiceSettings
from evergram.stores.store import Floats, ReadableStore
from evergram.texts.text_encoder import Role

_INTEGER = re.compile(INTEGER, re.ASCII)
# Features that the objects of a full request may have on average.
FEATURES = 32
# Ids that an error names, at most.
_NAMED = 5


def as_ids(store: ReadableStore, keys: pa.Array | Sequence[Any]) -> pa.Array:
    """Return ids in the store's type, null where a string cannot be an id that is stored.

    OpenAI's client sends strings. Where the store's ids are integers, a string stands for one if it
    is written as `evergram.ids` writes integers: "17" is 17, and "017" is another id.

    Args:
        keys: integers or strings, all of one type.
    Raises: DataError: the keys are of a type that the store does not have.
    """
    numbers = pa.types.is_int64(store.id_type)
    if isinstance(keys, pa.Array):
        if not pa.types.is_null(keys.type) and numbers != pa.types.is_integer(keys.type):
            expected = "whole numbers" if numbers else "strings"
            raise DataError(f"Ids are {expected} here; {keys.type} was given.")
        return store.as_ids(keys)
    if not numbers:
        if len(keys) and isinstance(keys[0], int):
            raise DataError("Ids are strings here; whole numbers were given.")
        return store.as_ids(keys)
    if not len(keys) or isinstance(keys[0], int):
        return pa.array(np.array(keys, dtype=np.int64))
    return pa.array([_integer(key) for key in keys], pa.int64())


def embedded_ids(reader: Reader, ids: pa.Array, version: int, side: str) -> Embedded:
    """Return `Reader.embed` of ids from `as_ids`; zeros and source -1 also where one is null."""
    if not ids.null_count:
        return reader.embed(ids, version, side)
    found = reader.embed(ids.drop_null(), version, side)
    valid = ids.is_valid().to_numpy(zero_copy_only=False)
    vectors = np.zeros((len(ids), found.vectors.shape[1]), dtype=np.float32)
    sources = np.full(len(ids), -1, dtype=np.int64)
    vectors[valid], sources[valid] = found.vectors, found.sources
    return Embedded(version, ids, vectors, sources)


def objects_of(parsed: Parsed[EmbeddingsRequest], settings: ServiceSettings) -> list[Any]:
    """Return the ids, all of one type, or the objects with features. Raises: RefusedError."""
    first = parsed.request.input
    if not isinstance(first, list):
        return [first]
    check_count(parsed.count("input"), settings.max_batch, "input", "input")
    if not isinstance(first[0], Features):
        return ids_of(parsed, "input")
    objects: list[Features] = []
    features, most = 0, settings.max_batch * FEATURES
    for part in parsed.parts("input", OBJECTS):
        features += sum(len(described.features) for described in part)
        if features > most:
            what = f"The objects have more than {most} features together; send fewer at a time."
            raise RefusedError(413, "limit", what, "input")
        objects += part
    return objects


def ids_of(parsed: Parsed[Any], name: str) -> list[Any]:
    """Return the ids in a field. Raises: RefusedError: they are not all of the first one's type."""
    first = getattr(parsed.request, name)
    if first and isinstance(first[0], str):
        return [key for part in parsed.parts(name, TEXTS) for key in part]
    return [key for part in parsed.parts(name, NUMBERS) for key in part]


def vector_of(parsed: Parsed[SearchRequest], settings: ServiceSettings) -> Floats:
    """Return the request's `vector`, [1, D]. Raises: RefusedError: it is too long."""
    return _rows([[x for part in parsed.parts("vector", VECTOR) for x in part]], settings)


def vectors_of(parsed: Parsed[Any], settings: ServiceSettings) -> Floats:
    """Return the request's `vectors`, [n, D]. Raises: RefusedError. ShapeError: lengths differ."""
    check_count(parsed.count("vectors"), settings.max_batch, "vectors", "vector")
    parts = [_rows(part, settings) for part in parsed.parts("vectors", VECTORS)]
    if any(part.shape[1] != parts[0].shape[1] for part in parts):
        raise ShapeError("The vectors are not all of one length.")
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _rows(rows: Sequence[Sequence[float]], settings: ServiceSettings) -> Floats:
    longest = max(map(len, rows))
    if longest > settings.max_dim:
        raise RefusedError(
            413,
            "limit",
            f"A vector has {longest} coordinates; at most {settings.max_dim} are read.",
            "vectors",
        )
    if any(len(row) != longest for row in rows):
        raise ShapeError("The vectors are not all of one length.")
    # A float64 beyond float32's range becomes infinite; the reader refuses it.
    with np.errstate(over="ignore"):
        return np.asarray(rows, dtype=np.float64).astype(np.float32)


def _integer(key: str) -> int | None:
    """Return the id of 64 bits that a string stands for; None if it stands for none."""
    number = int(key) if len(key) <= 20 and _INTEGER.fullmatch(key) else 2**63
    return number if -(2**63) <= number < 2**63 else None


def missing_ids(
    missing: Sequence[Any], asked: int, side: str, *, integers: bool = False
) -> RefusedError:
    """Return the refusal of ids that are not stored, out of those asked for; `integers`
    where texts were asked for and only integers are stored."""
    first = ", ".join(str(key)[:40] for key in missing[:_NAMED])
    more = ", …" if len(missing) > _NAMED else ""
    return RefusedError(
        404,
        "unknown_id",
        f"{len(missing)} of {asked} ids are not stored on side {side!r}"
        f"{', where ids are integers' if integers else ''}: {first}{more}. Leave them out, or ask "
        "with 'missing': 'zeros'.",
        "input",
    )


def check_count(count: int, limit: int, field: str, what: str) -> None:
    """Refuse more elements than one request may have. Raises: RefusedError."""
    if count > limit:
        raise RefusedError(
            413, "limit", f"{count} {what}s are more than the {limit} of one request.", field
        )


def model_version(lineage: Lineage, access: Access, options: EmbeddingsOptions) -> int:
    """Return the version that `model` or `version` names.

    Raises: UnknownVersionError: it does not exist, or `model` is of another lineage. RefusedError:
        it may not be read.
    """
    if options.model is None:
        return access.version(lineage, options.version)
    if options.model == lineage.name:
        return access.version(lineage, None)
    name, at, what = options.model.rpartition("@")
    if not at or name != lineage.name:
        raise UnknownVersionError(
            f"There is no model {options.model!r} here; there is {lineage.name!r}, and its "
            f"versions as '{lineage.name}@v0'."
        )
    return access.version(lineage, what)


def strings_are_texts(lineage: Lineage) -> bool:
    """Return whether strings are texts where a request does not say.

    The first version decides, so that nothing that is published later changes what a client sends.
    """
    return lineage.versions[0].text_encoder is not None


def text_role(
    inputs: Any, options: EmbeddingsOptions, lineage: Lineage, settings: ServiceSettings
) -> Role | None:
    """Return whether the inputs of a request are queries or documents; None if they are ids, or
    objects with features. Raises: RefusedError: they are neither."""
    if not isinstance(inputs, list) or isinstance(inputs[0], Features):
        if options.input_type in ("query", "document"):
            what = "texts are sent as strings in JSON; leave 'input_type' out."
            raise RefusedError(400, "request", f"'input' holds no texts: {what}", "input_type")
        return None
    strings = isinstance(inputs[0], str)
    role = options.input_type
    if role is None:
        role = "document" if strings_are_texts(lineage) else "id"
    if role == "id":
        if strings and max(map(len, inputs)) > LONGEST_ID:
            what = f"an id has at most {LONGEST_ID} characters; a longer one was sent."
            raise RefusedError(400, "request", f"'input' is wrong: {what}", "input")
        return None
    if not strings:
        raise RefusedError(
            400,
            "request",
            "'input' holds whole numbers, and texts are expected: tokens belong to one model's "
            "tokenizer, so send the texts themselves; for ids, set 'input_type' to 'id'.",
            "input",
        )
    if options.side is not None:
        raise RefusedError(
            400,
            "request",
            "'side' is of ids and of objects with features; for texts, say with 'input_type' "
            "whether they are a 'query' or a 'document'.",
            "side",
        )
    check_texts(inputs, settings)
    return role


def check_texts(texts: Sequence[str], settings: ServiceSettings) -> None:
    """Refuse texts that are empty or too long. Raises: RefusedError."""
    for number, text in enumerate(texts):
        if not text.strip():
            raise RefusedError(
                400, "request", f"'input' has an empty text at {number}; leave it out.", "input"
            )
        if len(text) > settings.max_text:
            raise RefusedError(
                413,
                "limit",
                f"The text at {number} has {len(text)} characters; at most {settings.max_text} are "
                "encoded. Cut it into parts.",
                "input",
            )
