"""`TextEncoderRecord` identifies the text encoder that made some vectors, by its address, weights
and canaries; `RecordedEncoder` checks an encoder against its record."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from evergram.errors import DataError, ServiceError
from evergram.texts.addresses import TRUSTED_ONLY, open_text_encoder
from evergram.texts.text_encoder import Prompts, TextEncoder, Vectors

# Stands for the address in the record.
RECORDED = "recorded"
# Texts of several lengths, scripts and subjects, so that another tokenizer, pooling or model gives
# different vectors; none is user data.
CANARIES = (
    "The river flows from the mountains to the sea.",
    "query: how do I change my password?",
    "def mean(values):\n    return sum(values) / len(values)",
    "Die Sitzung beginnt um neun Uhr im großen Saal.",
    "今日は雨が降っています。",
    "Gene expression in mice after 12 weeks of treatment (n = 24)",
    "3.14159",
    "A contract is binding once both parties have signed it; oral amendments are void.",
)
# The largest relative difference of a canary from its recorded vector. Hosted models and other
# machines differ by about 0.01; 0.03 is a cosine of 0.9995, and other models differ far more.
SAME = 0.03


def distances(now: Vectors, then: Vectors) -> npt.NDArray[np.floating]:
    """Return ‖now − then‖ / ‖then‖ of each text, [n], for vectors [n, D]."""
    length = np.linalg.norm(then, axis=1)
    error = np.linalg.norm(now - then, axis=1)
    # Static models give zeros to texts of unknown tokens; zeros must stay zeros.
    ratio = np.where(length > 0, error / np.where(length > 0, length, 1), np.where(error > 0, 2, 0))
    return cast("npt.NDArray[np.floating]", ratio)


class TextEncoderRecord(BaseModel):
    """Identifies the encoder that made the vectors of a file or a version.

    Args:
        fingerprint: a hash of its weights; None if they were not available.
        dim: D.
        prompts: by role, "query" and "document".
        vectors: the canaries' vectors as documents, each base64 of little-endian float32 [D].
        matryoshka: declared dims below D to which its vectors may be truncated, ascending.
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
            raise ValueError("its matryoshka dims must be ascending numbers below its dim")
        if set(self.prompts) != {"query", "document"}:
            raise ValueError("its prompts must be for query and document")
        canary_vectors(self)
        return self

    def mismatch(self, other: TextEncoder | TextEncoderRecord) -> str | None:
        """Return a clause on how another encoder or record differs, or None. Compares canaries, and
        weights if both have a fingerprint."""
        prompts = prompts_of(other) if isinstance(other, TextEncoderRecord) else other.prompts
        if isinstance(other, TextEncoderRecord) and other.texts != self.texts:
            return "it has other canary texts"
        if prompts != prompts_of(self):
            return f"its prompts are {prompts}, not {prompts_of(self)}"
        fingerprints = {self.fingerprint, other.fingerprint}
        if None not in fingerprints and len(fingerprints) > 1:
            return "it has other weights"
        if isinstance(other, TextEncoderRecord):
            return self.canary_mismatch(canary_vectors(other))
        return self.canary_mismatch(other.encode(self.texts))

    def canary_mismatch(self, now: Vectors, number: int | None = None) -> str | None:
        """Return a clause on how vectors of all canaries [n, D], or of one, differ, or None."""
        then = canary_vectors(self)
        if now.shape[1] != self.dim:
            return f"its vectors have {now.shape[1]} dims, not {self.dim}"
        error = distances(now, then if number is None else then[number : number + 1]).max()
        if error <= SAME:
            return None
        return (
            f"its vectors of the canary texts differ by {error:.2g} of their length, but only "
            f"{SAME} is allowed"
        )


def record_of(encoder: TextEncoder, matryoshka: Sequence[int] = ()) -> TextEncoderRecord:
    """Record an encoder's current state.

    Args:
        matryoshka: dims to which its vectors may be truncated.
    Raises: DataError: one of these is not between 1 and D; or all canaries' vectors are zeros and
        there is no fingerprint.
    """
    vectors = encoder.encode(CANARIES)
    if encoder.fingerprint is None and not vectors.any():
        raise DataError(
            f"{encoder.address} returns zeros for all canary texts, so it could not be "
            "distinguished from another failing model; check its output."
        )
    invalid = [dims for dims in matryoshka if not 0 < dims <= vectors.shape[1]]
    if invalid:
        raise DataError(
            f"Vectors of {encoder.address} have {vectors.shape[1]} dims and cannot be truncated "
            f"to {invalid[0]}; give numbers from 1 to {vectors.shape[1]}."
        )
    return TextEncoderRecord(
        address=encoder.address,
        fingerprint=encoder.fingerprint,
        dim=vectors.shape[1],
        prompts={"query": encoder.prompts.query, "document": encoder.prompts.document},
        texts=list(CANARIES),
        vectors=[
            binascii.b2a_base64(row.astype("<f4").tobytes(), newline=False).decode()
            for row in vectors
        ],
        matryoshka=sorted(set(matryoshka) - {vectors.shape[1]}),
    )


def prompts_of(record: TextEncoderRecord) -> Prompts:
    return Prompts(record.prompts["query"], record.prompts["document"])


def canary_vectors(record: TextEncoderRecord) -> Vectors:
    """Return the recorded vectors of the canaries, [n, D]."""
    rows = [np.frombuffer(binascii.a2b_base64(row), "<f4") for row in record.vectors]
    if len(rows) != len(record.texts) or any(row.shape != (record.dim,) for row in rows):
        raise ValueError("it must have one canary vector of its dim for each text")
    vectors = np.stack(rows).astype(np.float32)
    if not np.isfinite(vectors).all():
        raise ValueError("a canary's vector is not finite")
    return vectors


def parse_record(text: str | bytes, source: str) -> TextEncoderRecord:
    """Parse the JSON of a record; `source` names its file in error messages."""
    try:
        return TextEncoderRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise DataError(
            f"The record of the text encoder in {source} is damaged: {first['msg']}."
        ) from None


class MismatchError(ServiceError):
    """An encoder differs from the recorded one."""


class RecordedEncoder(TextEncoder):
    """An encoder that is checked against its record. Several threads may use one.

    If the encoder has no fingerprint, a canary is added to each batch as its last text, so that
    every returned vector was made by the recorded model.
    """

    takes_turns: ClassVar[bool] = False  # `encoder` does, if it must

    def __init__(self, encoder: TextEncoder, record: TextEncoderRecord) -> None:
        canaries = 0 if encoder.fingerprint is not None else 1
        super().__init__(encoder.address, encoder.prompts, max(1, encoder.batch - canaries))
        self.encoder: TextEncoder = encoder
        self.record: TextEncoderRecord = record
        # Prefer canaries with nonzero vectors: many models give zeros to unknown tokens.
        nonzero = np.flatnonzero(canary_vectors(record).any(axis=1)).tolist()
        self._canaries: list[int] = nonzero or list(range(len(record.texts)))
        self._turns = count()

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordedEncoder, (self.encoder, self.record)

    @cached_property
    def dim(self) -> int:
        """D."""
        return self.record.dim

    def check(self) -> None:
        """Compare its prompts, weights and canaries. Raises: MismatchError: they differ."""
        if (why := self.record.mismatch(self.encoder)) is not None:
            raise MismatchError(why)

    def close(self) -> None:
        self.encoder.close()

    def _fingerprint(self) -> str | None:
        return self.encoder.fingerprint

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        if self.encoder.fingerprint is not None:
            return self.encoder._checked(texts, prompt)
        number = self._canaries[next(self._turns) % len(self._canaries)]
        vectors = self.encoder.encode_with(self.record.texts[number], texts, prompt)
        why = self.record.canary_mismatch(vectors[-1:], number)
        if why is not None:
            raise MismatchError(why)
        return vectors[:-1]


def open_recorded(
    record: TextEncoderRecord,
    addresses: Sequence[str],
    opener: Callable[[str, Prompts], TextEncoder] = open_text_encoder,
) -> TextEncoder:
    """Open the recorded encoder at one of `addresses`. "recorded" stands for the address in the
    record, unless its kind is one of `TRUSTED_ONLY`.

    Raises: MismatchError: no address has the recorded encoder.
    """
    kind = record.address.partition(":")[0]
    allowed = [address for address in addresses if address != RECORDED]
    if RECORDED in addresses and kind not in TRUSTED_ONLY:
        allowed.append(record.address)
    why = f"{record.address} is not among the addresses that may be opened (--encoder)"
    # Try the recorded address first.
    for address in sorted(dict.fromkeys(allowed), key=lambda a: a != record.address):
        encoder = opener(address, prompts_of(record))
        mismatch = record.mismatch(encoder)
        if mismatch is None:
            return encoder
        why = f"{address!r}: {mismatch}"
    raise MismatchError(why)


def checked_dims(
    requested: int | None, dim: int, declared: Sequence[int], version: int | str
) -> int | None:
    """Return the dims to truncate to, or None to keep all. Raise a DataError if the requested
    number is neither the version's `dim` nor declared."""
    if requested is None or requested == dim:
        return None
    if requested in declared:
        return requested
    others = ", ".join(map(str, sorted(declared))) or "none ('vectors encode --matryoshka')"
    raise DataError(
        f"Version {version} has {dim} dimensions and cannot be truncated to {requested}; its "
        f"record declares {others}. Give one of these, or leave 'dimensions' out."
    )


def cut(vectors: Vectors, dims: int | None) -> Vectors:
    """Truncate vectors [n, D] to the first `dims` coordinates and scale each row to length 1; None
    returns them unchanged. Rows of zeros, which stand for ids that are not stored, stay zero."""
    if dims is None:
        return vectors
    first = vectors[:, :dims].astype(np.float64)
    # Scale first, so that squares neither overflow nor underflow.
    first /= np.maximum(np.abs(first).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    lengths = np.linalg.norm(first, axis=1, keepdims=True)
    unit = np.divide(first, lengths, out=np.zeros_like(first), where=lengths > 0)
    rows: Vectors = unit.astype(np.float32)
    return rows
