"""The objects that joint alignment is over, and the loss of [BC]'s authors, term by term."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from evergram.compatibility.alignment_loss import AlignmentLoss, alignment_weight
from evergram.compatibility.chain import Chain
from evergram.compatibility.consumers.consumer_metric import consumer_metric
from evergram.compatibility.transforms import LinearTransform
from evergram.data.sampling import Batch
from evergram.encoders.encoder import Embeddings
from evergram.encoders.features import SIDES
from evergram.training.joint import JointAlignment, JointAlignmentSettings

USERS, ITEMS = 50, 30


class Tables(Embeddings):
    """Free vectors of both sides; `passes` says whether all of them are at hand."""

    def __init__(self, query: Tensor, candidate: Tensor, passes: bool = False) -> None:
        self.tables = {"query": query, "candidate": candidate}
        self.passes = passes

    def rows(self, side: str, ids: Tensor) -> Tensor:
        return self.tables[side][ids]

    def blocks(self, side: str, batch_size: int = 65_536) -> Iterator[Tensor]:
        yield self.tables[side].detach()

    def whole(self, side: str) -> Tensor | None:
        return self.tables[side] if self.passes else None


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def batch_of(query: Tensor, candidate: Tensor, negative: Tensor | None) -> Batch:
    ones = torch.ones(len(query), 1, dtype=torch.float64)
    return Batch(query, candidate, ones[:, 0], ones, ones, negative)


def alignment(
    chain: Chain,
    transform: LinearTransform,
    past: dict[str, Tensor],
    settings: JointAlignmentSettings,
    known: dict[str, Tensor] | None = None,
    unit: str = "norm",
) -> JointAlignment:
    weight = known or {side: torch.ones(len(past[side]), dtype=torch.float64) for side in SIDES}
    loss = AlignmentLoss(chain, "multi", unit)  # type: ignore[arg-type]
    return JointAlignment(transform, loss, past, weight, settings)


@pytest.mark.parametrize("versions", [1, 2, 3, 4])
def test_it_is_the_authors_loss_term_by_term(versions: int) -> None:
    """Trap 18. Of users, items and negative items, each version's mean over rows and over its own
    dims; divided by the number of past versions; times λ."""
    torch.manual_seed(versions)
    dims = [3, 4, 6, 5, 8][: versions + 1]
    past_steps = [randn(old, new) for old, new in itertools.pairwise(dims[:-1])]
    old_dim, new_dim = dims[-2:]
    weight = randn(old_dim, new_dim).requires_grad_()
    past = {"query": randn(USERS, old_dim), "candidate": randn(ITEMS, old_dim)}
    tables = [randn(USERS, new_dim).requires_grad_(), randn(ITEMS, new_dim).requires_grad_()]
    user, item, negative = torch.randint(USERS, (20,)), *torch.randint(ITEMS, (2, 20)).unbind()

    lam = 16.0
    differences = [
        past["query"][user] - tables[0][user] @ weight.T,
        past["candidate"][item] - tables[1][item] @ weight.T,
        past["candidate"][negative] - tables[1][negative] @ weight.T,
    ]
    penalty = torch.stack([(d**2).mean() for d in differences]).sum()
    for step in reversed(past_steps):
        differences = [d @ step.T for d in differences]
        penalty = penalty + torch.stack([(d**2).mean() for d in differences]).sum()
    theirs = lam * penalty / versions
    expected = torch.autograd.grad(theirs, [weight, *tables])

    transform = LinearTransform.from_matrix(weight.detach())
    transform.requires_grad_(True)
    chain = Chain([LinearTransform.from_matrix(step) for step in past_steps], dims[0])
    settings = JointAlignmentSettings(alignment_weight(lam, "paper", old_dim), objects="paper-code")
    ours = alignment(chain, transform, past, settings, unit="paper")(
        tables[0][user],
        tables[1][item],
        batch_of(user, item, negative),
        Tables(tables[0], tables[1]),
    )
    gradients = torch.autograd.grad(ours, [transform.weight, *tables])
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)
    for ours_, theirs_ in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours_, theirs_, rtol=1e-9, atol=1e-12)


def test_all_objects_count_alike_where_an_encoder_has_them_at_hand() -> None:
    """[BC] Eq. (7): the mean over all users and items that take part."""
    torch.manual_seed(0)
    past = {"query": randn(USERS, 3), "candidate": randn(ITEMS, 3)}
    tables = randn(USERS, 4), randn(ITEMS, 4)
    known = {"query": torch.rand(USERS) < 0.7, "candidate": torch.rand(ITEMS) < 0.7}
    transform = LinearTransform.from_matrix(randn(3, 4))
    joint = alignment(
        Chain([], 3),
        transform,
        past,
        JointAlignmentSettings(2.0, rows=5),
        {side: mask.double() for side, mask in known.items()},
    )
    rows = torch.arange(4)
    batch = batch_of(rows, rows, None)
    value = joint(tables[0][rows], tables[1][rows], batch, Tables(*tables, passes=True))
    errors = [
        (transform(table[known[side]]) - past[side][known[side]]).square().sum(1)
        for side, table in zip(SIDES, tables, strict=True)
    ]
    torch.testing.assert_close(value, 2 * torch.cat(errors).mean())


def test_drawn_objects_estimate_the_mean_over_all_without_bias() -> None:
    torch.manual_seed(0)
    past = {"query": randn(USERS, 3), "candidate": 4 * randn(ITEMS, 3)}
    tables = randn(USERS, 4), randn(ITEMS, 4)
    rows = torch.arange(4)
    arguments = (tables[0][rows], tables[1][rows], batch_of(rows, rows, None))
    transform = LinearTransform.from_matrix(randn(3, 4))

    def joint(size: int) -> JointAlignment:
        return alignment(Chain([], 3), transform, past, JointAlignmentSettings(1.0, rows=size))

    with torch.no_grad():
        exact = joint(10)(*arguments, Tables(*tables, passes=True))
        drawn = joint(10)
        values = torch.stack([drawn(*arguments, Tables(*tables)) for _ in range(4000)])
    deviation = values.std() / len(values) ** 0.5
    assert float(deviation) < 0.02 * float(exact)
    assert abs(float(values.mean() - exact)) < 4 * float(deviation)
    # With as many rows as there are objects nothing is drawn.
    whole = joint(USERS)(*arguments, Tables(*tables))
    torch.testing.assert_close(whole, exact)


def test_objects_are_drawn_anew_each_step_and_alike_in_a_resumed_run() -> None:
    torch.manual_seed(0)
    past = {"query": randn(USERS, 3), "candidate": randn(ITEMS, 3)}
    tables = Tables(randn(USERS, 4), randn(ITEMS, 4))
    rows = torch.arange(4)
    arguments = (tables.rows("query", rows), tables.rows("candidate", rows))
    batch = batch_of(rows, rows, None)
    joint = alignment(Chain([], 3), LinearTransform(3, 4).double(), past, _ROWS)
    values = [float(joint(*arguments, batch, tables).detach()) for _ in range(5)]
    assert len(set(values)) == 5
    resumed = alignment(Chain([], 3), joint.transform, past, _ROWS)  # type: ignore[arg-type]
    resumed.load_state_dict({**joint.state_dict(), "steps": torch.tensor(3)})
    assert float(resumed(*arguments, batch, tables).detach()) == values[3]


_ROWS = JointAlignmentSettings(1.0, rows=5)


def test_an_object_that_takes_no_part_is_in_no_mean() -> None:
    torch.manual_seed(0)
    past = {"query": randn(USERS, 2), "candidate": randn(ITEMS, 2)}
    known = {"query": torch.zeros(USERS), "candidate": torch.zeros(ITEMS)}
    known["candidate"][3] = 1
    tables = [randn(USERS, 2).requires_grad_(), randn(ITEMS, 2).requires_grad_()]
    transform = LinearTransform.from_matrix(torch.eye(2, dtype=torch.float64))
    user, item = torch.tensor([0, 1]), torch.tensor([3, 4])
    expected = (tables[1][3] - past["candidate"][3]).square().sum().detach()
    for objects in ("all", "batch"):
        settings = JointAlignmentSettings(1.0, objects=objects)
        weight = {side: mask.double() for side, mask in known.items()}
        value = alignment(Chain([], 2), transform, past, settings, weight)(
            tables[0][user],
            tables[1][item],
            batch_of(user, item, item),
            Tables(tables[0], tables[1]),
        )
        torch.testing.assert_close(value.detach(), expected)
        user_gradient, item_gradient = torch.autograd.grad(value, tables, allow_unused=True)
        assert user_gradient is None or float(user_gradient.abs().max()) == 0
        assert item_gradient is not None
        assert torch.nonzero(item_gradient.abs().sum(1)).flatten().tolist() == [3]


@pytest.mark.parametrize("objects", ["all", "paper-code", "batch"])
def test_each_sides_errors_are_weighed_by_what_its_consumers_make_of_them(objects: str) -> None:
    """The mean over all rows that take part, with δᵀ A δ row by row; A = I changes nothing."""
    torch.manual_seed(0)
    past = {"query": randn(USERS, 3), "candidate": randn(ITEMS, 3)}
    tables = {"query": randn(USERS, 4), "candidate": randn(ITEMS, 4)}
    known = {side: (torch.rand(len(past[side])) < 0.7).double() for side in SIDES}
    transform = LinearTransform.from_matrix(randn(3, 4))
    metrics = {side: consumer_metric([torch.outer(r, r)], 0.6) for side, r in draws(3).items()}
    settings = JointAlignmentSettings(2.0, objects=objects)  # type: ignore[arg-type]
    user, item, negative = torch.randint(USERS, (20,)), *torch.randint(ITEMS, (2, 20)).unbind()
    batch = batch_of(user, item, negative)

    def value(query: Tensor | None, candidate: Tensor | None, split: bool) -> Tensor:
        losses = [
            AlignmentLoss(Chain([], 3), metrics={} if metric is None else {0: metric})
            for metric in (query, candidate)
        ]
        last = losses[1] if split else None
        joint = JointAlignment(transform, losses[0], past, known, settings, last)
        embeddings = Tables(tables["query"], tables["candidate"], passes=True)
        result: Tensor = joint(tables["query"][user], tables["candidate"][item], batch, embeddings)
        return result.detach()

    groups = {
        "all": [("query", torch.arange(USERS)), ("candidate", torch.arange(ITEMS))],
        "paper-code": [("query", user), ("candidate", item), ("candidate", negative)],
        "batch": [("query", user), ("candidate", item)],
    }[objects]
    total, weights = 0.0, 0.0
    for side, rows in groups:
        share = 1.0
        if objects == "paper-code":
            share = 1 / max(1.0, float(known[side][rows].sum()))
        for row in rows.tolist():
            delta = transform.weight.detach() @ tables[side][row] - past[side][row]
            weight = share * float(known[side][row])
            total += weight * float(delta @ metrics[side] @ delta)
            weights += weight
    weighed = value(metrics["query"], metrics["candidate"], split=True)
    assert float(weighed) == pytest.approx(2 * total / weights, rel=1e-9)
    together = value(None, None, split=False)
    torch.testing.assert_close(value(None, None, split=True), together, rtol=1e-12, atol=0)


def draws(dim: int) -> dict[str, Tensor]:
    return {side: randn(dim) for side in SIDES}


def test_its_error_counts_each_side_by_its_own_loss() -> None:
    torch.manual_seed(0)
    past = {"query": randn(USERS, 3), "candidate": randn(ITEMS, 3)}
    ones = {side: torch.ones(len(past[side]), dtype=torch.float64) for side in SIDES}
    transform = LinearTransform.from_matrix(torch.eye(3, dtype=torch.float64))
    metric = torch.diag(torch.tensor([2.0, 0.5, 0.5], dtype=torch.float64))
    losses = AlignmentLoss(Chain([], 3)), AlignmentLoss(Chain([], 3), metrics={0: metric})
    joint = JointAlignment(transform, losses[0], past, ones, _ROWS, losses[1])
    moved = {side: past[side] + torch.tensor([1.0, 0.0, 0.0]).double() for side in SIDES}
    # 1² for queries and 2 · 1² for candidates.
    assert joint.error(moved) == pytest.approx(1.5)
