"""Open text encoders by address, `KIND:REST`: functions, models of installed packages, and models
behind an HTTP endpoint compatible with OpenAI's `/embeddings`."""

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
    """A function "package.module:function" from a list of texts to an array [n, D]; the module may
    be in the current folder."""

    def __init__(self, name: str, prompts: Prompts | None = None) -> None:
        folder = str(Path.cwd())
        if folder not in sys.path and "" not in sys.path:
            sys.path.append(folder)
        try:
            function: Any = resolve_name(name)
        except Exception as error:  # importing a module may raise anything
            raise DataError(
                f"python:{name} cannot be imported ({one_line(error)}); give "
                "python:package.module:function, with a module that is installed or in this folder."
            ) from error
        if not callable(function):
            raise DataError(f"python:{name} is not a function; it is a {type(function).__name__}.")
        self._function: Callable[[list[str]], npt.ArrayLike] = function
        super().__init__(f"python:{name}", prompts or Prompts(), BATCH)

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        return self._function(after_prompt(texts, prompt))


PACKAGE_BATCH = 64
# Names of the document prompt in models.
_DOCUMENT = ("document", "passage", "corpus")


class SentenceTransformerEncoder(TextEncoder):
    """A sentence-transformers model, by folder or name; `prompts` default to the model's prompts.

    Code from a model's repository is never run (`trust_remote_code` stays off).
    """

    def __init__(self, name: str, prompts: Prompts | None = None) -> None:
        from sentence_transformers import SentenceTransformer

        # Silence its log line for each model.
        logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
        try:
            self._model = SentenceTransformer(name, trust_remote_code=False)
        except Exception as error:  # transformers, the hub and safetensors raise their own types
            why = " ".join(str(error).split())[:300].rstrip(".")
            what = "folder" if Path(name).exists() else "path or name"
            raise DataError(
                f"The {what} {name!r} is not a model that sentence-transformers can load: {why}."
            ) from error
        if prompts is None:
            defaults: dict[str, Any] = dict(self._model.prompts or {})
            document = next((str(defaults[role]) for role in _DOCUMENT if defaults.get(role)), "")
            prompts = Prompts(defaults.get("query") or "", document)
        super().__init__(f"sentence-transformers:{name}", prompts, PACKAGE_BATCH)
        # Some tokenizers cannot be serialized.
        tokenizer = getattr(self._model, "tokenizer", None)
        self.tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        # The library knows whether to pool a prompt's tokens; "" means no prompt.
        vectors: npt.ArrayLike = self._model.encode(
            list(texts), prompt=prompt, batch_size=self.batch, show_progress_bar=False
        )
        return vectors

    def modules(self) -> list[torch.nn.Module]:
        """Return the model's modules, in order of application."""
        return list(self._model.children())

    def _fingerprint(self) -> str:
        import torch

        settings: list[Any] = [
            [type(module).__name__, getattr(module, "get_config_dict", dict)()]
            for module in self._model.children()
        ]
        arrays = {}
        for name, tensor in self._model.state_dict().items():
            dense = tensor.detach().cpu()
            # NumPy has no bfloat16.
            bits = dense.view(torch.int16) if dense.dtype == torch.bfloat16 else dense
            arrays[name] = bits.numpy()
        rules = str(getattr(self.tokenizer, "to_str", str)())
        return weights_fingerprint(arrays.items(), settings, rules)


STATIC_BATCH = 1024
# The dim of the model in the package wordllama.
WORDLLAMA_DIM = 256


class WordLlamaEncoder(TextEncoder):
    """The static model in the package wordllama; nothing is downloaded."""

    def __init__(self, name: str = "", prompts: Prompts | None = None) -> None:
        if name:
            raise DataError(f"wordllama:{name} is not an address; give wordllama: alone.")
        root = logging.getLogger()
        handlers = list(root.handlers)
        import wordllama

        # Undo the logging configuration of its import.
        root.handlers = handlers
        self._model = wordllama.WordLlama.load(
            # It looks for its tokenizer only in the cache.
            cache_dir=Path(wordllama.__file__).parent,
            dim=WORDLLAMA_DIM,
            disable_download=True,
        )
        super().__init__("wordllama:", prompts or Prompts(), STATIC_BATCH)
        self.tokenizer = self._model.tokenizer

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        vectors: npt.ArrayLike = self._model.embed(after_prompt(texts, prompt), norm=False)
        return vectors

    def _fingerprint(self) -> str:
        table = [("embedding", self._model.embedding)]
        return weights_fingerprint(table, {}, self.tokenizer.to_str())


ENDPOINT_BATCH = 128
# Seconds for one request; seconds before the first retry, doubled each time; the longest pause.
TIMEOUT = 30.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 20.0
TRIES = 5
_RETRIED = (408, 409, 429, 500, 502, 503, 504)
# Statuses that blame the texts, for example because one is too long.
_OF_TEXTS = (400, 413, 422)
# The environment variable with the API key; OpenAI's variable is only used for OpenAI.
KEY = "EVERGRAM_ENCODER_KEY"
OPENAI_KEY = "OPENAI_API_KEY"
_OPENAI = "api.openai.com"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class EndpointEncoder(TextEncoder):
    """A model behind an OpenAI-compatible endpoint, "https://host/v1#model".

    Temporary failures are retried, up to `TRIES` attempts within `limit`.

    The API key is read from the environment variable EVERGRAM_ENCODER_KEY (for api.openai.com also
    from OPENAI_API_KEY); it is never stored, and never sent unencrypted.
    """

    takes_turns: ClassVar[bool] = False

    def __init__(
        self,
        location: str,
        prompts: Prompts | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        import httpx

        self.model: str
        url, _, self.model = location.partition("#")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not self.model:
            raise DataError(
                "An endpoint's address must have the form openai:https://host/v1#model, with the "
                "model's name after the #."
            )
        if parts.username is not None or parts.password is not None or parts.query:
            raise DataError(
                "An endpoint's address must not contain a user, password or query, because it is "
                f"recorded with vectors; give the key in the environment variable {KEY}."
            )
        key = os.environ.get(KEY) or (
            os.environ.get(OPENAI_KEY) if parts.hostname == _OPENAI else None
        )
        if key and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise DataError(
                f"{url} is not encrypted, so others could read the key in {KEY}; use https."
            )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(timeout=TIMEOUT, headers=headers, transport=transport)
        self._url = f"{url.rstrip('/')}/embeddings"
        super().__init__(f"openai:{location}", prompts or Prompts(), ENDPOINT_BATCH)

    def close(self) -> None:
        self._http.close()

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        request = {"model": self.model, "input": after_prompt(texts, prompt)}
        content = self._post({**request, "encoding_format": "float"})
        try:
            rows = sorted(json.loads(content)["data"], key=lambda row: int(row["index"]))
            if [row["index"] for row in rows] != list(range(len(texts))):
                raise ValueError(f"{len(rows)} vectors for {len(texts)} texts")
            return [row["embedding"] for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise ServiceError(
                f"{self._url} did not answer like OpenAI's /embeddings ({error}); check the "
                "address."
            ) from error

    def _post(self, body: dict[str, Any]) -> bytes:
        """Return the response's body; retry temporary failures."""
        import httpx

        end = math.inf if self.limit is None else monotonic() + self.limit
        for attempt in range(TRIES):
            pause = FIRST_PAUSE * 2**attempt
            try:
                response, content = self._request(body, end)
            except httpx.HTTPError as error:
                why = str(error).rstrip(".") or type(error).__name__
                text = f"{self._url} cannot be reached: {why}; start it, or correct the address."
                failure = ServiceError(text)
                is_temporary = not isinstance(error, httpx.UnsupportedProtocol)
                failure.__cause__ = error
            else:
                status = response.status_code
                if status == 200:
                    return content
                retry_after = response.headers.get("Retry-After", "")
                pause = max(pause, float(retry_after) if retry_after.isdecimal() else 0.0)
                # Do not show the response's text, because servers repeat keys in it.
                code = None
                with suppress(ValueError, KeyError, TypeError):
                    code = json.loads(content)["error"]["code"]
                about = f" ({str(code)[:80]})" if code else ""
                advice = f"; is the key in {KEY} right?" if status in (401, 403) else "."
                kind = TextsFailedError if status in _OF_TEXTS else ServiceError
                failure = kind(f"{self._url} answered {status}{about}{advice}")
                is_temporary = status in _RETRIED
            pause = min(pause, LONGEST_PAUSE)
            if not is_temporary or attempt == TRIES - 1 or monotonic() + pause >= end:
                raise failure
            time.sleep(pause * random.uniform(0.5, 1.0))
        raise AssertionError("the last attempt returns or raises")

    def _request(self, body: dict[str, Any], end: float) -> tuple[httpx.Response, bytes]:
        """Send one request. Raises: httpx.HTTPError: the response was not complete by `end`."""
        import httpx

        seconds = min(TIMEOUT, max(end - monotonic(), 0.001))
        with self._http.stream("POST", self._url, json=body, timeout=seconds) as response:
            chunks = []
            for chunk in response.iter_bytes():
                chunks.append(chunk)
                # httpx's timeout applies to each chunk separately.
                if monotonic() > end:
                    raise httpx.ReadTimeout("its answer did not end in time")
            return response, b"".join(chunks)


_CLASSES: dict[str, Callable[[str, Prompts | None], TextEncoder]] = {
    "sentence-transformers": SentenceTransformerEncoder,
    "wordllama": WordLlamaEncoder,
    "openai": EndpointEncoder,
    "python": CallableEncoder,
}
# The package to install for each kind.
PACKAGES = {
    "sentence-transformers": "sentence-transformers",
    "wordllama": "wordllama",
    "openai": "httpx",
}
# Kinds that run code or send texts elsewhere; never opened just because a lineage records them.
TRUSTED_ONLY = ("python", "openai")


def open_text_encoder(address: str, prompts: Prompts | None = None) -> TextEncoder:
    """Open the encoder at an address.

    | address | encoder |
    |---|---|
    | `sentence-transformers:PATH` or `:NAME` | a model of that library, or of model2vec |
    | `wordllama:` | the static model in the package wordllama |
    | `openai:URL#MODEL` | a server with OpenAI's `/embeddings`, such as https://host/v1#name |
    | `python:MODULE:FUNCTION` | a function from a list of texts to an array [n, D] |

    >>> from evergram.texts import open_text_encoder
    >>> open_text_encoder("python:evergram.texts.text_encoder:letters").encode(["abba"]).shape
    (1, 26)

    Args:
        prompts: prefixes of texts; None takes the model's prompts, if it has any.
    Raises: DataError: the address is malformed, or there is no such model. ServiceError: the
        package is not installed or fails.
    """
    kind, rest = check_encoder_address(address)
    try:
        return _CLASSES[kind](rest, prompts)
    except Exception as error:  # importing a package may raise anything
        if kind not in PACKAGES or isinstance(error, EvergramError):
            raise
        raise ServiceError(
            f"{kind}: cannot be used, because the package {PACKAGES[kind]} is missing or fails: "
            f"{one_line(error)}; install it with compatible dependencies: "
            f"pip install {PACKAGES[kind]}."
        ) from error


def open_with_prompts(address: str, query: str | None, document: str | None) -> TextEncoder:
    """Open an encoder, and replace the model's prompt for each role where one is given."""
    encoder = open_text_encoder(address)
    prompts = encoder.prompts
    encoder.prompts = Prompts(
        prompts.query if query is None else query,
        prompts.document if document is None else document,
    )
    return encoder


def check_encoder_address(address: str) -> tuple[str, str]:
    """Split an address into its kind and the rest, without opening it."""
    kind, colon, rest = address.partition(":")
    if not colon or kind not in _CLASSES:
        raise DataError(
            f"{address!r} is not a text encoder address; give KIND:…, where KIND is "
            f"{', '.join(_CLASSES)}, as in sentence-transformers:models/minilm"
            f"{did_you_mean(kind, _CLASSES) if colon else ''}."
        )
    if not rest and kind != "wordllama":
        raise DataError(f"{address!r} names no encoder after the colon; see docs/text.md.")
    return kind, rest
