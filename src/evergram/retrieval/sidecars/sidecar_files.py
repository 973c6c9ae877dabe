"""Files of sidecars, and folders of them, read again when they change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from evergram.errors import DataError, IntegrityError
from evergram.lineage.read_only_lineage import ReadOnlyLineage
from evergram.retrieval.sidecars.reading import DEPTH, Sidecars, check_depth
from evergram.retrieval.sidecars.version_sidecar import VersionSidecar
from evergram.system_errors import reason_and_remedy

SUFFIX = ".safetensors"
# Tells whether a file has changed, was replaced or got other permissions, and which file it is;
# None if it is not there.
Stamp: TypeAlias = tuple[int, int, int, int, int] | None
Paths: TypeAlias = str | Path | Sequence[str | Path]
log: logging.Logger = logging.getLogger(__name__)


class SidecarFiles:
    """Files of `evergram vectors sidecar`, and folders whose .safetensors files are such.

    Each is opened once, and again when it has changed. Several threads may use one.

    Args:
        paths: of files and folders, one or several.
        depth: as of `Sidecars`.
        required: whether what is named must be there when it is read first.
    Raises: DataError: a path is empty, or `depth` is not a positive number.
    """

    def __init__(self, paths: Paths = (), depth: int = DEPTH, *, required: bool = True) -> None:
        named = [paths] if isinstance(paths, str | Path) else paths
        if not all(str(path) for path in named):
            raise DataError("The path of a sidecar is empty; name a file or a folder.")
        check_depth(depth)
        # Whole paths, so that errors name them wherever the process runs.
        self._paths = [Path(path).absolute() for path in named]
        self._folders: set[Path] = set()
        self._depth = depth
        self._strict = required
        # What each file was when it was opened last, and what could be read of it last.
        self._opened: dict[Path, tuple[Stamp, VersionSidecar | None, DataError | None]] = {}
        # The files of each folder when it could be read last.
        self._listed: dict[Path, list[Path]] = {}
        self._logged: set[str] = set()
        self._reading = threading.Lock()
        # What was wrong when they were read last, one sentence each.
        self.problems: list[str] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SidecarFiles, required=self._strict), (self._paths, self._depth)

    def stamps(self) -> tuple[tuple[str, Stamp], ...]:
        """Return what tells whether any file has changed, come or gone."""
        files = self._files([])
        folders = [(str(folder), _stamp(folder)) for folder in sorted(self._folders)]
        return (*folders, *((str(path), _stamp(path)) for path in files))

    def read(self, lineage: ReadOnlyLineage) -> Sidecars:
        """Return the sidecars that are of the lineage as it is now.

        What is `required` must be such when it is read first; its version may be withdrawn later. A
        file of a folder that is none is left out. A file or a folder that cannot be read any more,
        or has other content that cannot, is used as it was. Of two files of one side and version a
        named one is used, or else the later one. All this is said in `problems`, and logged once.

        Raises, the first time, unless they are not required: DataError: a named file or a folder
            cannot be read, or two named files are of one side and version. IntegrityError: a named
            file is of another lineage.
        """
        with self._reading:
            problems: list[str] = []
            files = self._files(problems)
            chosen = self._chosen(lineage, files, problems)
            self._forget(files)
            sidecars = Sidecars(list(chosen.values()), self._depth)
            gaps = sidecars.gaps(lineage)
            facts = [f"{path}: {sidecar}." for path, sidecar in chosen.items()]
            self._log(logging.INFO, facts)
            self._log(logging.WARNING, problems + gaps)
            # A sentence is news again if it was not true in between.
            self._logged &= {*facts, *problems, *gaps}
            self.problems, self._strict = problems, False
        return sidecars

    def _log(self, level: int, sentences: list[str]) -> None:
        for sentence in sentences:
            if sentence not in self._logged:
                log.log(level, "%s", sentence)
        self._logged.update(sentences)

    def _chosen(
        self, lineage: ReadOnlyLineage, files: dict[Path, bool], problems: list[str]
    ) -> dict[Path, VersionSidecar]:
        """Return the sidecars that are used, one of each side and version, and add problems."""
        chosen: dict[tuple[str, int], tuple[Path, VersionSidecar]] = {}
        inodes: set[Stamp] = set()
        for path, is_named in files.items():
            stamp = _stamp(path)
            if stamp is not None and stamp in inodes:  # one file by two names
                continue
            inodes.add(stamp)
            try:
                sidecar = self._open(path, stamp, problems)
                sidecar.check(lineage, str(path))
            except (DataError, IntegrityError) as error:
                if is_named and self._strict:
                    raise
                # Of a version that was withdrawn nobody needs to keep the file.
                if stamp is not None or self._opened[path][1] is None:
                    problems.append(f"{error} It is not used.")
                continue
            key, new = (sidecar.side, sidecar.version), (path, sidecar)
            before = chosen.setdefault(key, new)
            if before is not new:
                what = f"of side {key[0]!r} and version {key[1]}"
                if files[before[0]] and is_named and self._strict:
                    raise DataError(f"{before[0]} and {path} are both {what}; give one of them.")
                used = max(before, new, key=lambda one: (files[one[0]], _changed(one[0])))
                other = new if used is before else before
                problems.append(
                    f"{other[0]} is {what}, as {used[0]} is; remove one of them. It is not used."
                )
                chosen[key] = used
        return dict(chosen.values())

    def _open(self, path: Path, stamp: Stamp, problems: list[str]) -> VersionSidecar:
        """Return what a file has, opened again if it has changed; what it had if that fails.

        Raises: DataError: it was never read, and cannot be.
        """
        known, sidecar, error = self._opened.get(path, (None, None, None))
        # A file that is gone has been read, or is asked for the reason.
        if path not in self._opened or stamp not in (known, None):
            try:
                sidecar, error = VersionSidecar.open(path), None
            except DataError as problem:
                error = problem
            self._opened[path] = stamp, sidecar, error
        if sidecar is None:
            assert error is not None
            raise error
        if error is not None and stamp is not None:
            problems.append(f"{error} What was read of it before is used on.")
        return sidecar

    def _forget(self, files: dict[Path, bool]) -> None:
        """Drop what was read of files that are gone from their folders."""
        for path in [path for path in self._opened if path not in files]:
            sidecar = self._opened.pop(path)[1]
            if sidecar is not None:
                log.warning("%s is gone, and not used any more (%s).", path, sidecar)

    def _files(self, problems: list[str]) -> dict[Path, bool]:
        """Return the files, and whether each was named itself; those that a folder had before if it
        cannot be read now.

        Raises: DataError: a folder that is required cannot be read.
        """
        self._folders.update(path for path in self._paths if _is_folder(path))
        files = {path: True for path in self._paths if path not in self._folders}
        for folder in sorted(self._folders):
            try:
                inside = sorted(file for file in folder.iterdir() if file.suffix == SUFFIX)
            except OSError as error:
                sentence = f"{folder} cannot be read: {reason_and_remedy(error)}."
                if self._strict:
                    raise DataError(sentence) from error
                problems.append(f"{sentence} What was read of it before is used on.")
                inside = self._listed.get(folder, [])
            self._listed[folder] = inside
            for file in inside:
                files.setdefault(file, False)
        return files


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a folder above it may not be entered
        return False


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    times = status.st_mtime_ns, status.st_ctime_ns
    return *times, status.st_size, status.st_ino, status.st_dev


def _changed(path: Path) -> int:
    """Return when a file was written, in nanoseconds."""
    stamp = _stamp(path)
    return 0 if stamp is None else stamp[0]
