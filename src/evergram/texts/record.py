"""The record of a text encoder, kept with its vectors: where it is, how to know it again, and the
encoder that is, and stays, the one that it describes."""

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

# In place of an address: the one that the record names.
RECORDED = "recorded"
# Of several lengths, scripts and subjects, so that another tokenizer, another pooling and another
# model show; none is anybody's data.
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
# ‖now − then‖ over ‖then‖ of a canary, at most. Hosted models and other machines round by up to
# about 0.01; 0.03 is a cosine of 0.9995, and another model is far beyond it.
SAME = 0.03


def distances(now: Vectors, then: Vectors) -> npt.NDArray[np.floating]:
    """Return ‖now − then‖ / ‖then‖ of each text, [n], of vectors [n, D]."""
    length = np.linalg.norm(then, axis=1)
    apart = np.linalg.norm(now - then, axis=1)
    # A zero vector, which a static model gives to a text of unknown tokens, must stay zero.
    far = np.where(length > 0, apart / np.where(length > 0, length, 1), np.where(apart > 0, 2, 0))
    return cast("npt.NDArray[np.floating]", far)


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

    def mismatch(self, other: TextEncoder | TextEncoderRecord) -> str | None:
        """Return why an encoder, or the one of another record, is not the recorded one, for a
        sentence; None if it is. Its weights are compared where both have a fingerprint, and its
        canaries in any case."""
        prompts = prompts_of(other) if isinstance(other, TextEncoderRecord) else other.prompts
        if isinstance(other, TextEncoderRecord) and other.texts != self.texts:
            return "its canary texts are others"
        if prompts != prompts_of(self):
            return f"its prompts are {prompts}, not {prompts_of(self)}"
        fingerprints = {self.fingerprint, other.fingerprint}
        if None not in fingerprints and len(fingerprints) > 1:
            return "its weights are others"
        if isinstance(other, TextEncoderRecord):
            return self.canary_mismatch(canary_vectors(other))
        return self.canary_mismatch(other.encode(self.texts))

    def canary_mismatch(self, now: Vectors, number: int | None = None) -> str | None:
        """Return why the canaries' vectors [n, D], or that of one `number`, are not those
        recorded."""
        then = canary_vectors(self)
        if now.shape[1] != self.dim:
            return f"its vectors have {now.shape[1]} dims, not {self.dim}"
        far = distances(now, then if number is None else then[number : number + 1]).max()
        if far <= SAME:
            return None
        return (
            f"its vectors of the canary texts differ by {far:.2g} of their length, and "
            f"{SAME} is allowed"
        )


def record_of(encoder: TextEncoder, matryoshka: Sequence[int] = ()) -> TextEncoderRecord:
    """Return the record of an encoder as it is now.

    Args:
        matryoshka: the numbers of first coordinates that its vectors may be cut to.
    Raises: DataError: one of these is not between 1 and D; or all canaries are zeros, and no
        weights are available.
    """
    vectors = encoder.encode(CANARIES)
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
        texts=list(CANARIES),
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
    """Return the recorded vectors of the canaries, [n, D]."""
    rows = [np.frombuffer(binascii.a2b_base64(row), "<f4") for row in record.vectors]
    if len(rows) != len(record.texts) or any(row.shape != (record.dim,) for row in rows):
        raise ValueError("its canaries are not one vector of its dim for each text")
    vectors = np.stack(rows).astype(np.float32)
    if not np.isfinite(vectors).all():
        raise ValueError("a canary's vector is not finite")
    return vectors


def parse_record(text: str | bytes, source: str) -> TextEncoderRecord:
    """Return a record from its JSON, which `source` holds."""
    try:
        return TextEncoderRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise DataError(
            f"The record of the text encoder in {source} is damaged: {first['msg']}."
        ) from None


class MismatchError(ServiceError):
    """An encoder is another than the recorded one."""


class RecordedEncoder(TextEncoder):
    """The encoder of a record, which was compared with it. Several threads may use one.

    If the encoder's weights are not available, each call has a canary as the last text of its
    batch, so that no vector is returned without one that shows the recorded model.
    """

    takes_turns: ClassVar[bool] = False  # those of `encoder` do

    def __init__(self, encoder: TextEncoder, record: TextEncoderRecord) -> None:
        places = 0 if encoder.fingerprint is not None else 1
        super().__init__(encoder.address, encoder.prompts, max(1, encoder.batch - places))
        self.encoder: TextEncoder = encoder
        self.record: TextEncoderRecord = record
        # A vector of zeros, as of a text of unknown tokens, is that of many models.
        telling = np.flatnonzero(canary_vectors(record).any(axis=1)).tolist()
        self._canaries: list[int] = telling or list(range(len(record.texts)))
        self._turns = count()

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordedEncoder, (self.encoder, self.record)

    @cached_property
    def dim(self) -> int:
        """D."""
        return self.record.dim

    def check(self) -> None:
        """Compare its prompts, weights and canaries. Raises: MismatchError: it is another."""
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
    """Return the recorded encoder, opened by `opener` at one of `addresses`. "recorded" stands for
    the address that the record names, unless it is one of `TRUSTED_ONLY`.

    Raises: MismatchError: there are only others, or none.
    """
    kind = record.address.partition(":")[0]
    named = [address for address in addresses if address != RECORDED]
    if RECORDED in addresses and kind not in TRUSTED_ONLY:
        named.append(record.address)
    why = f"{record.address} is not among the addresses that may be opened (--encoder)"
    # The likeliest first.
    for address in sorted(dict.fromkeys(named), key=lambda a: a != record.address):
        encoder = opener(address, prompts_of(record))
        mismatch = record.mismatch(encoder)
        if mismatch is None:
            return encoder
        why = f"{address!r}: {mismatch}"
    raise MismatchError(why)


def checked_dims(
    asked: int | None, dim: int, declared: Sequence[int], version: int | str
) -> int | None:
    """Return how many coordinates are kept; None if all are, as they are. Raise a DataError if
    another number was asked for than D, the version's `dim`, and those that are declared."""
    if asked is None or asked == dim:
        return None
    if asked in declared:
        return asked
    others = ", ".join(map(str, sorted(declared))) or "none ('vectors encode --matryoshka')"
    raise DataError(
        f"Version {version} has {dim} dimensions and is not cut to {asked}; its record declares "
        f"{others}. Give one that it has, or leave 'dimensions' out."
    )


def cut(vectors: Vectors, dims: int | None) -> Vectors:
    """Return the first coordinates [n, dims] of vectors [n, D], each row of length 1. A row of
    zeros stays one: it stands for an id that is not stored. With None, return the vectors as they
    are."""
    if dims is None:
        return vectors
    kept = vectors[:, :dims].astype(np.float64)
    # Scaled first, so that no square is infinite or vanishes.
    kept /= np.maximum(np.abs(kept).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    unit = np.divide(kept, lengths, out=np.zeros_like(kept), where=lengths > 0)
    rows: Vectors = unit.astype(np.float32)
    return rows
