"""Texts at any version: encoded by the newest version's encoder, and read as the version."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from evergram.errors import DataError, EvergramError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.version_maps import VersionMaps, checked_vectors
from evergram.stores.store import Floats
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
        self, lineage: Lineage, encoder: str | Sequence[str] | None, maps: VersionMaps
    ) -> None:
        self._lineage, self._maps = lineage, maps
        named = (RECORDED,) if encoder is None else encoder
        self.addresses: tuple[str, ...] = (named,) if isinstance(named, str) else tuple(named)
        self._encoders: dict[int, RecordedEncoder] = {}
        self._opening = threading.Lock()

    def encode(self, texts: Sequence[str], version: int, role: Role) -> Floats:
        """Return the vectors [n, D_j] of texts at version j.

        Raises: DataError: there are no texts, or one is empty; or the version records no encoder,
            or it cannot be opened, is not the recorded one, or must be named. ServiceError: it is
            elsewhere and cannot be reached.
        """
        if role not in ("query", "document"):
            raise DataError(f"There is no role {role!r}; there is query and document.")
        if isinstance(texts, str):
            short = texts[:40]
            raise DataError(f"texts is the text {short!r}; give a list, such as [{short!r}].")
        if not len(texts):
            raise DataError("There are no texts to encode; give at least one.")
        for number, text in enumerate(texts):
            if not isinstance(text, str) or not text.strip():
                raise DataError(f"The text at {number} is empty, or is no string; leave it out.")
        source = max(version, self._lineage.production)
        with span("encoder", version=source, rows=len(texts)):
            with self._opening:
                if source not in self._encoders:
                    self._encoders[source] = self._opened(source)
                encoder = self._encoders[source]
            try:
                vectors = encoder.encode(texts, role)
            except MismatchError as error:
                with self._opening:
                    self._encoders.pop(source, None)
                raise DataError(
                    f"{encoder.encoder.address} is no longer the encoder that version {source} "
                    f"records: {error}."
                ) from error
        dim = self._lineage.manifest(source).dim
        return self._maps.rows(checked_vectors(vectors, dim, source), source, version)

    def close(self) -> None:
        """Release the encoders."""
        with self._opening:
            for opened in self._encoders.values():
                opened.encoder.close()
            self._encoders.clear()

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
