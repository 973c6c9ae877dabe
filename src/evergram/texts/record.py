"""The record of an encoder, kept with its vectors: where it is, and how to know it again."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from evergram.errors import DataError
from evergram.texts import canaries
from evergram.texts.text_encoder import Prompts, TextEncoder, Vectors


def checked_dims(
    asked: int | None, dim: int, declared: Sequence[int], version: int | str
) -> int | None:
    """Return how many coordinates are kept; None if all are, as they are.

    Args:
        asked: None for all.
        dim: D of the version.
        declared: the numbers that its encoder's record allows besides D.
    Raises: DataError: another number.
    """
    if asked is None or asked == dim:
        return None
    if asked in declared:
        return asked
    if not declared:
        why = "its record declares no other number ('evergram vectors encode --matryoshka')"
    else:
        why = f"its record declares {', '.join(map(str, sorted(declared)))}"
    raise DataError(
        f"Version {version} has {dim} dimensions and is not cut to {asked}: {why}; give one that "
        "it has, or leave 'dimensions' out."
    )


def cut(vectors: Vectors, dims: int | None) -> Vectors:
    """Return the first coordinates [n, dims] of vectors [n, D], each row of length 1.

    A row of zeros stays one: it stands for an id that is not stored.

    Args:
        dims: None returns the vectors as they are.
    """
    if dims is None:
        return vectors
    kept = vectors[:, :dims].astype(np.float64)
    # Scaled first, so that no square is infinite or vanishes.
    kept /= np.maximum(np.abs(kept).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    unit = np.divide(kept, lengths, out=np.zeros_like(kept), where=lengths > 0)
    rows: Vectors = unit.astype(np.float32)
    return rows


class TextEncoderRecord(BaseModel):
    """The encoder that made the vectors of a file or a version.

    Args:
        address: where it was opened.
        fingerprint: of its weights; None if they were not available.
        dim: D.
        prompts: by role, "query" and "document".
        texts: canaries.
        vectors: of these as documents, each base64 of little-endian float32 [D].
        matryoshka: the numbers of first coordinates, below D, that its owner says its vectors may
            be cut to, ascending.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    address: str = Field(min_length=1, max_length=2048)
    fingerprint: str | None
    dim: int = Field(gt=0)
    prompts: dict[str, str]
    texts: list[str] = Field(min_length=1)
    vectors: list[str]
    matryoshka: list[int] = []

    @model_validator(mode="after")
    def _whole(self) -> Self:
        cuts = self.matryoshka
        if cuts != sorted(set(cuts)) or any(not 0 < dims < self.dim for dims in cuts):
            raise ValueError("its cuts are not ascending numbers between 1 and its dim less 1")
        if set(self.prompts) != {"query", "document"}:
            raise ValueError("its prompts are not those of query and document")
        canary_vectors(self)
        return self

    def mismatch(self, encoder: TextEncoder) -> str | None:
        """Return why an encoder is not the recorded one, for a sentence; None if it is.

        Its weights are compared where both have a fingerprint, and its canaries in any case.

        Raises: DataError, ServiceError: it cannot encode.
        """
        if (why := self._other(encoder.prompts, encoder.fingerprint)) is not None:
            return why
        return self.canary_mismatch(encoder.encode(self.texts))

    def record_mismatch(self, other: TextEncoderRecord) -> str | None:
        """Return why another record is not of the same encoder, for a sentence; None if it is.

        The records are compared as they are, whichever model is there now.
        """
        if other.texts != self.texts:
            return "its canary texts are others"
        why = self._other(prompts_of(other), other.fingerprint)
        return self.canary_mismatch(canary_vectors(other)) if why is None else why

    def _other(self, prompts: Prompts, fingerprint: str | None) -> str | None:
        if prompts != prompts_of(self):
            return f"its prompts are {prompts}, not {prompts_of(self)}"
        if None not in (self.fingerprint, fingerprint) and self.fingerprint != fingerprint:
            return "its weights are others"
        return None

    def canary_mismatch(self, now: Vectors, number: int | None = None) -> str | None:
        """Return why the canaries' vectors [n, D], as they are now, are not those recorded.

        Args:
            number: of the one canary that was encoded; None if all were.
        """
        then = canary_vectors(self)
        far = canaries.distance(now, then if number is None else then[number : number + 1])
        if far <= canaries.SAME:
            return None
        if now.shape[1] != self.dim:
            return f"its vectors have {now.shape[1]} dims, not {self.dim}"
        return (
            f"its vectors of the canary texts differ by {far:.2g} of their length, and "
            f"{canaries.SAME} is allowed"
        )


def record_of(encoder: TextEncoder, matryoshka: Sequence[int] = ()) -> TextEncoderRecord:
    """Return the record of an encoder as it is now.

    Args:
        matryoshka: the numbers of first coordinates that its vectors may be cut to.
    Raises: DataError: one of these is not between 1 and D; all canaries are zeros, and no weights
        are available; or the encoder's. ServiceError.
    """
    vectors = encoder.encode(canaries.TEXTS)
    if encoder.fingerprint is None and not vectors.any():
        raise DataError(
            f"{encoder.address} gives vectors of zeros for all canary texts, by which it could be "
            "told from no other model that fails; look at what it answers."
        )
    wrong = [dims for dims in matryoshka if not 0 < dims <= vectors.shape[1]]
    if wrong:
        raise DataError(
            f"Vectors of {encoder.address} have {vectors.shape[1]} coordinates and cannot be cut "
            f"to {wrong[0]}; give numbers from 1 to {vectors.shape[1]}."
        )
    return TextEncoderRecord(
        address=encoder.address,
        fingerprint=encoder.fingerprint,
        dim=vectors.shape[1],
        prompts={"query": encoder.prompts.query, "document": encoder.prompts.document},
        texts=list(canaries.TEXTS),
        vectors=[
            binascii.b2a_base64(row.astype("<f4").tobytes(), newline=False).decode()
            for row in vectors
        ],
        matryoshka=sorted(set(matryoshka) - {vectors.shape[1]}),
    )


def prompts_of(record: TextEncoderRecord) -> Prompts:
    """Return the prompts of the recorded encoder."""
    return Prompts(record.prompts["query"], record.prompts["document"])


def canary_vectors(record: TextEncoderRecord) -> Vectors:
    """Return the recorded vectors of the canaries, [n, D]. Raises: ValueError: they are damaged."""
    rows = [np.frombuffer(binascii.a2b_base64(row), "<f4") for row in record.vectors]
    if len(rows) != len(record.texts) or any(row.shape != (record.dim,) for row in rows):
        raise ValueError("its canaries are not one vector of its dim for each text")
    vectors = np.stack(rows).astype(np.float32)
    if not np.isfinite(vectors).all():
        raise ValueError("a canary's vector is not finite")
    return vectors


def parse_record(text: str | bytes, source: str) -> TextEncoderRecord:
    """Return a record from its JSON.

    Args:
        source: what holds it, for errors.
    Raises: DataError: it is damaged.
    """
    try:
        return TextEncoderRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise DataError(
            f"The record of the text encoder in {source} is damaged: {first['msg']}."
        ) from None
