"""Open an encoder of text by its address, `KIND:REST`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, EvergramError, ServiceError
from evergram.texts.text_encoder import Prompts, TextEncoder, after_prompt

BATCH = 256
_PLACE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", re.ASCII)


class CallableEncoder(TextEncoder):
    """A function that takes a list of texts and returns an array [n, D].

    Args:
        place: "package.module:function"; a module of the current folder will do.
        prompts: put before each text.
    Raises: DataError: there is no such function, or its module cannot be imported.
    """

    plain_prompts: ClassVar[bool] = True

    def __init__(self, place: str, prompts: Prompts | None = None) -> None:
        if not _PLACE.fullmatch(place):
            raise DataError(
                f"python:{place} is not a function; write python:package.module:function."
            )
        name, _, attribute = place.partition(":")
        here = str(Path.cwd())
        if here not in sys.path and "" not in sys.path:
            sys.path.append(here)
        try:
            function: Any = getattr(import_module(name), attribute)
        except (ImportError, AttributeError) as error:
            raise DataError(
                f"python:{place} cannot be imported: {str(error).rstrip('.')}; name a function of "
                "a module that is installed, or that lies in this folder."
            ) from error
        except Exception as error:  # of whatever the module does when it is imported
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".: ")
            raise DataError(
                f"python:{place} cannot be imported, as the module fails: {why}; correct it."
            ) from error
        if not callable(function):
            raise DataError(f"python:{place} is not a function; it is a {type(function).__name__}.")
        self._function: Callable[[list[str]], npt.ArrayLike] = function
        super().__init__(f"python:{place}", prompts or Prompts(), BATCH)

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        return self._function(after_prompt(texts, prompt))


# The class of each kind, which is imported only when an address names it.
_CLASSES = {
    "sentence-transformers": "package_encoders.SentenceTransformerEncoder",
    "model2vec": "package_encoders.Model2VecEncoder",
    "wordllama": "package_encoders.WordLlamaEncoder",
    "openai": "endpoint.EndpointEncoder",
    "python": "addresses.CallableEncoder",
}
# What to install for a kind.
PACKAGES = {
    "sentence-transformers": "sentence-transformers",
    "model2vec": "model2vec",
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
    | `sentence-transformers:PATH` or `:NAME` | a model of that library, also a `StaticEmbedding` |
    | `model2vec:PATH` or `:NAME` | a static model |
    | `wordllama:` or `wordllama:DIM` | the static model in the package wordllama |
    | `openai:URL#MODEL` | a server with OpenAI's `/embeddings`, such as https://host/v1#name |
    | `python:MODULE:FUNCTION` | a function from a list of texts to an array [n, D] |

    >>> from evergram.texts import open_text_encoder
    >>> open_text_encoder("python:evergram.texts.canaries:letters").encode(["abba"]).shape
    (1, 26)

    Args:
        prompts: put before texts; None takes those that the model itself has, if it has any.
    Raises: DataError: the address is of another form, or there is no such model. ServiceError: the
        package of its kind is not installed, or fails.
    """
    kind, rest = check_encoder_address(address)
    try:
        file, _, name = _CLASSES[kind].partition(".")
        encoder: TextEncoder = getattr(import_module(f"evergram.texts.{file}"), name)(rest, prompts)
        return encoder
    except EvergramError:
        raise
    except ModuleNotFoundError as error:
        if kind not in PACKAGES:
            raise
        raise ServiceError(
            f"{kind}: needs {error.name}, which is not installed: pip install {PACKAGES[kind]}, or "
            "'evergram[text]' for those that it lists."
        ) from error
    except Exception as error:  # of whatever a package does when it is imported
        if kind not in PACKAGES:
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".: ")
        raise ServiceError(
            f"{kind}: cannot be used, as the package {PACKAGES[kind]} fails: {why}; install it and "
            "what it needs in versions that fit each other."
        ) from error


def open_with_prompts(address: str, query: str | None, document: str | None) -> TextEncoder:
    """Open an encoder with other prompts for one role or both; where it is None, the model's own
    stays.

    Raises: as `open_text_encoder`.
    """
    encoder = open_text_encoder(address)
    own = encoder.prompts
    encoder.prompts = Prompts(
        own.query if query is None else query, own.document if document is None else document
    )
    return encoder


def check_encoder_address(address: str) -> tuple[str, str]:
    """Return the kind and the rest of an encoder's address; it need not be there.

    Raises: DataError: the address is of another form.
    """
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
