"""A lineage that lives elsewhere, and its mirror in a folder of this machine."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from evergram.atomic_files import make_folder, mirror_content, replacing_path
from evergram.errors import EvergramError, IntegrityError, LineageError
from evergram.lineage.disk.manifest import sha256
from evergram.lineage.remote.addresses import filesystem, mirror_of
from evergram.lineage.remote.lock import remote_lock, said_by, this_process

RECORD, CONSUMERS, TRAINING = "lineage.json", "consumers.json", "training.json"
# Files that are downloaded when they are first read, and not when the lineage is opened.
LARGE = ("encoder.safetensors", "vocabularies.parquet", "trained_pairs.parquet")


class Remote:
    """A lineage under an fsspec address such as `s3://bucket/shop`, with its mirror.

    Published files never change: each is downloaded once, and compared with its hash. A new version
    is written to the mirror first and then uploaded, `lineage.json` last: that one upload is the
    moment at which others see it.

    Args:
        address: fsspec's.
    Raises: LineageError: the driver of such an address is not installed.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.folder = mirror_of(self.address)
        self._files, self._path = filesystem(self.address)
        self._seen: bytes | None = None
        # `consumers.json` as `pull` found it.
        self.consumers: str | None = None

    def pull(self) -> str | None:
        """Download all small files. Returns: the text of `lineage.json`; None if there is none.

        Raises: LineageError: it cannot be reached.
        """
        with self._driver_errors("read"):
            top = self._cat([RECORD, CONSUMERS])
            self._seen = top.get(RECORD)
            consumers = top.get(CONSUMERS)
            self.consumers = None if consumers is None else consumers.decode(errors="replace")
            make_folder(self.folder)
            self._pull_versions()
            self._mirror_embeddings(remove=False)
        with (
            suppress(Timeout),
            FileLock(self.folder / ".lock", timeout=0),
            self._driver_errors("read"),
        ):
            # If the lock is held, a publication of this machine is writing these very files.
            for name in (RECORD, CONSUMERS):
                mirror_content(self.folder / name, top.get(name))
            self._mirror_embeddings(remove=True)
        return None if self._seen is None else self._seen.decode(errors="replace")

    def check_files(self, folder: Path, hashes: Mapping[str, str]) -> None:
        """Download the files of a folder of the mirror that are missing here, or have another hash.

        Args:
            hashes: file name to SHA-256.
        Raises: IntegrityError: a file there is missing or has another hash, too. LineageError: the
            storage cannot be reached, or the lineage has been changed meanwhile.
        """
        for name, published in hashes.items():
            path = folder / name
            if path.is_file() and sha256(path) == published:
                continue
            where = path.relative_to(self.folder).as_posix()
            if name != Path(name).name or ".." in Path(where).parts:
                raise IntegrityError(
                    f"{self.address} names the file {where!r}, which is outside of its folder; "
                    "restore it from a copy of the lineage."
                )
            with self._driver_errors("read"):
                folder.mkdir(parents=True, exist_ok=True)
                with replacing_path(path, owner=f".{os.getpid()}") as part:
                    if not self._fetch(where, part):
                        self._check_unchanged()
                        raise IntegrityError(
                            f"{self.address}/{where} is missing; restore it from a copy of the "
                            "lineage."
                        )
                    if sha256(part) != published:
                        raise IntegrityError(
                            f"{self.address}/{where} is not the file that was published (its "
                            "SHA-256 differs); restore it from a copy of the lineage."
                        )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the lock of the storage, with its `lineage.json` in the mirror, until `commit`.

        Raises: LineageError: another process is publishing, or the storage cannot be reached. The
            lineage is then as it was, and so is `lineage.json` in the mirror.
        """
        with self._locked():
            with self._driver_errors("read"):
                self._seen = self._cat([RECORD]).get(RECORD)
                self._mirror_embeddings(remove=True)
            # A killed publication may have left a record here that nobody has seen.
            mirror_content(self.folder / RECORD, self._seen)
            try:
                yield
            except BaseException:
                mirror_content(self.folder / RECORD, self._seen)
                raise

    def commit(self) -> None:
        """Upload the versions that only the mirror's `lineage.json` lists, and then that file."""
        record = (self.folder / RECORD).read_bytes()
        for n in sorted(_versions(record) - _versions(self._seen)):
            self.upload(f"embeddings/{n}")
            self.upload(f"versions/{n}")
        self._replace(RECORD, record)
        self._seen = record

    @contextmanager
    def editing(self) -> Iterator[None]:
        """Hold the lock, with the storage's `consumers.json` in the mirror; upload it at the end.

        Raises: LineageError: as `transaction`.
        """
        with self._locked():
            with self._driver_errors("read"):
                before = self._cat([CONSUMERS]).get(CONSUMERS)
            mirror_content(self.folder / CONSUMERS, before)
            try:
                yield
                after = (self.folder / CONSUMERS).read_bytes()
                if after != before:
                    self._replace(CONSUMERS, after)
            except BaseException:
                mirror_content(self.folder / CONSUMERS, before)
                raise

    @contextmanager
    def training(self) -> Iterator[None]:
        """Leave a note in the storage that a version is being trained, and warn of another's note.

        It is not a lock, as a process that is killed leaves it behind.
        """
        mine = json.dumps(this_process()).encode()
        with suppress(Exception):
            others = self._cat([TRAINING]).get(TRAINING)
            if others is not None:
                logging.getLogger(__name__).warning(
                    f"Another process began to train the next version of {self.address}: "
                    f"{said_by(others)}. If it still runs, only the first to publish will succeed."
                )
            self._make_folder(f"{self._path}/{TRAINING}")
            self._files.pipe_file(f"{self._path}/{TRAINING}", mine)
        try:
            yield
        finally:
            with suppress(Exception):
                if self._cat([TRAINING]).get(TRAINING) == mine:
                    self._files.rm_file(f"{self._path}/{TRAINING}")

    def upload(self, folder: str) -> None:
        """Upload all files of a folder of the mirror, and remove what a killed upload left."""
        with self._driver_errors("written"):
            with suppress(FileNotFoundError):
                self._files.rm(f"{self._path}/{folder}", recursive=True)
            for path in sorted((self.folder / folder).iterdir()):
                there = f"{self._path}/{folder}/{path.name}"
                self._make_folder(there)
                self._files.put_file(str(path), there)

    def keep_only(self, folder: str, names: Iterable[str]) -> None:
        """Remove all folders in `folder` but these; one that cannot be removed stays."""
        kept = set(names)
        with suppress(Exception):
            for name in self._folders(folder) - kept:
                self.remove(f"{folder}/{name}")

    def remove(self, folder: str) -> None:
        """Remove a folder of the storage; if that fails it stays, and nothing lists it."""
        with suppress(Exception):
            self._files.rm(f"{self._path}/{folder}", recursive=True)

    def _replace(self, name: str, content: bytes) -> None:
        """Upload the file by which others see a change.

        An upload may report an error after all of it has arrived, so the file is read back.
        """
        with self._driver_errors("written"):
            try:
                self._make_folder(f"{self._path}/{name}")
                self._files.pipe_file(f"{self._path}/{name}", content)
            except Exception as error:
                try:
                    arrived = self._cat([name]).get(name) == content
                except Exception:
                    raise LineageError(
                        f"{self.address}/{name} was being uploaded when the connection was lost "
                        f"({_sentence(error)}), and whether it arrived is not known; open the "
                        "lineage again to see."
                    ) from error
                if not arrived:
                    raise

    def _pull_versions(self) -> None:
        """Download the manifests, and those of the small files in them that are not here yet."""
        folders = {f"versions/{n}/manifest.json": f"versions/{n}" for n in _versions(self._seen)}
        manifests = self._cat(list(folders))
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
        for name, content in self._cat(missing).items():
            mirror_content(self.folder / name, content)

    def _mirror_embeddings(self, *, remove: bool) -> None:
        """Make a folder for each version with stored embeddings, empty until they are read.

        Args:
            remove: whether to remove those of other versions.
        """
        here = self.folder / "embeddings"
        names = {name for name in self._folders("embeddings") if name.isdecimal()}
        for name in names:
            (here / name).mkdir(parents=True, exist_ok=True)
        for path in here.glob("*"):
            if remove and path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    def _folders(self, folder: str) -> set[str]:
        # The driver's own list does not have what another machine has added since.
        self._files.invalidate_cache()
        try:
            places = self._files.ls(f"{self._path}/{folder}", detail=False)
        except FileNotFoundError:
            return set()
        return {place.rstrip("/").rsplit("/", 1)[-1] for place in places} - {""}

    def _check_unchanged(self) -> None:
        if self._cat([RECORD]).get(RECORD) != self._seen:
            raise LineageError(f"{self.address} has changed since it was opened; open it again.")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as stack:
            with self._driver_errors("written"):
                self._make_folder(f"{self._path}/{RECORD}")
                stack.enter_context(remote_lock(self._files, self._path, self.address))
            yield

    def _cat(self, names: list[str]) -> dict[str, bytes]:
        """Return the contents of files by name, without those that are not there."""
        places = {f"{self._path}/{name}": name for name in names}
        if not places:
            return {}
        contents = self._files.cat(list(places), on_error="return")
        for content in contents.values():
            if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                raise content
        return {places[k]: v for k, v in contents.items() if isinstance(v, bytes)}

    def _fetch(self, name: str, to: Path) -> bool:
        """Download a file; return False if there is none."""
        try:
            self._files.get_file(f"{self._path}/{name}", str(to))
        except FileNotFoundError:
            return False
        return True

    def _make_folder(self, place: str) -> None:
        """Make the folder of a file, if the storage has folders; object stores have none."""
        if not getattr(self._files, "async_impl", False):
            self._files.makedirs(place.rsplit("/", 1)[0], exist_ok=True)

    @contextmanager
    def _driver_errors(self, what: str) -> Iterator[None]:
        """Turn any error of a driver into one LineageError."""
        try:
            yield
        except EvergramError:
            raise
        except Exception as error:
            raise LineageError(
                f"{self.address} cannot be {what}: {_sentence(error)}; the lineage is as it was."
            ) from error


def _versions(record: bytes | None) -> set[int]:
    try:
        versions: Any = json.loads(record or b"{}").get("versions", [])
        return {n for n in versions if isinstance(n, int)}
    except (ValueError, AttributeError, TypeError):
        return set()


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
