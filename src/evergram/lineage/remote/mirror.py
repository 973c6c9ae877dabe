"""A lineage that lives elsewhere: a mirror of it in a folder here, and how both are kept alike."""

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
# What is brought when it is first read, and not when the lineage is opened.
LARGE = ("encoder.safetensors", "vocabularies.parquet", "trained_pairs.parquet")


class Remote:
    """A lineage under an fsspec address such as `s3://bucket/shop`, with its mirror.

    Files that are published never change: each is brought once, and compared with its hash. What is
    published is written to the mirror first and then uploaded, `lineage.json` last; that one upload
    is the moment at which others see it.

    Args:
        address: as it was given.
    Raises: LineageError: its driver is not installed.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.folder = mirror_of(self.address)
        self._files, self._path = filesystem(self.address)
        self._seen: bytes | None = None
        # `consumers.json` as `pull` found it.
        self.consumers: str | None = None

    def pull(self) -> str | None:
        """Bring all that is small. Returns: the text of `lineage.json`; None where there is none.

        Raises: LineageError: it cannot be reached.
        """
        with self._said("read"):
            top = self._cat([RECORD, CONSUMERS])
            self._seen = top.get(RECORD)
            found = top.get(CONSUMERS)
            self.consumers = None if found is None else found.decode(errors="replace")
            make_folder(self.folder)
            self._pull_versions()
            self._mirror_embeddings(remove=False)
        with suppress(Timeout), FileLock(self.folder / ".lock", timeout=0), self._said("read"):
            # Where it is held, a publication of this machine is at work on these very files.
            for name in (RECORD, CONSUMERS):
                mirror_content(self.folder / name, top.get(name))
            self._mirror_embeddings(remove=True)
        return None if self._seen is None else self._seen.decode(errors="replace")

    def check_files(self, folder: Path, hashes: Mapping[str, str]) -> None:
        """Bring what of a folder of the mirror is missing or is not what was published.

        Raises: IntegrityError: what is there is not what was published. LineageError: it cannot be
            reached, or has been published to meanwhile.
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
            with self._said("read"):
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
        """Hold the lock there, with `lineage.json` here as it is there now; `commit` changes it.

        Raises: LineageError: another process is publishing, or it cannot be reached: the lineage is
            then as it was, and so is `lineage.json` in the mirror.
        """
        with self._locked():
            with self._said("read"):
                self._seen = self._cat([RECORD]).get(RECORD)
                self._mirror_embeddings(remove=True)
            # What a killed publication left here was never seen by anybody.
            mirror_content(self.folder / RECORD, self._seen)
            try:
                yield
            except BaseException:
                mirror_content(self.folder / RECORD, self._seen)
                raise

    def commit(self) -> None:
        """Upload the versions that `lineage.json` of the mirror has more, and then itself."""
        record = (self.folder / RECORD).read_bytes()
        for n in sorted(_versions(record) - _versions(self._seen)):
            self.upload(f"embeddings/{n}")
            self.upload(f"versions/{n}")
        self._replace(RECORD, record)
        self._seen = record

    @contextmanager
    def editing(self) -> Iterator[None]:
        """`consumers.json` as it is there now, in the mirror; it is uploaded at the end.

        Raises: LineageError: as `transaction`.
        """
        with self._locked():
            with self._said("read"):
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
        """Say there that a version is being trained, and on stderr if another process said so.

        It is a note and no lock, as a process that was killed leaves it behind.
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
        """All files of a folder of the mirror, in place of what a killed upload may have left."""
        with self._said("written"):
            with suppress(FileNotFoundError):
                self._files.rm(f"{self._path}/{folder}", recursive=True)
            for path in sorted((self.folder / folder).iterdir()):
                there = f"{self._path}/{folder}/{path.name}"
                self._make_folder(there)
                self._files.put_file(str(path), there)

    def keep_only(self, folder: str, names: Iterable[str]) -> None:
        """Remove every other folder in `folder`; one that cannot be removed is left."""
        kept = set(names)
        with suppress(Exception):
            for name in self._folders(folder) - kept:
                self.remove(f"{folder}/{name}")

    def remove(self, folder: str) -> None:
        """Remove a folder there; one that cannot be removed is left, and is no part of anything."""
        with suppress(Exception):
            self._files.rm(f"{self._path}/{folder}", recursive=True)

    def _replace(self, name: str, content: bytes) -> None:
        """Upload a file by which others see what has changed.

        An upload may fail when all of it has arrived: what is there counts.
        """
        with self._said("written"):
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
        """The manifests as they are now, and what is small and not here of what they list."""
        folders = {f"versions/{n}/manifest.json": f"versions/{n}" for n in _versions(self._seen)}
        manifests = self._cat(list(folders))
        missing = []
        for name, folder in folders.items():
            mirror_content(self.folder / name, manifests.get(name))
            try:
                listed = list(json.loads(manifests.get(name, b"{}")).get("files", {}))
            except (ValueError, AttributeError):
                # What is damaged is said by who reads it.
                continue
            # A name with a folder in it would be written outside of the version's.
            plain = [file for file in listed if file == Path(file).name]
            found = [f"{folder}/{file}" for file in plain if file not in LARGE]
            missing += [file for file in found if not (self.folder / file).is_file()]
        for name, content in self._cat(missing).items():
            mirror_content(self.folder / name, content)

    def _mirror_embeddings(self, *, remove: bool) -> None:
        """A folder for every version whose embeddings are kept, empty until they are read; with
        `remove`, what is no longer kept goes from the mirror too."""
        here = self.folder / "embeddings"
        names = {name for name in self._folders("embeddings") if name.isdecimal()}
        for name in names:
            (here / name).mkdir(parents=True, exist_ok=True)
        for path in here.glob("*"):
            if remove and path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    def _folders(self, folder: str) -> set[str]:
        # What another machine has added since is not in the driver's list.
        self._files.invalidate_cache()
        try:
            found = self._files.ls(f"{self._path}/{folder}", detail=False)
        except FileNotFoundError:
            return set()
        return {place.rstrip("/").rsplit("/", 1)[-1] for place in found} - {""}

    def _check_unchanged(self) -> None:
        if self._cat([RECORD]).get(RECORD) != self._seen:
            raise LineageError(f"{self.address} has changed since it was opened; open it again.")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as stack:
            with self._said("written"):
                self._make_folder(f"{self._path}/{RECORD}")
                stack.enter_context(remote_lock(self._files, self._path, self.address))
            yield

    def _cat(self, names: list[str]) -> dict[str, bytes]:
        """The contents of those that are there."""
        places = {f"{self._path}/{name}": name for name in names}
        if not places:
            return {}
        found = self._files.cat(list(places), on_error="return")
        for content in found.values():
            if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                raise content
        return {places[k]: v for k, v in found.items() if isinstance(v, bytes)}

    def _fetch(self, name: str, to: Path) -> bool:
        """Download a file; return False if there is none."""
        try:
            self._files.get_file(f"{self._path}/{name}", str(to))
        except FileNotFoundError:
            return False
        return True

    def _make_folder(self, place: str) -> None:
        """Of a file, where the filesystem knows folders; object stores do not."""
        if not getattr(self._files, "async_impl", False):
            self._files.makedirs(place.rsplit("/", 1)[0], exist_ok=True)

    @contextmanager
    def _said(self, what: str) -> Iterator[None]:
        """Whatever a driver raises becomes one sentence."""
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
        found: Any = json.loads(record or b"{}").get("versions", [])
        return {n for n in found if isinstance(n, int)}
    except (ValueError, AttributeError, TypeError):
        return set()


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
