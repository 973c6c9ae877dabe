"""A consumer's score threshold after an upgrade, without and with calibration.

Corpora and encoders are those of `migrations`. A consumer of the old version counts pairs whose
cosine is at least a threshold. After the upgrade, it reads the new vectors through a linear map,
fitted to at least nine tenths of the texts. Scores are calibrated as in `ScoreMaps`, on pairs of
held-out texts (at most 1,000). Pairs of a query and a text, and pairs of a held-out and a fitted
text, are measured. "Own pairs" calibrates on the first half of the pairs; all methods are measured
on the second half.

All vectors have length 1, but mapped vectors do not. Both their inner products and their cosines
are measured, for thresholds and for the first ten hits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks import migrations
from evergram.compatibility import Aligner
from evergram.compatibility.score_map import ScoreMap
from evergram.evaluation.score_blocks import best_candidates
from evergram.migration.migration_plan import MigrationVectors, unit

Doubles = npt.NDArray[np.float64]
HELD, CANARIES = 0.1, 1000
# Maximum number of pairs measured per kind.
PAIRS = 200_000
# This share of the pairs lies above the consumer's threshold.
SHARE = 0.01
METHODS = (
    "raw, inner product",
    "raw, cosine",
    "matched quantiles",
    "matched quantiles, own pairs",
)
HITS = 10
RANKINGS = ("inner product", "cosine")


@dataclass(frozen=True)
class Cell:
    """One corpus and pair of encoders."""

    # By kind of pairs and method: pairs above the threshold relative to before, precision and
    # recall.
    thresholds: Mapping[tuple[str, str], tuple[float, float, float]]
    # By ranking, the share of a query's first ten hits that were hits before, for mapped new
    # queries and for old queries.
    kept: Mapping[str, tuple[float, float]]


def measure() -> list[Cell]:
    return [of_pair(pair) for _, _, pair, _ in migrations.judged_migrations()]


def tiny() -> list[Cell]:
    return [of_pair(migrations.made_up()[0])]


def of_pair(pair: MigrationVectors) -> Cell:
    draw = np.random.default_rng(0)
    order = torch.from_numpy(draw.permutation(len(pair.texts)))
    count = min(CANARIES, int(HELD * len(order)))
    held, fitted = order[:count], order[count:]
    aligner = Aligner("linear").fit(pair.new[fitted], pair.old[fitted])
    plain, plain_asked = (aligner.transform(part) for part in (pair.new, pair.new_queries))
    read, asked = unit(plain), unit(plain_asked)

    def sampled(*products: tuple[Tensor, Tensor]) -> list[Doubles]:
        total = len(products[0][0]) * len(products[0][1])
        # Sorted, so that the two halves have different queries.
        rows = np.unique(draw.integers(0, total, PAIRS)) if total > PAIRS else np.arange(total)
        return [(a.double() @ b.double().T).flatten().numpy()[rows] for a, b in products]

    upper = np.triu_indices(count, 1)
    one, other = (
        (part[held].double() @ part[held].double().T).numpy()[upper] for part in (read, pair.old)
    )
    kinds = {
        "query and text": sampled(
            (plain_asked, plain), (asked, read), (pair.old_queries, pair.old)
        ),
        "two texts": sampled(
            (plain[held], plain[fitted]),
            (read[held], read[fitted]),
            (pair.old[held], pair.old[fitted]),
        ),
    }
    calibrated = ScoreMap.fit(one, other)
    thresholds = {}
    for kind, (products, now, then) in kinds.items():
        # Fit to the first half of the consumer's pairs; measure all methods on the second half.
        half = len(now) // 2
        own = ScoreMap.fit(now[:half], then[:half])
        methods: dict[str, Callable[[Doubles], Doubles]] = {
            "raw, cosine": lambda scores: scores,
            "matched quantiles": calibrated.apply,
            "matched quantiles, own pairs": own.apply,
        }
        for method in METHODS:
            mapped = methods[method](now[half:]) if method in methods else products[half:]
            thresholds[kind, method] = above(mapped, then[half:], SHARE)
    kept = {
        ranking: (_kept(pair, asked, texts), _kept(pair, pair.old_queries, texts))
        for ranking, texts in zip(RANKINGS, (plain, read), strict=True)
    }
    return Cell(thresholds, kept)


def _kept(pair: MigrationVectors, queries: Tensor, texts: Tensor) -> float:
    """Return the share of each query's first hits that are also its first hits with the old
    vectors. The length of a query does not affect its ranking."""
    now = best_candidates(queries, texts, HITS)
    then = best_candidates(pair.old_queries, pair.old, HITS)
    return float((now[:, :, None] == then[:, None, :]).any(2).double().mean())


def above(mapped: Doubles, then: Doubles, share: float) -> tuple[float, float, float]:
    """Return the number of pairs above the threshold relative to before, precision and recall.

    Without pairs above the threshold, the precision is the share itself, as for random pairs.
    """
    threshold = np.quantile(then, 1 - share)
    was, is_now = then >= threshold, mapped >= threshold
    both = int((was & is_now).sum())
    precision = both / is_now.sum() if is_now.any() else share
    return float(is_now.sum() / was.sum()), float(precision), float(both / was.sum())


def table(cells: Sequence[Cell]) -> str:
    """Return medians over the cells, with the range from 10 % to 90 %."""
    lines = [
        f"{len(cells)} migrations; medians, and 10 % to 90 % of them.",
        "",
        "| pairs | scores | pairs above, over those then | precision | recall |",
        "|---" * 5 + "|",
    ]
    for kind, method in cells[0].thresholds:
        values = np.array([cell.thresholds[kind, method] for cell in cells])
        shown = " | ".join(_middle(values[:, i]) for i in range(3))
        lines.append(f"| {kind} | {method} | {shown} |")
    lines += [
        "",
        f"| first {HITS} hits that were among those then | queries read back | own queries |",
        "|---|---|---|",
    ]
    for ranking in cells[0].kept:
        pairs = np.array([cell.kept[ranking] for cell in cells])
        lines.append(f"| by {ranking} | {_middle(pairs[:, 0])} | {_middle(pairs[:, 1])} |")
    return "\n".join(lines)


def _middle(values: npt.NDArray[Any]) -> str:
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"
