"""The files of a lineage at an fsspec address, with every driver's error as one LineageError."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

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
        # Refuses to go on where the lock that `locked` holds is another's by now.
        self._check_lock: Callable[[], None] = lambda: None

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

    def replace(self, name: str, content: bytes, before: bytes | None) -> None:
        """Write the file by which others see a change, if it is still what it was.

        Storage of S3 compares it in the same step (If-Match, If-None-Match); on another one it is
        read just before. An upload may report an error after all of it has arrived, so the file is
        read back.

        Args:
            before: its content when the lock was taken; None if there was no file.
        Raises: LineageError: it was not written, or whether it was is not known; or another process
            has written it.
        """
        with self.driver_errors("written"):
            self._check_lock()
            condition = self._condition(name)
            if self.content(name) != before:
                raise self._changed(name)
            try:
                self._make_folder_of(name)
                self._files.pipe_file(self._place(name), content, **condition)
            except Exception as error:
                try:
                    arrived = self.content(name) == content
                except Exception:
                    raise LineageError(
                        f"{self.address}/{name} was being uploaded when the connection was lost "
                        f"({_sentence(error)}), and whether it arrived is not known; open the "
                        "lineage again to see."
                    ) from error
                # Two publishers of one number write the same record.
                self._check_lock()
                if not arrived:
                    if self.content(name) != before:
                        raise self._changed(name) from error
                    raise

    def upload(self, source: Path, folder: str) -> None:
        """Upload all files of a folder here, in place of what a killed upload left there, and of
        nothing that another process has put there since.

        What is there is removed last, as a probe that is uploaded again may be in use.
        """
        with self.driver_errors("written"):
            files = {path.name: path for path in sorted(source.iterdir())}
            left = self.folders(folder)
            conditions = {name: self._condition(f"{folder}/{name}") for name in files}
            for name, path in files.items():
                self._check_lock()
                where = f"{folder}/{name}"
                self._make_folder_of(where)
                options = conditions[name]
                if "IfMatch" in options:
                    # In one request, as the driver drops the condition of several.
                    options["chunksize"] = path.stat().st_size + 1
                try:
                    self._files.put_file(str(path), self._place(where), **options)
                except Exception as error:
                    # A driver tries again, and then finds what it has written.
                    if self.content(where) != path.read_bytes():
                        self._check_lock()
                        raise error
            for name in left - files.keys():
                self._check_lock()
                self._files.rm(self._place(f"{folder}/{name}"), recursive=True)

    def remove(self, folder: str) -> None:
        """Remove a folder; if that fails, or the lock is another's by now, it stays, and nothing
        lists it."""
        with suppress(Exception):
            # Just before it, as no driver removes on a condition.
            self._check_lock()
            self._files.rm(self._place(folder), recursive=True)

    def remove_file(self, name: str) -> None:
        """Remove a file."""
        self._check_lock()
        self._files.rm_file(self._place(name))

    def keep_only(self, folder: str, names: Iterable[str]) -> None:
        """Remove all folders in `folder` but these; one that cannot be removed stays, and so do all
        if the lock is another's by now, which may have put them there."""
        kept = set(names)
        with suppress(Exception):
            others = self.folders(folder) - kept
            for name in others:
                self.remove(f"{folder}/{name}")

    @contextmanager
    def locked(self, kept: Path) -> Iterator[None]:
        """Hold the lineage's lock; see `remote_lock`."""
        with ExitStack() as stack:
            with self.driver_errors("written"):
                self._make_folder_of(LOCK)
                lock = remote_lock(self._files, self._path, self.address, kept)
                self._check_lock = stack.enter_context(lock)
            try:
                yield
            finally:
                self._check_lock = lambda: None

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

    def _condition(self, name: str) -> dict[str, Any]:
        """Return what has a driver write a file only if it is as it is now."""
        self._files.invalidate_cache()
        try:
            tag = self._files.info(self._place(name)).get("ETag")
        except FileNotFoundError:
            return {"mode": "create"}
        # Drivers of other storage than S3 have no such condition.
        return {} if tag is None else {"IfMatch": tag}

    def _changed(self, name: str) -> LineageError:
        return LineageError(
            f"Another process has written {self.address}/{name} meanwhile; nothing was changed. "
            "Open the lineage again, and run the command again."
        )

    def _place(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _make_folder_of(self, name: str) -> None:
        """Make the folder of a file, if the storage has folders; object stores have none."""
        if not getattr(self._files, "async_impl", False):
            self._files.makedirs(self._place(name).rsplit("/", 1)[0], exist_ok=True)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
