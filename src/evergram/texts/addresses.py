"""Encoders of text by their addresses, `KIND:REST`: functions, models of installed packages, and
models behind an HTTP endpoint that has the form of OpenAI's `/embeddings`."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import numpy.typing as npt

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, EvergramError, ServiceError
from evergram.texts.text_encoder import (
    Prompts,
    TextEncoder,
    TextsFailedError,
    after_prompt,
    one_line,
    weights_fingerprint,
)

if TYPE_CHECKING:
    import httpx
    import torch

BATCH = 256


class CallableEncoder(TextEncoder):
    """A function "package.module:function" from a list of texts to an array [n, D]; a module of the
    current folder will do."""

    def __init__(self, place: str, prompts: Prompts | None = None) -> None:
        here = str(Path.cwd())
        if here not in sys.path and "" not in sys.path:
            sys.path.append(here)
        try:
            function: Any = resolve_name(place)
        except Exception as error:  # also of whatever the module does when it is imported
            raise DataError(
                f"python:{place} cannot be imported ({one_line(error)}); write "
                "python:package.module:function, of a module that is installed or lies in this "
                "folder."
            ) from error
        if not callable(function):
            raise DataError(f"python:{place} is not a function; it is a {type(function).__name__}.")
        self._function: Callable[[list[str]], npt.ArrayLike] = function
        super().__init__(f"python:{place}", prompts or Prompts(), BATCH)

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        return self._function(after_prompt(texts, prompt))


PACKAGE_BATCH = 64
# Names that models give to the prompt of a document.
_DOCUMENT = ("document", "passage", "corpus")


class SentenceTransformerEncoder(TextEncoder):
    """A model of sentence-transformers, by folder or name; `prompts` are its own by default.

    Code from a model's repository is never run (`trust_remote_code` stays off).
    """

    def __init__(self, place: str, prompts: Prompts | None = None) -> None:
        from sentence_transformers import SentenceTransformer

        # It logs a line for each model that it loads.
        logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
        try:
            self._model = SentenceTransformer(place, trust_remote_code=False)
        except Exception as error:  # transformers, the hub and safetensors have theirs each
            why = " ".join(str(error).split())[:300].rstrip(".")
            what = "folder" if Path(place).exists() else "path or name"
            raise DataError(
                f"The {what} {place!r} is not a model that sentence-transformers can load: {why}."
            ) from error
        if prompts is None:
            own: dict[str, Any] = dict(self._model.prompts or {})
            document = next((str(own[name]) for name in _DOCUMENT if own.get(name)), "")
            prompts = Prompts(own.get("query") or "", document)
        super().__init__(f"sentence-transformers:{place}", prompts, PACKAGE_BATCH)

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        # The library knows whether a prompt's tokens count in the mean; "" is no prompt at all.
        vectors: npt.ArrayLike = self._model.encode(
            list(texts), prompt=prompt, batch_size=self.batch, show_progress_bar=False
        )
        return vectors

    def modules(self) -> list[torch.nn.Module]:
        """Return the model's modules, in the order in which they are applied."""
        return list(self._model.children())

    def _fingerprint(self) -> str:
        import torch

        settings: list[Any] = [
            [type(part).__name__, getattr(part, "get_config_dict", dict)()]
            for part in self._model.children()
        ]
        arrays = {}
        for name, tensor in self._model.state_dict().items():
            dense = tensor.detach().cpu()
            # NumPy has no bfloat16.
            bits = dense.view(torch.int16) if dense.dtype == torch.bfloat16 else dense
            arrays[name] = bits.numpy()
        # Some tokenizers cannot write their rules.
        tokenizer = getattr(self._model, "tokenizer", None)
        fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
        rules = str(getattr(fast, "to_str", str)())
        return weights_fingerprint(arrays.items(), settings, rules)


STATIC_BATCH = 1024
# The dim of the table in the package wordllama.
WORDLLAMA_DIM = 256


class WordLlamaEncoder(TextEncoder):
    """The static model whose weights are in the package wordllama; nothing is downloaded."""

    def __init__(self, place: str = "", prompts: Prompts | None = None) -> None:
        if place:
            raise DataError(f"wordllama:{place} is not an address; give wordllama: alone.")
        root = logging.getLogger()
        handlers = list(root.handlers)
        import wordllama

        # Its import configures the logging of the whole program.
        root.handlers = handlers
        self._model = wordllama.WordLlama.load(
            # It looks for its own tokenizer in the cache alone.
            cache_dir=Path(wordllama.__file__).parent,
            dim=WORDLLAMA_DIM,
            disable_download=True,
        )
        super().__init__("wordllama:", prompts or Prompts(), STATIC_BATCH)

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        vectors: npt.ArrayLike = self._model.embed(after_prompt(texts, prompt), norm=False)
        return vectors

    def _fingerprint(self) -> str:
        table = [("embedding", self._model.embedding)]
        return weights_fingerprint(table, {}, self._model.tokenizer.to_str())


ENDPOINT_BATCH = 128
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
        super().__init__(f"openai:{place}", prompts or Prompts(), ENDPOINT_BATCH)

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
                why = str(error).rstrip(".") or type(error).__name__
                text = f"{self._url} cannot be reached: {why}; start it, or correct the address."
                failure = ServiceError(text)
                may_pass = not isinstance(error, httpx.UnsupportedProtocol)
                failure.__cause__ = error
            else:
                status = answer.status_code
                if status == 200:
                    return content
                after = answer.headers.get("Retry-After", "")
                pause = max(pause, float(after) if after.isdecimal() else 0.0)
                # The status and the code alone, as servers repeat keys in their answers.
                code = None
                with suppress(ValueError, KeyError, TypeError):
                    code = json.loads(content)["error"]["code"]
                about = f" ({str(code)[:80]})" if code else ""
                advice = f"; is the key in {KEY} right?" if status in (401, 403) else "."
                kind = TextsFailedError if status in _OF_TEXTS else ServiceError
                failure = kind(f"{self._url} answered {status}{about}{advice}")
                may_pass = status in _RETRIED
            pause = min(pause, LONGEST_PAUSE)
            if not may_pass or attempt == TRIES - 1 or monotonic() + pause >= end:
                raise failure
            time.sleep(pause * random.uniform(0.5, 1.0))
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


_CLASSES: dict[str, Callable[[str, Prompts | None], TextEncoder]] = {
    "sentence-transformers": SentenceTransformerEncoder,
    "wordllama": WordLlamaEncoder,
    "openai": EndpointEncoder,
    "python": CallableEncoder,
}
# What to install for a kind.
PACKAGES = {
    "sentence-transformers": "sentence-transformers",
    "wordllama": "wordllama",
    "openai": "httpx",
}
# Kinds whose address makes this process run code, or send texts to another machine: never opened
# only because a lineage records them.
TRUSTED_ONLY = ("python", "openai")


def open_text_encoder(address: str, prompts: Prompts | None = None) -> TextEncoder:
    """Return the encoder at an address.

    | address | the encoder |
    |---|---|
    | `sentence-transformers:PATH` or `:NAME` | a model of that library, also one of model2vec |
    | `wordllama:` | the static model in the package wordllama |
    | `openai:URL#MODEL` | a server with OpenAI's `/embeddings`, such as https://host/v1#name |
    | `python:MODULE:FUNCTION` | a function from a list of texts to an array [n, D] |

    >>> from evergram.texts import open_text_encoder
    >>> open_text_encoder("python:evergram.texts.text_encoder:letters").encode(["abba"]).shape
    (1, 26)

    Args:
        prompts: put before texts; None takes those that the model itself has, if it has any.
    Raises: DataError: the address is of another form, or there is no such model. ServiceError: the
        package of its kind is not installed, or fails.
    """
    kind, rest = check_encoder_address(address)
    try:
        return _CLASSES[kind](rest, prompts)
    except Exception as error:  # of whatever a package does when it is imported
        if kind not in PACKAGES or isinstance(error, EvergramError):
            raise
        raise ServiceError(
            f"{kind}: cannot be used, as the package {PACKAGES[kind]} is missing or fails: "
            f"{one_line(error)}; install it and what it needs in versions that fit each other: "
            f"pip install {PACKAGES[kind]}."
        ) from error


def open_with_prompts(address: str, query: str | None, document: str | None) -> TextEncoder:
    """Open an encoder with other prompts for one role or both, in place of the model's own."""
    encoder = open_text_encoder(address)
    own = encoder.prompts
    encoder.prompts = Prompts(
        own.query if query is None else query, own.document if document is None else document
    )
    return encoder


def check_encoder_address(address: str) -> tuple[str, str]:
    """Return the kind and the rest of an encoder's address; it need not be there."""
    kind, colon, rest = address.partition(":")
    if not colon or kind not in _CLASSES:
        raise DataError(
            f"{address!r} is not the address of a text encoder; give KIND:…, where KIND is "
            f"{', '.join(_CLASSES)}, as in sentence-transformers:models/minilm"
            f"{did_you_mean(kind, _CLASSES) if colon else ''}."
        )
    if not rest and kind != "wordllama":
        raise DataError(f"{address!r} names no encoder after the colon; see docs/text.md.")
    return kind, rest
