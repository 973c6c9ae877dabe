"""`TextEncoder`: the interface of text encoders, from a list of texts to vectors [n, D]."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from evergram.errors import DataError, EvergramError, ServiceError
from evergram.reopening import Reopened

# Tokenizer settings that depend on its last call.
_TRANSIENT = ("padding", "truncation")


def weights_fingerprint(
    arrays: Iterable[tuple[str, npt.NDArray[Any]]], settings: object, tokenizer: str
) -> str:
    """Return "weights:" and the SHA-256 of everything that a local model's vectors depend on.

    Args:
        arrays: names and tensors; bfloat16 as integers with the same bits.
        settings: JSON-serializable settings, such as the pooling and the longest input.
        tokenizer: the JSON text of `tokenizers.Tokenizer.to_str`.
    """
    digest = hashlib.sha256()
    for name, array in sorted(arrays, key=lambda pair: pair[0]):
        dense = np.ascontiguousarray(array)
        digest.update(f"{name} {dense.dtype.str} {dense.shape}\n".encode())
        digest.update(dense.data if dense.size else b"")
    rules = json.loads(tokenizer) if tokenizer else {}
    permanent = {key: value for key, value in rules.items() if key not in _TRANSIENT}
    digest.update(json.dumps([settings, permanent], sort_keys=True, default=str).encode())
    return f"weights:{digest.hexdigest()}"


Vectors: TypeAlias = npt.NDArray[np.float32]
# The role of a text; models such as e5 and nomic have different prompts for them.
Role = Literal["query", "document"]
# A text to encode in order to find an encoder's dim.
_PROBE = "dimensions"


class NotFiniteError(DataError):
    """An encoder returned a NaN or an infinity for `text`, and perhaps for other texts."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text: str = text


class TextsFailedError(ServiceError):
    """An encoder failed on these texts, but may encode others."""


class BusyError(ServiceError):
    """The encoder was busy with other texts for longer than its limit."""


@dataclass(frozen=True)
class Prompts:
    """Prefixes of texts, such as e5's "query: " and "passage: "."""

    query: str = ""
    document: str = ""

    def of(self, role: Role) -> str:
        """Return the prompt of a role."""
        return self.query if role == "query" else self.document


class TextEncoder(Reopened, ABC):
    """Encodes texts as vectors. Several threads may use one encoder.

    Args:
        address: the address that opened it, see `addresses.open_text_encoder`; never has a key.
        batch: number of texts to encode at once.
    """

    # True if threads must take turns, because models are rarely thread-safe.
    takes_turns: ClassVar[bool] = True
    # The `tokenizers.Tokenizer` of a local model.
    tokenizer: Any = None

    def __init__(self, address: str, prompts: Prompts, batch: int) -> None:
        self.address: str = address
        self.prompts: Prompts = prompts
        self.batch: int = batch
        # Seconds to wait for a turn, and for an endpoint to encode a batch, including retries. A
        # call that holds the turn for twice as long is reported as hanging. Services set it; None
        # waits without limit.
        self.limit: float | None = None
        # The start of the call that holds the turn.
        self._started = math.inf
        self._turn = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        rest = self.address.partition(":")[2]
        return type(self), (rest, self.prompts), {"batch": self.batch, "limit": self.limit}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    @cached_property
    def dim(self) -> int:
        """D."""
        return int(self.encode([_PROBE]).shape[1])

    @cached_property
    def fingerprint(self) -> str | None:
        """A hash of its weights, "weights:" and 64 hexadecimal digits; None if they are not
        available, so that only canaries can identify it."""
        return self._fingerprint()

    def encode(self, texts: Sequence[str], role: Role = "document") -> Vectors:
        """Return the vectors [n, D] of texts, float32, in order.

        Raises: NotFiniteError: a vector has a NaN or an infinity. DataError: the encoder does not
            return one vector for each text, all of the same length. TextsFailedError: it fails on
            these texts. ServiceError: an endpoint cannot be reached, or refuses.
        """
        if not texts:
            raise DataError("There are no texts to encode; give at least one.")
        prompt, starts = self.prompts.of(role), range(0, len(texts), self.batch)
        blocks = [self._checked(texts[i : i + self.batch], prompt) for i in starts]
        if any(block.shape[1] != blocks[0].shape[1] for block in blocks):
            raise DataError(f"{self.address} returns vectors of different lengths.")
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def encode_with(self, document: str, texts: Sequence[str], prompt: str) -> Vectors:
        """Return the vectors [n + 1, D] of n < `batch` texts with a prompt, and of a document, in
        one call, so that the same model encodes them."""
        return self._checked([*after_prompt(texts, prompt), self.prompts.document + document], "")

    def close(self) -> None:
        """Release its resources."""
        return

    def _checked(self, texts: Sequence[str], prompt: str) -> Vectors:
        answer = self._answer(texts, prompt)
        try:
            vectors = np.ascontiguousarray(answer, dtype=np.float32)
        except (ValueError, TypeError) as error:
            why = one_line(error)
            raise DataError(f"{self.address} did not return numeric vectors: {why}.") from error
        if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
            raise DataError(
                f"{self.address} returned an array of shape {list(vectors.shape)} for "
                f"{len(texts)} texts; it must be [{len(texts)}, D]."
            )
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            row = int(finite.argmin())
            raise NotFiniteError(
                f"{self.address} returned a NaN or an infinity for the text "
                f"{texts[row][:40]!r}; leave it out, or use another encoder.",
                texts[row],
            )
        return vectors

    def _answer(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        if not self.takes_turns:
            return self._call(texts, prompt)
        limit = self.limit
        if not self._turn.acquire(timeout=-1 if limit is None else limit):
            if limit is not None and monotonic() - self._started > 2 * limit:
                raise ServiceError(f"{self.address} has not answered for {2 * limit:g} seconds.")
            raise BusyError(f"{self.address} is busy with other texts; try again.")
        self._started = monotonic()
        try:
            return self._call(texts, prompt)
        finally:
            self._started = math.inf
            self._turn.release()

    def _call(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        try:
            return self._encode(texts, prompt)
        except EvergramError:
            raise
        except Exception as error:  # an encoder's library or function may raise anything
            raise TextsFailedError(
                f"{self.address} failed on {len(texts)} texts: {one_line(error)}."
            ) from error

    def _fingerprint(self) -> str | None:
        return None

    @abstractmethod
    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        """Return the vectors [n, D] of n ≤ `batch` texts, each prefixed with the prompt."""


def one_line(error: Exception) -> str:
    """Return the type and message of a foreign error as one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".: ")


def after_prompt(texts: Sequence[str], prompt: str) -> list[str]:
    """Prefix each text with a prompt."""
    return [prompt + text for text in texts]


def letters(texts: Sequence[str]) -> Vectors:
    """Count the letters a to z in each text, [n, 26]: a tiny encoder for examples."""
    rows = [[text.lower().count(chr(97 + i)) for i in range(26)] for text in texts]
    return np.array(rows, dtype=np.float32)
