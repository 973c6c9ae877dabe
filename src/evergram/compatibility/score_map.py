"""A monotone map from today's scores to those that a past version gave to the same pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evergram.errors import DataError, ShapeError

Doubles = npt.NDArray[np.float64]
# Fewer pairs say too little of the share that lies above a threshold.
LEAST_PAIRS = 1000
# Quantiles that are kept of many pairs: evenly spaced ones, and each of the largest scores, as
# thresholds lie among these.
EVEN, LARGEST = 2049, 1024


@dataclass(frozen=True)
class ScoreMap:
    """Takes scores to those of a past version, so that as many lie above any threshold as then.

    It matches quantiles: the score that a share p of the pairs exceeds now is taken to the one that
    the same share exceeded then. Isotonic regression, which gives the mean of the old scores at
    each new one, draws scores to the middle, so that far fewer pass a high threshold than before.
    Ranks stay. Beyond the scores that it was fitted to, it goes on along the line of equal means
    and deviations.

    >>> import numpy as np
    >>> from evergram.compatibility.score_map import ScoreMap
    >>> then = np.random.default_rng(0).normal(size=2000)
    >>> scores = ScoreMap.fit(0.5 * then + 1, then)
    >>> (scores.apply(np.array([1.0, 1.5])).round(3) + 0.0).tolist()
    [0.0, 1.0]

    Args:
        now: float64 [n], ascending, each once.
        then: float64 [n], ascending; what they are taken to.
        slope: of the line beyond both ends.
        pairs: how many it was fitted to.
    """

    now: Doubles
    then: Doubles
    slope: float
    pairs: int

    @classmethod
    def fit(cls, now: npt.ArrayLike, then: npt.ArrayLike) -> ScoreMap:
        """Return the map that was fitted to scores of the same pairs, now and then, both [P].

        Raises: ShapeError: they are not of the same pairs. DataError: there are fewer than
            `LEAST_PAIRS`, one is not finite, or all of now, or of then, are equal.
        """
        new, old = (np.asarray(scores, dtype=np.float64) for scores in (now, then))
        if new.ndim != 1 or new.shape != old.shape:
            raise ShapeError(
                f"Scores of now are {list(new.shape)} and of then {list(old.shape)}; both must be "
                "[P], of the same pairs."
            )
        if len(new) < LEAST_PAIRS:
            raise DataError(
                f"{len(new)} pairs have both scores, and {LEAST_PAIRS} are needed to calibrate; "
                "give more."
            )
        if not (np.isfinite(new).all() and np.isfinite(old).all()):
            raise DataError("A score is not finite (NaN or infinity); leave its pair out.")
        new, old = np.sort(new), np.sort(old)
        for name, scores in (("now", new), ("then", old)):
            if scores[-1] - scores[0] <= 1e-12 * max(abs(scores[-1]), abs(scores[0])):
                raise DataError(
                    f"All scores of {name} are equal, so that they cannot be calibrated; give "
                    "pairs of different objects."
                )
        slope = float(old.std() / new.std())
        knots = np.unique(new[_places(len(new))])
        return cls(knots, _means(new, old, knots), slope, len(new))

    def apply(self, scores: npt.ArrayLike) -> Doubles:
        """Return scores, of any shape, as the past version would have given them, float64."""
        asked = np.asarray(scores, dtype=np.float64)
        inside: Doubles = np.interp(asked, self.now, self.then)
        beyond = np.maximum(asked - self.now[-1], 0) + np.minimum(asked - self.now[0], 0)
        mapped: Doubles = inside + self.slope * beyond
        return mapped

    def as_json(self) -> dict[str, Any]:
        """Return the map as JSON; numbers are those of float64."""
        lists = {"now": self.now.tolist(), "then": self.then.tolist()}
        return {**lists, "slope": self.slope, "pairs": self.pairs}

    @classmethod
    def of_json(cls, plain: Any) -> ScoreMap:
        """Return the map of `as_json`. Raises: DataError: it is not one."""
        try:
            now, then = (np.asarray(plain[k], dtype=np.float64) for k in ("now", "then"))
            slope, pairs = float(plain["slope"]), int(plain["pairs"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"This is no map of scores: {error!r}.") from error
        fits = now.ndim == 1 and now.shape == then.shape and len(now) > 1
        fits = fits and all(np.isfinite(x).all() for x in (now, then, slope)) and slope > 0
        if not (fits and (np.diff(now) > 0).all() and (np.diff(then) >= 0).all()):
            raise DataError(
                "This is no map of scores: 'now' and 'then' must be finite, ascending and of one "
                "length."
            )
        return cls(now, then, slope, pairs)


def _means(new: Doubles, old: Doubles, knots: Doubles) -> Doubles:
    """Return, for each knot, the mean of `old` over all ranks at which `new` has it; both are
    sorted, and many more ranks than the kept ones may share a score."""
    first, end = (np.searchsorted(new, knots, side) for side in ("left", "right"))
    # Every second sum is that of the ranks between two knots. The 0 is there for the last end.
    sums = np.add.reduceat(np.append(old, 0.0), np.stack([first, end], axis=1).ravel())[::2]
    # Rounding must not take a mean below that of the knot before.
    means: Doubles = np.clip(sums / (end - first), old[first], old[end - 1])
    return means


def _places(count: int) -> npt.NDArray[np.int64]:
    """Return the ranks whose scores are kept."""
    if count <= EVEN + LARGEST:
        return np.arange(count)
    even = np.linspace(0, count - 1, EVEN).round().astype(np.int64)
    return np.union1d(even, np.arange(count - LARGEST, count))
