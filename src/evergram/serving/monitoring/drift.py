"""How far what is asked for has moved from what is stored: second moments against second moments.

Nothing is measured while a request waits: ids are noted, and looked up again in between, as the
version that they are stored at.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evergram.errors import EvergramError
from evergram.retrieval.reader import Reader
from evergram.stores.store import Floats

Matrix = npt.NDArray[np.float64]

# Of a request so many ids are looked at, and so many of a side a second.
PER_REQUEST = 16
PER_LOOK = 512
# What was served this many vectors ago weighs 1/e.
MEMORY = 50_000


@dataclass
class _Seen:
    """Of the vectors of one side and version.

    Args:
        count: in all.
        mean, second: E[z] and E[z zᵀ], running.
        stored: E[z zᵀ] at publication; None where it was not written.
    """

    count: int
    mean: Matrix
    second: Matrix
    stored: Matrix | None

    def add(self, vectors: Floats) -> None:
        wide = vectors.astype(np.float64)
        self.count += len(wide)
        share = len(wide) / min(self.count, MEMORY)
        self.mean += share * (wide.mean(axis=0) - self.mean)
        self.second += share * (wide.T @ wide / len(wide) - self.second)

    @property
    def relative(self) -> float | None:
        """‖served − stored‖ over ‖stored‖, Frobenius."""
        if self.stored is None or not self.count:
            return None
        length = float(np.linalg.norm(self.stored))
        return float(np.linalg.norm(self.second - self.stored)) / length if length else None


class Drift:
    """Of every side, the vectors that are served at the version of most of its rows."""

    def __init__(self) -> None:
        self._noted: deque[tuple[str, pa.Array, npt.NDArray[np.int64]]] = deque(maxlen=128)
        self._encoded: deque[tuple[str, int, Floats]] = deque(maxlen=256)
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._lock = threading.Lock()
        self._draw = np.random.default_rng()

    def note(self, side: str, ids: pa.Array, sources: npt.NDArray[np.int64]) -> None:
        """Ids that were served, and what each was computed from. Costs next to nothing."""
        self._noted.append((side, ids, sources))

    def note_vectors(self, side: str, version: int, vectors: Floats) -> None:
        """Vectors [n, D] that were encoded on the spot, as their own version has them."""
        self._encoded.append((side, version, vectors[:PER_REQUEST].copy()))

    def look(self, reader: Reader) -> None:
        """Take up what was noted since the last time. A row that cannot be read is left out."""
        with self._lock:
            given: dict[tuple[str, int], list[pa.Array]] = {}
            while self._noted:
                side, asked, sources = self._noted.popleft()
                version, ids = self._some(asked, sources)
                if version < 0:
                    continue
                kept = given.setdefault((side, version), [])
                if sum(map(len, kept)) < PER_LOOK:
                    kept.append(ids)
            for (side, version), parts in given.items():
                try:
                    found = reader.embed(pa.concat_arrays(parts), version, side)
                except (EvergramError, pa.ArrowException):
                    continue
                self._add(reader, side, version, found.vectors[found.sources == version])
            while self._encoded:
                side, version, vectors = self._encoded.popleft()
                self._add(reader, side, version, vectors)

    def _some(self, ids: pa.Array, sources: npt.NDArray[np.int64]) -> tuple[int, pa.Array]:
        """A version that rows were computed from, drawn by its share, and some ids of it."""
        version = int(self._draw.choice(sources)) if len(sources) else -1
        rows = np.flatnonzero(sources == version)
        if len(rows) > PER_REQUEST:
            rows = np.sort(self._draw.choice(rows, PER_REQUEST, replace=False))
        return version, ids.take(pa.array(rows))

    def measured(self) -> dict[str, tuple[int, float | None, int]]:
        """Of each side: the version, the relative distance, and of how many vectors."""
        found: dict[str, tuple[int, float | None, int]] = {}
        with self._lock:
            for (side, version), seen in sorted(self._seen.items()):
                found[side] = (version, seen.relative, seen.count)
        return found

    def _add(self, reader: Reader, side: str, version: int, vectors: Floats) -> None:
        if not len(vectors):
            return
        key = side, version
        if key not in self._seen:
            try:
                moments = reader.lineage.moments(version).get(side)
            except EvergramError:
                moments = None
            dim = vectors.shape[1]
            stored = None if moments is None else moments[2].numpy()
            self._seen[key] = _Seen(0, np.zeros(dim), np.zeros((dim, dim)), stored)
        self._seen[key].add(vectors)
