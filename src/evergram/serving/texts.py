"""Encode strings in requests with checked text encoders and a cache; and the texts of stored
objects, with the vectors that searches have computed from them."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import torch

from evergram.data.reading.interactions import read_texts
from evergram.errors import DataError, EvergramError, ServiceError
from evergram.lineage.lineage import Lineage
from evergram.migration.cascade import KeptVectors
from evergram.texts.addresses import open_text_encoder
from evergram.texts.record import MismatchError, RecordedEncoder, TextEncoderRecord, open_recorded
from evergram.texts.text_encoder import (
    BusyError,
    NotFiniteError,
    Prompts,
    Role,
    TextEncoder,
    TextsFailedError,
    Vectors,
)
from evergram.tracing import span
from evergram.vector_files.open_embeddings import (
    FINGERPRINT,
    TEXT_ENCODER,
    open_embeddings,
    provenance_of,
    write_vectors,
)

log: logging.Logger = logging.getLogger("evergram.serving")
Record = TextEncoderRecord | None

OVERHEAD = 400  # bytes of a cache entry besides its text and vector: key, array header and links
LOOK = 0.5  # seconds between two tests of whether a check is due
RETRY_AFTER = 10.0  # seconds until an encoder that failed its check is tried again
# Texts per call of the encoder. Each call's vectors are kept, so a retry of a request that ran out
# of time continues where it stopped.
BATCH = 64


class VectorCache:
    """An LRU cache for vectors of texts, of at most `most` bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held: int = 0
        self._entries: OrderedDict[Hashable, tuple[Vectors, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Vectors | None:
        """Return the vector [D] of a key, or None."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Hashable, vector: Vectors, size: int) -> None:
        """Store a vector [D] under a key of `size` bytes, unless it exceeds the cache's size."""
        entry_size = size + vector.nbytes + OVERHEAD
        if entry_size > self.most:
            return
        # Copied, because a view of one row would keep the whole batch in memory.
        vector = vector.copy()
        with self._lock:
            before = self._entries.pop(key, None)
            self.held += entry_size - (0 if before is None else before[1])
            self._entries[key] = vector, entry_size
            while self.held > self.most:
                self.held -= self._entries.popitem(last=False)[1][1]


class EncoderWaitError(Exception):
    """A request needs a text encoder, but its thread may not wait for one."""


class TextEncoderError(ServiceError):
    """A version's encoder cannot be used; the message is safe for clients (no addresses)."""


class UnencodableTextError(DataError):
    """The encoder works but cannot encode `text`; None if it is unknown which of several."""

    def __init__(self, version: int, what: str, text: str | None) -> None:
        self.subject: str = f"The encoder of version {version} {what}"
        self.text: str | None = text
        super().__init__(f"{self.subject} a text; leave it out.")


class CheckedEncoder:
    """A version's text encoder, opened by `opened` and used only while it matches its record;
    `failed` is called when it fails or no longer matches. Thread-safe."""

    def __init__(
        self,
        version: int,
        record: TextEncoderRecord,
        opened: Callable[[], TextEncoder],
        failed: Callable[[], None],
    ) -> None:
        self.version: int = version
        self.record: TextEncoderRecord = record
        # Why the encoder cannot be used, for clients; None if it can.
        self.problem: str | None = f"The encoder of version {version} is not open yet."
        self._opened, self._failed = opened, failed
        self._encoder: RecordedEncoder | None = None
        self._checking = threading.Lock()
        # Identifies the encoder in cache keys; replaced when the encoder fails.
        self.key: object = object()

    def check(self) -> bool:
        """Open the encoder if needed, compare its canaries, and set or clear `problem`. Return
        whether it matches its record."""
        try:
            with self._checking, self._failures():
                if self._encoder is None:
                    self._encoder = RecordedEncoder(self._opened(), self.record)
                else:
                    self._encoder.check()
        except TextEncoderError:
            return False
        if self.problem is not None:
            log.info("The text encoder of version %d works.", self.version)
        self.problem = None
        return True

    def require(self) -> None:
        if (problem := self.problem) is not None:
            raise TextEncoderError(problem)

    def encode(self, texts: list[str], role: Role) -> Vectors:
        """Return the vectors [n, D] of texts."""
        self.require()
        assert self._encoder is not None
        with self._failures(), span("encoder", version=self.version, rows=len(texts)):
            try:
                vectors = self._encoder.encode(texts, role)
            except (DataError, TextsFailedError) as error:
                # The canaries tell whether the encoder or the text is at fault.
                self._encoder.check()
                text = texts[0] if len(texts) == 1 else None
                what = "cannot encode"
                if isinstance(error, NotFiniteError):
                    what = "gives no finite vector for"
                    text = error.text if error.text in texts else text
                else:
                    log.warning("Version %d: the encoder fails on a text. %s", self.version, error)
                raise UnencodableTextError(self.version, what, text) from error
        # A check in another thread may have failed in the meantime.
        self.require()
        return vectors

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Convert the encoder's errors in a `with` block to `problem` and a TextEncoderError."""
        try:
            yield
        except UnencodableTextError:
            raise
        except BusyError as error:
            busy = f"The encoder of version {self.version} is busy with other texts; try again."
            raise TextEncoderError(busy) from error
        except EvergramError as error:
            what = "cannot be opened" if self._encoder is None else "fails"
            if isinstance(error, MismatchError):
                what = "is not the one that the version was published with"
                if self._encoder is None:
                    what = "is not allowed by --encoder"
            problem = f"The encoder of version {self.version} {what}, so strings are not encoded."
            if self.problem != problem:
                log.error("%s %s", problem, error)
            self.problem, self.key = problem, object()
            self._failed()
            raise TextEncoderError(problem) from error


class MissingTextError(ServiceError):
    """A stored object has no text in the file of --texts."""


@dataclass
class _VersionVectors:
    """The cached vectors of a version; the first `checked` were made before a passed check."""

    fingerprint: str
    record: Record
    vectors: KeptVectors
    checked: int


class Documents:
    """Texts by id, and their vectors by version, cached after their first use. Thread-safe.

    Vectors are saved once a later check of the encoder has passed; if it fails, they are dropped.

    Args:
        path: the file of ids and texts. It is read again only if it has changed and an id is
            missing; until then, corrected texts go unnoticed. Cached vectors are not updated.
        folder: folder for saving vectors, one file per save; None keeps them in memory only.
    Raises: DataError: the file cannot be read.
    """

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        self.path: Path = path
        self.folder: Path | None = folder
        self._stamp: tuple[int, int] | None = None
        # Keys are strings, so that an integer 5 in a CSV file matches the stored id "5".
        self._texts: dict[str, str] = {}
        self._versions: dict[int, _VersionVectors] = {}
        self._lock, self._saving = threading.Lock(), threading.Lock()
        self._read()

    def texts_of(self, ids: pa.Array) -> list[str]:
        keys = [str(id_) for id_ in ids.to_pylist()]
        if not self._texts.keys() >= set(keys):
            with self._lock:
                self._read()
        texts = self._texts
        absent = next((id_ for id_ in keys if id_ not in texts), None)
        if absent is not None:
            todo = "add it, or leave 'rerank' out"
            raise MissingTextError(f"The file of --texts has no id {absent[:40]}; {todo}.")
        return [texts[id_] for id_ in keys]

    def kept(
        self,
        version: int,
        fingerprint: str,
        dim: int,
        encode: Callable[[list[str]], Vectors],
        encoder: Record = None,
    ) -> KeptVectors:
        """Return the cache of a version's vectors, with those loaded from saved files. `encode` and
        `encoder` belong to the version's model. Files that cannot be used are logged."""
        with self._lock:
            cached = self._versions.get(version)
            # A lineage restored from a backup may have published another version with this number.
            if cached is not None and cached.fingerprint == fingerprint:
                return cached.vectors
            vectors = KeptVectors(lambda ids: encode(self.texts_of(ids)), dim, BATCH)
            saved = [] if self.folder is None else self.folder.glob(f"{fingerprint[:16]}-*.parquet")
            for path in sorted(saved):
                try:
                    if open_embeddings(path).provenance.get(FINGERPRINT) != fingerprint:
                        raise DataError(f"{path} does not have version {fingerprint}.")
                    vectors.load(path)
                except EvergramError as error:
                    log.error("Saved vectors are computed again: %s", error)
            self._versions[version] = _VersionVectors(fingerprint, encoder, vectors, len(vectors))
            return vectors

    def counts(self) -> dict[int, int]:
        """Return the number of cached vectors by version."""
        with self._lock:
            return {version: len(cached.vectors) for version, cached in self._versions.items()}

    def save(self, version: int, count: int) -> None:
        """Save those of the first `count` vectors that are not saved yet. They must have been
        computed before the encoder's last check. Failures are logged."""
        with self._saving:
            cached = self._versions.get(version)
            if cached is None or count <= cached.checked:
                return
            try:
                if self.folder is not None:
                    ids, vectors = cached.vectors.rows(cached.checked, count)
                    provenance = provenance_of(cached.fingerprint, cached.fingerprint)
                    if cached.record is not None:
                        provenance[TEXT_ENCODER] = cached.record.model_dump_json()
                    self.folder.mkdir(parents=True, exist_ok=True)
                    path = self.folder / f"{cached.fingerprint[:16]}-{uuid.uuid4().hex}.parquet"
                    write_vectors(path, [(ids, torch.from_numpy(vectors))], provenance)
                cached.checked = count
            except (EvergramError, OSError) as error:
                log.error("The vectors of version %d cannot be saved: %s", version, error)

    def distrust(self, version: int) -> None:
        """Drop the vectors made since the last passed check: they may be from another encoder."""
        with self._lock:
            if version in self._versions:
                self._versions[version].vectors.drop_after(self._versions[version].checked)

    def _read(self) -> None:
        """Read the file if it has changed."""
        try:
            stat = self.path.stat()
            stamp = stat.st_mtime_ns, stat.st_size
        except OSError:
            stamp = (-1, -1)
        if stamp != self._stamp:
            ids, texts = read_texts(self.path)
            self._texts = dict(zip(map(str, ids.to_pylist()), texts, strict=True))
            self._stamp = stamp


class ServedTexts:
    """Encodes texts with the versions' text encoders while these match their records; thread-safe.

    Args:
        addresses: encoders that may be opened; "recorded" allows those that versions record, except
            `addresses.TRUSTED_ONLY`, which must be listed here.
        cache: bytes for cached vectors of recent texts.
        every: seconds between two checks of the canaries.
        limit: seconds per request. Waiting for the encoder, and a remote encoder's answer to a
            batch, may each take half of it.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        cache: int = 64 * 2**20,
        every: float = 300.0,
        documents: Documents | None = None,
        limit: float = 30.0,
    ) -> None:
        self.documents = documents
        self._addresses, self._every, self._limit = tuple(addresses), every, limit
        self._cache = VectorCache(cache)
        self._encoders: dict[int, CheckedEncoder] = {}
        # Versions with the same address and prompts share an encoder. It is freed when no version
        # uses it any more.
        self._open = WeakValueDictionary[tuple[str, Prompts], TextEncoder]()
        self._loading, self._opening = threading.Lock(), threading.Lock()
        self._checked_at = monotonic()
        self._production = 0

    @property
    def problem(self) -> str | None:
        """Why production or a later version cannot encode strings; None if all can."""
        encoders = sorted(self._encoders.items())
        problems = (e.problem for n, e in encoders if n >= self._production and e.problem)
        return next(problems, None)

    def can_encode(self, version: int) -> bool:
        """Return whether a version's own encoder is open and matches its record."""
        encoder = self._encoders.get(version)
        return encoder is not None and encoder.problem is None

    def load(self, lineage: Lineage) -> None:
        """Open and check the encoders of production and later versions; keep those of the previous
        production for requests in progress. `check` retries failures."""
        with self._loading:
            production = lineage.production
            oldest = min(self._production, production)
            encoders = {n: e for n, e in self._encoders.items() if n >= oldest}
            for manifest in lineage.versions:
                n, record = manifest.version, manifest.text_encoder
                # A lineage restored from a backup may have another version with this number.
                if n < production or (n in encoders and encoders[n].record == record):
                    continue
                encoders.pop(n, None)
                if record is not None:
                    opened = partial(open_recorded, record, self._addresses, self._shared)
                    encoders[n] = CheckedEncoder(n, record, opened, partial(self._distrust, n))
                    encoders[n].check()
            before, self._encoders, self._production = self._encoders, encoders, production
            for n, encoder in before.items():
                if encoders.get(n) is not encoder:
                    self._distrust(n)  # its new vectors will not be checked any more

    def encode(
        self,
        version: int,
        texts: Sequence[str],
        role: Role,
        record: Record = None,
        *,
        wait: bool = True,
    ) -> Vectors:
        """Return the vectors [n, D] of texts from a version's encoder, which must have the `record`
        in the caller's lineage, if given. Raises: EncoderWaitError: some texts are not in the
        cache, and `wait` is False."""
        encoder = self._encoders.get(version)
        if encoder is None:
            raise TextEncoderError(f"Version {version} records no text encoder; send ids.")
        if record is not None and encoder.record != record:
            raise TextEncoderError(f"The encoder of version {version} was replaced; try again.")
        encoder.require()
        # If the encoder fails in the meantime, its key changes and these entries are never used.
        key = encoder.key
        rows = {text: self._cache.get((key, role, text)) for text in texts}
        absent = [text for text, vector in rows.items() if vector is None]
        if absent:
            if not wait:
                raise EncoderWaitError
            for text, vector in zip(absent, encoder.encode(absent, role), strict=True):
                self._cache.put((key, role, text), vector, 4 * len(text))
                rows[text] = vector
        return np.stack([row for text in texts if (row := rows[text]) is not None])

    def is_due(self) -> bool:
        """Return whether a check is due; after a failure, checks are more frequent."""
        pause = self._every if self.problem is None else min(self._every, RETRY_AFTER)
        return monotonic() - self._checked_at >= pause

    def check_if_due(self) -> None:
        if self.is_due():
            self.check()

    def check(self) -> None:
        """Compare the canaries of all encoders, and open those that could not be opened before."""
        for encoder in self._encoders.values():
            # Count before the check: vectors made during it may be from an encoder replaced since.
            counts = {} if self.documents is None else self.documents.counts()
            if encoder.check() and self.documents is not None:
                self.documents.save(encoder.version, counts.get(encoder.version, 0))
        self._checked_at = monotonic()

    def close(self) -> None:
        """Save the cached vectors after a last check, and close all encoders."""
        if self.documents is not None and self.documents.folder is not None:
            self.check()
        for encoder in list(self._open.values()):
            encoder.close()

    def _distrust(self, version: int) -> None:
        if self.documents is not None:
            self.documents.distrust(version)

    def _shared(self, address: str, prompts: Prompts) -> TextEncoder:
        """Return the encoder with this address and prompts, opened only once."""
        with self._opening:
            encoder = self._open.get((address, prompts))
            if encoder is None:
                encoder = self._open[address, prompts] = open_text_encoder(address, prompts)
                encoder.limit = self._limit / 2
        return encoder
