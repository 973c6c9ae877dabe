"""The client of a Qdrant server, or of a folder in Qdrant's local mode."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evergram.errors import DataError, EvergramError, StoreError
from evergram.stores.qdrant.local_client import LocalClient

KEY = "QDRANT_API_KEY"
TIMEOUT = 10  # seconds a request


def is_url(place: str) -> bool:
    """Say whether a place is the URL of a server; otherwise it is a folder."""
    return place.startswith(("http://", "https://"))


def is_local_mode(address: str) -> bool:
    """Return whether an address of a store is a folder of Qdrant's local mode."""
    scheme, _, place = address.partition(":")
    return scheme in ("qdrant", "qdrant-collection") and not is_url(place)


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
            raise DataError(f"There is no store at {shown}; create it first.")
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
            raise StoreError(f"{self._shown} was closed; open it again.")
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
        try:
            yield
        except EvergramError:
            raise
        except Exception as error:
            sentence = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
            todo = (
                "see that the server runs at this address and is a Qdrant"
                if self._is_url
                else "see that no other process has this folder open, or give another"
            )
            raise StoreError(
                f"{self._shown} cannot be reached, read or written: {sentence}; {todo}."
            ) from error

    def close(self) -> None:
        """Let go of the client; closing twice is no error."""
        if self._closed:
            return
        self._closed = True
        if self._local is None:
            self._remote.close()
        else:
            self._local.release()
