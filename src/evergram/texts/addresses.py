"""Encoders of text by their addresses, `KIND:REST`: functions, and models of installed packages."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, EvergramError, ServiceError
from evergram.texts.endpoint import EndpointEncoder
from evergram.texts.text_encoder import (
    Prompts,
    TextEncoder,
    after_prompt,
    one_line,
    weights_fingerprint,
)

if TYPE_CHECKING:
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
