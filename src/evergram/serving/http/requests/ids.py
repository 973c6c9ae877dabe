"""From what a request names to ids, vectors and versions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from evergram.errors import DataError, ShapeError, UnknownVersionError
from evergram.lineage.lineage import Lineage
from evergram.serving.http.auth import Access
from evergram.serving.http.errors import RefusedError
from evergram.serving.http.requests.parsing import Parsed
from evergram.serving.http.schemas import (
    NUMBERS,
    OBJECTS,
    TEXTS,
    VECTOR,
    VECTORS,
    EmbeddingsOptions,
    EmbeddingsRequest,
    Features,
    SearchRequest,
)
from evergram.serving.settings import Settings
from evergram.stores.store import Floats, Store

_NUMBER = re.compile(r"-?[0-9]{1,19}")
# Features of an object of a full request, on average.
FEATURES = 32
# So many of the ids that are not stored are named.
_NAMED = 5


def as_ids(store: Store, given: pa.Array | Sequence[Any]) -> pa.Array:
    """Ids, of one type, as the store has them; digits are numbers where its ids are, as the client
    of OpenAI sends strings.

    Raises: DataError: one cannot be an id there.
    """
    numbers = pa.types.is_int64(store.id_type)
    if isinstance(given, pa.Array):
        if not pa.types.is_null(given.type) and numbers != pa.types.is_integer(given.type):
            raise DataError(f"Ids are {_said(numbers)} here; {given.type} was given.")
        return store.as_ids(given)
    if not numbers:
        if len(given) and isinstance(given[0], int):
            raise DataError("Ids are strings here; whole numbers were given.")
        return store.as_ids(given)
    try:
        plain = not len(given) or isinstance(given[0], int)
        numbers_given = given if plain else [_number(key) for key in given]
        return pa.array(np.array(numbers_given, dtype=np.int64))
    except (OverflowError, pa.ArrowInvalid):
        raise DataError("Ids are whole numbers of 64 bits here; one is larger.") from None


def objects_of(request: Parsed[EmbeddingsRequest], settings: Settings) -> list[Any]:
    """Return the ids, all of one type, or the objects with features that are to be embedded.

    Raises: RefusedError: there are too many, or one is wrong.
    """
    given = request.asked.input
    if not isinstance(given, list):
        return [given]
    check_count(request.count("input"), settings.max_batch, "input", "input")
    if not isinstance(given[0], Features):
        return ids_of(request, "input")
    found: list[Features] = []
    features, most = 0, settings.max_batch * FEATURES
    for part in request.parts("input", OBJECTS):
        features += sum(len(one.features) for one in part)
        if features > most:
            what = f"The objects have more than {most} features together; send fewer at a time."
            raise RefusedError(413, "limit", what, "input")
        found += part
    return found


def ids_of(request: Parsed[Any], name: str) -> list[Any]:
    """Return the ids under a name. Raises: RefusedError: one is not of the first one's type."""
    given = getattr(request.asked, name)
    if given and isinstance(given[0], str):
        return [key for part in request.parts(name, TEXTS) for key in part]
    return [key for part in request.parts(name, NUMBERS) for key in part]


def vector_of(request: Parsed[SearchRequest], settings: Settings) -> Floats:
    """Return the request's `vector`, [1, D]. Raises: RefusedError: it is too long."""
    return _rows([[x for part in request.parts("vector", VECTOR) for x in part]], settings)


def vectors_of(request: Parsed[Any], settings: Settings) -> Floats:
    """Return the request's `vectors`, [n, D].

    Raises: RefusedError: there are too many, or one is wrong. ShapeError: they differ in length.
    """
    check_count(request.count("vectors"), settings.max_batch, "vectors", "vector")
    parts = [_rows(part, settings) for part in request.parts("vectors", VECTORS)]
    if any(part.shape[1] != parts[0].shape[1] for part in parts):
        raise ShapeError("The vectors are not all of one length.")
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _rows(given: Sequence[Sequence[float]], settings: Settings) -> Floats:
    longest = max(map(len, given))
    if longest > settings.max_dim:
        raise RefusedError(
            413,
            "limit",
            f"A vector has {longest} coordinates; at most {settings.max_dim} are read.",
            "vectors",
        )
    if any(len(row) != longest for row in given):
        raise ShapeError("The vectors are not all of one length.")
    # A float64 past float32's range becomes infinite, and is refused where it is read.
    with np.errstate(over="ignore"):
        return np.asarray(given, dtype=np.float64).astype(np.float32)


def _said(numbers: bool) -> str:
    return "whole numbers" if numbers else "strings"


def _number(key: int | str) -> int:
    if isinstance(key, int):
        return key
    if not _NUMBER.fullmatch(key):
        raise DataError(f"Ids are whole numbers here; {key[:40]!r} is none.")
    return int(key)


def missing_ids(missing: pa.Array, asked: int, side: str) -> RefusedError:
    """The refusal of ids that are not stored."""
    first = ", ".join(str(key)[:40] for key in missing.slice(0, _NAMED).to_pylist())
    more = ", …" if len(missing) > _NAMED else ""
    return RefusedError(
        404,
        "unknown_id",
        f"{len(missing)} of {asked} ids are not stored on side {side!r}: {first}{more}. Leave "
        "them out, or ask with 'missing': 'zeros'.",
        "input",
    )


def check_count(count: int, limit: int, field: str, what: str) -> None:
    """Raises: RefusedError: more than may be in one request."""
    if count > limit:
        raise RefusedError(
            413, "limit", f"{count} {what}s are more than the {limit} of one request.", field
        )


def model_version(lineage: Lineage, access: Access, options: EmbeddingsOptions) -> int:
    """The version that `model` or `version` names.

    Raises: UnknownVersionError: another model's name, or no such version. RefusedError: it may
        not be read.
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
