"""Vectors of the texts that were asked for last, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

from evergram.texts.text_encoder import Vectors

# Bytes of an entry beside its text and its vector: key, array and links.
OVERHEAD = 400


class VectorCache:
    """The least recently used entries are dropped first. Several threads may use one.

    Args:
        most: bytes of all entries; 0 keeps none.
    """

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
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, vector: Vectors, size: int) -> None:
        """Hold a vector [D].

        Args:
            size: bytes of the key.
        """
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

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._entries.clear()
            self.held = 0
