"""Open an encoder of text by its address, `KIND:REST`."""

from __future__ import annotations

from collections.abc import Callable

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, EvergramError, ServiceError
from evergram.texts.text_encoder import Prompts, TextEncoder

# What to install for a kind; each is imported only when an address names it.
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
        return _OPENERS[kind](rest, prompts)
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
    if not colon or kind not in _OPENERS:
        raise DataError(
            f"{address!r} is no address of an encoder of text; give KIND:…, where KIND is "
            f"{', '.join(_OPENERS)}, as in sentence-transformers:models/minilm"
            f"{did_you_mean(kind, _OPENERS) if colon else ''}."
        )
    if not rest and kind != "wordllama":
        raise DataError(f"{address!r} names no encoder after the colon; see docs/text.md.")
    return kind, rest


def _sentence_transformer(rest: str, prompts: Prompts | None) -> TextEncoder:
    from evergram.texts.sentence_transformer import SentenceTransformerEncoder

    return SentenceTransformerEncoder(rest, prompts)


def _model2vec(rest: str, prompts: Prompts | None) -> TextEncoder:
    from evergram.texts.static_models import Model2VecEncoder

    return Model2VecEncoder(rest, prompts)


def _wordllama(rest: str, prompts: Prompts | None) -> TextEncoder:
    from evergram.texts.static_models import WordLlamaEncoder

    return WordLlamaEncoder(rest, prompts)


def _endpoint(rest: str, prompts: Prompts | None) -> TextEncoder:
    from evergram.texts.endpoint import EndpointEncoder

    return EndpointEncoder(rest, prompts)


def _callable(rest: str, prompts: Prompts | None) -> TextEncoder:
    from evergram.texts.callable_encoder import CallableEncoder

    return CallableEncoder(rest, prompts)


_OPENERS: dict[str, Callable[[str, Prompts | None], TextEncoder]] = {
    "sentence-transformers": _sentence_transformer,
    "model2vec": _model2vec,
    "wordllama": _wordllama,
    "openai": _endpoint,
    "python": _callable,
}
