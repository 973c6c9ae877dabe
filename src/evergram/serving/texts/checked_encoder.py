"""A version's encoder of text, used only while it works and is the one that the version records."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evergram.errors import DataError, EvergramError, ServiceError
from evergram.serving.texts.batcher import Batcher, CrowdedError
from evergram.texts.record import TextEncoderRecord, prompts_of
from evergram.texts.recorded_encoder import MismatchError, RecordedEncoder
from evergram.texts.text_encoder import (
    NotFiniteError,
    Role,
    TextEncoder,
    TextsFailedError,
    Vectors,
)

log: logging.Logger = logging.getLogger("evergram.serving")


class TextEncoderError(ServiceError):
    """A version's encoder is not at hand, or is not the one that it was published with.

    Its message names no address: it is sent to clients.
    """


class UnencodableTextError(DataError):
    """The encoder works, and cannot encode a text. Its message names no address.

    Args:
        version: of the encoder.
        what: what it does not do, before "the text".
        text: the text; None where it is one of several and not known which.
    """

    def __init__(self, version: int, what: str, text: str | None) -> None:
        self.subject: str = f"The encoder of version {version} {what}"
        self.text: str | None = text
        super().__init__(f"{self.subject} a text; leave it out.")


class CheckedEncoder:
    """The encoder of one version. Several threads may use one.

    Once it is retired it takes no new calls, and `close` may be called when it `is_idle`.

    Args:
        version: its number.
        record: of the encoder.
        opened: returns the recorded encoder. Raises: MismatchError: there are only others.
            EvergramError: it cannot be opened.
        failed: called when the encoder fails, or turns out to be another.
        limit: seconds that one call of the encoder may take; one that takes longer hangs.
    """

    def __init__(
        self,
        version: int,
        record: TextEncoderRecord,
        opened: Callable[[TextEncoderRecord], TextEncoder],
        failed: Callable[[], None],
        limit: float = 30.0,
    ) -> None:
        self.version: int = version
        self.record: TextEncoderRecord = record
        # Why it may not be used, for clients; None while it may.
        self.problem: str | None = f"The encoder of version {version} is not open yet."
        self._opened, self._failed, self._limit = opened, failed, limit
        self._encoder: RecordedEncoder | None = None
        self._batcher: Batcher | None = None
        self._checking, self._counting = threading.Lock(), threading.Lock()
        self._calls, self._retired = 0, False
        # Stands for the encoder in keys of caches, which must not keep its model in memory.
        self.key: object = object()

    def check(self) -> bool:
        """Open the encoder if it is not open, compare its canaries, and set or lift `problem`.

        Returns: whether it is the recorded one. False also where a call keeps it from being
        compared, which is a problem if that call hangs.
        """
        try:
            with self._called():
                if not self._checking.acquire(timeout=self._limit):
                    return False
                try:
                    return self._compare()
                finally:
                    self._checking.release()
        except TextEncoderError:  # retired
            return False

    def look(self) -> None:
        """Set `problem` if a call of the encoder hangs. Never waits for it."""
        own = self._encoder
        if self.problem is None and own is not None and own.encoder.busy > self._limit:
            seconds = f"{self._limit:g} seconds"
            self._fail("does not answer", f"One call has lasted for more than {seconds}.")

    def require(self) -> None:
        """Raise the problem, if there is one. Raises: TextEncoderError."""
        problem = self.problem
        if problem is not None:
            raise TextEncoderError(problem)

    def encode(self, texts: list[str], role: Role) -> Vectors:
        """Return the vectors [n, D] of texts.

        Raises: TextEncoderError: the encoder fails, is not at hand, or is another.
            UnencodableTextError: it works, and cannot encode one of the texts.
        """
        self.require()
        with self._called():
            assert self._batcher is not None
            try:
                vectors = self._batcher.encode(texts, role)
            except CrowdedError as error:
                raise TextEncoderError(
                    f"The encoder of version {self.version} is at work on other texts; try again."
                ) from error
        # A check may have failed while the texts were encoded.
        self.require()
        return vectors

    def retire(self) -> None:
        """Take no new calls; those under way end as they began."""
        with self._counting:
            self._retired = True

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way, or waits for its turn."""
        return not self._calls

    def may_use(self, encoder: TextEncoder) -> bool:
        """Return whether it encodes with an open encoder, or might once it is open itself."""
        own = self._encoder
        if own is None:
            return prompts_of(self.record) == encoder.prompts
        return own.encoder is encoder

    def close(self) -> None:
        """Let go of the encoder, which others may share. It is retired, and idle."""
        self._encoder = self._batcher = None

    @contextmanager
    def _called(self) -> Iterator[None]:
        """Count a call for a `with` block. Raises: TextEncoderError: it is retired."""
        with self._counting:
            if self._retired:
                raise replaced_error(self.version)
            self._calls += 1
        try:
            yield
        finally:
            with self._counting:
                self._calls -= 1

    def _compare(self) -> bool:
        if self._encoder is not None and not self._encoder.encoder.is_free(self._limit):
            self.look()
            return False
        try:
            with self._failures():
                if self._encoder is None:
                    recorded = RecordedEncoder(self._opened(self.record), self.record)
                    self._batcher = Batcher(self._encode, recorded.batch, self._limit)
                    self._encoder = recorded
                else:
                    self._encoder.check()
        except TextEncoderError:
            return False
        if self.problem is not None:
            log.info("Strings are encoded by the encoder of version %d.", self.version)
        self.problem = None
        return True

    def _encode(self, texts: list[str], role: Role) -> Vectors:
        """Return the vectors of a batch. Raises: as `encode`."""
        # It may have failed since these texts began to wait.
        self.require()
        assert self._encoder is not None
        with self._failures():
            try:
                return self._encoder.encode(texts, role)
            except (DataError, TextsFailedError) as error:
                # Whose failure it is, the encoder's or a text's, its canaries show.
                self._encoder.check()
                failure = error
        raise self._unencodable(texts, failure) from failure

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Set `problem` to what the encoder raises in a `with` block. Raises: TextEncoderError."""
        try:
            yield
        except MismatchError as error:
            what = "is not the one that the version was published with"
            if self._encoder is None:
                what = "is none of those that may be opened (--encoder)"
            raise self._fail(what, str(error)) from error
        except EvergramError as error:
            what = "cannot be opened" if self._encoder is None else "fails"
            raise self._fail(what, str(error)) from error

    def _unencodable(self, texts: list[str], error: EvergramError) -> UnencodableTextError:
        only = texts[0] if len(texts) == 1 else None
        if isinstance(error, NotFiniteError):
            text = error.text if error.text in texts else only
            return UnencodableTextError(self.version, "gives no finite vector for", text)
        log.warning("Version %d: the encoder fails on a text alone. %s", self.version, error)
        return UnencodableTextError(self.version, "cannot encode", only)

    def _fail(self, what: str, detail: str) -> TextEncoderError:
        """Set `problem`, log it once, and return it as an error."""
        problem = (
            f"The encoder of version {self.version} {what}, so strings are not encoded; ids are "
            "still read."
        )
        if self.problem != problem:
            log.error("%s %s", problem, detail)
        self.problem = problem
        self._failed()
        return TextEncoderError(problem)


def replaced_error(version: int) -> TextEncoderError:
    """Return the error of a call that comes after its encoder was replaced."""
    return TextEncoderError(
        f"The encoder of version {version} was replaced in the meantime; try again."
    )
