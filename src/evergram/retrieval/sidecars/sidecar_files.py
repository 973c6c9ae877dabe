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
# A file's time, length and inode; None if it is not there.
Stamp: TypeAlias = tuple[int, int, int] | None
Paths: TypeAlias = str | Path | Sequence[str | Path]
log: logging.Logger = logging.getLogger(__name__)


class SidecarFiles:
    """Files of `evergram vectors sidecar`, and folders whose .safetensors files are such.

    Each is opened once, and again when it has changed. Several threads may use one.

    Args:
        paths: of files and folders, one or several.
        depth: as `most` of `Sidecars`.
    Raises: DataError: `depth` is not a positive number.
    """

    def __init__(self, paths: Paths = (), depth: int = DEPTH) -> None:
        named = [paths] if isinstance(paths, str | Path) else paths
        # Whole paths, so that errors name them wherever the process runs.
        self._paths = [Path(path).absolute() for path in named]
        self._folders = {path for path in self._paths if path.is_dir()}
        self._depth = depth
        self._opened: dict[Path, tuple[Stamp, VersionSidecar]] = {}
        self._reading = threading.Lock()
        Sidecars(most=depth)

    def stamps(self) -> tuple[tuple[str, Stamp], ...]:
        """Return what tells whether any file has changed, come or gone.

        Raises: DataError: a folder cannot be read.
        """
        return tuple((str(path), _stamp(path)) for path, _ in self._files())

    def read(self, lineage: ReadOnlyLineage) -> Sidecars:
        """Return the sidecars that are of the lineage as it is now.

        A file that was named must be one, unless it was when it was read before: its version may
        have been withdrawn since. One of a folder is left out, with a warning.

        Raises: DataError: a named file or a folder cannot be read, or two are of one side and
            version. IntegrityError: a named file is of another lineage.
        """
        with self._reading:
            used = []
            for path, is_named in self._files():
                before = self._opened.get(path)
                try:
                    sidecar = self._open(path)
                    sidecar.check(lineage, str(path))
                except (DataError, IntegrityError) as error:
                    if is_named and before is None:
                        raise
                    log.warning("%s It is not used.", error)
                else:
                    used.append(sidecar)
            sidecars = Sidecars(used, self._depth)
        sidecars.warn_of_gaps(lineage)
        return sidecars

    def _open(self, path: Path) -> VersionSidecar:
        stamp, (known, sidecar) = _stamp(path), self._opened.get(path, (None, None))
        # A named file that is gone has been read.
        if sidecar is None or stamp not in (known, None):
            sidecar = VersionSidecar.open(path)
            self._opened[path] = stamp, sidecar
            log.info(
                "%s: version %d of side %s is read as version %d by %d bytes for each of %d "
                "objects.",
                *(path, sidecar.version, sidecar.side, sidecar.target, sidecar.sidecar.size),
                len(sidecar),
            )
        return sidecar

    def _files(self) -> list[tuple[Path, bool]]:
        """Return the files, and whether each was named itself."""
        files: list[tuple[Path, bool]] = []
        for path in self._paths:
            if path not in self._folders:
                files.append((path, True))
                continue
            try:
                inside = sorted(file for file in path.iterdir() if file.suffix == SUFFIX)
            except OSError as error:
                raise DataError(f"{path} cannot be read: {reason_and_remedy(error)}.") from error
            files += [(file, False) for file in inside]
        return files


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
