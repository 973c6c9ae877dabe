"""What is served: a reader and the consumers, taken up anew when the lineage changes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from evergram.errors import EvergramError, LineageError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.retrieval.reader import Reader
from evergram.serving.change_watch import Mark, Watch
from evergram.serving.dashboard.data import Diagnosis, diagnose
from evergram.serving.feature_encoders import Encoders

log = logging.getLogger("evergram.serving")

# Seconds after which something that could not be taken up is tried again.
AGAIN = 10.0
# Kinds of stores whose rows are in this machine's memory.
_AT_HAND = ("snapshot",)
# An address elsewhere is asked no more often than this.
REMOTE_POLL = 10.0


class Opened:
    """A reader, and how many requests are on it: it is closed after the last one."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.encoders = Encoders(reader.lineage)
        # Whether rows are read without asking another process.
        self.at_hand = all(reader.store(side).kind in _AT_HAND for side in reader.sides)
        self._users = 1  # the service itself
        self._lock = threading.Lock()
        self._diagnosing = threading.Lock()
        self._diagnosis: Diagnosis | None = None

    def diagnosis(self) -> Diagnosis:
        """What is known of the chain, found once: every published file is read for it."""
        with self._diagnosing:
            if self._diagnosis is None:
                self._diagnosis = diagnose(self.reader.lineage)
            return self._diagnosis

    def enter(self) -> bool:
        """Whether it was still open."""
        with self._lock:
            if not self._users:
                return False
            self._users += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self.reader.close()


@dataclass(frozen=True)
class State:
    """What one request sees from its start to its end.

    Args:
        tokens: whether a consumer has a token, or had one since the service started.
        lineage: what names and defaults are looked up in. While the stores are being brought to a
            new version, it is still the one before: the reader knows the new rows already.
    """

    opened: Opened
    roll: ConsumerRegistry
    tokens: bool
    lineage: Lineage

    @property
    def reader(self) -> Reader:
        return self.opened.reader

    def leave(self) -> None:
        self.opened.leave()


class Service:
    """A lineage as it is now. Several threads may use one.

    Args:
        open_reader: opens the lineage as it is on disk, with its stores, which it may first have
            to fill.
        open_roll: reads its consumers.
        look: marks of both, see `Watch.look`.
        read_on: opens the same, but leaves the stores of an open reader as they are.
        filling: what `open_reader` keeps of the stores that it fills: by side the version, and how
            many rows are written, of how many.
    Raises: EvergramError: it cannot be opened.
    """

    def __init__(
        self,
        open_reader: Callable[[], Reader],
        open_roll: Callable[[], ConsumerRegistry],
        look: Callable[[], tuple[Mark, Mark]],
        *,
        read_on: Callable[[Reader], Reader] | None = None,
        least_poll: float = 0.0,
        filling: Mapping[str, tuple[int, int, int]] | None = None,
    ) -> None:
        self.filling = {} if filling is None else filling
        self._open_reader, self._open_roll, self._look = open_reader, open_roll, look
        self._read_on = read_on
        self.least_poll = least_poll
        self._refreshing = threading.Lock()
        self._reading_roll, self._switching = threading.Lock(), threading.Lock()
        self._marks = look()
        self._roll_mark = self._marks[1]
        self._tried_marks: tuple[Mark, Mark] | None = None
        self._tried = 0.0
        roll, opened = open_roll(), Opened(open_reader())
        self._state = State(opened, roll, has_tokens(roll), opened.reader.lineage)
        # Why a change could not be taken up, and which store does not answer.
        self.problem: str | None = None
        self.store_problem: str | None = None

    @classmethod
    def open(cls, place: str | Path, stores: Mapping[str, str] | None = None) -> Self:
        """The lineage in a folder or at an address.

        Args:
            stores: side to address; by default the lineage's own snapshots.
        Raises: EvergramError: it cannot be opened.
        """
        watch = Watch(place)
        # Its whole path, so that it is known where an error names it.
        where = place if watch.folder is None else watch.folder

        def read_on(before: Reader) -> Reader:
            return before.carried(Lineage.open(where))

        filling: dict[str, tuple[int, int, int]] = {}

        def progress(side: str, version: int, done: int, total: int) -> None:
            filling[side] = version, done, total

        def open_reader() -> Reader:
            try:
                return Reader.open(where, stores, progress)
            finally:
                filling.clear()

        return cls(
            open_reader,
            lambda: ConsumerRegistry.open(where),
            watch.look,
            read_on=read_on if stores is None else None,
            least_poll=REMOTE_POLL if watch.folder is None else 0.0,
            filling=filling,
        )

    def enter(self) -> State:
        """The state of now; `State.leave` when done."""
        while True:
            state = self._state
            if state.opened.enter():
                return state

    @contextmanager
    def entered(self) -> Iterator[State]:
        state = self.enter()
        try:
            yield state
        finally:
            state.leave()

    def refresh(self) -> bool:
        """Take up what has changed. Returns: whether anything was.

        What cannot be opened is logged and said in `problem`; what was served goes on.
        """
        with self._refreshing:
            try:
                marks = self._look()
            except Exception as error:  # whatever a driver raises
                return self._failed("The lineage cannot be reached", error)
            if marks == self._marks and self.problem is None:
                return False
            if marks == self._tried_marks and time.monotonic() - self._tried < AGAIN:
                return False
            self._tried_marks, self._tried = marks, time.monotonic()
            return self._take_up(marks)

    def refresh_roll(self) -> bool:
        """Take up what has changed of the consumers alone, also while `refresh` fills stores: a
        token that was taken back must not be good until they are full. Returns: whether it was.

        What cannot be read is left to `refresh` to report.
        """
        try:
            return self._take_up_roll(self._look()[1])
        except Exception:  # whatever a driver raises
            return False

    def _take_up_roll(self, mark: Mark) -> bool:
        with self._reading_roll:
            if mark == self._roll_mark:
                return False
            roll = self._open_roll()
            with self._switching:
                # Who asked for tokens once does not stop because a file is gone.
                tokens = self._state.tokens or has_tokens(roll)
                self._state = replace(self._state, roll=roll, tokens=tokens)
            self._roll_mark = mark
            return True

    def _take_up(self, marks: tuple[Mark, Mark]) -> bool:
        try:
            self._take_up_roll(marks[1])
            if marks[0] != self._marks[0]:
                if self._read_on is not None:
                    # Rows of the new version will come into the stores one block after the other.
                    # Where a version with rows in them was withdrawn, what was served goes on.
                    with suppress(LineageError):
                        self._switch(Opened(self._read_on(self._state.reader)), self._state.lineage)
                ready = Opened(self._open_reader())
                self._switch(ready, ready.reader.lineage)
        except (EvergramError, OSError) as error:
            return self._failed("The lineage has changed and cannot be taken up", error)
        changed = marks != self._marks
        self._marks, self.problem = marks, None
        return changed

    def _switch(self, opened: Opened, lineage: Lineage) -> None:
        """Serve this from now on; what was served is closed after its last request."""
        with self._switching:
            before = self._state
            self._state = replace(before, opened=opened, lineage=lineage)
        before.leave()
        if lineage is not before.lineage:
            log.info("Serving %s, version %d.", lineage.name, lineage.production)
            log.info("%s", checked_sentence(self.files()))

    @property
    def tokens(self) -> bool:
        """Whether a consumer has a token, or had one since the service started."""
        return self._state.tokens

    @property
    def opened(self) -> Opened:
        """What is served now, without entering it."""
        return self._state.opened

    @property
    def production(self) -> int:
        return self._state.lineage.production

    def files(self) -> dict[str, bool]:
        """Return the published files of all versions: whether each was compared with its hash."""
        with self.entered() as state:
            lineage = state.reader.lineage
            numbers = [m.version for m in lineage.versions]
            return {k: v for n in numbers for k, v in lineage.files(n).items()}

    def check_stores(self) -> None:
        """Ask each store something small, for `store_problem`."""
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
        """Close the reader after the last request."""
        self._state.leave()

    def _failed(self, what: str, error: Exception) -> bool:
        said = f"{what} ({type(error).__name__}); version {self.production} is served on."
        if self.problem != said:
            log.error("%s %s", said, error)
        self.problem = said
        return False


def checked_sentence(files: Mapping[str, bool]) -> str:
    """Say which published files were compared with their hashes, and how many were not yet.

    Args:
        files: see `Service.files`.
    """
    done = [name for name, checked in files.items() if checked]
    said = f"Compared with the hashes of their publication: {', '.join(done) or 'no file'}"
    if len(done) == len(files):
        return f"{said}; these are all."
    return f"{said}. The other {len(files) - len(done)} are compared when they are first read."


def has_tokens(roll: ConsumerRegistry) -> bool:
    """Whether a consumer has one."""
    return any(consumer.token_sha256 for consumer in roll.list())
