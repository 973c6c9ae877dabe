"""Sentences of the papers as checks: a margin for each seed, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from reproduction.intervals import interval

if TYPE_CHECKING:
    from reproduction.experiment import Runs

Verdict = Literal["confirmed", "refuted", "not separable", "not measured"]


@dataclass(frozen=True)
class Claim:
    """A sentence that can be tested.

    Args:
        sentence: as the paper has it, shortened to what is tested.
        source: "[G2] §4.2".
        measured: what the margin is, in words, with its unit; the claim says that it is positive.
        margins: one number a seed, of the results of a preset.
        remark: why ours may differ, or what this corpus cannot show.
        remarks: in its place, by preset.
    """

    sentence: str
    source: str
    measured: str
    margins: Callable[[Runs], Sequence[float]]
    remark: str = ""
    remarks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict with the figures that it follows from.

    Args:
        margins: one a seed.
        bounds: the 95 % interval of their mean; None with fewer than three seeds.
    """

    claim: Claim
    verdict: Verdict
    margins: tuple[float, ...]
    bounds: tuple[float, float] | None

    @property
    def mean(self) -> float | None:
        return fmean(self.margins) if self.margins else None

    def as_json(self) -> dict[str, Any]:
        return {
            "sentence": self.claim.sentence,
            "source": self.claim.source,
            "measured": self.claim.measured,
            "verdict": self.verdict,
            "margins": list(self.margins),
            "mean": self.mean,
            "interval": None if self.bounds is None else list(self.bounds),
        }


def judge(claim: Claim, runs: Runs | None) -> Judgement:
    """Return the verdict of a claim: confirmed or refuted where the whole interval is on one side
    of zero. One or two seeds separate nothing, and no results measure nothing."""
    margins = tuple(claim.margins(runs)) if runs is not None and runs.seeds else ()
    bounds = interval(margins)
    verdict: Verdict = "not separable"
    if not margins:
        verdict = "not measured"
    elif bounds is not None and bounds[0] > 0:
        verdict = "confirmed"
    elif bounds is not None and bounds[1] < 0:
        verdict = "refuted"
    return Judgement(claim, verdict, margins, bounds)
