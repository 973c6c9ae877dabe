"""A monotone map from today's scores to the scores of a past version for the same pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evergram.errors import DataError, ShapeError

Doubles = npt.NDArray[np.float64]
LEAST_PAIRS = 1000  # with fewer pairs, the share above a threshold is estimated too poorly
# Number of quantiles kept: evenly spaced ones, plus the largest scores, where thresholds lie.
EVEN, LARGEST = 2049, 1024


@dataclass(frozen=True)
class ScoreMap:
    """Maps scores to a past version's scale, so that the same share of pairs passes any threshold.

    It matches quantiles: the score exceeded by a share p of the pairs now is mapped to the score
    exceeded by the same share then. Isotonic regression predicts the mean old score for each new
    one, which pulls scores towards the middle, so that far fewer pass a high threshold. Ranks are
    preserved. Outside the range of fitted scores the map is a line whose slope is the ratio of the
    standard deviations.

    >>> import numpy as np
    >>> from evergram.compatibility.score_map import ScoreMap
    >>> then = np.random.default_rng(0).normal(size=2000)
    >>> scores = ScoreMap.fit(0.5 * then + 1, then)
    >>> (scores.apply(np.array([1.0, 1.5])).round(3) + 0.0).tolist()
    [0.0, 1.0]

    Args:
        now: float64 [n], strictly ascending.
        then: float64 [n], ascending; the images of `now`.
    """

    now: Doubles
    then: Doubles
    slope: float
    pairs: int

    @classmethod
    def fit(cls, now: npt.ArrayLike, then: npt.ArrayLike) -> ScoreMap:
        """Fit the map to scores of the same pairs now and then, both [P].

        Raises: ShapeError: the shapes differ. DataError: there are fewer than `LEAST_PAIRS` pairs,
            a score is not finite, or all scores of now or of then are equal.
        """
        new, old = (np.asarray(scores, dtype=np.float64) for scores in (now, then))
        if new.ndim != 1 or new.shape != old.shape:
            raise ShapeError(
                f"The scores of now are {list(new.shape)} and of then {list(old.shape)}; both must "
                "be [P], of the same pairs."
            )
        if len(new) < LEAST_PAIRS:
            raise DataError(
                f"{len(new)} pairs have both scores, but {LEAST_PAIRS} are needed to calibrate; "
                "give more."
            )
        if not (np.isfinite(new).all() and np.isfinite(old).all()):
            raise DataError("A score is not finite (NaN or infinity); leave its pair out.")
        new, old = np.sort(new), np.sort(old)
        for name, scores in (("now", new), ("then", old)):
            if scores[-1] - scores[0] <= 1e-12 * max(abs(scores[-1]), abs(scores[0])):
                raise DataError(
                    f"All scores of {name} are equal, so they cannot be calibrated; give pairs of "
                    "different objects."
                )
        slope = float(old.std() / new.std())
        knots = np.unique(new[_kept_ranks(len(new))])
        return cls(knots, _means(new, old, knots), slope, len(new))

    def apply(self, scores: npt.ArrayLike) -> Doubles:
        """Map scores, of any shape, to the past version's scale; float64."""
        values = np.asarray(scores, dtype=np.float64)
        inside: Doubles = np.interp(values, self.now, self.then)
        beyond = np.maximum(values - self.now[-1], 0) + np.minimum(values - self.now[0], 0)
        mapped: Doubles = inside + self.slope * beyond
        return mapped

    def as_json(self) -> dict[str, Any]:
        """Return the map as JSON values, exact in float64."""
        lists = {"now": self.now.tolist(), "then": self.then.tolist()}
        return {**lists, "slope": self.slope, "pairs": self.pairs}

    @classmethod
    def of_json(cls, plain: Any) -> ScoreMap:
        """Return the map that `as_json` described. Raises: DataError: it is invalid."""
        try:
            now, then = (np.asarray(plain[k], dtype=np.float64) for k in ("now", "then"))
            slope, pairs = float(plain["slope"]), int(plain["pairs"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"This is not a score map: {error!r}.") from error
        fits = now.ndim == 1 and now.shape == then.shape and len(now) > 1
        fits = fits and all(np.isfinite(x).all() for x in (now, then, slope)) and slope > 0
        if not (fits and (np.diff(now) > 0).all() and (np.diff(then) >= 0).all()):
            raise DataError(
                "This is not a score map: 'now' and 'then' must be finite, ascending and of equal "
                "length."
            )
        return cls(now, then, slope, pairs)


def _means(new: Doubles, old: Doubles, knots: Doubles) -> Doubles:
    """Return, for each knot, the mean of `old` over all ranks where `new` equals the knot. Both are
    sorted; ties may include ranks that are not kept."""
    first, end = (np.searchsorted(new, knots, side) for side in ("left", "right"))
    # Every second sum lies between two knots and is dropped. The 0 makes the last end an index.
    sums = np.add.reduceat(np.append(old, 0.0), np.stack([first, end], axis=1).ravel())[::2]
    # Clip, because rounding could otherwise make the means decrease.
    means: Doubles = np.clip(sums / (end - first), old[first], old[end - 1])
    return means


def _kept_ranks(count: int) -> npt.NDArray[np.int64]:
    """Return the ranks whose scores are kept."""
    if count <= EVEN + LARGEST:
        return np.arange(count)
    even = np.linspace(0, count - 1, EVEN).round().astype(np.int64)
    return np.union1d(even, np.arange(count - LARGEST, count))
