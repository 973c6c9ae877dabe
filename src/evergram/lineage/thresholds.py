"""What becomes of consumers' thresholds on scores when their version is read from a newer one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from evergram.compatibility.score_map import ScoreMap
from evergram.errors import DataError, LineageError
from evergram.lineage.consumers.registry import ConsumerRegistry, pinned_to
from evergram.lineage.lineage import Lineage
from evergram.lineage.score_maps import ScoredSearch, ScoreMaps


@dataclass(frozen=True)
class ThresholdCount:
    """Pairs of canaries that pass a consumer's threshold, as its version and as read from the
    newest.

    Args:
        pairs: of canaries that both versions keep; queries and objects are read back alike.
        then, now: pairs that pass by the version's own vectors, and by those that are read back.
        both: pairs that pass by either, so that both / now is the precision.
        calibrated: pairs that pass by calibrated scores; None if there are too few to calibrate.
        unknown: why nothing is known; the counts are then 0.
    """

    consumer: str
    version: int
    metric: str
    threshold: float
    pairs: int = 0
    then: int = 0
    now: int = 0
    both: int = 0
    calibrated: int | None = None
    unknown: str | None = None

    @property
    def sentence(self) -> str:
        """The count in words, with what can be done."""
        what = f"{self.consumer}: {self.metric} of {self.threshold:g} at version {self.version}"
        if self.unknown is not None:
            return f"{what}: it is not known how many pairs pass now: {self.unknown}"
        if not self.then:
            return (
                f"{what}: none of {self.pairs:,} pairs of canaries reached it, and {self.now:,} do "
                "as read back; see whether the threshold and its metric are right."
            )
        times = f", {self.now / self.then:.3g} times as many"
        precision = f" {self.both / self.now:.0%} of these passed then." if self.now else ""
        calibrated = ""
        if self.calibrated is not None:
            calibrated = f" With calibrated scores {self.calibrated:,} pass: ask for these."
        return (
            f"{what}: of {self.pairs:,} pairs of canaries {self.then:,} passed, and {self.now:,} "
            f"do as read back{times}.{precision}{calibrated}"
        )


def threshold_counts(lineage: Lineage) -> list[ThresholdCount]:
    """Return a count for each registered threshold on scores of a version before the newest."""
    if not lineage.versions:
        return []
    maps, newest, counts = ScoreMaps(lineage), lineage.newest, []
    pinned = pinned_to(lineage.address, lineage.resolve)
    for consumer in ConsumerRegistry.open(lineage.address).list():
        target = pinned.get(consumer.name)
        if consumer.threshold is None or target is None or target == newest:
            continue
        limit, metric = consumer.threshold.value, consumer.threshold.metric
        known = consumer.name, target, metric, limit
        kept = lineage.canaries(newest)
        sides = ("query", "candidate") if len(kept) == 2 else (next(iter(kept), "object"),) * 2
        try:
            now, then = maps.pair_scores(newest, ScoredSearch(target, sides, metric, newest))
        except LineageError as error:
            counts.append(ThresholdCount(*known, unknown=str(error)))
            continue
        passed, passes, calibrated = then >= limit, now >= limit, None
        with suppress(DataError):
            calibrated = int((ScoreMap.fit(now, then).apply(now) >= limit).sum())
        both = int((passed & passes).sum())
        sums = len(now), int(passed.sum()), int(passes.sum()), both
        counts.append(ThresholdCount(*known, *sums, calibrated=calibrated))
    return counts
