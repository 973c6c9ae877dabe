"""The client of a Qdrant server, or of a folder in Qdrant's local mode."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

from evergram.errors import DataError
from evergram.stores.store import errors_as_store_errors, no_store, was_closed

T = TypeVar("T")

KEY = "QDRANT_API_KEY"
TIMEOUT = 10  # seconds a request


def is_url(place: str) -> bool:
    """Say whether a place is the URL of a server; otherwise it is a folder."""
    return place.startswith(("http://", "https://"))


def is_local_mode(address: str) -> bool:
    """Return whether an address of a store is a folder of Qdrant's local mode."""
    scheme, _, place = address.partition(":")
    return scheme in ("qdrant", "qdrant-collection") and not is_url(place)


def blocks_of(items: list[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


class QdrantConnection:
    """The requests of one store.

    Args:
        place: URL of a server, or a folder.
        shown: how errors name the store.
        create: make the folder where it is not there.
    Raises: DataError: there is no such folder; the client is not installed. StoreError: it cannot
        be opened, say because another process has it open.
    """

    def __init__(self, place: str, shown: str, create: bool) -> None:
        try:
            from qdrant_client import QdrantClient
        except ImportError:
            raise DataError(
                "A store in Qdrant needs qdrant-client: pip install 'evergram[qdrant]'."
            ) from None
        self._shown = shown
        self._closed = False
        self._is_url = is_url(place)
        # A writer holds it: one at a time of this store, or of all stores in the folder.
        self.writing: threading.RLock = threading.RLock()
        self._local: LocalClient | None = None
        if self._is_url:
            with self.errors_as_store_errors():
                # It asks for the server's version and only warns where nobody answers.
                self._remote = QdrantClient(
                    url=place,
                    api_key=os.environ.get(KEY) or None,
                    timeout=TIMEOUT,
                    check_compatibility=False,
                )
            return
        folder = Path(place).resolve()
        if not create and not (folder / "meta.json").exists():
            raise no_store(shown)
        with self.errors_as_store_errors():
            self._local = LocalClient.share(folder)
        self.writing = self._local.turn

    def ask(self, method: str, *args: Any, **options: Any) -> Any:
        """Return the answer of a method of the client.

        It is called a second time if a server that was restarted has cut the connection, so calling
        it twice must be safe.

        Raises: StoreError: there is no answer, or an error.
        """
        from qdrant_client.http.exceptions import ResponseHandlingException

        if self._closed:
            raise was_closed(self._shown)
        with self.errors_as_store_errors():
            if self._local is not None:
                return self._local.ask(method, *args, **options)
            call = getattr(self._remote, method)
            try:
                return call(*args, **options)
            except ResponseHandlingException as error:
                if "timed out" in str(error):
                    raise
                return call(*args, **options)

    @contextmanager
    def errors_as_store_errors(self) -> Iterator[None]:
        """Raise every error of the client as a StoreError."""
        todo = (
            "see that the server runs at this address and is a Qdrant"
            if self._is_url
            else "see that no other process has this folder open, or give another"
        )
        with errors_as_store_errors(self._shown, todo):
            yield

    def close(self) -> None:
        """Let go of the client; closing twice is no error."""
        if self._closed:
            return
        self._closed = True
        if self._local is None:
            self._remote.close()
        else:
            self._local.release()


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
