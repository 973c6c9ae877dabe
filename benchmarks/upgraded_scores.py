"""Thresholds of a consumer at an upgrade, before and after calibration.

Corpora and encoders are those of `migrations`. A consumer at the old version counts the pairs whose
cosine is at least a threshold; after the upgrade the new vectors are read back, by a linear map
that was fitted to nine tenths of the texts. Scores are calibrated on pairs of the others, at most
1,000 texts, as `ScoreMaps` does. Measured are pairs of a query and a text, and of a text that was
held out and one that was not. Own pairs are those of one half of the queries, and all methods are
measured on the other half.

All vectors have length 1, but those that are read back have other lengths. What their inner
products do, as they are, stands beside their cosines: for thresholds, and for the first ten hits.
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
# Pairs that are measured of each kind.
PAIRS = 200_000
# The consumer's threshold: this share of the pairs lies above.
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
    """One corpus and pair of encoders.

    Args:
        thresholds: by kind of pairs and method: pairs above the threshold over those then,
            precision and recall.
        kept: by ranking, the share of a query's first ten hits that are among those then, for
            queries that are read back and for those that were kept.
    """

    thresholds: Mapping[tuple[str, str], tuple[float, float, float]]
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
        # In order, so that halves are of different queries.
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
        # Own pairs are the consumer's own: half fit, and the other half is measured for all.
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
    return Cell(
        thresholds,
        {
            ranking: (
                _kept(pair, asked, texts),
                _kept(pair, pair.old_queries, texts),
            )
            for ranking, texts in zip(RANKINGS, (plain, read), strict=True)
        },
    )


def _kept(pair: MigrationVectors, queries: Tensor, texts: Tensor) -> float:
    """Return the share of each query's first hits among these texts that are its first by the old
    vectors. The length of a query does not rank."""
    now = best_candidates(queries, texts, HITS)
    then = best_candidates(pair.old_queries, pair.old, HITS)
    return float((now[:, :, None] == then[:, None, :]).any(2).double().mean())


def above(mapped: Doubles, then: Doubles, share: float) -> tuple[float, float, float]:
    """Return the pairs above the threshold over those then, precision and recall.

    A precision of no pairs is that of chance, the share itself.
    """
    threshold = np.quantile(then, 1 - share)
    was, is_now = then >= threshold, mapped >= threshold
    both = int((was & is_now).sum())
    precision = both / is_now.sum() if is_now.any() else share
    return float(is_now.sum() / was.sum()), float(precision), float(both / was.sum())


def table(cells: Sequence[Cell]) -> str:
    """Return medians over the cells, with the range of their middle 80 %."""
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
