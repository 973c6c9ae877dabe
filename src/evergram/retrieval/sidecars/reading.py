"""Rows of a store, and hits of a search, as an earlier version has them by its sidecars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from evergram.errors import DataError
from evergram.lineage.read_only_lineage import ReadOnlyLineage
from evergram.retrieval.embedded import Embedded
from evergram.retrieval.migrating.cascade import Metric, by_vectors
from evergram.retrieval.sidecars.version_sidecar import VersionSidecar
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.rows import MOST_HITS, joined_ids, places_among
from evergram.stores.store import Floats, Hits, Rows

# Hits by the way back that are read by a sidecar, of each query, unless another number is given.
DEPTH = 1000
# At least so many for each result: with fewer, what codes would move up is not there.
PER_RESULT = 4
# Queries whose hits are fetched together.
BLOCK = 16
# Hits that are held at once; those of more queries are read after one another.
HITS = 65_536


class Sidecars:
    """The sidecars of a lineage's versions. Several threads may use one.

    Args:
        sidecars: at most one of each side and version.
        depth: hits of a query by the way back that a search for k reads by a sidecar;
            `PER_RESULT` · k, if that is more.
    Raises: DataError: there are two of one side and version, or `depth` is not a positive number.
    """

    def __init__(self, sidecars: Sequence[VersionSidecar] = (), depth: int = DEPTH) -> None:
        check_depth(depth)
        self._of = {(s.side, s.version): s for s in sidecars}
        self._depth = depth
        if len(self._of) < len(sidecars):
            raise DataError("Two sidecars are of one side and version; give one of them.")

    def gaps(self, lineage: ReadOnlyLineage) -> list[str]:
        """Return a sentence for each version that has no sidecar while others of its side do."""
        sentences = []
        for side in dict.fromkeys(side for side, _ in self._of):
            versions = [m.version for m in lineage.versions if side in m.embeddings]
            for version in versions[1:]:
                if version <= lineage.production and (side, version) not in self._of:
                    sentences.append(
                        f"Version {version} has no sidecar of side {side!r}, and is read as those "
                        "before it by the way back; make one with 'evergram vectors sidecar'."
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
        by the way back.

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
