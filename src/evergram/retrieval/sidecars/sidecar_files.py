"""Files of sidecars, and folders of them, read again when they change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from evergram.errors import DataError, IntegrityError
from evergram.lineage.read_only_lineage import ReadOnlyLineage
from evergram.retrieval.sidecars.reading import DEPTH, Sidecars
from evergram.retrieval.sidecars.version_sidecar import VersionSidecar
from evergram.system_errors import reason_and_remedy

SUFFIX = ".safetensors"
# Tells whether a file has changed, was replaced or got other permissions; None if it is not there.
Stamp: TypeAlias = tuple[int, int, int, int] | None
Paths: TypeAlias = str | Path | Sequence[str | Path]
log: logging.Logger = logging.getLogger(__name__)


class SidecarFiles:
    """Files of `evergram vectors sidecar`, and folders whose .safetensors files are such.

    Each is opened once, and again when it has changed. Several threads may use one.

    Args:
        paths: of files and folders, one or several.
        depth: as `most` of `Sidecars`.
    Raises: DataError: a path is empty, or `depth` is not a positive number.
    """

    def __init__(self, paths: Paths = (), depth: int = DEPTH) -> None:
        named = [paths] if isinstance(paths, str | Path) else paths
        if not all(str(path) for path in named):
            raise DataError("The path of a sidecar is empty; name a file or a folder.")
        # Whole paths, so that errors name them wherever the process runs.
        self._paths = [Path(path).absolute() for path in named]
        self._folders = {path for path in self._paths if path.is_dir()}
        self._depth = depth
        self._opened: dict[Path, tuple[Stamp, VersionSidecar]] = {}
        self._said: set[str] = set()
        self._reading = threading.Lock()
        # What was wrong when they were read last, one sentence each.
        self.problems: list[str] = []
        Sidecars(most=depth)

    def stamps(self) -> tuple[tuple[str, Stamp], ...]:
        """Return what tells whether any file has changed, come or gone.

        Raises: DataError: a folder cannot be read.
        """
        return tuple((str(path), _stamp(path)) for path in self._files())

    def read(self, lineage: ReadOnlyLineage) -> Sidecars:
        """Return the sidecars that are of the lineage as it is now.

        A file that was named must be one, unless it was when it was read before: its version may
        have been withdrawn since. One of a folder is left out. Of two files of one side and version
        a named one is used, or else the later one. What is left out is said in `problems`, and
        logged once.

        Raises: DataError: a named file or a folder cannot be read, or two are of one side and
            version. IntegrityError: a named file is of another lineage.
        """
        with self._reading:
            files, problems = self._files(), []
            used: dict[tuple[str, int], Path] = {}
            for path, is_named in files.items():
                is_known = path in self._opened
                try:
                    sidecar = self._open(path)
                    sidecar.check(lineage, str(path))
                except (DataError, IntegrityError) as error:
                    if is_named and not is_known:
                        raise
                    problems.append(f"{error} It is not used.")
                    continue
                key = sidecar.side, sidecar.version
                first = used.setdefault(key, path)
                if first != path:
                    used[key] = self._one_of(first, path, files, problems)
            self._forget(files)
            read = [self._opened[path][1] for path in used.values()]
            sidecars = Sidecars(read, self._depth)
            facts = [f"{path}: {self._opened[path][1]}." for path in used.values()]
            self._say(logging.INFO, facts)
            self._say(logging.WARNING, problems + sidecars.gaps(lineage))
            # A sentence is news again if it was not true in between.
            self._said &= {*facts, *problems, *sidecars.gaps(lineage)}
            self.problems = problems
        return sidecars

    def _say(self, level: int, sentences: list[str]) -> None:
        for sentence in sentences:
            if sentence not in self._said:
                log.log(level, "%s", sentence)
        self._said.update(sentences)

    def _open(self, path: Path) -> VersionSidecar:
        stamp, (known, sidecar) = _stamp(path), self._opened.get(path, (None, None))
        # A named file that is gone has been read.
        if sidecar is None or stamp not in (known, None):
            sidecar = VersionSidecar.open(path)
            self._opened[path] = stamp, sidecar
        return sidecar

    def _one_of(
        self, first: Path, second: Path, files: dict[Path, bool], problems: list[str]
    ) -> Path:
        """Return the file that is used, of two of one side and version."""
        sidecar = self._opened[second][1]
        what = f"of side {sidecar.side!r} and version {sidecar.version}"
        if files[first] and files[second]:
            raise DataError(f"{first} and {second} are both {what}; give one of them.")
        times = {path: (files[path], (_stamp(path) or (0,))[0]) for path in (first, second)}
        other, kept = sorted((first, second), key=lambda path: times[path])
        problems.append(f"{other} is {what}, as {kept} is; remove one of them. It is not used.")
        return kept

    def _forget(self, files: dict[Path, bool]) -> None:
        """Drop what was read of files that are gone from their folders."""
        for path in [path for path in self._opened if path not in files]:
            _, sidecar = self._opened.pop(path)
            log.warning("%s is gone, and not used any more (%s).", path, sidecar)

    def _files(self) -> dict[Path, bool]:
        """Return the files, and whether each was named itself."""
        files = {path: True for path in self._paths if path not in self._folders}
        for folder in self._folders:
            try:
                inside = sorted(file for file in folder.iterdir() if file.suffix == SUFFIX)
            except OSError as error:
                raise DataError(f"{folder} cannot be read: {reason_and_remedy(error)}.") from error
            for file in inside:
                files.setdefault(file, False)
        return files


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
