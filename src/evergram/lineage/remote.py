"""A lineage at an fsspec address such as `s3://bucket/shop`, and its mirror on this machine."""

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
from evergram.errors import EvergramError, IntegrityError, LineageError
from evergram.lineage.record import sha256

_ADDRESS = re.compile(r"[a-z][a-z0-9+.\-]*(::[a-z][a-z0-9+.\-]*)*://", re.IGNORECASE)
LOCK = "publishing.lock"
RECORD, CONSUMERS = "lineage.json", "consumers.json"
# Files that are downloaded when they are first read, and not when the lineage is opened.
LARGE = ("encoder.safetensors", "vocabularies.parquet", "trained_pairs.parquet")


def local_folder(place: str | Path) -> Path | None:
    """Return the folder that a path, `file:///…` or an fsspec address such as `s3://bucket/shop`
    names; None for one of another machine."""
    text = str(place)
    if isinstance(place, Path) or not _ADDRESS.match(text):
        return Path(place)
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise LineageError(f"{text} is no address: {str(error).rstrip('.')}.") from None
    if parts.scheme.lower() not in ("file", "local"):  # fsspec's names of this machine's disk
        return None
    if parts.netloc not in ("", "localhost"):
        todo = f"write {parts.scheme}:///FOLDER for a folder of this machine"
        raise LineageError(f"{text} names the host {parts.netloc!r}; {todo}.")
    return Path(unquote(parts.path))


def filesystem(address: str) -> tuple[Any, str]:
    """Return fsspec's filesystem of an address, and the path in that filesystem."""
    # After the host, which may be an IPv6 address in brackets; an address of http may have a query.
    path = address.partition("://")[2].partition("/")[2]
    if wild := sorted(set(path) & set("*[]" if address.startswith("http") else "*?[]")):
        what = f"{' and '.join(wild)}, which stand for other characters in addresses"
        raise LineageError(f"{address} has {what}; give the lineage another name.")
    try:
        import fsspec
    except ImportError:
        raise LineageError(f"{address} needs fsspec: pip install 'evergram[remote]'.") from None
    try:
        files, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise LineageError(f"{address} cannot be opened: {_sentence(error)}.") from error
    return files, str(path)


def cache_folder() -> Path:
    """Return the folder of caches: $EVERGRAM_CACHE, else the platform's place for them."""
    if chosen := os.environ.get("EVERGRAM_CACHE"):
        return Path(chosen).expanduser()
    return platformdirs.user_cache_path("evergram", appauthor=False)


def describe_process(content: bytes | None) -> str:
    """Return in words which process wrote the content of a lock."""
    try:
        return "{owner} on {host} (process {process}) since {since}".format(
            **json.loads(content or b"")
        )
    except (ValueError, KeyError, TypeError):
        return "by whom cannot be read"


class Remote:
    """A lineage elsewhere; files are named by their paths in it, as "versions/3/manifest.json".

    Published files never change: each is downloaded once to the mirror, and compared with its hash.
    A new version is written to the mirror first and then uploaded, `lineage.json` last: that one
    upload is the moment at which others see it.

    Before each change the lock is compared with what this process wrote, as another may have
    deleted it while this one slept. Storage of S3 also gets a condition with each file (If-Match,
    If-None-Match); on another one it is read just before.

    Args:
        address: fsspec's.
    Attributes:
        folder: the mirror.
        consumers: the text of `consumers.json` when `pull` was last called; None if there was none.
    """

    def __init__(self, address: str) -> None:
        self.address: str = address.rstrip("/")
        digest = hashlib.sha256(self.address.encode()).hexdigest()
        self.folder: Path = cache_folder() / "lineages" / digest
        self.consumers: str | None = None
        self._files, self._path = filesystem(self.address)
        # `lineage.json` as it was last read, and the content of the lock while it is held.
        self._seen: bytes | None = None
        self._held: bytes | None = None

    # The mirror.

    def pull(self) -> str | None:
        """Download all small files. Returns: the text of `lineage.json`; None if there is none."""
        with self._driver_errors("read"):
            top = self._contents([RECORD, CONSUMERS])
            self._seen = top.get(RECORD)
            consumers = top.get(CONSUMERS)
            self.consumers = None if consumers is None else consumers.decode(errors="replace")
            make_folder(self.folder)
            self._pull_versions()
            self._mirror_embeddings(remove=False)
        lock = file_lock(self.folder / ".lock", timeout=0)
        # If the lock is held, a publication of this machine is writing these very files.
        with suppress(Timeout), lock, self._driver_errors("read"):
            for name in (RECORD, CONSUMERS):
                mirror_content(self.folder / name, top.get(name))
            self._mirror_embeddings(remove=True)
        return None if self._seen is None else self._seen.decode(errors="replace")

    def check_files(self, folder: Path, hashes: Mapping[str, str]) -> None:
        """Download the files (by name, with their SHA-256) of a folder of the mirror that are
        missing here, or have another hash."""
        for name, published in hashes.items():
            path = folder / name
            if path.is_file() and sha256(path) == published:
                continue
            where = path.relative_to(self.folder).as_posix()
            if name != Path(name).name or ".." in Path(where).parts:
                outside = f"the file {where!r}, which is outside of its folder"
                raise IntegrityError(f"{self.address} names {outside}; restore it from a copy.")
            with self._driver_errors("read"):
                folder.mkdir(parents=True, exist_ok=True)
                with replacing_path(path, owner=f".{os.getpid()}") as part:
                    try:
                        self._files.get_file(self._place(where), str(part))
                        whole = sha256(part) == published
                    except FileNotFoundError:
                        if self._content(RECORD) != self._seen:
                            changed = "has changed since it was opened; open it again"
                            raise LineageError(f"{self.address} {changed}.") from None
                        whole = False
                    if not whole:
                        other = "is missing, or not the file that was published (SHA-256 differs)"
                        raise IntegrityError(f"{self.address}/{where} {other}; restore it.")

    def _pull_versions(self) -> None:
        """Download the manifests, and those of the small files in them that are not here yet."""
        folders = {f"versions/{n}/manifest.json": f"versions/{n}" for n in _versions(self._seen)}
        manifests = self._contents(list(folders))
        missing = []
        for name, folder in folders.items():
            mirror_content(self.folder / name, manifests.get(name))
            try:
                listed = list(json.loads(manifests.get(name, b"{}")).get("files", {}))
            except (ValueError, AttributeError):
                # Whoever reads a damaged manifest gets the error.
                continue
            # A name with a folder in it would be written outside of the version's folder.
            plain = [file for file in listed if file == Path(file).name]
            small = [f"{folder}/{file}" for file in plain if file not in LARGE]
            missing += [file for file in small if not (self.folder / file).is_file()]
        for name, content in self._contents(missing).items():
            mirror_content(self.folder / name, content)

    def _mirror_embeddings(self, *, remove: bool) -> None:
        """Make a folder for each version with stored embeddings, empty until they are read, and
        perhaps remove those of other versions."""
        here = self.folder / "embeddings"
        names = {name for name in self._folders("embeddings") if name.isdecimal()}
        for name in names:
            (here / name).mkdir(parents=True, exist_ok=True)
        for path in here.glob("*"):
            if remove and path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    # Changes.

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the lock, with the storage's `lineage.json` in the mirror, until `commit`."""
        with self.locked():
            with self._driver_errors("read"):
                self._seen = self._content(RECORD)
                self._mirror_embeddings(remove=True)
            # A killed publication may have left a record here that nobody has seen.
            with self._restored(RECORD, lambda: self._seen):
                yield

    def commit(self) -> None:
        """Upload the versions that only the mirror's `lineage.json` lists, and then that file."""
        record = (self.folder / RECORD).read_bytes()
        for n in sorted(_versions(record) - _versions(self._seen)):
            self.upload(f"embeddings/{n}")
            self.upload(f"versions/{n}")
        self.replace(RECORD, record, self._seen)
        self._seen = record

    @contextmanager
    def editing(self, tidy: Callable[[], None]) -> Iterator[None]:
        """Hold the lock, with the storage's `consumers.json` in the mirror; upload it at the end,
        and then `tidy` what the record no longer names."""
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
        """Give a file of the mirror a content now, and again if the block raises."""
        mirror_content(self.folder / name, content())
        try:
            yield
        except BaseException:
            mirror_content(self.folder / name, content())
            raise

    def replace(self, name: str, content: bytes, before: bytes | None) -> None:
        """Write the file by which others see a change, if its content is still `before` (None: no
        file). An upload may report an error after all of it has arrived, so the file is read
        back."""
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
                        f"({_sentence(error)}), and whether it arrived is not known; open it again."
                    ) from error
                # Two publishers of one number write the same record.
                self._check_lock()
                if now not in (content, before):
                    raise changed from error
                if now != content:
                    raise

    def upload(self, folder: str) -> None:
        """Upload all files of a folder of the mirror, in place of what a killed upload left there,
        and of nothing that another process has put there since. What is there is removed last, as a
        probe that is uploaded again may be in use."""
        with self._driver_errors("written"):
            files = {path.name: path for path in sorted((self.folder / folder).iterdir())}
            left = self._folders(folder)
            conditions = {name: self._condition(f"{folder}/{name}") for name in files}
            for name, path in files.items():
                self._check_lock()
                where, options = f"{folder}/{name}", conditions[name]
                self._make_folder_of(where)
                if "IfMatch" in options:
                    # In one request, as the driver drops the condition of several.
                    options["chunksize"] = path.stat().st_size + 1
                try:
                    self._files.put_file(str(path), self._place(where), **options)
                except Exception as error:
                    # A driver tries again, and then finds what it has written.
                    if self._content(where) != path.read_bytes():
                        self._check_lock()
                        raise error
            for name in left - files.keys():
                self._check_lock()
                self._files.rm(self._place(f"{folder}/{name}"), recursive=True)

    def write(self, name: str, content: bytes, **condition: Any) -> None:
        """Write a file in one step."""
        self._make_folder_of(name)
        self._files.pipe_file(self._place(name), content, **condition)

    def remove(self, folder: str) -> None:
        """Remove a folder; if that fails, or the lock is another's by now, it stays, and nothing
        lists it."""
        with suppress(Exception):
            # Just before it, as no driver removes on a condition.
            self._check_lock()
            self._files.rm(self._place(folder), recursive=True)

    def keep_only(self, folder: str, names: Iterable[str]) -> None:
        """Remove all folders in `folder` but these; one that cannot be removed stays."""
        with suppress(Exception):
            for name in self._folders(folder) - set(names):
                self.remove(f"{folder}/{name}")

    # The lock.

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold `publishing.lock` of the lineage.

        Two publishers cannot both hold it if the storage can create an object only where there is
        none, and its driver asks for that. Elsewhere the object is looked for, written and read
        back, which leaves a moment in which two may both hold it.

        The mirror has the lock's content as long as the lock may be there, so that this machine
        takes back a lock that a killed process or a lost connection left.
        """
        kept = self.folder / LOCK
        try:
            user = getpass.getuser()
        except (OSError, KeyError):
            user = "unknown"
        this = {"owner": user, "host": socket.gethostname(), "process": os.getpid()}
        since = datetime.now(UTC).isoformat(timespec="seconds")
        mine = json.dumps({**this, "since": since, "mark": secrets.token_hex(8)}).encode()
        tried = False
        try:
            with self._driver_errors("written"):
                # A driver without the mode "create" would overwrite the lock of another process.
                holder = self._content(LOCK)
                if holder is not None and kept.is_file() and kept.read_bytes() == holder:
                    mine, tried = holder, True
                if holder is None:
                    tried = True
                    write_bytes(kept, mine)
                    try:
                        self.write(LOCK, mine, mode="create")
                        holder = self._content(LOCK)
                    except Exception:
                        # Each driver has its own error for an object that is there by now.
                        holder = self._content(LOCK)
                        if holder is None:
                            raise
                if holder != mine:
                    raise LineageError(
                        f"Another process is publishing to {self.address}: "
                        f"{describe_process(self._content(LOCK))}. Wait for it, or if it is dead "
                        f"delete {self.address}/{LOCK}."
                    )
            self._held = mine
            yield
        finally:
            self._held = None
            # It may have been written, though the answer, or what was read back, did not arrive.
            if tried and self._release(mine):
                kept.unlink(missing_ok=True)

    def _check_lock(self) -> None:
        """Raises: LineageError: the lock that this process holds is another's by now."""
        if self._held is None:
            return
        holder = self._content(LOCK)
        if holder != self._held:
            by = "deleted" if holder is None else f"taken by {describe_process(holder)}"
            raise LineageError(
                f"The lock of this process on {self.address} was {by} while it was publishing; "
                "nothing was changed; open the lineage again."
            )

    def _release(self, mine: bytes) -> bool:
        """Remove the lock if it is this process's. Returns: whether it is gone."""
        try:
            if self._content(LOCK) == mine:
                self._files.rm_file(self._place(LOCK))
            return True
        except Exception as error:
            # The work under the lock is done, or has failed with an error of its own.
            left = f"{self.address}/{LOCK} could not be removed ({error})"
            todo = "this machine's next publication does so, for another's it must be deleted"
            warnings.warn(f"{left}; {todo}.", RuntimeWarning, stacklevel=3)
            return False

    # The driver.

    def _contents(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of files by name, without those that are not there."""
        places = {self._place(name): name for name in names}
        contents = self._files.cat(list(places), on_error="return") if places else {}
        for content in contents.values():
            if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                raise content
        return {places[k]: v for k, v in contents.items() if isinstance(v, bytes)}

    def _content(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        try:
            return bytes(self._files.cat_file(self._place(name)))
        except FileNotFoundError:
            return None

    def _folders(self, folder: str) -> set[str]:
        """Return the names in a folder."""
        # The driver's own list does not have what another machine has added since.
        self._files.invalidate_cache()
        try:
            places = self._files.ls(self._place(folder), detail=False)
        except FileNotFoundError:
            return set()
        return {place.rstrip("/").rsplit("/", 1)[-1] for place in places} - {""}

    def _condition(self, name: str) -> dict[str, Any]:
        """Return what has a driver write a file only if it is as it is now."""
        self._files.invalidate_cache()
        try:
            tag = self._files.info(self._place(name)).get("ETag")
        except FileNotFoundError:
            return {"mode": "create"}
        # Drivers of other storage than S3 have no such condition.
        return {} if tag is None else {"IfMatch": tag}

    def _place(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _make_folder_of(self, name: str) -> None:
        """Make the folder of a file, if the storage has folders; object stores have none."""
        if not getattr(self._files, "async_impl", False):
            self._files.makedirs(self._place(name).rsplit("/", 1)[0], exist_ok=True)

    @contextmanager
    def _driver_errors(self, what: str) -> Iterator[None]:
        """Raise any error of a driver as a LineageError that the lineage cannot be `what`."""
        try:
            yield
        except EvergramError:
            raise
        except Exception as error:
            reason = f"{_sentence(error)}; the lineage is as it was"
            raise LineageError(f"{self.address} cannot be {what}: {reason}.") from error


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _versions(record: bytes | None) -> set[int]:
    try:
        versions: Any = json.loads(record or b"{}").get("versions", [])
        return {n for n in versions if isinstance(n, int)}
    except (ValueError, AttributeError, TypeError):
        return set()
