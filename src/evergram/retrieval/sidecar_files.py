"""Files of sidecars, and folders of them, read again when they change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from evergram.errors import DataError, IntegrityError, reason_and_remedy
from evergram.lineage.lineage import Lineage
from evergram.retrieval.metric_search import Metric, by_vectors
from evergram.retrieval.version_maps import VersionMaps
from evergram.retrieval.version_sidecar import VersionSidecar
from evergram.stores.store import MOST_HITS, Embedded, Floats, Hits, Rows, joined_ids, places_among

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
    """

    def __init__(self, sidecars: Iterable[VersionSidecar] = (), depth: int = DEPTH) -> None:
        self._of = {(s.side, s.version): s for s in sidecars}
        self._depth = depth

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
        """Return rows of a version that a sidecar may apply to as an earlier one reads them, [n,
        D_target]: from version to version by codes of their vectors where there are some, and else
        by the backward transform. Raises: as `VersionMaps.rows`."""
        vectors, version = rows.vectors, rows.version
        sidecar = self._of.get((side, version))
        assert sidecar is not None
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


def reread(
    embed: Callable[[pa.Array], Embedded],
    hits: Sequence[Hits],
    queries: Floats,
    metric: Metric,
    k: int,
) -> list[Hits]:
    """Return the best k of each query's hits by the vectors that `embed` reads, which is asked for
    the rows of a block of queries at once."""
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
    Raises: DataError: a path is empty.
    """

    def __init__(self, paths: Paths = (), depth: int = DEPTH) -> None:
        named = [paths] if isinstance(paths, str | Path) else paths
        if not all(str(path) for path in named):
            raise DataError("The path of a sidecar is empty; name a file or a folder.")
        # Whole paths, so that errors name them wherever the process runs.
        self._paths = [Path(path).absolute() for path in named]
        self._depth = depth
        # Until it was read once, what is named must be there.
        self._strict = True
        # What each file had when it was read last.
        self._opened: dict[Path, tuple[Stamp, VersionSidecar]] = {}
        self._logged: set[str] = set()
        self._reading = threading.Lock()
        # What was wrong when they were read last, one sentence each.
        self.problems: list[str] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return SidecarFiles, (self._paths, self._depth)

    def stamps(self) -> tuple[tuple[str, Stamp], ...]:
        """Return what tells whether any file has changed, come or gone."""
        paths = dict.fromkeys([*self._paths, *self._files([])])
        return tuple((str(path), _stamp(path)) for path in paths)

    def read(self, lineage: Lineage) -> Sidecars:
        """Return the sidecars that are of the lineage as it is now.

        What is named must be such the first time. Later, and in folders, what cannot be read is
        left out. Of two files of one side and version the later one is used. All this is said in
        `problems`, and logged once.

        Raises, the first time: DataError: a named file or a folder
            cannot be read. IntegrityError: a named file is of another lineage.
        """
        with self._reading:
            problems: list[str] = []
            chosen: dict[tuple[str, int], tuple[Path, VersionSidecar]] = {}
            files = self._files(problems)
            for path in self._opened.keys() - files:
                log.warning("%s is gone, and not used any more (%s).", path, self._opened[path][1])
                del self._opened[path]
            for path in files:
                try:
                    stamp = _stamp(path)
                    if path not in self._opened or self._opened[path][0] != stamp:
                        self._opened.pop(path, None)
                        self._opened[path] = stamp, VersionSidecar.open(path)
                    sidecar = self._opened[path][1]
                    sidecar.check(lineage, str(path))
                except (DataError, IntegrityError) as error:
                    if self._strict and path in self._paths:
                        raise
                    problems.append(str(error))
                    continue
                key = sidecar.side, sidecar.version
                if key in chosen:
                    problems.append(
                        f"{chosen[key][0]} is of side {key[0]!r} and version {key[1]}, as {path} "
                        "is, which is later; remove one of them. It is not used."
                    )
                chosen[key] = path, sidecar
            sidecars = Sidecars((sidecar for _, sidecar in chosen.values()), self._depth)
            sentences = {f"{path}: {sidecar}.": logging.INFO for path, sidecar in chosen.values()}
            sentences |= dict.fromkeys(problems + sidecars.gaps(lineage), logging.WARNING)
            for sentence, level in sentences.items():
                if sentence not in self._logged:
                    log.log(level, "%s", sentence)
            self._logged, self.problems, self._strict = {*sentences}, problems, False
        return sidecars

    def _files(self, problems: list[str]) -> list[Path]:
        """Return the files, the earliest first, each once."""
        files = []
        for path in self._paths:
            try:
                inside = path.iterdir() if path.is_dir() else [path]
                files += [file for file in inside if file.suffix == SUFFIX or file == path]
            except OSError as error:
                sentence = f"{path} cannot be read: {reason_and_remedy(error)}."
                if self._strict:
                    raise DataError(sentence) from error
                problems.append(sentence)
        # One file may have several names.
        by_place = {file.resolve(): file for file in reversed(files)}
        return sorted(by_place.values(), key=lambda file: ((_stamp(file) or (0,))[0], str(file)))


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    times = status.st_mtime_ns, status.st_ctime_ns
    return *times, status.st_size, status.st_ino, status.st_dev
