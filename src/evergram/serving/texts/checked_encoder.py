"""A version's encoder of text, used only while it is the one that the version records."""

from __future__ import annotations

import logging
from collections.abc import Callable

from evergram.errors import EvergramError, ServiceError
from evergram.serving.texts.batcher import Batcher
from evergram.texts.record import TextEncoderRecord
from evergram.texts.recorded_encoder import MismatchError, RecordedEncoder
from evergram.texts.text_encoder import Role, TextEncoder, Vectors

log: logging.Logger = logging.getLogger("evergram.serving")


class TextEncoderError(ServiceError):
    """A version's encoder is not at hand, or is not the one that it was published with.

    Its message names no address: it is sent to clients.
    """


class CheckedEncoder:
    """The encoder of one version. Several threads may use one.

    Args:
        version: its number.
        record: of the encoder.
        opened: returns the recorded encoder. Raises: MismatchError: there are only others.
            EvergramError: it cannot be opened.
        failed: called when the encoder turns out to be another.
    """

    def __init__(
        self,
        version: int,
        record: TextEncoderRecord,
        opened: Callable[[TextEncoderRecord], TextEncoder],
        failed: Callable[[], None],
    ) -> None:
        self.version: int = version
        self.record: TextEncoderRecord = record
        # Why it may not be used, for clients; None while it may.
        self.problem: str | None = f"The encoder of version {version} is not open yet."
        self._opened, self._failed = opened, failed
        self._encoder: RecordedEncoder | None = None
        self._batcher: Batcher | None = None

    def check(self) -> None:
        """Open the encoder if it is not open, compare its canaries, and set or lift `problem`."""
        try:
            if self._encoder is None or self._batcher is None:
                opened = self._opened(self.record)
                self._encoder = RecordedEncoder(opened, self.record)
                self._batcher = Batcher(self._encoder.encode, self._encoder.batch)
            else:
                self._encoder.check()
        except MismatchError as error:
            self._fail("is not the one that the version was published with", str(error))
        except EvergramError as error:
            self._fail("cannot be opened or reached", str(error))
        else:
            if self.problem is not None:
                log.info("Strings are encoded by the encoder of version %d.", self.version)
            self.problem = None

    def encode(self, texts: list[str], role: Role) -> Vectors:
        """Return the vectors [n, D] of texts.

        Raises: TextEncoderError: the encoder is not at hand, or is another. DataError: a text
            cannot be encoded.
        """
        if self.problem is not None or self._batcher is None:
            raise TextEncoderError(str(self.problem))
        try:
            vectors = self._batcher.encode(texts, role)
        except MismatchError as error:
            self._fail("is not the one that the version was published with", str(error))
        except ServiceError as error:
            log.error("Version %d: %s", self.version, error)
            raise TextEncoderError(
                f"The encoder of version {self.version} cannot be reached; try again."
            ) from error
        # A check may have failed while the texts were encoded.
        if self.problem is not None:
            raise TextEncoderError(self.problem)
        return vectors

    def _fail(self, what: str, detail: str) -> None:
        problem = (
            f"The encoder of version {self.version} {what}, so strings are not encoded; ids are "
            "still read."
        )
        if self.problem != problem:
            log.error("%s %s", problem, detail)
        self.problem = problem
        self._failed()
