"""The files of a lineage at an fsspec address, with every driver's error as one LineageError."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from evergram.errors import EvergramError, LineageError
from evergram.lineage.remote.addresses import filesystem
from evergram.lineage.remote.lock import NAME as LOCK
from evergram.lineage.remote.lock import remote_lock


class RemoteStorage:
    """Reads and writes files by their paths in the lineage, such as "versions/3/manifest.json".

    Args:
        address: fsspec's, such as `s3://bucket/shop`.
    Raises: LineageError: the driver of such an address is not installed.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._files, self._path = filesystem(address)

    def contents(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of files by name, without those that are not there."""
        places = {self._place(name): name for name in names}
        if not places:
            return {}
        contents = self._files.cat(list(places), on_error="return")
        for content in contents.values():
            if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                raise content
        return {places[k]: v for k, v in contents.items() if isinstance(v, bytes)}

    def content(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        return self.contents([name]).get(name)

    def folders(self, folder: str) -> set[str]:
        """Return the names in a folder."""
        # The driver's own list does not have what another machine has added since.
        self._files.invalidate_cache()
        try:
            places = self._files.ls(self._place(folder), detail=False)
        except FileNotFoundError:
            return set()
        return {place.rstrip("/").rsplit("/", 1)[-1] for place in places} - {""}

    def download(self, name: str, to: Path) -> bool:
        """Download a file; return False if there is none."""
        try:
            self._files.get_file(self._place(name), str(to))
        except FileNotFoundError:
            return False
        return True

    def write(self, name: str, content: bytes) -> None:
        """Write a file in one step."""
        self._make_folder_of(name)
        self._files.pipe_file(self._place(name), content)

    def replace(self, name: str, content: bytes) -> None:
        """Write the file by which others see a change.

        An upload may report an error after all of it has arrived, so the file is read back.

        Raises: LineageError: it was not written, or whether it was is not known.
        """
        with self.driver_errors("written"):
            try:
                self.write(name, content)
            except Exception as error:
                try:
                    arrived = self.content(name) == content
                except Exception:
                    raise LineageError(
                        f"{self.address}/{name} was being uploaded when the connection was lost "
                        f"({_sentence(error)}), and whether it arrived is not known; open the "
                        "lineage again to see."
                    ) from error
                if not arrived:
                    raise

    def upload(self, source: Path, folder: str) -> None:
        """Upload all files of a folder here, in place of what a killed upload left there.

        What is there is removed last, as a probe that is uploaded again may be in use.
        """
        with self.driver_errors("written"):
            files = {path.name: path for path in sorted(source.iterdir())}
            for name, path in files.items():
                self._make_folder_of(f"{folder}/{name}")
                self._files.put_file(str(path), self._place(f"{folder}/{name}"))
            for left in self.folders(folder) - files.keys():
                self._files.rm(self._place(f"{folder}/{left}"), recursive=True)

    def remove(self, folder: str) -> None:
        """Remove a folder; if that fails it stays, and nothing lists it."""
        with suppress(Exception):
            self._files.rm(self._place(folder), recursive=True)

    def remove_file(self, name: str) -> None:
        """Remove a file."""
        self._files.rm_file(self._place(name))

    def keep_only(self, folder: str, names: Iterable[str]) -> None:
        """Remove all folders in `folder` but these; one that cannot be removed stays."""
        kept = set(names)
        with suppress(Exception):
            for name in self.folders(folder) - kept:
                self.remove(f"{folder}/{name}")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lineage's lock; see `remote_lock`."""
        with ExitStack() as stack:
            with self.driver_errors("written"):
                self._make_folder_of(LOCK)
                stack.enter_context(remote_lock(self._files, self._path, self.address))
            yield

    @contextmanager
    def driver_errors(self, what: str) -> Iterator[None]:
        """Raise any error of a driver as a LineageError that the lineage cannot be `what`."""
        try:
            yield
        except EvergramError:
            raise
        except Exception as error:
            raise LineageError(
                f"{self.address} cannot be {what}: {_sentence(error)}; the lineage is as it was. "
                "See that its address, the key and the network are right, and try again."
            ) from error

    def _place(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _make_folder_of(self, name: str) -> None:
        """Make the folder of a file, if the storage has folders; object stores have none."""
        if not getattr(self._files, "async_impl", False):
            self._files.makedirs(self._place(name).rsplit("/", 1)[0], exist_ok=True)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
