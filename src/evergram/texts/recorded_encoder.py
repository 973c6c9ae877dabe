"""An encoder of text that is, and stays, the one that a record describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from evergram.errors import DataError, ServiceError
from evergram.texts.addresses import TRUSTED_ONLY, open_text_encoder
from evergram.texts.record import TextEncoderRecord, canary_vectors, prompts_of
from evergram.texts.text_encoder import Prompts, TextEncoder

# In place of an address: the one that the record names.
RECORDED = "recorded"


class MismatchError(ServiceError):
    """An encoder is another than the recorded one."""


class RecordedEncoder(TextEncoder):
    """The encoder of a record. Several threads may use one.

    If the encoder's weights are not available, each call has a canary as the last text of its
    batch, so that no vector is returned without one that shows the recorded model.

    Args:
        encoder: one that was compared with the record.
    Raises: DataError: the encoder takes one text at a time, which leaves no place for a canary.
    """

    def __init__(self, encoder: TextEncoder, record: TextEncoderRecord) -> None:
        places = 0 if encoder.fingerprint is not None else 1
        if encoder.batch <= places:
            raise DataError(
                f"{encoder.address} encodes {encoder.batch} text at once (`batch`), and a canary "
                "text must go with each, as its weights are not available; make it 2 or more."
            )
        super().__init__(encoder.address, encoder.prompts, encoder.batch - places)
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
        """Compare its prompts, weights and canaries. Raises: MismatchError: it is another by now.
        DataError, ServiceError: it cannot encode."""
        if (why := self.record.mismatch(self.encoder)) is not None:
            raise MismatchError(why)

    def close(self) -> None:
        self.encoder.close()

    def _fingerprint(self) -> str | None:
        return self.encoder.fingerprint

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        """Raises: MismatchError: the canary shows another model."""
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
    """Return the recorded encoder.

    Args:
        addresses: those that may be opened; "recorded" stands for the one that the record names,
            which is never one of `TRUSTED_ONLY`: those must be named themselves.
        opener: opens an address.
    Raises: MismatchError: there are only others, or none. DataError, ServiceError: one cannot be
        opened.
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
