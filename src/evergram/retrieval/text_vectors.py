"""Texts at any version: encoded by the newest version's encoder, and read as the version."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from evergram.errors import DataError, EvergramError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.version_maps import VersionMaps, checked_vectors
from evergram.stores.rows import Floats
from evergram.texts.addresses import TRUSTED_ONLY
from evergram.texts.record import (
    RECORDED,
    MismatchError,
    RecordedEncoder,
    open_recorded,
)
from evergram.texts.text_encoder import Role
from evergram.tracing import span


class TextVectors:
    """Encodes texts in this process, at any version of a lineage. Several threads may use one.

    Args:
        encoder: addresses that may be opened in place of those that the versions record; None
            opens the recorded one, but none of `TRUSTED_ONLY`: those must be named here.
    """

    def __init__(
        self,
        lineage: Lineage,
        encoder: str | Sequence[str] | None = None,
        maps: VersionMaps | None = None,
    ) -> None:
        self._lineage = lineage
        named = (RECORDED,) if encoder is None else encoder
        self.addresses: tuple[str, ...] = (named,) if isinstance(named, str) else tuple(named)
        self._maps = VersionMaps(lineage) if maps is None else maps
        self._encoders: dict[int, RecordedEncoder] = {}
        self._opening = threading.Lock()

    def encode(self, texts: Sequence[str], version: int, role: Role) -> Floats:
        """Return the vectors [n, D_j] of texts at version j.

        Raises: DataError: there are no texts, or one is empty; or the version records no encoder,
            or it cannot be opened, is not the recorded one, or must be named. ServiceError: it is
            elsewhere and cannot be reached.
        """
        _check(texts, role)
        source = max(version, self._lineage.production)
        with span("encoder", version=source, rows=len(texts)):
            vectors = self._own_vectors(source, texts, role)
        dim = self._lineage.manifest(source).dim
        return self._maps.rows(checked_vectors(vectors, dim, source), source, version)

    def close(self) -> None:
        """Release the encoders."""
        with self._opening:
            for opened in self._encoders.values():
                opened.encoder.close()
            self._encoders.clear()

    def _own_vectors(self, version: int, texts: Sequence[str], role: Role) -> Floats:
        """Return texts as a version's own encoder encodes them, [n, D]."""
        with self._opening:
            if version not in self._encoders:
                self._encoders[version] = self._opened(version)
            encoder = self._encoders[version]
        try:
            return encoder.encode(texts, role)
        except MismatchError as error:
            with self._opening:
                self._encoders.pop(version, None)
            raise DataError(
                f"{encoder.encoder.address} is no longer the encoder that version {version} "
                f"records: {error}."
            ) from error

    def _opened(self, version: int) -> RecordedEncoder:
        """Return the encoder of a version. Raises: DataError: it cannot be opened."""
        record = self._lineage.manifest(version).text_encoder
        if record is None:
            raise DataError(
                f"Version {version} of {self._lineage.address} records no encoder of text, so it "
                "cannot encode strings ('evergram vectors encode' writes files that record one)."
            )
        recorded, kind = record.address, record.address.partition(":")[0]
        tried = " or ".join(recorded if a == RECORDED else a for a in self.addresses)
        if self.addresses == (RECORDED,) and kind in TRUSTED_ONLY:
            raise DataError(
                f"Version {version} was encoded by {recorded}, and a lineage must not run code or "
                "send texts elsewhere by itself; name that address in 'encoder'."
            )
        try:
            return RecordedEncoder(open_recorded(record, self.addresses), record)
        except MismatchError as error:
            raise DataError(
                f"{tried} is not the encoder that version {version} records: {error}."
            ) from error
        except EvergramError as error:
            raise type(error)(
                f"Version {version} was encoded by {recorded}, and {tried} cannot be "
                f"opened: {error} Give its address on this machine in 'encoder'."
            ) from error


def _check(texts: Sequence[str], role: str) -> None:
    """Refuse what is no list of texts. Raises: DataError."""
    if role not in ("query", "document"):
        raise DataError(f"There is no role {role!r}; there is query and document.")
    if isinstance(texts, str):
        short = texts[:40]
        raise DataError(f"texts is the text {short!r}; give a list, such as [{short!r}].")
    if not len(texts):
        raise DataError("There are no texts to encode; give at least one.")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            kind = type(text).__name__
            raise DataError(f"The text at {number} is a {kind}; give strings alone.")
        if not text.strip():
            raise DataError(f"There is an empty text at {number}; leave it out.")
