"""Thresholds of a consumer at an upgrade: before and after calibration, and a confidence of hits.

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
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks import judged_corpora, migrations
from evergram.compatibility import Aligner
from evergram.compatibility.score_map import ScoreMap
from evergram.evaluation.score_blocks import best_candidates
from evergram.migration.ways import MigrationVectors, unit

Doubles = npt.NDArray[np.float64]
HELD, CANARIES = 0.1, 1000
# Pairs that are measured of each kind, and that isotonic regression is fitted to.
PAIRS = 200_000
# The consumer's thresholds: this share of the pairs lies above.
SHARES = (0.01, 0.001)
METHODS = (
    "raw, inner product",
    "raw, cosine",
    "isotonic regression",
    "matched quantiles",
    "matched quantiles, own pairs",
)
HITS = 10
RANKINGS = ("inner product", "cosine")


@dataclass(frozen=True)
class Cell:
    """One corpus and pair of encoders.

    Args:
        thresholds: by kind of pairs, share and method: pairs above the threshold over those then,
            precision and recall.
        confidence: by name, what the distance from the fitted texts says.
        lengths: the mean length of texts that are read back.
        kept: by ranking, the share of a query's first ten hits that are among those then, for
            queries that are read back and for those that were kept.
    """

    thresholds: Mapping[tuple[str, float, str], tuple[float, float, float]]
    confidence: Mapping[str, float]
    lengths: float
    kept: Mapping[str, tuple[float, float]]


def measure() -> list[Cell]:
    cells = []
    encoders = migrations.installed()
    for name, read in judged_corpora.available().items():
        texts, queries, _ = read()
        vectors = {e: migrations.vectors_of(name, e, texts, queries) for e in encoders}
        for old, new in permutations(encoders, 2):
            parts = vectors[old][0], vectors[new][0], vectors[old][1], vectors[new][1]
            cells.append(of_pair(MigrationVectors(list(texts), list(queries), *parts)))
    return cells


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
            "isotonic regression": _isotonic(one, other, draw),
            "matched quantiles": calibrated.apply,
            "matched quantiles, own pairs": own.apply,
        }
        for method in METHODS:
            mapped = methods[method](now[half:]) if method in methods else products[half:]
            for share in SHARES:
                thresholds[kind, share, method] = above(mapped, then[half:], share)
    return Cell(
        thresholds,
        _confidence(pair, read, asked, (held, fitted), calibrated),
        float(plain.norm(dim=1).mean()),
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


def _isotonic(
    now: Doubles, then: Doubles, draw: np.random.Generator
) -> Callable[[Doubles], Doubles]:
    rows = draw.permutation(len(now))[:PAIRS]
    from sklearn.isotonic import IsotonicRegression

    fitted: Any = IsotonicRegression(out_of_bounds="clip").fit(now[rows], then[rows])
    predict: Callable[[Doubles], Doubles] = fitted.predict
    return predict


def above(mapped: Doubles, then: Doubles, share: float) -> tuple[float, float, float]:
    """Return the pairs above the threshold over those then, precision and recall.

    A precision of no pairs is that of chance, the share itself.
    """
    threshold = np.quantile(then, 1 - share)
    was, is_now = then >= threshold, mapped >= threshold
    both = int((was & is_now).sum())
    precision = both / is_now.sum() if is_now.any() else share
    return float(is_now.sum() / was.sum()), float(precision), float(both / was.sum())


def _confidence(
    pair: MigrationVectors,
    read: Tensor,
    asked: Tensor,
    rows: tuple[Tensor, Tensor],
    calibrated: ScoreMap,
) -> dict[str, float]:
    """Return what the Mahalanobis distance from the fitted texts says of texts and of hits.

    Hits are the first ten of each query among held-out texts.
    """
    held, fitted = rows
    seen = pair.new[fitted].double()
    covariance = torch.cov(seen.T) + 1e-6 * torch.eye(seen.shape[1], dtype=torch.float64)
    shifted = pair.new[held].double() - seen.mean(0)
    distance = torch.linalg.solve(covariance, shifted.T).T.mul(shifted).sum(1).sqrt()
    error = (read[held] - pair.old[held]).norm(dim=1)
    now = (asked @ read[held].T).double()
    then = (pair.old_queries @ pair.old[held].T).double()
    top = now.argsort(dim=1, descending=True, stable=True)[:, :HITS]
    was_hit = torch.zeros_like(now).scatter(1, then.argsort(1, descending=True)[:, :HITS], 1.0)
    missed = torch.from_numpy(calibrated.apply(now.numpy())).sub(then).abs().gather(1, top)
    kept = was_hit.gather(1, top).flatten().numpy()
    of_hits = distance[top].flatten().numpy()
    # Nearer should mean that the hit was one before, too.
    from sklearn.metrics import roc_auc_score

    auc = float(roc_auc_score(kept, -of_hits)) if 0 < kept.sum() < len(kept) else 0.5
    return {
        "text": _rank_correlation(distance.numpy(), error.numpy()),
        "hit": _rank_correlation(of_hits, missed.flatten().numpy()),
        "auc": auc,
    }


def _rank_correlation(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    ranks = [np.argsort(np.argsort(part, kind="stable"), kind="stable") for part in (one, other)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def table(cells: Sequence[Cell]) -> str:
    """Return medians over the cells, with the range of their middle 80 %."""
    lines = [
        f"{len(cells)} migrations; medians, and 10 % to 90 % of them.",
        "",
        "| pairs | share above the threshold then | scores | pairs above, over those then "
        "| precision | recall |",
        "|---" * 6 + "|",
    ]
    for kind, share, method in cells[0].thresholds:
        values = np.array([cell.thresholds[kind, share, method] for cell in cells])
        shown = " | ".join(_middle(values[:, i]) for i in range(3))
        lines.append(f"| {kind} | {share:.1%} | {method} | {shown} |")
    lines += [
        "",
        "| distance from the fitted texts | |",
        "|---|---|",
    ]
    names = {
        "text": "rank correlation with the error of the text's vector",
        "hit": "rank correlation with the error of the hit's calibrated score",
        "auc": "AUC for whether the hit was among the first ten before",
    }
    for key, name in names.items():
        values = np.array([cell.confidence[key] for cell in cells])
        lines.append(f"| {name} | {_middle(values)} |")
    lengths = np.array([cell.lengths for cell in cells])
    lines += [
        "",
        f"Mean length of texts that are read back: {_middle(lengths)}; of their own, 1.",
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
