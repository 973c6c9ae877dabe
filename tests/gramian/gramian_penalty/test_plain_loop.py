"""In ten lines of a plain PyTorch loop, the penalty follows the Gramian."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from evergram.gramian import GramianPenalty


def world(seed: int) -> tuple[Tensor, Tensor]:
    """Popularity is skewed, and every query likes one of ten kinds of candidates."""
    draw = torch.Generator().manual_seed(seed)
    popular_a, popular_b = (1 / (1 + torch.arange(n)) ** 0.8 for n in (1000, 400))
    a = torch.multinomial(popular_a, 20_000, replacement=True, generator=draw)
    likes = torch.where(torch.arange(400) % 10 == torch.arange(10)[:, None], 10.0, 1.0)
    b = torch.multinomial(popular_b * likes[a % 10], 1, generator=draw)[:, 0]
    return a, b


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("estimator", "with_ids", "limit"),
    [("sogram", True, 0.1), ("sogram", False, 0.1), ("sagram", True, 0.02)],
)
def test_a_plain_loop_follows_the_gramian(
    estimator: str, with_ids: bool, limit: float, seed: int
) -> None:
    a, b = world(seed)
    torch.manual_seed(seed)
    users, items = nn.Embedding(1000, 32), nn.Embedding(400, 32)
    penalty = GramianPenalty(32, estimator)
    optimizer = torch.optim.Adam([*users.parameters(), *items.parameters()], lr=0.01)
    others = iter(torch.split(torch.randint(len(a), (10 * len(a),)), 250))
    for _ in range(10):
        for rows in torch.split(torch.randperm(len(a)), 256):
            u, v = users(a[rows]), items(b[rows])
            task = 0.5 * ((u * v).sum(1) - 1).square().mean()
            ids = (a[rows], b[rows]) if with_ids else (None, None)
            if estimator == "sagram":
                apart = next(others)
                with torch.no_grad():
                    penalty.before_step(users(a[apart]), items(b[apart]), a[apart], b[apart])
            loss = task + 10 * penalty(u, v, *ids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if estimator == "sagram":
                with torch.no_grad():
                    penalty.after_step(users(a[rows]), items(b[rows]))
    # The exact Gramians, of each measure by its own words.
    seen_a, seen_b = (torch.unique(a), torch.unique(b)) if with_ids else (a, b)
    for table, rows, estimate in (
        (users, seen_a, penalty.query_gramian),
        (items, seen_b, penalty.candidate_gramian),
    ):
        embeddings = table.weight.detach()[rows].double()
        exact = embeddings.T @ embeddings / len(rows)
        assert float((estimate - exact).norm() / exact.norm()) < limit
    everybody = (users.weight, items.weight) if with_ids else (users(a), items(b))
    assert max(penalty.gramian_error(*everybody)) < limit
