"""Errors as HTTP answers, and the exceptions that the client raises for them."""

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

log: logging.Logger = logging.getLogger("evergram.serving")
ARROW, JSON = "application/vnd.apache.arrow.stream", "application/json"

# The status and code of each error; the first matching class counts.
_STATUS_AND_CODE: tuple[tuple[type[EvergramError], int, str], ...] = (
    (UnknownVersionError, 404, "unknown_version"),
    (IntegrityError, 500, "integrity"),
    (FormatError, 500, "format"),
    (LineageError, 400, "lineage"),
    (DataError, 400, "data"),
    (ShapeError, 400, "shape"),
    (StoreError, 503, "store"),
)
# The exception that the client raises for a code; ServiceError for any other code.
RAISED: dict[str, type[EvergramError]] = {
    **{code: kind for kind, _, code in _STATUS_AND_CODE},
    "unknown_id": DataError,
    "dimensions": DataError,
    "fingerprint": LineageError,
}
RETRY_AFTER = {503: "1"}
LONGEST = 1000  # maximum characters of a message, which may quote the request

# Messages must not reveal this machine's files, nor the addresses of stores and encoders.
# A comma belongs to an address if the next character does.
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.\-]*:(?://)?[^\s;,']*[/#](?:[^\s;,']|,(?=\S))*", re.I)
# Addresses of text encoders, some of which do not match `_ADDRESS`.
_ENCODER = re.compile(r"\bpython:[\w.]+:\w+|\b(?:openai|sentence-transformers):[^\s;,']+", re.I)
_PATH = re.compile(r"(?<![\w.])(?!/(?:v1|docs|healthz|readyz|metrics)\b)(?:~|\.{1,2})?/[^\s;,:']+")
_SERVICE_FAULT = {
    500: "The service's data is damaged or cannot be read; its log says which.",
    503: "A store cannot be reached or read at the moment; try again.",
}


class RefusedError(ServiceError):
    """A refused request. Its message is sent unchanged; `param` is the invalid field."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status: int = status
        self.code: str = code
        self.param: str | None = param


def wrong(message: str, param: str | None = None) -> RefusedError:
    """Return the refusal of a malformed request."""
    return RefusedError(400, "request", message, param)


def too_much(message: str, param: str | None = None) -> RefusedError:
    """Return the refusal of a request that exceeds a limit."""
    return RefusedError(413, "limit", message, param)


@dataclass(frozen=True)
class ErrorResponse:
    """An error's HTTP response; `body` has the format of OpenAI's errors."""

    status: int
    code: str
    body: bytes
    headers: dict[str, str]


def error_response(error: Exception) -> ErrorResponse:
    """Return the HTTP response for an error. Server errors are logged, not described."""
    if isinstance(error, RefusedError):
        return _response(error.status, error.code, str(error), error.param)
    for kind, status, code in _STATUS_AND_CODE:
        if isinstance(error, kind):
            if status >= 500:
                log.error("%s: %s", kind.__name__, error)
            return _response(status, code, _SERVICE_FAULT.get(status) or clean(str(error)))
    log.error("A request failed.", exc_info=error)
    return _response(500, "internal", "The service failed; its log says why.")


def clean(message: str) -> str:
    """Return a message with this machine's files and addresses replaced."""
    # Shorten first: the regular expressions take time quadratic in the length.
    message = _ENCODER.sub("the encoder", _shortened(message))
    return _PATH.sub("the lineage", _ADDRESS.sub("the store", message))


def _shortened(message: str) -> str:
    return message if len(message) <= LONGEST else f"{message[:LONGEST]}…"


def _response(status: int, code: str, message: str, param: str | None = None) -> ErrorResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    if status in (401, 403):
        kind = "authentication_error" if status == 401 else "permission_error"
    param = None if param is None else param[:80]
    error = {"message": _shortened(message), "type": kind, "param": param, "code": code}
    headers = {"Retry-After": RETRY_AFTER[status]} if status in RETRY_AFTER else {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="evergram"'
    return ErrorResponse(status, code, json.dumps({"error": error}).encode(), headers)
