"""The interface of an encoder of text: a list of texts to vectors [n, D]."""

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

# Settings of a tokenizer that its last call left behind.
_PASSING = ("padding", "truncation")


def weights_fingerprint(
    arrays: Iterable[tuple[str, npt.NDArray[Any]]], settings: object, tokenizer: str
) -> str:
    """Return "weights:" and the SHA-256 of all that a local model's vectors depend on.

    Args:
        arrays: names and tensors; bfloat16 ones as the integers of the same bits.
        settings: as JSON, such as the pooling and the longest input.
        tokenizer: as JSON text, of `tokenizers.Tokenizer.to_str`.
    """
    digest = hashlib.sha256()
    for name, array in sorted(arrays, key=lambda pair: pair[0]):
        dense = np.ascontiguousarray(array)
        digest.update(f"{name} {dense.dtype.str} {dense.shape}\n".encode())
        digest.update(dense.data if dense.size else b"")
    rules = json.loads(tokenizer) if tokenizer else {}
    kept = {key: value for key, value in rules.items() if key not in _PASSING}
    digest.update(json.dumps([settings, kept], sort_keys=True, default=str).encode())
    return f"weights:{digest.hexdigest()}"


Vectors: TypeAlias = npt.NDArray[np.float32]
# What a text is; models such as e5 and nomic put other words before a query than a document.
Role = Literal["query", "document"]
# Read once for the dim of an encoder that does not say it.
_PROBE = "dimensions"


class NotFiniteError(DataError):
    """An encoder returned a NaN or an infinity for `text`, and perhaps for others."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text: str = text


class TextsFailedError(ServiceError):
    """An encoder failed on these texts, and may encode others."""


class BusyError(ServiceError):
    """The turn of these texts did not come within the encoder's limit."""


@dataclass(frozen=True)
class Prompts:
    """Words that an encoder puts before a text, such as e5's "query: " and "passage: "."""

    query: str = ""
    document: str = ""

    def of(self, role: Role) -> str:
        """Return the prompt of a role."""
        return self.query if role == "query" else self.document


class TextEncoder(Reopened, ABC):
    """An encoder of text. Several threads may use one.

    Args:
        address: where it was opened, see `addresses.open_text_encoder`; it never holds a key.
        prompts: put before texts.
        batch: texts that it encodes at once.
    """

    # Whether threads wait for each other: models are seldom made for several threads at once.
    takes_turns: ClassVar[bool] = True

    def __init__(self, address: str, prompts: Prompts, batch: int) -> None:
        self.address: str = address
        self.prompts: Prompts = prompts
        self.batch: int = batch
        # Seconds to wait for a turn, or in which a model elsewhere must have encoded a batch, with
        # all tries and pauses; a call that others wait for and that lasts twice as long hangs. None
        # is as patient as a command may be. A service sets it.
        self.limit: float | None = None
        # When the call began that has the turn.
        self._began = math.inf
        self._turn = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        place = self.address.partition(":")[2]
        return type(self), (place, self.prompts), {"batch": self.batch, "limit": self.limit}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    @cached_property
    def dim(self) -> int:
        """D."""
        return int(self.encode([_PROBE]).shape[1])

    @cached_property
    def fingerprint(self) -> str | None:
        """A hash of its weights, "weights:" and 64 hexadecimal digits; None if they are not
        available, so that only `canaries` can tell it from another."""
        return self._fingerprint()

    def encode(self, texts: Sequence[str], role: Role = "document") -> Vectors:
        """Return the vectors [n, D] of texts, float32, in their order.

        Args:
            role: chooses the prompt.
        Raises: NotFiniteError: a vector has a NaN or an infinity. DataError: the encoder does not
            return one vector for each text, all of one length. TextsFailedError: it fails on these
            texts. ServiceError: it is elsewhere and cannot be reached, or refuses.
        """
        if not texts:
            raise DataError("There are no texts to encode; give at least one.")
        prompt, starts = self.prompts.of(role), range(0, len(texts), self.batch)
        blocks = [self._checked(texts[i : i + self.batch], prompt) for i in starts]
        if any(block.shape[1] != blocks[0].shape[1] for block in blocks):
            raise DataError(f"{self.address} returns vectors of several lengths; it must have one.")
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def encode_with(self, document: str, texts: Sequence[str], prompt: str) -> Vectors:
        """Return the vectors [n + 1, D] of n < `batch` texts after a prompt, and of a document, in
        one call, so that one model encodes them."""
        return self._checked([*after_prompt(texts, prompt), self.prompts.document + document], "")

    def close(self) -> None:
        """Release what it holds."""
        return

    def _checked(self, texts: Sequence[str], prompt: str) -> Vectors:
        answer = self._answer(texts, prompt)
        try:
            vectors = np.ascontiguousarray(answer, dtype=np.float32)
        except (ValueError, TypeError) as error:
            why = one_line(error)
            raise DataError(f"{self.address} did not return vectors of numbers: {why}.") from error
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
            return self._tried(texts, prompt)
        limit = self.limit
        if not self._turn.acquire(timeout=-1 if limit is None else limit):
            if limit is not None and monotonic() - self._began > 2 * limit:
                raise ServiceError(f"{self.address} has not answered for {2 * limit:g} seconds.")
            raise BusyError(f"{self.address} is at work on other texts; try again.")
        self._began = monotonic()
        try:
            return self._tried(texts, prompt)
        finally:
            self._began = math.inf
            self._turn.release()

    def _tried(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        try:
            return self._encode(texts, prompt)
        except EvergramError:
            raise
        except Exception as error:  # of whatever library or function encodes
            raise TextsFailedError(
                f"{self.address} failed on {len(texts)} texts: {one_line(error)}."
            ) from error

    def _fingerprint(self) -> str | None:
        return None

    @abstractmethod
    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        """Return vectors [n, D] of n ≤ `batch` texts, each after the prompt."""


def one_line(error: Exception) -> str:
    """Return an error of another's code as a clause."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".: ")


def after_prompt(texts: Sequence[str], prompt: str) -> list[str]:
    """Return each text after a prompt."""
    return [prompt + text for text in texts]


def letters(texts: Sequence[str]) -> Vectors:
    """Return how often each letter of a to z occurs in each text, [n, 26]: the smallest encoder
    there is, for examples."""
    rows = [[text.lower().count(chr(97 + i)) for i in range(26)] for text in texts]
    return np.array(rows, dtype=np.float32)
