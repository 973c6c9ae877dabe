"""A sidecar's coordinates rounded along a path, over each by itself and over the least that any
codes of as many bits leave of a normal variable.

The vectors are those of `migrations` on SciFact. Each pair is fitted some times, to nine tenths of
the texts each, so that it is seen how much of what old queries find is luck of the fit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from statistics import fmean, stdev

import torch
from torch import Tensor

from benchmarks import judged_corpora
from benchmarks.migrations import FLOAT_BYTES, installed, made_up, vectors_of
from evergram.compatibility import Aligner
from evergram.compatibility.sidecar.sidecar import Sidecar
from evergram.evaluation.judged import JudgedQueries, Judgements, judged_metrics
from evergram.evaluation.score_blocks import best_candidates
from evergram.migration.ways import MigrationVectors, unit

CORPUS = "SciFact"
SHARES = (0.025, 0.05, 0.1, 0.2)
FITS = 3
# Memory of the codes: none rounds each coordinate by itself.
ROUNDINGS = {"by itself": 0, "path": 5}


@dataclass(frozen=True)
class Row:
    """One pair and share of an old vector's bytes; lists have one number a fit.

    Args:
        errors: by rounding, the root mean square of what is left over that of the way back alone.
        least: the same of the best codes there can be, were what is left normal.
        kept: by rounding, nDCG@10 of old queries over that in the old index.
        seconds: by rounding, to encode a thousand texts.
    """

    pair: str
    share: float
    errors: dict[str, list[float]]
    least: list[float]
    kept: dict[str, list[float]]
    seconds: dict[str, list[float]]


def measure() -> list[Row]:
    texts, queries, judgements = judged_corpora.available()[CORPUS]()
    vectors = {name: vectors_of(CORPUS, name, texts, queries) for name in installed()}
    rows: list[Row] = []
    for old, new in permutations(vectors, 2):
        parts = vectors[old][0], vectors[new][0], vectors[old][1], vectors[new][1]
        pair = MigrationVectors(list(texts), list(queries), *parts)
        rows += _rows(f"{old} → {new}", pair, judgements, SHARES, FITS)
    return rows


def tiny() -> list[Row]:
    return list(_rows("a → b", *made_up(), (0.1,), 2))


def least_left(variances: Tensor, bits: int) -> float:
    """Return the least mean square that so many bits leave of normal variables, by bisection of the
    water level: what is above it costs ½ log₂(λ / level) bits, and leaves the level."""
    low, high = 0.0, float(variances.max())
    for _ in range(200):
        level = (low + high) / 2
        spent = float((variances / level).clamp(min=1).log2().sum()) / 2
        low, high = (level, high) if spent > bits else (low, level)
    return float(variances.clamp(max=high).sum())


def _rows(
    name: str, pair: MigrationVectors, judgements: Judgements, shares: Sequence[float], fits: int
) -> Iterator[Row]:
    judged = JudgedQueries.of(judgements, pair.queries, pair.texts)
    queries = pair.old_queries[judged.rows]

    def ndcg(texts: Tensor) -> float:
        ranked = best_candidates(queries, unit(texts), 10)
        return float(judged_metrics(ranked, judged)["ndcg@10"].mean())

    stay = ndcg(pair.old)
    for share in shares:
        size = round(share * FLOAT_BYTES * pair.old.shape[1])
        errors, kept, seconds = ({way: [] for way in ROUNDINGS} for _ in range(3))  # type: ignore[var-annotated]
        least = []
        for fit in range(fits):
            drawn = torch.Generator().manual_seed(fit)
            some = torch.rand(len(pair.old), generator=drawn) < 0.9
            affine = Aligner("linear").fit(pair.new[some], pair.old[some]).as_transform().affine()
            assert affine is not None
            fitted = Sidecar.fit(*affine, pair.new[some], pair.old[some], size)
            left = pair.old.double() - fitted.way_back(pair.new)
            power = float(left.square().sum(1).mean())
            variances = torch.linalg.eigvalsh(left.T @ left / len(left)).clamp(min=1e-30)
            least.append(math.sqrt(least_left(variances, 8 * size) / power))
            for way, memory in ROUNDINGS.items():
                sidecar = replace(fitted, memory=memory)
                started = time.perf_counter()
                codes = sidecar.encode(pair.new, pair.old)
                seconds[way].append((time.perf_counter() - started) * 1000 / len(codes))
                read = sidecar.read(pair.new, codes)
                missing = float((read - pair.old).double().square().sum(1).mean())
                errors[way].append(math.sqrt(missing / power))
                kept[way].append(ndcg(read) / stay)
        yield Row(name, share, errors, least, kept, seconds)


def table(rows: list[Row]) -> str:
    """Return a line a share, of means over pairs, and a line a pair of the tenth."""
    lines = [
        "| bytes, of an old vector's | error, over the way back's, each by itself | path "
        "| the least | path over by itself | ms to encode a text, by itself | path |",
        "|---|---|---|---|---|---|---|",
    ]
    for share in sorted({row.share for row in rows}):
        own = [row for row in rows if row.share == share]
        alone, path = (fmean(fmean(r.errors[way]) for r in own) for way in ROUNDINGS)
        times = [fmean(fmean(r.seconds[way]) for r in own) for way in ROUNDINGS]
        least = fmean(fmean(r.least) for r in own)
        lines.append(
            f"| {share:.1%} | {alone:.3f} | {path:.3f} | {least:.3f} | {path / alone:.2f} "
            f"| {times[0]:.2f} | {times[1]:.2f} |"
        )
    lines += [
        "",
        "| old → new, a tenth of the bytes | nDCG@10 over the old index's, by itself | path "
        "| standard deviation over fits, by itself | path |",
        "|---|---|---|---|---|",
    ]
    tenth = [row for row in rows if row.share == 0.1]
    for row in tenth:
        means = " | ".join(f"{fmean(row.kept[way]):.3f}" for way in ROUNDINGS)
        deviations = " | ".join(f"{stdev(row.kept[way]):.3f}" for way in ROUNDINGS)
        lines.append(f"| {row.pair} | {means} | {deviations} |")
    means = " | ".join(f"{fmean(fmean(r.kept[way]) for r in tenth):.3f}" for way in ROUNDINGS)
    deviations = " | ".join(f"{fmean(stdev(r.kept[way]) for r in tenth):.3f}" for way in ROUNDINGS)
    lines += [
        f"| all, means | {means} | {deviations} |",
        "",
        f"{CORPUS}; {len(tenth[0].least)} fits a pair; {torch.get_num_threads()} thread(s).",
    ]
    return "\n".join(lines)
