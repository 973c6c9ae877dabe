"""The state of a service that a request holds from its start to its end."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.retrieval.reader import Reader
from evergram.serving.dashboard.data import PublishedFacts, published_facts
from evergram.serving.feature_encoders import FeatureEncoders
from evergram.serving.texts.served_texts import ServedTexts

# Kinds of stores whose rows are in this process's memory.
_IN_MEMORY = ("snapshot",)


class SharedReader:
    """A reader that several requests use at once; it is closed after the last one."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.encoders: FeatureEncoders = FeatureEncoders(reader.lineage)
        # Whether rows are read without asking another process.
        self.in_memory: bool = all(reader.store(side).kind in _IN_MEMORY for side in reader.sides)
        self._users = 1  # the service itself
        self._lock = threading.Lock()
        self._reading_facts = threading.Lock()
        self._facts: PublishedFacts | None = None

    def published_facts(self) -> PublishedFacts:
        """Return the published facts. Only the first call reads them, from every published file."""
        with self._reading_facts:
            if self._facts is None:
                self._facts = published_facts(self.reader.lineage)
            return self._facts

    def enter(self) -> bool:
        """Count one more user. Returns: False where the reader is closed already."""
        with self._lock:
            if not self._users:
                return False
            self._users += 1
            return True

    def leave(self) -> None:
        """Count one user less, and close the reader after the last."""
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self.reader.close()


@dataclass(frozen=True)
class ServedState:
    """The state that one request sees from its start to its end.

    Args:
        shared: the reader, which stays open until `leave`.
        consumers: who may read which version.
        tokens: whether a consumer has a token, or had one since the service started.
        lineage: where names and defaults are looked up. While the stores are being filled with a
            new version it is still the one before, and `reader` knows the new rows already.
        texts: encoders of text; None where the service was started without any.
    """

    shared: SharedReader
    consumers: ConsumerRegistry
    tokens: bool
    lineage: Lineage
    texts: ServedTexts | None = None

    @property
    def reader(self) -> Reader:
        return self.shared.reader

    def leave(self) -> None:
        self.shared.leave()
