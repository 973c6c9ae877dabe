"""An encoder of text that is, and stays, the one that a record describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from evergram.errors import ServiceError
from evergram.texts.addresses import TRUSTED_ONLY, open_text_encoder
from evergram.texts.record import TextEncoderRecord, prompts_of
from evergram.texts.text_encoder import Prompts, Role, TextEncoder, Vectors

# In place of an address: the one that the record names.
RECORDED = "recorded"


class MismatchError(ServiceError):
    """An encoder is another than the recorded one."""


class RecordedEncoder:
    """The encoder of a record. Several threads may use one.

    Of an encoder whose weights are not at hand, each batch takes a canary along, so that a model
    that is replaced behind its address is noticed in the first batch after.

    Args:
        encoder: one that was compared with the record.
    """

    def __init__(self, encoder: TextEncoder, record: TextEncoderRecord) -> None:
        self.encoder: TextEncoder = encoder
        self.record: TextEncoderRecord = record
        self._turns = count()

    def check(self) -> None:
        """Compare its prompts, weights and canaries. Raises: MismatchError: it is another by now.
        DataError, ServiceError: it cannot encode."""
        if (why := self.record.mismatch(self.encoder)) is not None:
            raise MismatchError(why)

    def encode(self, texts: Sequence[str], role: Role) -> Vectors:
        """Return the vectors [n, D] of texts.

        Raises: MismatchError: the canary shows another model. DataError, ServiceError: as of
            `TextEncoder.encode`.
        """
        # A canary is known after the prompt of a document only.
        alike = self.encoder.prompts.of(role) == self.encoder.prompts.document
        if self.encoder.fingerprint is not None or not alike:
            return self.encoder.encode(texts, role)
        number = next(self._turns) % len(self.record.texts)
        vectors = self.encoder.encode([*texts, self.record.texts[number]], role)
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
        why = f"{address}: {mismatch}"
    raise MismatchError(why)
