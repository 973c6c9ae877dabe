"""Conclusions for practitioners, each shown only if the verdicts support it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from reproduction.bc.columns import consumers_of, keep_all, swept, value
from reproduction.bc.methods import ALIGNER, NON_BC, POST_SINGLE
from reproduction.gramian import growth
from reproduction.intervals import shown

if TYPE_CHECKING:
    from reproduction.claims import Judgement
    from reproduction.report.page import Section

Found = Mapping[tuple[str, str], "Section"]
BETTER = "SOGram has better validation performance than sampling"
GROWS, IN_TIME = "The improvement of SOGram", "On very large corpora SOGram"
NOTHING = "Nothing yet: no verdict below carries a conclusion."


@dataclass(frozen=True)
class Need:
    """A verdict that a conclusion requires."""

    experiment: str
    preset: str
    claim: str  # the beginning of the claim's sentence
    verdict: str = "confirmed"

    def judgement(self, found: Found) -> Judgement:
        """Return the actual judgement of the claim."""
        judgements = found[self.experiment, self.preset].judgements
        return next(j for j in judgements if j.claim.sentence.startswith(self.claim))


@dataclass(frozen=True)
class Conclusion:
    """A sentence with figures."""

    text: str  # a format string with a field for each figure
    needs: Sequence[Need]  # the verdicts that it requires
    # Computes the figures from the sections by experiment and preset.
    figures: Callable[[Found], Mapping[str, float | str]] = lambda _: {}


def conclusion(sections: Sequence[Section], about: str = "") -> list[str]:
    """Return the conclusions that the verdicts support, each with a note if results are stale.

    Args:
        about: an experiment; only its conclusions are returned.
    """
    found = {(s.experiment.name, s.preset): s for s in sections}
    lines = []
    for each in CONCLUSIONS:
        if each.needs[0].experiment.startswith(about) and all(
            need.judgement(found).verdict == need.verdict for need in each.needs
        ):
            stale = any(found[need.experiment, need.preset].stale for need in each.needs)
            lines.append(each.text.format(**each.figures(found)) + " (stale)" * stale)
    return lines or [NOTHING]


def _growth(found: Found) -> dict[str, float]:
    runs = found["gramian/growth", "small"].runs
    names = ("small", "medium", "large")
    each = (fmean(growth.gains(runs, size, equal="steps")) for size in growth.SIZES)
    return dict(zip(names, each, strict=True))


def _broken(found: Found) -> dict[str, float]:
    runs = found["bc/table3", "small"].runs
    results = runs.of(consumers_of(runs))
    lost, kept = (fmean(value(r, m, "unintended") for r in results) for m in (NON_BC, ALIGNER))
    before = fmean(keep_all(result, "unintended") for result in results)
    after = before * (1 + lost / 100)
    beauty = fmean(-value(result, NON_BC, "unintended") for result in runs.of(runs.labels[0]))
    return {"before": before, "after": after, "aligned": kept, "beauty": beauty}


def _joint(found: Found) -> dict[str, float | str]:
    runs = found["bc/table3", "small"].runs
    figures: dict[str, float | str] = {**_margin(JOINT)(found)}
    for name, corpus in (("films", consumers_of(runs)), ("beauty", runs.labels[0])):
        results = runs.of(corpus)
        kept, post = ([value(r, m, "unintended") for r in results] for m in (ALIGNER, POST_SINGLE))
        figures[f"{name}_kept"] = shown([a - b for a, b in zip(kept, post, strict=True)], 1)
        figures[f"{name}_found"] = shown([value(r, ALIGNER, "intended") for r in results], 1)
    return figures


def _price(found: Found) -> dict[str, float]:
    runs = found["bc/figure5", "small"].runs
    figures = {}
    for column in ("intended", "error"):
        each = [swept(result, ALIGNER, column) for result in runs.of(runs.labels[0])]
        for name, choose in (("least", min), ("most", max)):
            figures[f"{column}_{name}"] = fmean(values[choose(values)] for values in each)
    return figures


def _margin(need: Need) -> Callable[[Found], dict[str, float]]:
    """Return the smallest margin of a claim with its interval, as `least`, `low` and `high`."""

    def figures(found: Found) -> dict[str, float]:
        judgement = need.judgement(found)
        low, high = judgement.bounds[judgement.nearest or ""]
        return {"least": judgement.mean or 0.0, "low": low, "high": high}

    return figures


COSTS = Need("bc/table3", "small", "BC-Aligner suffers from little", "refuted")
JOINT = Need("bc/table3", "small", "BC-Aligner has a smaller unintended")
BY_IDS = Need("gramian/options", "small", "A factorization by ids alone")
WORSE = Need("gramian/options", "small", "SOGram with a fixed α")
SOFTMAX = Need("gramian/table2", "gowalla", "In-batch softmax")
SMALL = Need("gramian/options", "small", "The exact Gramian finds more", "not separable")
SOLVER = Need("gramian/options", "small", "Alternating least squares finds more")
SHIFTS = Need("bc/table3", "small", "Non-BC suffers")
GOWALLA = Need("gramian/table2", "gowalla", BETTER)
CONCLUSIONS = (
    Conclusion(
        "**The larger the catalogue, the more an average over batches (SOGram) gains.** On "
        "[made-up catalogues](#the-gain-as-the-catalogue-grows), with λ chosen for each method, "
        "its MAP@10 differs from sampling's by {small:+.0f} % with 10,000 candidates, "
        "{medium:+.0f} % with 100,000 and {large:+.0f} % with a million, where it is also better "
        "in the same time. This is after ten thousand steps, long before convergence; no real "
        "catalogue of that size was tried.",
        (Need("gramian/growth", "small", GROWS), Need("gramian/growth", "small", IN_TIME)),
        _growth,
    ),
    Conclusion(
        "**SOGram finds more on Gowalla**, 40,980 places: at least {least:.0f} % more than "
        "sampling with each sampler, [each with its own best "
        "settings](#map10-over-time-sogram-against-sampling).",
        (GOWALLA,),
        _margin(GOWALLA),
    ),
    Conclusion(
        "**On a catalogue of 40,000, as of Gowalla, SOGram and sampling are not separable** by "
        "what they find, [each with its own best "
        "settings](#map10-over-time-sogram-against-sampling): the interval of the gain is "
        "{low:+.0f} to {high:+.0f} %.",
        (replace(GOWALLA, verdict="not separable"),),
        _margin(GOWALLA),
    ),
    Conclusion(
        "**Try the softmax too**: over batches, corrected by logQ, it finds {least:.0f} % more on "
        "Gowalla than sampling with the penalty.",
        (SOFTMAX,),
        _margin(SOFTMAX),
    ),
    Conclusion(
        "**On a catalogue of 9,000 a batch of 512 is nearly enough.** On MovieLens the [exact "
        "Gramian](#options-that-the-papers-do-not-measure) gains {least:+.1f} % over the last "
        "batch's ({low:.1f} to {high:.1f} %).",
        (SMALL,),
        _margin(SMALL),
    ),
    Conclusion(
        "**A fixed α can cost more than it gains**: with 0.1, SOGram finds {least:.0f} % less "
        "there.",
        (WORSE,),
        _margin(WORSE),
    ),
    Conclusion(
        "**Try ids alone before features**: on the same films a factorization finds {least:.0f} % "
        "({low:.0f} to {high:.0f} %) more than towers with features and a layer. Steps and "
        "alternating least squares are not separable there.",
        (BY_IDS, replace(SOLVER, verdict="not separable")),
        _margin(BY_IDS),
    ),
    Conclusion(
        "**With joint training λ is the price: old vectors stay nearer, and the new model finds "
        "less.** From λ = 1 to 32 BC-Aligner's own recall on Amazon Beauty goes from "
        "{intended_least:+.1f} % to {intended_most:+.1f} % against Keep-All's, and its distance "
        "from {error_least:.3f} to {error_most:.3f} ([by λ](#three-methods-by-λ)).",
        (
            Need("bc/figure5", "small", "As λ increases, all the methods have larger"),
            Need("bc/figure5", "small", "As λ increases, all the methods have a smaller error"),
        ),
        _price,
    ),
    Conclusion(
        "**Without a backward transform consumers break**: on MovieLens their ROC-AUC falls from "
        "{before:.2f} to {after:.2f} (0.5 is chance), and on Amazon Beauty by {beauty:.0f} %. With "
        "BC-Aligner it changes by {aligned:+.1f} % on MovieLens.",
        (SHIFTS,),
        _broken,
    ),
    Conclusion(
        "**On MovieLens consumers keep a little more with joint training** than with a transform "
        "fitted afterwards: {films_kept} % of ROC-AUC; on Beauty {beauty_kept} %. With the paper's "
        "λ of 16 the new model's recall changes by {films_found} % and {beauty_found} %; fitting "
        "afterwards costs it nothing ([Table 3](#nine-methods-and-two-of-ours-on-three-corpora)).",
        (JOINT, COSTS),
        _joint,
    ),
)
