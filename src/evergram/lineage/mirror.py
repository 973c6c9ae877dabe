"""A lineage that lives elsewhere, and its mirror in a folder of this machine."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import Timeout

from evergram.atomic_files import make_folder, mirror_content, replacing_path
from evergram.errors import IntegrityError, LineageError
from evergram.file_lock import file_lock
from evergram.lineage.manifest import sha256
from evergram.lineage.remote_storage import LOCK, RemoteStorage, mirror_of

RECORD, CONSUMERS = "lineage.json", "consumers.json"
# Files that are downloaded when they are first read, and not when the lineage is opened.
LARGE = ("encoder.safetensors", "vocabularies.parquet", "trained_pairs.parquet")


class Remote:
    """A lineage under an fsspec address such as `s3://bucket/shop`, with its mirror.

    Published files never change: each is downloaded once, and compared with its hash. A new version
    is written to the mirror first and then uploaded, `lineage.json` last: that one upload is the
    moment at which others see it.

    Args:
        address: fsspec's.
    Attributes:
        folder: the mirror.
        storage: the files elsewhere.
        consumers: the text of `consumers.json` when `pull` was last called; None if there was none.
    Raises: LineageError: the driver of such an address is not installed.
    """

    def __init__(self, address: str) -> None:
        self.address: str = address.rstrip("/")
        self.folder: Path = mirror_of(self.address)
        self.storage: RemoteStorage = RemoteStorage(self.address)
        self._seen: bytes | None = None
        self.consumers: str | None = None

    def pull(self) -> str | None:
        """Download all small files. Returns: the text of `lineage.json`; None if there is none.

        Raises: LineageError: it cannot be reached.
        """
        with self.storage.driver_errors("read"):
            top = self.storage.contents([RECORD, CONSUMERS])
            self._seen = top.get(RECORD)
            consumers = top.get(CONSUMERS)
            self.consumers = None if consumers is None else consumers.decode(errors="replace")
            make_folder(self.folder)
            self._pull_versions()
            self._mirror_embeddings(remove=False)
        with (
            suppress(Timeout),
            file_lock(self.folder / ".lock", timeout=0),
            self.storage.driver_errors("read"),
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
            with self.storage.driver_errors("read"):
                folder.mkdir(parents=True, exist_ok=True)
                with replacing_path(path, owner=f".{os.getpid()}") as part:
                    if not self.storage.download(where, part):
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
        with self.storage.locked(self.folder / LOCK):
            with self.storage.driver_errors("read"):
                self._seen = self.storage.content(RECORD)
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
        self.storage.replace(RECORD, record, self._seen)
        self._seen = record

    @contextmanager
    def editing(self, tidy: Callable[[], None]) -> Iterator[None]:
        """Hold the lock, with the storage's `consumers.json` in the mirror; upload it at the end.

        Args:
            tidy: removes what the record no longer names, after the upload and under the lock.
        Raises: LineageError: as `transaction`.
        """
        with self.storage.locked(self.folder / LOCK):
            with self.storage.driver_errors("read"):
                before = self.storage.content(CONSUMERS)
            mirror_content(self.folder / CONSUMERS, before)
            try:
                yield
                after = (self.folder / CONSUMERS).read_bytes()
                if after != before:
                    self.storage.replace(CONSUMERS, after, before)
            except BaseException:
                mirror_content(self.folder / CONSUMERS, before)
                raise
            tidy()

    def upload(self, folder: str) -> None:
        """Upload all files of a folder of the mirror, in place of what is there."""
        self.storage.upload(self.folder / folder, folder)

    def _pull_versions(self) -> None:
        """Download the manifests, and those of the small files in them that are not here yet."""
        folders = {f"versions/{n}/manifest.json": f"versions/{n}" for n in _versions(self._seen)}
        manifests = self.storage.contents(list(folders))
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
        for name, content in self.storage.contents(missing).items():
            mirror_content(self.folder / name, content)

    def _mirror_embeddings(self, *, remove: bool) -> None:
        """Make a folder for each version with stored embeddings, empty until they are read.

        Args:
            remove: whether to remove those of other versions.
        """
        here = self.folder / "embeddings"
        names = {name for name in self.storage.folders("embeddings") if name.isdecimal()}
        for name in names:
            (here / name).mkdir(parents=True, exist_ok=True)
        for path in here.glob("*"):
            if remove and path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    def _check_unchanged(self) -> None:
        if self.storage.content(RECORD) != self._seen:
            raise LineageError(f"{self.address} has changed since it was opened; open it again.")


def _versions(record: bytes | None) -> set[int]:
    try:
        versions: Any = json.loads(record or b"{}").get("versions", [])
        return {n for n in versions if isinstance(n, int)}
    except (ValueError, AttributeError, TypeError):
        return set()
