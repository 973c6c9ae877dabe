"""Strings in requests, encoded by the newest version's encoder, cached and checked; and the texts
of stored objects, with the vectors that searches had computed of them."""

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

# Bytes of an entry besides its text and its vector: key, array and links.
OVERHEAD = 400
# Seconds between two looks whether a check is due.
LOOK = 0.5
# Seconds until an encoder that failed its check is tried again.
RETRY_AFTER = 10.0
# Texts that are encoded before their vectors are kept: what a request that ran out of time had
# encoded is there for the next.
BATCH = 64


class VectorCache:
    """Vectors of recent texts, up to `most` bytes: the least recently used are dropped first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held: int = 0
        self._entries: OrderedDict[Hashable, tuple[Vectors, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Vectors | None:
        """Return the vector [D] of a key; None if it is not held."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Hashable, vector: Vectors, size: int) -> None:
        """Hold a vector [D] under a key of `size` bytes, if there is room for it at all."""
        whole = size + vector.nbytes + OVERHEAD
        if whole > self.most:
            return
        # A row of a batch would keep the whole batch in memory.
        own = vector.copy()
        with self._lock:
            before = self._entries.pop(key, None)
            self.held += whole - (0 if before is None else before[1])
            self._entries[key] = own, whole
            while self.held > self.most:
                self.held -= self._entries.popitem(last=False)[1][1]


class EncoderWaitError(Exception):
    """A request needs an encoder of text, for which its thread may not wait."""


class TextEncoderError(ServiceError):
    """A version's encoder cannot be used; the message for clients names no address."""


class UnencodableTextError(DataError):
    """The encoder works, and cannot encode a text: None where it is not known which of several."""

    def __init__(self, version: int, what: str, text: str | None) -> None:
        self.subject: str = f"The encoder of version {version} {what}"
        self.text: str | None = text
        super().__init__(f"{self.subject} a text; leave it out.")


class CheckedEncoder:
    """A version's encoder, which `opened` returns, used only while it is the recorded one; `failed`
    is called when it fails, or turns out to be another. Several threads may use one."""

    def __init__(
        self,
        version: int,
        record: TextEncoderRecord,
        opened: Callable[[], TextEncoder],
        failed: Callable[[], None],
    ) -> None:
        self.version: int = version
        self.record: TextEncoderRecord = record
        # Why it may not be used, for clients; None while it may.
        self.problem: str | None = f"The encoder of version {version} is not open yet."
        self._opened, self._failed = opened, failed
        self._encoder: RecordedEncoder | None = None
        self._checking = threading.Lock()
        # Stands for the encoder in keys of caches, until it fails.
        self.key: object = object()

    def check(self) -> bool:
        """Open the encoder if it is not open, compare its canaries, and set or lift `problem`.
        Return whether it is the recorded one."""
        try:
            with self._checking, self._failures():
                if self._encoder is None:
                    self._encoder = RecordedEncoder(self._opened(), self.record)
                else:
                    self._encoder.check()
        except TextEncoderError:
            return False
        if self.problem is not None:
            log.info("Strings are encoded by the encoder of version %d.", self.version)
        self.problem = None
        return True

    def require(self) -> None:
        """Raise the problem, if there is one."""
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
                # Whose failure it is, the encoder's or a text's, its canaries show.
                self._encoder.check()
                text = texts[0] if len(texts) == 1 else None
                what = "cannot encode"
                if isinstance(error, NotFiniteError):
                    what = "gives no finite vector for"
                    text = error.text if error.text in texts else text
                else:
                    log.warning("Version %d: the encoder fails on a text. %s", self.version, error)
                raise UnencodableTextError(self.version, what, text) from error
        # A check may have failed while the texts were encoded.
        self.require()
        return vectors

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Set `problem` to what the encoder raises in a `with` block."""
        try:
            yield
        except UnencodableTextError:
            raise
        except BusyError as error:
            busy = f"The encoder of version {self.version} is at work on other texts; try again."
            raise TextEncoderError(busy) from error
        except EvergramError as error:
            what = "cannot be opened" if self._encoder is None else "fails"
            if isinstance(error, MismatchError):
                what = "is not the one that the version was published with"
                if self._encoder is None:
                    what = "is none of those that may be opened (--encoder)"
            problem = f"The encoder of version {self.version} {what}, so strings are not encoded."
            if self.problem != problem:
                log.error("%s %s", problem, error)
            self.problem, self.key = problem, object()
            self._failed()
            raise TextEncoderError(problem) from error


class MissingTextError(ServiceError):
    """An object is stored, and its text is not among those that were given."""


@dataclass
class _Kept:
    """The kept vectors of a version. Its encoder was checked after the first `checked` of them."""

    fingerprint: str
    record: Record
    vectors: KeptVectors
    checked: int


class Documents:
    """Texts by id, and their vectors by version, kept from their first use. Threads may share one.

    Vectors are saved once a check of the encoder that came after them has passed; all others are
    dropped when a check fails.

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
        self._kept: dict[int, _Kept] = {}
        self._lock, self._saving = threading.Lock(), threading.Lock()
        self._read()

    def texts_of(self, ids: pa.Array) -> list[str]:
        """Return the texts of ids."""
        asked = [str(id_) for id_ in ids.to_pylist()]
        if not self._texts.keys() >= set(asked):
            with self._lock:
                self._read()
        texts = self._texts
        absent = next((id_ for id_ in asked if id_ not in texts), None)
        if absent is not None:
            todo = "add it to the file, or leave 'rerank' out"
            raise MissingTextError(f"The id {absent[:40]} has no text in that of --texts; {todo}.")
        return [texts[id_] for id_ in asked]

    def kept(
        self,
        version: int,
        fingerprint: str,
        dim: int,
        encode: Callable[[list[str]], Vectors],
        encoder: Record = None,
    ) -> KeptVectors:
        """Return the kept vectors of a version, with those that were saved before; `encode` and
        `encoder` are of the version's model. A file that cannot be used is logged."""
        with self._lock:
            kept = self._kept.get(version)
            # A lineage restored from a copy may have published another version under the number.
            if kept is not None and kept.fingerprint == fingerprint:
                return kept.vectors
            vectors = KeptVectors(lambda ids: encode(self.texts_of(ids)), dim, BATCH)
            saved = [] if self.folder is None else self.folder.glob(f"{fingerprint[:16]}-*.parquet")
            for path in sorted(saved):
                try:
                    if open_embeddings(path).provenance.get(FINGERPRINT) != fingerprint:
                        raise DataError(f"{path} is not of the version {fingerprint}.")
                    vectors.load(path)
                except EvergramError as error:
                    log.error("Kept vectors are computed again: %s", error)
            self._kept[version] = _Kept(fingerprint, encoder, vectors, len(vectors))
            return vectors

    def counts(self) -> dict[int, int]:
        """Return the number of kept vectors by version."""
        with self._lock:
            return {version: len(kept.vectors) for version, kept in self._kept.items()}

    def save(self, version: int, count: int) -> None:
        """Write those of the first `count` vectors that are not saved yet: the version's encoder
        was checked after they were computed. A failure is logged."""
        with self._saving:
            kept = self._kept.get(version)
            if kept is None or count <= kept.checked:
                return
            try:
                if self.folder is not None:
                    ids, vectors = kept.vectors.rows(kept.checked, count)
                    mark = provenance_of(kept.fingerprint, kept.fingerprint)
                    if kept.record is not None:
                        mark[TEXT_ENCODER] = kept.record.model_dump_json()
                    self.folder.mkdir(parents=True, exist_ok=True)
                    name = f"{kept.fingerprint[:16]}-{uuid.uuid4().hex}.parquet"
                    write_vectors(self.folder / name, [(ids, torch.from_numpy(vectors))], mark)
                kept.checked = count
            except (EvergramError, OSError) as error:
                log.error("The vectors of version %d cannot be saved: %s", version, error)

    def distrust(self, version: int) -> None:
        """Drop the vectors that no check came after: the encoder is another, or unknown."""
        with self._lock:
            if version in self._kept:
                self._kept[version].vectors.drop_after(self._kept[version].checked)

    def _read(self) -> None:
        """Read the file if it is another than the one that was read."""
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
    """Encodes texts as versions do, while their encoders are the recorded ones.

    Several threads may use one.

    Args:
        addresses: encoders that may be opened; "recorded" stands for the address that a version
            records, which is never one of `addresses.TRUSTED_ONLY`: those must be named here.
        cache: bytes of the vectors of recent texts.
        every: seconds between two checks of the canaries.
        limit: seconds in which a request must be answered. A text waits for its turn for half of
            it, and a model elsewhere has half of it for a batch.
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
        # By address and prompts: versions of the same encoder share it. One that no version uses
        # any more is freed after its last call.
        self._open = WeakValueDictionary[tuple[str, Prompts], TextEncoder]()
        self._loading, self._opening = threading.Lock(), threading.Lock()
        self._checked_at = monotonic()
        self._production = 0

    @property
    def problem(self) -> str | None:
        """Why strings cannot be encoded at production or a later version; None if they can."""
        encoders = sorted(self._encoders.items())
        problems = (e.problem for n, e in encoders if n >= self._production and e.problem)
        return next(problems, None)

    def can_encode(self, version: int) -> bool:
        """Return whether a version's own encoder is open, and is the recorded one."""
        encoder = self._encoders.get(version)
        return encoder is not None and encoder.problem is None

    def load(self, lineage: Lineage) -> None:
        """Open and check the encoders of production and of later versions; those of the production
        before stay, for requests under way. What fails is tried again by `check`."""
        with self._loading:
            production = lineage.production
            kept = min(self._production, production)
            encoders = {n: e for n, e in self._encoders.items() if n >= kept}
            for manifest in lineage.versions:
                n, record = manifest.version, manifest.text_encoder
                # A lineage restored from a copy may have published another version under a number.
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
                    self._distrust(n)  # no check will come after its vectors

    def encode(
        self,
        version: int,
        texts: Sequence[str],
        role: Role,
        record: Record = None,
        *,
        wait: bool = True,
    ) -> Vectors:
        """Return the vectors [n, D] of texts, as a version's encoder makes them. One that has
        another `record` than that of the caller's lineage is refused. Raises: EncoderWaitError: it
        must encode, and may not `wait`."""
        encoder = self._encoders.get(version)
        if encoder is None:
            raise TextEncoderError(f"Version {version} records no encoder of text; ask for ids.")
        if record is not None and encoder.record != record:
            raise TextEncoderError(f"The encoder of version {version} was replaced; try again.")
        encoder.require()
        # Where the encoder fails meanwhile, what is put under this key is not found again.
        key = encoder.key
        held = {text: self._cache.get((key, role, text)) for text in texts}
        absent = [text for text, vector in held.items() if vector is None]
        if absent:
            if not wait:
                raise EncoderWaitError
            for text, vector in zip(absent, encoder.encode(absent, role), strict=True):
                self._cache.put((key, role, text), vector, 4 * len(text))
                held[text] = vector
        return np.stack([row for text in texts if (row := held[text]) is not None])

    def is_due(self) -> bool:
        """Return whether a check is due: every so often, sooner after a failure."""
        pause = self._every if self.problem is None else min(self._every, RETRY_AFTER)
        return monotonic() - self._checked_at >= pause

    def check_if_due(self) -> None:
        if self.is_due():
            self.check()

    def check(self) -> None:
        """Compare the canaries of all encoders, and open those that could not be opened."""
        for encoder in self._encoders.values():
            # What is kept while the check runs may be of an encoder replaced after it.
            counts = {} if self.documents is None else self.documents.counts()
            if encoder.check() and self.documents is not None:
                self.documents.save(encoder.version, counts.get(encoder.version, 0))
        self._checked_at = monotonic()

    def close(self) -> None:
        """Save the kept vectors, after a last check, and release all encoders."""
        if self.documents is not None and self.documents.folder is not None:
            self.check()
        for encoder in list(self._open.values()):
            encoder.close()

    def _distrust(self, version: int) -> None:
        if self.documents is not None:
            self.documents.distrust(version)

    def _shared(self, address: str, prompts: Prompts) -> TextEncoder:
        """Return the encoder at an address with prompts, opened once."""
        with self._opening:
            encoder = self._open.get((address, prompts))
            if encoder is None:
                encoder = self._open[address, prompts] = open_text_encoder(address, prompts)
                encoder.limit = self._limit / 2
        return encoder
