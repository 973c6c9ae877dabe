"""The texts of stored objects, and the vectors that a search has had computed of them."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import torch

from evergram.errors import DataError, EvergramError, ServiceError
from evergram.migration.cascade import KeptVectors
from evergram.texts.record import TextEncoderRecord
from evergram.texts.text_encoder import Vectors
from evergram.texts.text_files import read_texts
from evergram.vector_files.open_embeddings import (
    FINGERPRINT,
    TEXT_ENCODER,
    open_embeddings,
    provenance_of,
)
from evergram.vector_files.writers import write_vectors

log: logging.Logger = logging.getLogger("evergram.serving")

# Texts that are encoded before their vectors are kept: what a request that ran out of time had
# encoded is there for the next.
BATCH = 64


class MissingTextError(ServiceError):
    """An object is stored, and its text is not among those that were given."""


class Documents:
    """Texts by id, and their vectors by version, kept from their first use. Threads may share one.

    Vectors are trusted once a check of the encoder that came after them has passed; only those
    are saved, and all others are dropped when a check fails.

    Args:
        path: the file of ids and texts. It is read again when it has changed and an id is asked for
            that it did not have: a text that was corrected is as it was until then, and its kept
            vector stays the old text's.
        folder: where vectors are saved, a file for each save; None keeps them in memory alone.
    Raises: DataError: the file cannot be read.
    """

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        self.path: Path = path
        self.folder: Path | None = folder
        self._stamp: tuple[int, int] | None = None
        # By the text of the id: a CSV's 5 is the stored "5", too.
        self._texts: dict[str, str] = {}
        self._kept: dict[int, KeptVectors] = {}
        self._fingerprints: dict[int, str] = {}
        self._encoders: dict[int, TextEncoderRecord | None] = {}
        # By version: vectors that are trusted, and those that are saved.
        self._trusted: dict[int, int] = {}
        self._saved: dict[int, int] = {}
        self._lock, self._saving = threading.Lock(), threading.Lock()
        self._read()

    def texts_of(self, ids: pa.Array) -> list[str]:
        """Return the texts of ids. Raises: MissingTextError: one has none. DataError: the file has
        changed and cannot be read."""
        asked = [str(id_) for id_ in ids.to_pylist()]
        if not self._texts.keys() >= set(asked):
            with self._lock:
                self._read()
        absent = next((id_ for id_ in asked if id_ not in self._texts), None)
        if absent is not None:
            raise MissingTextError(
                f"The id {absent[:40]} is stored and has no text in the file of --texts, so "
                "that it cannot be re-ranked; add it to the file, or leave 'rerank' out."
            )
        texts = self._texts
        return [texts[id_] for id_ in asked]

    def kept(
        self,
        version: int,
        fingerprint: str,
        dim: int,
        encode: Callable[[list[str]], Vectors],
        encoder: TextEncoderRecord | None = None,
    ) -> KeptVectors:
        """Return the kept vectors of a version, with those that were saved before.

        Args:
            encode: texts as the version's model encodes them.
            encoder: the record of that model, written into the files that are saved.
        """
        with self._lock:
            # A lineage restored from a copy may have published another version under the number.
            if self._fingerprints.get(version) != fingerprint:
                kept = KeptVectors(lambda ids: encode(self.texts_of(ids)), dim, BATCH)
                self._load(kept, fingerprint)
                self._trusted[version] = self._saved[version] = len(kept)
                self._kept[version], self._fingerprints[version] = kept, fingerprint
                self._encoders[version] = encoder
            return self._kept[version]

    def counts(self) -> dict[int, int]:
        """Return the number of kept vectors by version."""
        with self._lock:
            return {version: len(kept) for version, kept in self._kept.items()}

    def trust(self, version: int, count: int) -> None:
        """Trust the first `count` vectors: the encoder was checked after they were computed."""
        with self._lock:
            self._trusted[version] = max(count, self._trusted.get(version, 0))

    def distrust(self, version: int) -> None:
        """Drop the vectors that no check came after: the encoder is another, or unknown."""
        with self._lock:
            if version in self._kept:
                self._kept[version].drop_after(self._trusted[version])

    def save(self) -> None:
        """Write the trusted vectors that are not saved yet; a failure is logged."""
        if self.folder is None:
            return
        with self._saving:
            for version in self.counts():
                with self._lock:
                    kept, fingerprint = self._kept[version], self._fingerprints[version]
                    encoder = self._encoders[version]
                    start, stop = self._saved[version], self._trusted[version]
                if stop <= start:
                    continue
                ids, vectors = kept.rows(start, stop)
                path = self.folder / f"{fingerprint[:16]}-{uuid.uuid4().hex}.parquet"
                mark = provenance_of(fingerprint, fingerprint)
                if encoder is not None:
                    mark[TEXT_ENCODER] = encoder.model_dump_json()
                try:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    write_vectors(path, [(ids, torch.from_numpy(vectors))], mark)
                except (EvergramError, OSError) as error:
                    log.error("The vectors of version %d cannot be saved: %s", version, error)
                    continue
                with self._lock:
                    self._saved[version] = stop

    def _load(self, kept: KeptVectors, fingerprint: str) -> None:
        """Keep what was saved of a version; a file that cannot be used is logged."""
        if self.folder is None:
            return
        for path in sorted(self.folder.glob(f"{fingerprint[:16]}-*.parquet")):
            try:
                if open_embeddings(path).provenance.get(FINGERPRINT) != fingerprint:
                    raise DataError(f"{path} is not of the version {fingerprint}.")
                kept.load(path)
            except EvergramError as error:
                log.error("Kept vectors are computed again: %s", error)

    def _read(self) -> None:
        """Read the file if it is another than the one that was read."""
        try:
            stat = self.path.stat()
            stamp = stat.st_mtime_ns, stat.st_size
        except OSError:
            stamp = (-1, -1)
        if stamp != self._stamp:
            ids, texts = read_texts(self.path, options=False)
            self._texts = dict(zip(map(str, ids.to_pylist()), texts, strict=True))
            self._stamp = stamp
