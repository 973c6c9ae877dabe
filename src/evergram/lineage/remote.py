"""A lineage at an fsspec address such as `s3://bucket/shop`, and its local mirror."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import platformdirs
from filelock import Timeout

from evergram.atomic_files import (
    file_lock,
    make_folder,
    mirror_content,
    replacing_path,
    write_bytes,
)
from evergram.errors import EvergramError, IntegrityError, LineageError, clause_of
from evergram.lineage.record import sha256

_ADDRESS = re.compile(r"[a-z][a-z0-9+.\-]*(::[a-z][a-z0-9+.\-]*)*://", re.IGNORECASE)
LOCK = "publishing.lock"
RECORD, CONSUMERS = "lineage.json", "consumers.json"
# Files that are downloaded when first read instead of when the lineage is opened.
LARGE = ("encoder.safetensors", "vocabularies.parquet", "trained_pairs.parquet")


def local_folder(place: str | Path) -> Path | None:
    """Return the folder of a path or a `file:///…` address; None for addresses such as
    `s3://bucket/shop`."""
    text = str(place)
    if isinstance(place, Path) or not _ADDRESS.match(text):
        return Path(place)
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise LineageError(f"{text} is not a valid address: {str(error).rstrip('.')}.") from None
    if parts.scheme.lower() not in ("file", "local"):  # fsspec's names for the local disk
        return None
    if parts.netloc not in ("", "localhost"):
        todo = f"write {parts.scheme}:///FOLDER for a folder of this machine"
        raise LineageError(f"{text} names the host {parts.netloc!r}; {todo}.")
    return Path(unquote(parts.path))


def filesystem(address: str) -> tuple[Any, str]:
    """Return the fsspec filesystem of an address, and the path in it."""
    # Skip the host, which may be an IPv6 address in brackets. HTTP addresses may have a query.
    path = address.partition("://")[2].partition("/")[2]
    if wild := sorted(set(path) & set("*[]" if address.startswith("http") else "*?[]")):
        what = f"{' and '.join(wild)}, which are wildcards in addresses"
        raise LineageError(f"{address} has {what}; give the lineage another name.")
    try:
        import fsspec
    except ImportError:
        raise LineageError(f"{address} needs fsspec: pip install 'evergram[remote]'.") from None
    try:
        files, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise LineageError(f"{address} cannot be opened: {clause_of(error)}.") from error
    return files, str(path)


def cache_folder() -> Path:
    """Return the cache folder: $EVERGRAM_CACHE, or else the platform's default."""
    if chosen := os.environ.get("EVERGRAM_CACHE"):
        return Path(chosen).expanduser()
    return platformdirs.user_cache_path("evergram", appauthor=False)


def describe_process(content: bytes | None) -> str:
    """Describe the process that wrote the content of a lock."""
    try:
        return "{owner} on {host} (process {process}) since {since}".format(
            **json.loads(content or b"")
        )
    except (ValueError, KeyError, TypeError):
        return "an unknown process"


class Remote:
    """The remote storage of a lineage. File names are relative, like "versions/3/manifest.json".

    Published files never change: each is downloaded once to the mirror, and its hash is verified.
    A new version is first written to the mirror and then uploaded, `lineage.json` last: this upload
    makes it visible to others.

    Before each change, the lock is compared with what this process wrote, as someone may have
    deleted it while this process was suspended. On S3, each upload also has a condition (If-Match,
    If-None-Match); on other storage, the file is read just before.

    Attributes:
        folder: the mirror.
        consumers: the text of `consumers.json` at the last `pull`; None if there was none.
    """

    def __init__(self, address: str) -> None:
        self.address: str = address.rstrip("/")
        digest = hashlib.sha256(self.address.encode()).hexdigest()
        self.folder: Path = cache_folder() / "lineages" / digest
        self.consumers: str | None = None
        self._files, self._path = filesystem(self.address)
        # The last content of `lineage.json`, and this process's lock while it holds one.
        self._seen: bytes | None = None
        self._held: bytes | None = None

    # The mirror.

    def pull(self) -> str | None:
        """Download all small files. Returns: the text of `lineage.json`; None if there is none."""
        with self._driver_errors("read"):
            contents = self._contents([RECORD, CONSUMERS])
            self._seen = contents.get(RECORD)
            consumers = contents.get(CONSUMERS)
            self.consumers = None if consumers is None else consumers.decode(errors="replace")
            make_folder(self.folder)
            self._pull_versions()
            self._mirror_embeddings(remove=False)
        lock = file_lock(self.folder / ".lock", timeout=0)
        # If another process holds the lock, it is publishing, and writes these files itself.
        with suppress(Timeout), lock, self._driver_errors("read"):
            for name in (RECORD, CONSUMERS):
                mirror_content(self.folder / name, contents.get(name))
            self._mirror_embeddings(remove=True)
        return None if self._seen is None else self._seen.decode(errors="replace")

    def check_files(self, folder: Path, hashes: Mapping[str, str]) -> None:
        """Download files (by name, with their SHA-256) into a folder of the mirror, unless they are
        there with the right hash."""
        for name, digest in hashes.items():
            path = folder / name
            if path.is_file() and sha256(path) == digest:
                continue
            where = path.relative_to(self.folder).as_posix()
            if name != Path(name).name or ".." in Path(where).parts:
                outside = f"the file {where!r}, which is outside of its folder"
                raise IntegrityError(f"{self.address} names {outside}; restore it from a copy.")
            with self._driver_errors("read"):
                folder.mkdir(parents=True, exist_ok=True)
                with replacing_path(path, owner=f".{os.getpid()}") as download:
                    try:
                        self._files.get_file(self._path_of(where), str(download))
                        valid = sha256(download) == digest
                    except FileNotFoundError:
                        if self._content(RECORD) != self._seen:
                            changed = "has changed since it was opened; open it again"
                            raise LineageError(f"{self.address} {changed}.") from None
                        valid = False
                    if not valid:
                        wrong = "is missing or differs from the published file (by its SHA-256)"
                        raise IntegrityError(f"{self.address}/{where} {wrong}; restore it.")

    def _pull_versions(self) -> None:
        """Download all manifests, and the small files they list that the mirror lacks."""
        folders = {f"versions/{n}/manifest.json": f"versions/{n}" for n in _versions(self._seen)}
        manifests = self._contents(list(folders))
        missing = []
        for name, folder in folders.items():
            mirror_content(self.folder / name, manifests.get(name))
            try:
                listed = list(json.loads(manifests.get(name, b"{}")).get("files", {}))
            except (ValueError, AttributeError):
                # The manifest is damaged; reading it later raises the error.
                continue
            # Ignore paths, which could be written outside of the version's folder.
            safe = [file for file in listed if file == Path(file).name]
            small = [f"{folder}/{file}" for file in safe if file not in LARGE]
            missing += [file for file in small if not (self.folder / file).is_file()]
        for name, content in self._contents(missing).items():
            mirror_content(self.folder / name, content)

    def _mirror_embeddings(self, *, remove: bool) -> None:
        """Create a folder for each version with stored embeddings, filled when these are read; with
        `remove`, delete the folders of other versions."""
        parent = self.folder / "embeddings"
        names = {name for name in self._folders("embeddings") if name.isdecimal()}
        for name in names:
            (parent / name).mkdir(parents=True, exist_ok=True)
        for path in parent.glob("*"):
            if remove and path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    # Changes.

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the lock, with the current `lineage.json` in the mirror; see `commit`."""
        with self.locked():
            with self._driver_errors("read"):
                self._seen = self._content(RECORD)
                self._mirror_embeddings(remove=True)
            # A killed publication may have left a record in the mirror that was never uploaded.
            with self._restored(RECORD, lambda: self._seen):
                yield

    def commit(self) -> None:
        """Upload the versions that are new in the mirror's `lineage.json`, and then that file."""
        record = (self.folder / RECORD).read_bytes()
        for n in sorted(_versions(record) - _versions(self._seen)):
            self.upload(f"embeddings/{n}")
            self.upload(f"versions/{n}")
        self.replace(RECORD, record, self._seen)
        self._seen = record

    @contextmanager
    def editing(self, tidy: Callable[[], None]) -> Iterator[None]:
        """Hold the lock, with the current `consumers.json` in the mirror; upload it at the end, and
        call `tidy` to remove files that it no longer names."""
        with self.locked():
            with self._driver_errors("read"):
                before = self._content(CONSUMERS)
            with self._restored(CONSUMERS, lambda: before):
                yield
                after = (self.folder / CONSUMERS).read_bytes()
                if after != before:
                    self.replace(CONSUMERS, after, before)
            tidy()

    @contextmanager
    def _restored(self, name: str, content: Callable[[], bytes | None]) -> Iterator[None]:
        """Write a content to a file of the mirror now, and again if the block raises."""
        mirror_content(self.folder / name, content())
        try:
            yield
        except BaseException:
            mirror_content(self.folder / name, content())
            raise

    def replace(self, name: str, content: bytes, before: bytes | None) -> None:
        """Upload a file that makes a change visible, if its content is still `before` (None: no
        file). An upload may succeed and still report an error; the file is then read again."""
        changed = LineageError(
            f"Another process wrote {self.address}/{name}; nothing was changed; open it again."
        )
        with self._driver_errors("written"):
            self._check_lock()
            condition = self._condition(name)
            if self._content(name) != before:
                raise changed
            try:
                self.write(name, content, **condition)
            except Exception as error:
                try:
                    now = self._content(name)
                except Exception:
                    raise LineageError(
                        f"The connection was lost while {self.address}/{name} was uploaded "
                        f"({clause_of(error)}), so it is unknown whether it arrived; open it again."
                    ) from error
                # Another publisher of the same version may have written the same record.
                self._check_lock()
                if now not in (content, before):
                    raise changed from error
                if now != content:
                    raise

    def upload(self, folder: str) -> None:
        """Upload all files of a folder of the mirror. Overwrites files left by a killed upload, but
        not files that another process writes in the meantime. Other files are removed last, because
        a probe that is uploaded again may be in use."""
        with self._driver_errors("written"):
            files = {path.name: path for path in sorted((self.folder / folder).iterdir())}
            existing = self._folders(folder)
            conditions = {name: self._condition(f"{folder}/{name}") for name in files}
            for name, path in files.items():
                self._check_lock()
                where, options = f"{folder}/{name}", conditions[name]
                self._make_folder_of(where)
                if "IfMatch" in options:
                    # Use one request, as the driver ignores conditions in multipart uploads.
                    options["chunksize"] = path.stat().st_size + 1
                try:
                    self._files.put_file(str(path), self._path_of(where), **options)
                except Exception as error:
                    # If the driver retries a successful upload, the condition fails.
                    if self._content(where) != path.read_bytes():
                        self._check_lock()
                        raise error
            for name in existing - files.keys():
                self._check_lock()
                self._files.rm(self._path_of(f"{folder}/{name}"), recursive=True)

    def write(self, name: str, content: bytes, **condition: Any) -> None:
        """Write a file in one step."""
        self._make_folder_of(name)
        self._files.pipe_file(self._path_of(name), content, **condition)

    def remove(self, folder: str) -> None:
        """Remove a folder that nothing refers to. Failures, such as a lost lock, are ignored."""
        with suppress(Exception):
            # Check right before, as no driver supports conditional removal.
            self._check_lock()
            self._files.rm(self._path_of(folder), recursive=True)

    def keep_only(self, folder: str, names: Iterable[str]) -> None:
        """Remove all folders in `folder` except these. Failures are ignored."""
        with suppress(Exception):
            for name in self._folders(folder) - set(names):
                self.remove(f"{folder}/{name}")

    # The lock.

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold `publishing.lock` of the lineage.

        The lock is exclusive if the storage and its driver support creating an object only if it
        does not exist. Otherwise the object is checked, written and read again, which leaves a
        short time in which two processes may both get it.

        The mirror has a copy of the lock while the lock may exist, so that this machine can reclaim
        one that a killed process or a lost connection left.
        """
        copy = self.folder / LOCK
        try:
            user = getpass.getuser()
        except (OSError, KeyError):
            user = "unknown"
        this = {"owner": user, "host": socket.gethostname(), "process": os.getpid()}
        since = datetime.now(UTC).isoformat(timespec="seconds")
        lock = json.dumps({**this, "since": since, "mark": secrets.token_hex(8)}).encode()
        may_exist = False
        try:
            with self._driver_errors("written"):
                # Read first, as a driver without the mode "create" would overwrite another's lock.
                holder = self._content(LOCK)
                if holder is not None and copy.is_file() and copy.read_bytes() == holder:
                    lock, may_exist = holder, True
                if holder is None:
                    may_exist = True
                    write_bytes(copy, lock)
                    try:
                        self.write(LOCK, lock, mode="create")
                        holder = self._content(LOCK)
                    except Exception:
                        # Each driver has its own exception for an object that already exists.
                        holder = self._content(LOCK)
                        if holder is None:
                            raise
                if holder != lock:
                    raise LineageError(
                        f"Another process is publishing to {self.address}: "
                        f"{describe_process(self._content(LOCK))}. Wait for it, or if it is dead "
                        f"delete {self.address}/{LOCK}."
                    )
            self._held = lock
            yield
        finally:
            self._held = None
            # After an error, the lock may still have been written.
            if may_exist and self._release(lock):
                copy.unlink(missing_ok=True)

    def _check_lock(self) -> None:
        """Check that this process still holds the lock. Raises: LineageError: it does not."""
        if self._held is None:
            return
        holder = self._content(LOCK)
        if holder != self._held:
            by = "deleted" if holder is None else f"taken by {describe_process(holder)}"
            raise LineageError(
                f"The lock of this process on {self.address} was {by} while it was publishing; "
                "nothing was changed; open the lineage again."
            )

    def _release(self, lock: bytes) -> bool:
        """Remove this process's lock. Returns: False if that failed."""
        try:
            if self._content(LOCK) == lock:
                self._files.rm_file(self._path_of(LOCK))
            return True
        except Exception as error:
            # Only warn: the work under the lock is done, or has raised another error.
            left = f"{self.address}/{LOCK} could not be removed ({error})"
            todo = "this machine's next publication removes it; for other machines, delete it"
            warnings.warn(f"{left}; {todo}.", RuntimeWarning, stacklevel=3)
            return False

    # The driver.

    def _contents(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of files by name, without files that do not exist."""
        paths = {self._path_of(name): name for name in names}
        contents = self._files.cat(list(paths), on_error="return") if paths else {}
        for content in contents.values():
            if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                raise content
        return {paths[k]: v for k, v in contents.items() if isinstance(v, bytes)}

    def _content(self, name: str) -> bytes | None:
        try:
            return bytes(self._files.cat_file(self._path_of(name)))
        except FileNotFoundError:
            return None

    def _folders(self, folder: str) -> set[str]:
        # The driver's cached listing lacks files from other machines.
        self._files.invalidate_cache()
        try:
            paths = self._files.ls(self._path_of(folder), detail=False)
        except FileNotFoundError:
            return set()
        return {path.rstrip("/").rsplit("/", 1)[-1] for path in paths} - {""}

    def _condition(self, name: str) -> dict[str, Any]:
        """Return driver options to write a file only if it has not changed since now."""
        self._files.invalidate_cache()
        try:
            tag = self._files.info(self._path_of(name)).get("ETag")
        except FileNotFoundError:
            return {"mode": "create"}
        # Only S3 drivers support this.
        return {} if tag is None else {"IfMatch": tag}

    def _path_of(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _make_folder_of(self, name: str) -> None:
        """Create the folder of a file, unless the storage is an object store, without folders."""
        if not getattr(self._files, "async_impl", False):
            self._files.makedirs(self._path_of(name).rsplit("/", 1)[0], exist_ok=True)

    @contextmanager
    def _driver_errors(self, action: str) -> Iterator[None]:
        """Convert a driver's error to a LineageError; `action` is "read" or "written"."""
        try:
            yield
        except EvergramError:
            raise
        except Exception as error:
            reason = f"{clause_of(error)}; the lineage is unchanged"
            raise LineageError(f"{self.address} cannot be {action}: {reason}.") from error


def _versions(record: bytes | None) -> set[int]:
    try:
        versions: Any = json.loads(record or b"{}").get("versions", [])
        return {n for n in versions if isinstance(n, int)}
    except (ValueError, AttributeError, TypeError):
        return set()
