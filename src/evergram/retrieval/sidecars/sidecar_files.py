"""Files of sidecars, and folders of them, read again when they change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from evergram.errors import DataError, IntegrityError, reason_and_remedy
from evergram.lineage.lineage import Lineage
from evergram.retrieval.embedded import Embedded
from evergram.retrieval.metric_search import Metric, by_vectors
from evergram.retrieval.sidecars.version_sidecar import VersionSidecar
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.rows import MOST_HITS, joined_ids, places_among
from evergram.stores.store import Floats, Hits, Rows

# Hits by the backward transform that are read by a sidecar, of each query, unless another number is
# given.
DEPTH = 1000
# At least this many for each result: with fewer, what codes would move up is not there.
PER_RESULT = 4
# Queries whose hits are fetched together.
BLOCK = 16
# Hits that are held at once; those of more queries are read after one another.
HITS = 65_536


class Sidecars:
    """The sidecars of a lineage's versions. Several threads may use one.

    Args:
        sidecars: at most one of each side and version.
        depth: hits of a query by the backward transform that a search for k reads by a sidecar;
            `PER_RESULT` · k, if that is more.
    Raises: DataError: there are two of one side and version, or `depth` is not a positive number.
    """

    def __init__(self, sidecars: Sequence[VersionSidecar] = (), depth: int = DEPTH) -> None:
        check_depth(depth)
        self._of = {(s.side, s.version): s for s in sidecars}
        self._depth = depth
        if len(self._of) < len(sidecars):
            raise DataError("Two sidecars are of one side and version; give one of them.")

    def gaps(self, lineage: Lineage) -> list[str]:
        """Return a sentence for each version that has no sidecar while others of its side do."""
        sentences = []
        for side in dict.fromkeys(side for side, _ in self._of):
            versions = [m.version for m in lineage.versions if side in m.embeddings]
            for version in versions[1:]:
                if version <= lineage.production and (side, version) not in self._of:
                    sentences.append(
                        f"Version {version} has no sidecar of side {side!r}, and is read as those "
                        "before it by the backward transform; make one with 'evergram vectors "
                        "sidecar'."
                    )
        return sentences

    def apply(self, side: str, target: int, filled: Iterable[int]) -> bool:
        """Return whether rows of these versions may be read as version `target` by a sidecar."""
        return any(v > target and (side, v) in self._of for v in filled)

    def depth(self, side: str, target: int, k: int) -> int:
        """Return how many hits of a query a search at a version may look at."""
        later = any(own == side and version > target for own, version in self._of)
        return max(k, min(max(self._depth, PER_RESULT * k), MOST_HITS)) if later else k

    def rows(self, maps: VersionMaps, rows: Rows, target: int, side: str) -> Floats:
        """Return rows of one version as another reads them, [n, D_target].

        From version to version, objects with codes of their vectors are read by these, and others
        by the backward transform.

        Raises: as `VersionMaps.rows`.
        """
        vectors, version = rows.vectors, rows.version
        sidecar = self._of.get((side, version))
        if sidecar is None or version <= target:
            return maps.rows(vectors, version, target)
        places = sidecar.known(rows)
        # A withdrawn version may be asked for, which is before none of them.
        while sidecar is not None and sidecar.target >= target and (places >= 0).any():
            known = places >= 0
            if known.all():
                vectors = sidecar.read(places, vectors)
            else:
                some = sidecar.read(places[known], vectors[known])
                vectors = maps.rows(vectors, version, sidecar.target)
                vectors[known] = some
            later, read, version = sidecar, places, sidecar.target
            sidecar = self._of.get((side, version)) if version > target else None
            if sidecar is not None:
                places = sidecar.follows(later, read, rows.ids)
        return maps.rows(vectors, version, target)


def check_depth(depth: object) -> None:
    """Raises: DataError: `depth`, of sidecars, is no whole number of at least 1."""
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise DataError(f"The depth of sidecars is {depth!r}; it must be a number of 1 or more.")


def queries_at_once(depth: int) -> int:
    """Return how many queries are searched together, if each has this many hits to be read."""
    return max(1, HITS // max(1, depth))


def reread(
    embed: Callable[[pa.Array], Embedded],
    hits: Sequence[Hits],
    queries: Floats,
    metric: Metric,
    k: int,
) -> list[Hits]:
    """Return the best k of each query's hits by the vectors that `embed` reads; a query each.

    Rows are fetched once for a block of queries.
    """
    best = []
    for start in range(0, len(hits), BLOCK):
        part = hits[start : start + BLOCK]
        embedded = embed(joined_ids([h.ids for h in part], part[0].ids.type).unique())
        for of_query, query in zip(part, queries[start : start + BLOCK], strict=True):
            _, places = places_among(of_query.ids, embedded.ids)
            # A row may have been removed since the search.
            there = embedded.sources[places] >= 0
            ids = of_query.ids.filter(pa.array(there))
            stored = Hits(ids, of_query.scores[there], embedded.sources[places][there])
            vectors = embedded.vectors[places][there]
            best.append(by_vectors(stored, vectors, query, metric).first(k))
    return best


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
        depth: as for `Sidecars`.
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

    def read(self, lineage: Lineage) -> Sidecars:
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
        self, lineage: Lineage, files: dict[Path, bool], problems: list[str]
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
        """Return what a file has, opened again if it has changed; what it had if that fails."""
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
        cannot be read now."""
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
