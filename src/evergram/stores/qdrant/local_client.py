"""The one client of a folder in Qdrant's local mode, which the stores of a process share."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary


class LocalClient:
    """A client of a folder; it lives as long as a store uses it.

    Qdrant lets one client a process open a folder, so a second store in the folder shares the
    client of the first. The class finds a living client by its folder and keeps none alive.

    Args:
        folder: resolved.
    Raises: the errors of qdrant-client, say because another process has the folder open.
    """

    _living: ClassVar[WeakValueDictionary[Path, LocalClient]] = WeakValueDictionary()
    _opening: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, folder: Path) -> None:
        from qdrant_client import QdrantClient

        # The local mode knows nothing of threads: one at a time has the turn.
        self.turn: threading.RLock = threading.RLock()
        self._users = 0
        with _without_advice():
            # Its SQLite may change threads, as only one at a time has the turn.
            self._client = QdrantClient(path=str(folder), force_disable_check_same_thread=True)

    @classmethod
    def share(cls, folder: Path) -> LocalClient:
        """Return the client of a folder, opened unless another store has; `release` it."""
        with cls._opening:
            client = cls._living.get(folder)
            if client is None or not client._users:
                client = cls._living[folder] = cls(folder)
            client._users += 1
            return client

    def release(self) -> None:
        """Close the client when the last of its stores releases it."""
        with self._opening:
            self._users -= 1
            if not self._users:
                self._client.close()

    def ask(self, method: str, *args: Any, **options: Any) -> Any:
        """Return the answer of the client's method."""
        call = getattr(self._client, method)
        # Filters of warnings cost a tenth of a small search, and only writing gives advice.
        with self.turn, _without_advice() if method == "upsert" else nullcontext():
            return call(*args, **options)


@contextmanager
def _without_advice() -> Iterator[None]:
    """From 20,000 points on the client warns that a server would be faster; so do our documents."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Local mode is not recommended")
        yield
