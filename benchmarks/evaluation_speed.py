"""Rate of ranking the whole catalogue over that of a bare matrix product with its top-k.

Both rank the same queries against the same random candidates, in turns in one process. The bare one
is what a program of two lines does, `(part @ candidate.T).topk(k)` over parts of the queries, with
the number of queries a part that is fastest there; it masks nothing and measures nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from evergram.evaluation.ranking import METRICS, Relevance, parse_metric, rank_metrics

# Queries by the number of candidates.
SIZES = {10_000: 2048, 100_000: 512, 1_000_000: 128}
DIMS, THREADS = (32, 128), (1, 2)
# Queries a part of the bare product: the fastest of these.
PARTS = (16, 64, 256)
# Scores of a part at most, 256 MiB.
LARGEST_PART = 1 << 26
# Pairs of a query that are masked, and that are ranked.
SEEN, HELD = 25, 2
K = max(parse_metric(name)[1] for name in METRICS)
ROUNDS = 5


@dataclass(frozen=True)
class Speed:
    """Seconds of one ranking, of the bare product with top-k, and of the product alone.

    Args:
        ratio, product_ratio: medians over rounds of bare (product) seconds over ours.
    """

    candidates: int
    dim: int
    threads: int
    queries: int
    seconds: float
    ratio: float
    product_ratio: float


def measure(
    sizes: Mapping[int, int] = SIZES,
    dims: Sequence[int] = DIMS,
    threads: Sequence[int] = THREADS,
    rounds: int = ROUNDS,
) -> list[Speed]:
    """Return the rates for each number of candidates, of dims and of threads."""
    before, speeds = torch.get_num_threads(), []
    try:
        for candidates, queries in sizes.items():
            for dim in dims:
                for count in threads:
                    torch.set_num_threads(count)
                    speeds.append(_measured(queries, candidates, dim, rounds))
    finally:
        torch.set_num_threads(before)
    return speeds


def tiny() -> list[Speed]:
    return measure({100: 20, 1_000: 20}, (4,), (1,), 1)


def table(speeds: list[Speed]) -> str:
    """Return a row for each size."""
    lines = [
        "| candidates | D | threads | queries a second | rate over product and top-k | rate over "
        "the product alone |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {s.candidates:,} | {s.dim} | {s.threads} | {s.queries / s.seconds:,.0f} | "
        f"{s.ratio:.2f} | {s.product_ratio:.2f} |"
        for s in speeds
    ]
    return "\n".join(lines)


def _measured(queries: int, candidates: int, dim: int, rounds: int) -> Speed:
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(queries, dim, generator=draw)
    candidate = torch.randn(candidates, dim, generator=draw)
    relevance = _relevance(queries, candidates, draw)

    def ours() -> None:
        rank_metrics(query, candidate, relevance)

    def searched(rows: int) -> None:
        for part in torch.split(query, rows):
            (part @ candidate.T).topk(min(K, candidates))

    def product(rows: int) -> None:
        scores = torch.empty(rows, candidates)
        for part in torch.split(query, rows):
            torch.mm(part, candidate.T, out=scores[: len(part)])

    fits = [rows for rows in PARTS if rows * candidates <= LARGEST_PART]
    bare = min(fits, key=lambda rows: _seconds(lambda: searched(rows)))
    alone = min(fits, key=lambda rows: _seconds(lambda: product(rows)))
    ours()
    actions = (ours, lambda: searched(bare), lambda: product(alone))
    times = [[_seconds(action) for action in actions] for _ in range(rounds)]
    return Speed(
        candidates,
        dim,
        torch.get_num_threads(),
        queries,
        median(t[0] for t in times),
        median(t[1] / t[0] for t in times),
        median(t[2] / t[0] for t in times),
    )


def _relevance(queries: int, candidates: int, draw: torch.Generator) -> Relevance:
    """Return random held-out pairs, with random seen ones masked."""
    rows = torch.arange(queries)
    seen, held = (torch.randint(candidates, (n * queries,), generator=draw) for n in (SEEN, HELD))
    return Relevance.of(rows.repeat_interleave(HELD), held, rows.repeat_interleave(SEEN), seen)


def _seconds(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
