"""The papers' claims as tests: a margin for each seed, and the resulting verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from reproduction.intervals import LEVEL, holm

if TYPE_CHECKING:
    from reproduction.experiment import Runs

Verdict = Literal["confirmed", "refuted", "not separable", "not tested", "not measured"]
# One number per seed; if a claim compares with several competitors, one per competitor and seed.
Margins = Sequence[float] | Mapping[str, Sequence[float]]


def nothing_against(runs: Runs) -> str:
    """Return no reason against judging a claim."""
    return ""


@dataclass(frozen=True)
class Claim:
    """A sentence that can be tested."""

    sentence: str  # the paper's sentence, shortened to the tested part
    source: str  # for example "[G2] §4.2"
    measured: str  # describes the margin and its unit; the claim is that the margin is positive
    # Computes the margins from the results of a preset. For "the best of all", return a margin over
    # each competitor: a margin over the best of several noisy ones is biased.
    margins: Callable[[Runs], Margins]
    remark: str = ""  # why our result may differ, or what this corpus cannot show
    remarks: Mapping[str, str] = field(default_factory=dict)  # replaces `remark`, by preset
    # Returns why the results cannot judge the sentence, such as models below popularity, or "".
    premise: Callable[[Runs], str] = nothing_against
    # Returns why the trainings are too short to refute it, or "".
    too_short: Callable[[Runs], str] = nothing_against


def chosen_elsewhere(margins: Mapping[str, Sequence[float]]) -> list[float]:
    """Return, for each seed, the margin of the candidate that is best on the other seeds, so that
    the choice does not use the seed on which it is judged."""
    every = list(margins.values())
    seeds = range(len(every[0]))
    if len(seeds) == 1:
        return [max(values[0] for values in every)]
    means = [[sum(values) - values[seed] for values in every] for seed in seeds]
    return [every[row.index(max(row))][seed] for seed, row in zip(seeds, means, strict=True)]


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict and the figures it is based on."""

    claim: Claim
    verdict: Verdict
    # One per seed, by competitor; the name is "" if there is only one comparison.
    margins: Mapping[str, tuple[float, ...]]
    # The interval of the mean margin, by competitor, at level 95 % for one comparison and at Holm's
    # levels for several. Empty with fewer than three seeds.
    bounds: Mapping[str, tuple[float, float]]
    reason: str = ""  # why the claim is not tested

    @property
    def nearest(self) -> str | None:
        """The competitor with the smallest mean margin."""
        means = {name: fmean(values) for name, values in self.margins.items()}
        return min(means, key=means.__getitem__, default=None)

    @property
    def mean(self) -> float | None:
        """The smallest mean margin."""
        return None if self.nearest is None else fmean(self.margins[self.nearest])

    def as_json(self) -> dict[str, Any]:
        return {
            "sentence": self.claim.sentence,
            "source": self.claim.source,
            "measured": self.claim.measured,
            "verdict": self.verdict,
            "reason": self.reason,
            "comparisons": {
                name or "margin": {
                    "margins": list(values),
                    "mean": fmean(values),
                    "interval": list(self.bounds[name]) if name in self.bounds else None,
                }
                for name, values in self.margins.items()
            },
        }


def judge(claim: Claim, runs: Runs | None) -> Judgement:
    """Return the verdict of a claim.

    It is confirmed if every comparison's interval is above zero, and refuted if one is below zero
    and the trainings were long enough. One or two seeds are never separable; without results, the
    claim is not measured.
    """
    if runs is None or not runs.seeds:
        return Judgement(claim, "not measured", {}, {})
    found = claim.margins(runs)
    each = found if isinstance(found, Mapping) else {"": found}
    margins = {name: tuple(values) for name, values in each.items()}
    if not all(margins.values()):
        return Judgement(claim, "not measured", {}, {})
    bounds = holm(margins, LEVEL)
    verdict, reason = _verdict(bounds), claim.premise(runs)
    if not reason and verdict == "refuted":
        reason = claim.too_short(runs)
    return Judgement(claim, "not tested" if reason else verdict, margins, bounds, reason)


def _verdict(bounds: Mapping[str, tuple[float, float]]) -> Verdict:
    if any(high < 0 for _, high in bounds.values()):
        return "refuted"
    if bounds and all(low > 0 for low, _ in bounds.values()):
        return "confirmed"
    return "not separable"
