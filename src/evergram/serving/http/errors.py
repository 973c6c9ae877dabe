"""How an error is said over HTTP, and how the client hears it."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass

from evergram.errors import (
    DataError,
    EvergramError,
    FormatError,
    IntegrityError,
    LineageError,
    ServiceError,
    ShapeError,
    StoreError,
    UnknownVersionError,
)

log = logging.getLogger("evergram.serving")

# Of each error its status and its code; the first that fits counts.
_SAID: tuple[tuple[type[EvergramError], int, str], ...] = (
    (UnknownVersionError, 404, "unknown_version"),
    (IntegrityError, 500, "integrity"),
    (FormatError, 500, "format"),
    (LineageError, 400, "lineage"),
    (DataError, 400, "data"),
    (ShapeError, 400, "shape"),
    (StoreError, 503, "store"),
)
# What the client raises for a code; anything else is a ServiceError.
RAISED: dict[str, type[EvergramError]] = {
    **{code: kind for kind, _, code in _SAID},
    "unknown_id": DataError,
    "fingerprint": LineageError,
}
RETRY_AFTER = {503: "1"}
# Characters of a sentence: a part of the request may be repeated in it.
LONGEST = 1000

# Nothing of this machine is told: no file, no address of a store.
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.\-]*:(?://)?[^\s;,']*[/#][^\s;,']*", re.I)
_PATH = re.compile(r"(?<![\w.])(?!/(?:v1|docs|healthz|readyz|metrics)\b)(?:~|\.{1,2})?/[^\s;,:']+")
_ON_OUR_SIDE = {
    500: "What the service reads is damaged or cannot be read; its log says what.",
    503: "A store cannot be reached or read at the moment; try again.",
}


class RefusedError(ServiceError):
    """A request that is not answered. Its sentence is told as it is.

    Args:
        status: of HTTP.
        code: for programs.
        param: the field that is at fault.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


@dataclass(frozen=True)
class Said:
    """An error as it is answered; `body` has the form of OpenAI's."""

    status: int
    code: str
    body: bytes
    headers: dict[str, str]


def say(error: Exception) -> Said:
    """An error's status and body. What is the service's own fault goes to the log, and is told
    without particulars."""
    if isinstance(error, RefusedError):
        return _said(error.status, error.code, str(error), error.param)
    for kind, status, code in _SAID:
        if isinstance(error, kind):
            if status >= 500:
                log.error("%s: %s", kind.__name__, error)
            return _said(status, code, _ON_OUR_SIDE.get(status) or clean(str(error)))
    log.error("A request failed.", exc_info=error)
    return _said(500, "internal", "The service failed; its log says how.")


def clean(message: str) -> str:
    """The sentence without files and addresses of the machine."""
    # Cut first: to look for addresses takes the square of the length.
    return _PATH.sub("the lineage", _ADDRESS.sub("the store", _short(message)))


def _short(message: str) -> str:
    return message if len(message) <= LONGEST else f"{message[:LONGEST]}…"


def _said(status: int, code: str, message: str, param: str | None = None) -> Said:
    kind = "invalid_request_error" if status < 500 else "server_error"
    if status in (401, 403):
        kind = "authentication_error" if status == 401 else "permission_error"
    param = None if param is None else param[:80]
    error = {"message": _short(message), "type": kind, "param": param, "code": code}
    headers = {"Retry-After": RETRY_AFTER[status]} if status in RETRY_AFTER else {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="evergram"'
    return Said(status, code, json.dumps({"error": error}).encode(), headers)
