"""Rows of a store, and hits of a search, as an earlier version has them by its sidecars."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pyarrow as pa

from evergram.errors import DataError, IntegrityError
from evergram.lineage.read_only_lineage import ReadOnlyLineage
from evergram.retrieval.embedded import Embedded
from evergram.retrieval.migrating.cascade import Metric, by_vectors
from evergram.retrieval.sidecars.version_sidecar import VersionSidecar
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.store import Floats, Hits, Rows

# Hits by the way back that are read by a sidecar, of each query.
DEPTH = 1000
log: logging.Logger = logging.getLogger(__name__)


class Sidecars:
    """The sidecars of a lineage's versions. Several threads may use one.

    Args:
        sidecars: at most one of each side and version.
    Raises: DataError: there are two.
    """

    def __init__(self, sidecars: Sequence[VersionSidecar] = ()) -> None:
        self._of = {(s.side, s.version): s for s in sidecars}
        if len(self._of) < len(sidecars):
            raise DataError("Two sidecars are of one side and version; give one of them.")

    @classmethod
    def open(cls, paths: Sequence[str | Path], lineage: ReadOnlyLineage) -> Self:
        """Read files of sidecars.

        Raises: DataError: a file cannot be read, or two are of one side and version.
            IntegrityError: one is of another lineage.
        """
        opened = []
        for path in map(Path, paths):
            sidecar = VersionSidecar.open(path)
            sidecar.check(lineage, str(path))
            opened.append(sidecar)
        return cls(opened)

    def of(self, lineage: ReadOnlyLineage) -> Sidecars:
        """Return those that are of the lineage as it is now; a version may have been withdrawn."""
        kept = []
        for sidecar in self._of.values():
            try:
                sidecar.check(lineage, "A sidecar that was opened")
            except IntegrityError as error:
                log.warning("%s It is not used any more.", error)
            else:
                kept.append(sidecar)
        return Sidecars(kept)

    def depth(self, side: str, target: int, k: int) -> int:
        """Return how many hits a search at a version must have, so that the best k are among them
        when they are read by sidecars."""
        later = any(own == side and version > target for own, version in self._of)
        return max(k, DEPTH) if later else k

    def rows(self, maps: VersionMaps, rows: Rows, target: int, side: str) -> Floats:
        """Return rows of one version as another reads them, [n, D_target].

        From version to version, objects with codes are read by these, and others by the way back.

        Raises: as `VersionMaps.rows`.
        """
        vectors, version = rows.vectors, rows.version
        sidecar = self._of.get((side, version))
        if version > target and sidecar is not None:
            known = sidecar.known(rows)
            while sidecar is not None and version > target and known.any():
                read = maps.rows(vectors, version, version - 1)
                ids = rows.ids.filter(pa.array(known))
                read[known] = sidecar.read(ids, vectors[known])
                vectors, version = read, version - 1
                sidecar = self._of.get((side, version))
                if sidecar is not None:
                    known &= sidecar.has(rows.ids)
        return maps.rows(vectors, version, target)


def reread(
    embed: Callable[[pa.Array], Embedded], hits: Hits, query: Floats, metric: Metric, k: int
) -> Hits:
    """Return the best k of the hits of a query [D] by the vectors that `embed` reads."""
    embedded = embed(hits.ids)
    # A row may have been removed since the search.
    there = embedded.sources >= 0
    ids = hits.ids.filter(pa.array(there))
    stored = Hits(ids, hits.scores[there], embedded.sources[there])
    return by_vectors(stored, embedded.vectors[there], query, metric).first(k)
