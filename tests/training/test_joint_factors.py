"""Joint alignment of candidates that are published times a factor: a slow loop in float64."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from evergram.compatibility.alignment_loss import AlignmentLoss
from evergram.compatibility.chain import Chain
from evergram.compatibility.transforms import LinearTransform
from evergram.data.sampling import Batch
from evergram.encoders.encoder import Embeddings
from evergram.encoders.features import SIDES
from evergram.encoders.popularity.popularity_factor import popularity_factors
from evergram.training.joint import JointAlignment, JointAlignmentSettings
from evergram.training.recipe.upgrade import AlignedObjects

QUERIES, CANDIDATES, STRENGTH = 12, 9, 3.0


class UnitRows(Embeddings):
    """Free vectors, scaled to length 1."""

    def __init__(self, tables: dict[str, Tensor], *, at_hand: bool) -> None:
        self.tables = {side: torch.nn.functional.normalize(t, dim=1) for side, t in tables.items()}
        self.at_hand = at_hand

    def rows(self, side: str, ids: Tensor) -> Tensor:
        return self.tables[side][ids]

    def blocks(self, side: str, batch_size: int = 65_536) -> Iterator[Tensor]:
        yield self.tables[side].detach()

    def whole(self, side: str) -> Tensor | None:
        return self.tables[side] if self.at_hand else None


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def slow_loss(
    groups: list[list[tuple[str, int]]],
    tables: dict[str, Tensor],
    past: dict[str, Tensor],
    weight: Tensor,
    steps: list[Tensor],
    counts: list[int],
    exponent: float,
) -> Tensor:
    """λ times the mean over groups of each group's mean over its objects, one object at a time: the
    error of the published vector at every past version, by explicit products."""
    means = []
    for group in groups:
        losses = []
        for side, row in group:
            vector = tables[side][row] / tables[side][row].square().sum().sqrt()
            if side == "candidate":
                vector = vector * max(counts[row], 1) ** exponent
            error = weight @ vector - past[side][row]
            total = error.square().sum()
            for step in reversed(steps):
                error = step @ error
                total = total + error.square().sum()
            losses.append(total / (1 + len(steps)))
        means.append(torch.stack(losses).mean())
    return STRENGTH * torch.stack(means).mean()


@pytest.mark.parametrize("versions", [1, 3])
@pytest.mark.parametrize(
    ("objects", "at_hand"), [("all", True), ("all", False), ("batch", False), ("paper-code", False)]
)
def test_it_aligns_candidates_as_they_are_published(
    objects: AlignedObjects, at_hand: bool, versions: int
) -> None:
    torch.manual_seed(versions)
    dims = [3, 5, 2, 4][: versions + 1]
    dims[-1] = 6
    steps = [randn(old, new) for old, new in pairwise(dims[:-1])]
    weight = randn(dims[-2], dims[-1]).requires_grad_()
    past = {"query": randn(QUERIES, dims[-2]), "candidate": randn(CANDIDATES, dims[-2])}
    tables = {"query": randn(QUERIES, 6), "candidate": randn(CANDIDATES, 6)}
    for table in tables.values():
        table.requires_grad_()
    counts = [0, 1, 2, 50, 1000, 3, 7, 0, 4]
    user, item, negative = torch.tensor([3, 1, 3]), torch.tensor([4, 4, 0]), torch.tensor([2, 8, 3])
    everyone = [("query", row) for row in range(QUERIES)]
    everyone += [("candidate", row) for row in range(CANDIDATES)]
    pairs = [[("query", r) for r in user.tolist()], [("candidate", r) for r in item.tolist()]]
    groups = {
        "all": [everyone],
        "batch": [pairs[0] + pairs[1]],
        "paper-code": [*pairs, [("candidate", r) for r in negative.tolist()]],
    }[objects]
    theirs = slow_loss(groups, tables, past, weight, steps, counts, 0.3)

    transform = LinearTransform.from_matrix(weight.detach())
    transform.requires_grad_(True)
    chain = Chain([LinearTransform.from_matrix(step) for step in steps], dims[0])
    factors = torch.tensor([max(count, 1) ** 0.3 for count in counts], dtype=torch.float64)
    joint = JointAlignment(
        transform,
        AlignmentLoss(chain, "multi", "norm"),
        past,
        {side: torch.ones(len(past[side]), dtype=torch.float64) for side in SIDES},
        JointAlignmentSettings(STRENGTH, objects=objects, rows=20),
        factors=factors,
    )
    embeddings = UnitRows(tables, at_hand=at_hand)
    ones = torch.ones(3, 1, dtype=torch.float64)
    batch = Batch(user, item, ones[:, 0], ones, ones, negative)
    rows = embeddings.rows("query", user), embeddings.rows("candidate", item)
    ours = joint(*rows, batch, embeddings)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)
    inputs = [tables["query"], tables["candidate"]]
    gradients = torch.autograd.grad(ours, [transform.weight, *inputs])
    for mine, slow in zip(gradients, torch.autograd.grad(theirs, [weight, *inputs]), strict=True):
        torch.testing.assert_close(mine, slow, rtol=1e-9, atol=1e-12)
    published = {s: embeddings.tables[s].detach() for s in SIDES}
    published["candidate"] = published["candidate"] * factors[:, None]
    errors = [
        float(slow_loss([group], tables, past, weight, steps, counts, 0.3).detach()) / STRENGTH
        for group in (everyone[:QUERIES], everyone[QUERIES:])
    ]
    assert joint.error(published) == pytest.approx(sum(errors) / 2, rel=1e-9)


def test_the_factors_are_those_of_published_candidates() -> None:
    counts = torch.tensor([0, 1, 50])
    expected = torch.tensor([1, 1, 50**0.3], dtype=torch.float64).float()
    assert torch.equal(popularity_factors(counts, 0.3), expected)
