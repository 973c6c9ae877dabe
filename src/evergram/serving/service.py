"""A served lineage: its reader and consumers, reloaded when they change, and the consistent state
of both that a request holds from start to end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from evergram.errors import EvergramError, LineageError, ServiceError
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.retrieval.reader import Reader
from evergram.retrieval.version_sidecar import SidecarFiles
from evergram.serving.dashboard import PublishedFacts, published_facts
from evergram.serving.texts import ServedTexts

log: logging.Logger = logging.getLogger("evergram.serving")

RETRY_AFTER = 10.0  # seconds until a change that could not be loaded is tried again
REMOTE_POLL = 10.0  # minimum seconds between two polls of a lineage on another machine
_RECORD, _CONSUMERS = "lineage.json", "consumers.json"
# Identifies a state of a file: if two stamps are equal, nothing was written in between.
FileStamp = tuple[object, ...]


class ChangeWatch:
    """Watches `lineage.json` and `consumers.json`, which every change of a lineage rewrites, in a
    folder or at an fsspec address such as `s3://bucket/shop`."""

    def __init__(self, place: str | Path) -> None:
        from evergram.lineage.remote import filesystem, local_folder

        folder = local_folder(place)
        # None if the lineage is on another machine.
        self.folder: Path | None = None if folder is None else folder.resolve()
        self._remote = None if folder is not None else filesystem(str(place))

    def stamps(self) -> tuple[FileStamp, FileStamp]:
        """Return the current stamps of the lineage and of its consumers."""
        return self._stamp(_RECORD), self._stamp(_CONSUMERS)

    def _stamp(self, name: str) -> FileStamp:
        """Return a file's modification time, length and inode; for a remote file, its content."""
        with suppress(FileNotFoundError):
            if self.folder is not None:
                status = (self.folder / name).stat()
                return status.st_mtime_ns, status.st_size, status.st_ino
            assert self._remote is not None
            files, path = self._remote
            files.invalidate_cache()
            return (files.cat_file(f"{path.rstrip('/')}/{name}"),)
        return ()


class SharedReader:
    """A reader shared by several requests; it is closed when the last user leaves."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        # Whether fetching a few rows is faster than handing the request to a worker thread.
        self.in_memory: bool = all(reader.store(s).kind == "snapshot" for s in reader.sides)
        self._users = 1  # the service itself
        self._lock = threading.Lock()

    @cached_property
    def published_facts(self) -> PublishedFacts:
        """The published facts, cached: the first access reads every published file."""
        return published_facts(self.reader.lineage)

    def enter(self) -> bool:
        """Add a user; return False if the reader is already closed."""
        with self._lock:
            if not self._users:
                return False
            self._users += 1
            return True

    def leave(self) -> None:
        """Remove a user, and close the reader after the last."""
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self.reader.close()


@dataclass(frozen=True)
class ServedState:
    """The state that one request sees from start to end; it then calls `leave`."""

    shared: SharedReader
    consumers: ConsumerRegistry
    tokens: bool  # whether a consumer has a token, or had one since the service started
    # Resolves names and defaults. While the stores are being filled with a new version, this is
    # still the previous lineage, but `reader` can already read the new rows.
    lineage: Lineage
    texts: ServedTexts | None = None

    @property
    def reader(self) -> Reader:
        return self.shared.reader

    def leave(self) -> None:
        self.shared.leave()


class Service:
    """A lineage that is reloaded when it changes. Thread-safe.

    Args:
        place: folder or address of the lineage.
        stores: maps a side to the address of a store; by default the lineage's snapshots.
        texts: text encoders, or None. The service closes them.
        sidecars: for reading objects as the previous version; reloaded when files in their folders
            change.
        open_reader: opens the lineage, instead of `Reader.open` on the stores.
    Raises: EvergramError: the lineage, its consumers, a store or a sidecar cannot be opened.
    """

    def __init__(
        self,
        place: str | Path,
        stores: Mapping[str, str] | None = None,
        texts: ServedTexts | None = None,
        sidecars: SidecarFiles | None = None,
        *,
        open_reader: Callable[[], Reader] | None = None,
    ) -> None:
        self._watch = ChangeWatch(place)
        # An absolute path, so that error messages are clear.
        self._place = self._watch.folder or place
        self.texts = texts
        self._sidecars = files = SidecarFiles() if sidecars is None else sidecars
        # Opens the lineage as it is on disk, and fills its stores if needed.
        self._open_reader = open_reader or partial(Reader.open, self._place, stores, sidecars=files)
        # Whether to read rows of a new version while the stores are being filled with them.
        self._reads_ahead = stores is None and open_reader is None
        # Minimum seconds between two polls.
        self.least_poll: float = REMOTE_POLL if self._watch.folder is None else 0.0
        self._refreshing = threading.Lock()
        self._reading_consumers, self._switching = threading.Lock(), threading.Lock()
        # Read stamps before content, so that a change in between is loaded at the next poll.
        self._stamps = self._read_stamps()
        self._consumers_stamp = self._stamps[1]
        self._tried_stamps: tuple[FileStamp, FileStamp] | None = None
        self._tried_at = 0.0
        consumers, shared = ConsumerRegistry.open(self._place), self._opened()
        lineage = shared.reader.lineage
        self._state = ServedState(shared, consumers, has_tokens(consumers), lineage, texts)
        # Sentences: why a change could not be loaded, and which store does not answer.
        self.problem: str | None = None
        self.store_problem: str | None = None

    def _read_stamps(self) -> tuple[FileStamp, FileStamp]:
        of_lineage, of_consumers = self._watch.stamps()
        return (*of_lineage, *self._sidecars.stamps()), of_consumers

    def enter(self) -> ServedState:
        """Return the current state; call `ServedState.leave` when done with it."""
        while True:
            state = self._state
            if state.shared.enter():
                return state
            # A reader is closed only after it has been replaced, so try again with the new one.
            if state is self._state:
                raise ServiceError("The service is closed; open it again.")

    @contextmanager
    def entered(self) -> Iterator[ServedState]:
        """Hold the current state for a `with` block."""
        state = self.enter()
        try:
            yield state
        finally:
            state.leave()

    def refresh(self) -> bool:
        """Reload the lineage and its consumers if they changed; return True if anything was loaded.

        If loading fails, log it, set `problem`, and keep serving the previous state."""
        with self._refreshing:
            try:
                stamps = self._read_stamps()
            except Exception as error:  # each remote driver has its own exceptions
                return self._failed("The lineage cannot be reached", error)
            if stamps == self._stamps and self.problem is None:
                return False
            if stamps == self._tried_stamps and time.monotonic() - self._tried_at < RETRY_AFTER:
                return False
            self._tried_stamps, self._tried_at = stamps, time.monotonic()
            return self._load(stamps)

    def refresh_consumers(self) -> None:
        """Reload only the consumers, without waiting for a `refresh` that fills stores, so that
        revoked tokens become invalid at once. `refresh` reports errors."""
        with suppress(Exception):  # each remote driver has its own exceptions
            self._load_consumers(self._watch.stamps()[1])

    def _load_consumers(self, stamp: FileStamp) -> None:
        with self._reading_consumers:
            if stamp == self._consumers_stamp:
                return
            consumers = ConsumerRegistry.open(self._place)
            with self._switching:
                # Once tokens were needed, they stay needed even if the file disappears.
                tokens = self._state.tokens or has_tokens(consumers)
                self._state = replace(self._state, consumers=consumers, tokens=tokens)
            self._consumers_stamp = stamp

    def _load(self, stamps: tuple[FileStamp, FileStamp]) -> bool:
        try:
            self._load_consumers(stamps[1])
            if stamps[0] != self._stamps[0]:
                if self._reads_ahead:
                    # The stores are filled block by block, so from the first block on they have
                    # rows of the new version, which must be readable. A LineageError means that a
                    # version with rows in the stores was withdrawn: keep the previous reader until
                    # the stores are filled.
                    with suppress(LineageError):
                        ahead = SharedReader(self._state.reader.carried(Lineage.open(self._place)))
                        self._switch(ahead, self._state.lineage)
                filled = self._opened()
                self._switch(filled, filled.reader.lineage)
        except Exception as error:  # drivers and encoder packages have their own exceptions
            return self._failed("The lineage has changed and cannot be loaded", error)
        changed = stamps != self._stamps
        self._stamps, self.problem = stamps, None
        return changed

    def _opened(self) -> SharedReader:
        """Open the lineage as it is on disk, with its encoders; on an error, close everything."""
        with ExitStack() as opened:
            shared = SharedReader(self._open_reader())
            opened.callback(shared.leave)
            if self.texts is not None:
                self.texts.load(shared.reader.lineage)
            opened.pop_all()
        return shared

    def _switch(self, shared: SharedReader, lineage: Lineage) -> None:
        """Switch to this reader; the previous one is closed after its last request."""
        with self._switching:
            before = self._state
            self._state = replace(before, shared=shared, lineage=lineage)
        before.leave()
        if lineage is not before.lineage:
            log.info("Serving %s, version %d.", lineage.name, lineage.production)

    @property
    def tokens(self) -> bool:
        """True if a consumer has a token, or had one since the service started."""
        return self._state.tokens

    @property
    def shared(self) -> SharedReader:
        """The current reader, without adding a user."""
        return self._state.shared

    @property
    def sidecar_problem_count(self) -> int:
        """How many sidecar files and folders cannot be used; the log says why."""
        return len(self._sidecars.problems)

    @property
    def problems(self) -> list[str]:
        """What could not be loaded or reached, one sentence each."""
        count = self.sidecar_problem_count
        unused = f"{count} sidecar files cannot be used; the log says why." if count else None
        of_texts = None if self.texts is None else self.texts.problem
        problems = (self.store_problem, self.problem, of_texts, unused)
        return [problem for problem in problems if problem is not None]

    @property
    def production(self) -> int:
        return self._state.lineage.production

    def check_stores(self) -> None:
        """Send each store a small request, and set `store_problem` for the first that fails."""
        with self.entered() as state:
            for side in state.reader.sides:
                try:
                    state.reader.store(side).spaces()
                except EvergramError as error:
                    if self.store_problem is None:
                        log.error("The store of side %r does not answer: %s", side, error)
                    self.store_problem = f"The store of side {side!r} does not answer."
                    return
        self.store_problem = None

    def close(self) -> None:
        """Close the text encoders, and the reader after its last request."""
        self._state.leave()
        if self.texts is not None:
            self.texts.close()

    def _failed(self, what: str, error: Exception) -> bool:
        """Set and log `problem`, unexpected errors with a traceback. Return False."""
        problem = f"{what} ({type(error).__name__}); still serving version {self.production}."
        if self.problem != problem:
            expected = isinstance(error, EvergramError | OSError)
            log.error("%s %s", problem, error, exc_info=None if expected else error)
        self.problem = problem
        return False


def has_tokens(consumers: ConsumerRegistry) -> bool:
    return any(consumer.token_sha256 for consumer in consumers.list())
