"""Drift: the second moments of served vectors against those of the stored ones.

No request waits for a measurement: ids are noted when they are served, and looked up again between
requests, at the version that they are stored at.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evergram.errors import EvergramError
from evergram.retrieval.reader import Reader
from evergram.stores.store import Floats

Matrix = npt.NDArray[np.float64]

# Ids that are sampled of one request, and of one side between two measurements.
PER_REQUEST = 16
PER_LOOK = 512
# Vectors after which the weight of a sample has fallen to 1/e.
MEMORY = 50_000
# Seconds after the last served row of a version, such as a canary's or of one that was rolled back,
# until its drift is no longer shown.
SHOWN_SECONDS = 3600.0


@dataclass
class _RunningMoments:
    """Moments of the vectors that were served of one side and version.

    Args:
        fingerprint: of the version.
        count: vectors so far.
        mean: [D], running E[z].
        second: [D, D], running E[z zᵀ].
        stored: [D, D], E[z zᵀ] at publication; None where none was written.
        last: when some were added, by the monotonic clock.
    """

    fingerprint: str
    count: int
    mean: Matrix
    second: Matrix
    stored: Matrix | None
    last: float = 0.0

    def add(self, vectors: Floats) -> None:
        wide = vectors.astype(np.float64)
        self.last = time.monotonic()
        self.count += len(wide)
        share = len(wide) / min(self.count, MEMORY)
        self.mean += share * (wide.mean(axis=0) - self.mean)
        self.second += share * (wide.T @ wide / len(wide) - self.second)

    @property
    def relative(self) -> float | None:
        """‖served − stored‖ / ‖stored‖ of the second moments, Frobenius."""
        if self.stored is None or not self.count:
            return None
        length = float(np.linalg.norm(self.stored))
        return float(np.linalg.norm(self.second - self.stored)) / length if length else None


class Drift:
    """Drift of each side, at each version that served rows are stored at.

    Several threads may use one.
    """

    def __init__(self) -> None:
        self._served_ids: deque[tuple[str, pa.Array, npt.NDArray[np.int64]]] = deque(maxlen=128)
        self._encoded: deque[tuple[str, int, str, Floats]] = deque(maxlen=256)
        self._moments: dict[tuple[str, int], _RunningMoments] = {}
        self._lock = threading.Lock()
        self._draw = np.random.default_rng()

    def note(self, side: str, ids: pa.Array, sources: npt.NDArray[np.int64]) -> None:
        """Remember ids that were served, and the version that each row was computed from."""
        self._served_ids.append((side, ids, sources))

    def note_vectors(self, side: str, version: int, fingerprint: str, vectors: Floats) -> None:
        """Remember vectors [n, D] that were encoded on the spot, in their own version's space.

        Args:
            fingerprint: of that version.
        """
        self._encoded.append((side, version, fingerprint, vectors[:PER_REQUEST].copy()))

    def look(self, reader: Reader) -> None:
        """Measure what was noted since the last look; rows that cannot be read are left out."""
        # Nobody who reads or notes waits for a store, or for a file of the lineage.
        with self._lock:
            sampled = self._sampled()
            encoded = [self._encoded.popleft() for _ in range(len(self._encoded))]
        for (side, version), parts in sampled.items():
            try:
                fingerprint = reader.lineage.manifest(version).fingerprint
                embedded = reader.embed(pa.concat_arrays(parts), version, side)
            except (EvergramError, pa.ArrowException):
                continue
            vectors = embedded.vectors[embedded.sources == version]
            self._add(reader, side, version, fingerprint, vectors)
        for side, version, fingerprint, vectors in encoded:
            try:
                is_served = reader.lineage.manifest(version).fingerprint == fingerprint
            except EvergramError:
                continue
            if is_served:
                self._add(reader, side, version, fingerprint, vectors)

    def _sampled(self) -> dict[tuple[str, int], list[pa.Array]]:
        """Take the ids that were noted. Returns: a sample of them by side and version."""
        sampled: dict[tuple[str, int], list[pa.Array]] = {}
        for _ in range(len(self._served_ids)):
            side, ids, sources = self._served_ids.popleft()
            version, some = self._sample(ids, sources)
            if version < 0:
                continue
            parts = sampled.setdefault((side, version), [])
            if sum(map(len, parts)) < PER_LOOK:
                parts.append(some)
        return sampled

    def _sample(self, ids: pa.Array, sources: npt.NDArray[np.int64]) -> tuple[int, pa.Array]:
        """Draw a version by its share of the rows, and some ids of its rows."""
        version = int(self._draw.choice(sources)) if len(sources) else -1
        rows = np.flatnonzero(sources == version)
        if len(rows) > PER_REQUEST:
            rows = np.sort(self._draw.choice(rows, PER_REQUEST, replace=False))
        return version, ids.take(pa.array(rows))

    def measured(self) -> dict[tuple[str, int], tuple[float | None, int]]:
        """Return, by side and version, the relative distance and the number of vectors."""
        since = time.monotonic() - SHOWN_SECONDS
        with self._lock:
            return {
                key: (moments.relative, moments.count)
                for key, moments in sorted(self._moments.items())
                if moments.last >= since
            }

    def _add(
        self, reader: Reader, side: str, version: int, fingerprint: str, vectors: Floats
    ) -> None:
        if not len(vectors):
            return
        key = side, version
        with self._lock:
            moments = self._moments.get(key)
        # A lineage restored from a copy may have published another version under the number.
        if moments is None or moments.fingerprint != fingerprint:
            try:
                published = reader.lineage.moments(version).get(side)
            except EvergramError:
                published = None
            dim = vectors.shape[1]
            stored = None if published is None else published[2].numpy()
            zeros = np.zeros(dim), np.zeros((dim, dim))
            moments = _RunningMoments(fingerprint, 0, *zeros, stored)
        with self._lock:
            moments.add(vectors)
            self._moments[key] = moments
