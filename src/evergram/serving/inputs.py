"""From what a request names to ids and versions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from evergram.errors import DataError, UnknownVersionError
from evergram.lineage.lineage import Lineage
from evergram.serving.auth import Access
from evergram.serving.refusals import RefusedError
from evergram.serving.schemas import EmbeddingsOptions
from evergram.stores.store import Store

_NUMBER = re.compile(r"-?[0-9]{1,19}")
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
