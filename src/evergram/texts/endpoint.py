"""An encoder behind an HTTP endpoint that has the form of OpenAI's `/embeddings`."""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import numpy.typing as npt

from evergram.errors import DataError, ServiceError
from evergram.texts.text_encoder import Prompts, TextEncoder, TextsFailedError, after_prompt

if TYPE_CHECKING:
    import httpx

BATCH = 128
# Seconds of one try; seconds before the first retry, which double; and the longest pause.
TIMEOUT = 30.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 20.0
TRIES = 5
_RETRIED = (408, 409, 429, 500, 502, 503, 504)
# What servers answer to a text that is too long, say, and to nothing else that was asked before.
_OF_TEXTS = (400, 413, 422)
# The environment variable of the key; OpenAI's own is sent to OpenAI alone.
KEY = "EVERGRAM_ENCODER_KEY"
OPENAI_KEY = "OPENAI_API_KEY"
_OPENAI = "api.openai.com"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class EndpointEncoder(TextEncoder):
    """A model behind an OpenAI-compatible endpoint, at a place "https://host/v1#model".

    What may pass is tried again: `TRIES` times in all, or for as long as `limit` lets it.

    The key is read from the environment variable EVERGRAM_ENCODER_KEY (for api.openai.com also from
    OPENAI_API_KEY), is written nowhere, and is never sent unencrypted.
    """

    takes_turns: ClassVar[bool] = False

    def __init__(
        self,
        place: str,
        prompts: Prompts | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        import httpx

        self.model: str
        url, _, self.model = place.partition("#")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not self.model:
            raise DataError(
                "The address of an endpoint is openai:https://host/v1#model, with the model's name "
                "after the #; another was given."
            )
        if parts.username is not None or parts.password is not None or parts.query:
            raise DataError(
                "The address of an endpoint has no user, password or query in it, as it is "
                f"recorded with vectors; give the key in the environment variable {KEY}."
            )
        key = os.environ.get(KEY) or (
            os.environ.get(OPENAI_KEY) if parts.hostname == _OPENAI else None
        )
        if key and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise DataError(
                f"{url} is not encrypted, and the key in {KEY} would be readable on the way; use "
                "https."
            )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(timeout=TIMEOUT, headers=headers, transport=transport)
        self._url = f"{url.rstrip('/')}/embeddings"
        super().__init__(f"openai:{place}", prompts or Prompts(), BATCH)

    def close(self) -> None:
        self._http.close()

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        asked = {"model": self.model, "input": after_prompt(texts, prompt)}
        content = self._sent({**asked, "encoding_format": "float"})
        try:
            rows = sorted(json.loads(content)["data"], key=lambda row: int(row["index"]))
            if [row["index"] for row in rows] != list(range(len(texts))):
                raise ValueError(f"{len(rows)} vectors for {len(texts)} texts")
            return [row["embedding"] for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise ServiceError(
                f"{self._url} did not answer as OpenAI's /embeddings does ({error}); is the "
                "address right?"
            ) from error

    def _sent(self, body: dict[str, Any]) -> bytes:
        """Return the answer, after retries of what may pass."""
        import httpx

        end = math.inf if self.limit is None else monotonic() + self.limit
        for attempt in range(TRIES):
            pause = FIRST_PAUSE * 2**attempt
            try:
                answer, content = self._read(body, end)
            except httpx.HTTPError as error:
                if _is_last(attempt, pause, end) or isinstance(error, httpx.UnsupportedProtocol):
                    why = str(error).rstrip(".") or type(error).__name__
                    raise ServiceError(
                        f"{self._url} cannot be reached: {why}; start it, or correct the address."
                    ) from error
            else:
                if answer.status_code == 200:
                    return content
                after = answer.headers.get("Retry-After", "")
                pause = max(pause, float(after) if after.isdecimal() else 0.0)
                status = answer.status_code
                if status not in _RETRIED or _is_last(attempt, pause, end):
                    kind = TextsFailedError if status in _OF_TEXTS else ServiceError
                    raise kind(_refusal(self._url, status, content))
            time.sleep(min(pause, LONGEST_PAUSE) * random.uniform(0.5, 1.0))
        raise AssertionError("the last try returns or raises")

    def _read(self, body: dict[str, Any], end: float) -> tuple[httpx.Response, bytes]:
        """Return the answer to one try. Raises: httpx.HTTPError: it did not come whole by `end`."""
        import httpx

        seconds = min(TIMEOUT, max(end - monotonic(), 0.001))
        with self._http.stream("POST", self._url, json=body, timeout=seconds) as answer:
            parts = []
            for part in answer.iter_bytes():
                parts.append(part)
                # httpx's limit is of each part alone.
                if monotonic() > end:
                    raise httpx.ReadTimeout("its answer did not end in time")
            return answer, b"".join(parts)


def _is_last(attempt: int, pause: float, end: float) -> bool:
    """Return whether no try comes after this one: tries or time are used up."""
    return attempt == TRIES - 1 or monotonic() + min(pause, LONGEST_PAUSE) >= end


def _refusal(url: str, status: int, content: bytes) -> str:
    """Return a sentence on an answer that is no success, with its status and code alone, as servers
    repeat keys in theirs."""
    code = None
    with suppress(ValueError, KeyError, TypeError):
        code = json.loads(content)["error"]["code"]
    about = f" ({str(code)[:80]})" if code else ""
    advice = f"; is the key in {KEY} right?" if status in (401, 403) else "."
    return f"{url} answered {status}{about}{advice}"
