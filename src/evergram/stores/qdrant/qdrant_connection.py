"""The client of a Qdrant server, or of a folder in Qdrant's local mode."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from evergram.errors import DataError, EvergramError, StoreError

KEY = "QDRANT_API_KEY"
TIMEOUT = 10  # seconds a request

# Only one client in the whole process may open a folder; all stores in it share that one.
_folders: dict[Path, tuple[Any, threading.RLock]] = {}
_users: dict[Path, int] = {}
_folders_lock = threading.Lock()


def is_url(place: str) -> bool:
    return place.startswith(("http://", "https://"))


class QdrantConnection:
    """What one store asks with.

    Args:
        place: URL of a server, or a folder.
        shown: how errors name the store.
        create: make the folder where it is not there.
    Raises: DataError: there is no such folder; the client is not installed. StoreError: it cannot
        be opened, say because another process has.
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
        self._folder: Path | None = None
        self._turn: AbstractContextManager[Any] = nullcontext()
        self.writing = threading.RLock()
        if is_url(place):
            with self.told():
                # It asks for the server's version and only warns where nobody answers.
                self._client = QdrantClient(
                    url=place,
                    api_key=os.environ.get(KEY) or None,
                    timeout=TIMEOUT,
                    check_compatibility=False,
                )
            return
        # From 20,000 points on it says that a server would be faster; so do our docs.
        warnings.filterwarnings("ignore", message="Local mode is not recommended")
        folder = Path(place).resolve()
        with _folders_lock:
            if folder not in _folders:
                if not create and not (folder / "meta.json").exists():
                    raise DataError(f"There is no store at {shown}; create it first.")
                with self.told():
                    # Its SQLite may change threads, as only one at a time has a turn.
                    client = QdrantClient(path=str(folder), force_disable_check_same_thread=True)
                _folders[folder] = client, threading.RLock()
            _users[folder] = _users.get(folder, 0) + 1
            self._client, self.writing = _folders[folder]
        self._folder = folder
        # The local mode knows nothing of threads.
        self._turn = self.writing

    def ask(self, what: str, *args: Any, **options: Any) -> Any:
        """What the client's method answers. It must be safe to ask twice: where a server that was
        restarted has cut the connection, it is.

        Raises: StoreError: there is no good answer.
        """
        from qdrant_client.http.exceptions import ResponseHandlingException

        if self._closed:
            raise StoreError(f"{self._shown} was closed; open it again.")
        question = getattr(self._client, what)
        with self.told(), self._turn:
            try:
                return question(*args, **options)
            except ResponseHandlingException as error:
                if "timed out" in str(error):
                    raise
                return question(*args, **options)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Whatever the client raises as StoreError."""
        try:
            yield
        except EvergramError:
            raise
        except Exception as error:
            said = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
            raise StoreError(
                f"{self._shown} cannot be reached, read or written: {said}."
            ) from error

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._folder is None:
            self._client.close()
            return
        with _folders_lock:
            _users[self._folder] -= 1
            if not _users[self._folder]:
                del _folders[self._folder], _users[self._folder]
                self._client.close()
