"""What the softmax over all candidates costs beside its three matrix products, and the limit.

Scores, ∂/∂u and ∂/∂v are a product each, and nothing computes an exact softmax without them; what
is more is passes over the scores. Vectors are drawn, of length 1, near a few centres, so that some
shares are above the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import normalize

from evergram.tasks.log_partition import TILE_SCORES, log_partition_sum

TEMPERATURE, SHARE = 0.1, 0.01
QUERIES, DIM = 600, 64
CANDIDATES = (10_000, 40_000, 160_000)


@dataclass(frozen=True)
class Cost:
    """Medians of milliseconds: of the three products, and of the softmax and its gradients."""

    candidates: int
    lower_products: bool
    products: float
    softmax: float
    limited: float


def partition_cost(
    sizes: tuple[int, ...] = CANDIDATES, queries: int = QUERIES, rounds: int = 9
) -> list[Cost]:
    """Measure each size with products of float32 and of bfloat16."""
    return [_measured(n, queries, rounds, lower) for n in sizes for lower in (False, True)]


def tiny() -> list[Cost]:
    return partition_cost((300,), 5, 1)


def _measured(candidates: int, queries: int, rounds: int, lower: bool) -> Cost:
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(50, DIM, generator=draw)

    def near_centres(count: int) -> Tensor:
        own = centres[torch.randint(len(centres), (count,), generator=draw)]
        return normalize(own + 0.8 * torch.randn(count, DIM, generator=draw), dim=1)

    rows, others, weight = near_centres(queries), near_centres(candidates), torch.ones(queries)

    # Kept, as the softmax keeps its own: new memory would cost more than the products.
    buffer = torch.empty(min(queries, max(1, TILE_SCORES // candidates)), candidates)
    total = torch.zeros_like(others)

    def products() -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium" if lower else before)
        for part in torch.split(rows, len(buffer)):
            scores = torch.mm(part, others.T, out=buffer[: len(part)])
            scores @ others
            total.addmm_(scores.T, part)
        torch.set_float32_matmul_precision(before)

    def softmax(share: float | None) -> Callable[[], None]:
        def step() -> None:
            u, v = rows.clone().requires_grad_(), others.clone().requires_grad_()
            loss = log_partition_sum(
                u, v, weight, TEMPERATURE, largest_share=share, lower_products=lower
            )
            loss.backward()  # type: ignore[no-untyped-call]

        return step

    seconds: list[list[float]] = [[], [], []]
    for number in range(rounds + 1):
        for own, step in zip(seconds, (products, softmax(None), softmax(SHARE)), strict=True):
            started = time.perf_counter()
            step()
            if number:  # the first warms up
                own.append(time.perf_counter() - started)
    return Cost(candidates, lower, *(1000 * median(own) for own in seconds))


def table(costs: list[Cost]) -> str:
    """Return times over those of the products, which are in milliseconds."""
    lines = [
        "| candidates | products in | the three products, ms | softmax | with a limit on shares |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {c.candidates:,} | {'bfloat16' if c.lower_products else 'float32'} "
        f"| {c.products:.0f} | {c.softmax / c.products:.1f} | {c.limited / c.products:.1f} |"
        for c in costs
    ]
    threads = torch.get_num_threads()
    lines += ["", f"{QUERIES} queries, {DIM} dims, a share of {SHARE:g}, {threads} thread(s)."]
    return "\n".join(lines)
