"""The parts that answers of all routes of vectors have: origin, model, metadata, headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from evergram.errors import UnknownVersionError
from evergram.serving.http.answers import arrow_answers
from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.call import JSON, Answer, Call

R = TypeVar("R")


def looked_up(lookup: Callable[[], R]) -> R:
    """Look up rows in the stores, and return the result.

    Raises: RefusedError: a row is of a version so new that the service has not loaded it yet.
    """
    try:
        return lookup()
    except UnknownVersionError as error:
        raise RefusedError(
            503, "taking_up", "The service is loading a new version; try again."
        ) from error


def origin(call: Call, version: int, side: str | None) -> dict[str, object]:
    """Return the version and side of an answer, and the fingerprint of the version."""
    fingerprint = call.lineage.manifest(version).fingerprint
    return {"version": version, "side": side, "fingerprint": fingerprint}


def model_name(call: Call, version: int) -> str:
    """Return a version as a model is named: "shop@v3"."""
    return f"{call.lineage.name}@v{version}"


def arrow_metadata(call: Call, version: int, side: str | None) -> dict[str, str]:
    """Return the metadata of an answer's Arrow schema."""
    metadata = {
        "evergram.model": model_name(call, version),
        "evergram.version": str(version),
        "evergram.fingerprint": call.lineage.manifest(version).fingerprint,
    }
    return metadata if side is None else {**metadata, "evergram.side": side}


def answer(call: Call, version: int, sources: Mapping[int, int], body: bytes) -> Answer:
    """Return the answer of a body in JSON or Arrow, as the call asks for.

    Args:
        sources: version to the number of rows that were computed from it.
    """
    media = arrow_answers.MEDIA if call.arrow_out else JSON
    return Answer(body, media, version, call.lineage.manifest(version).fingerprint, sources)
