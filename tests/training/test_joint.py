"""The objects that joint alignment is over, and the loss of [BC]'s authors, term by term."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from evergram.compatibility.alignment_loss import AlignmentLoss, alignment_weight
from evergram.compatibility.chain import Chain
from evergram.compatibility.transforms import LinearTransform
from evergram.data.sampling import Batch
from evergram.encoders.encoder import SIDES, Embeddings
from evergram.training.joint import JointAlignment
from evergram.training.recipe.tables import AlignedObjects, TransformTraining

USERS, ITEMS = 50, 30


class Tables(Embeddings):
    """Free vectors of both sides; `passes` says whether all of them are at hand, `unit` scales them
    to length 1."""

    def __init__(
        self, query: Tensor, candidate: Tensor, passes: bool = False, unit: bool = False
    ) -> None:
        tables = {"query": query, "candidate": candidate}
        self.tables = {s: normalize(t, dim=1) if unit else t for s, t in tables.items()}
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
    strength: float,
    adam: TransformTraining,
    unit: str = "norm",
) -> JointAlignment:
    loss = AlignmentLoss(chain, "multi", unit)  # type: ignore[arg-type]
    everyone = {side: torch.ones(len(rows), dtype=torch.float64) for side, rows in past.items()}
    return JointAlignment(transform, loss, past, everyone, strength, adam)


@pytest.mark.parametrize("versions", [1, 2, 3, 4])
def test_it_is_the_authors_loss_term_by_term(versions: int) -> None:
    """Trap 18. Of users, items and negative items, each version's mean over rows and over its own
    dims; divided by the number of past versions; times λ."""
    torch.manual_seed(versions)
    dims = [3, 4, 6, 5, 8][: versions + 1]
    past_steps = [randn(old, new) for old, new in pairwise(dims[:-1])]
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
    strength, adam = (
        alignment_weight(lam, "paper", old_dim),
        TransformTraining(objects="paper-code"),
    )
    ours = alignment(chain, transform, past, strength, adam, unit="paper")(
        tables[0][user],
        tables[1][item],
        batch_of(user, item, negative),
        Tables(tables[0], tables[1]),
    )
    gradients = torch.autograd.grad(ours, [transform.weight, *tables])
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)
    for ours_, theirs_ in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours_, theirs_, rtol=1e-9, atol=1e-12)


def test_drawn_objects_estimate_the_mean_over_all_without_bias() -> None:
    torch.manual_seed(0)
    past = {"query": randn(USERS, 3), "candidate": 4 * randn(ITEMS, 3)}
    tables = randn(USERS, 4), randn(ITEMS, 4)
    rows = torch.arange(4)
    arguments = (tables[0][rows], tables[1][rows], batch_of(rows, rows, None))
    transform = LinearTransform.from_matrix(randn(3, 4))

    def joint(size: int) -> JointAlignment:
        return alignment(Chain([], 3), transform, past, 1.0, TransformTraining(rows=size))

    with torch.no_grad():
        exact = joint(10)(*arguments, Tables(*tables, passes=True))
        drawn = joint(10)
        values = torch.stack([drawn(*arguments, Tables(*tables)) for _ in range(1500)])
    deviation = values.std() / len(values) ** 0.5
    assert float(deviation) < 0.03 * float(exact)
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
    few = TransformTraining(rows=5)
    joint = alignment(Chain([], 3), LinearTransform(3, 4).double(), past, 1.0, few)
    values = [float(joint(*arguments, batch, tables).detach()) for _ in range(5)]
    assert len(set(values)) == 5
    resumed = alignment(Chain([], 3), joint.transform, past, 1.0, few)  # type: ignore[arg-type]
    resumed.load_state_dict({**joint.state_dict(), "steps": torch.tensor(3)})
    assert float(resumed(*arguments, batch, tables).detach()) == values[3]


QUERIES, CANDIDATES, STRENGTH = 12, 9, 3.0
Groups = list[list[tuple[str, int]]]


def slow_loss(
    groups: Groups,
    tables: dict[str, Tensor],
    past: dict[str, Tensor],
    known: dict[str, Tensor],
    matrices: list[Tensor],
) -> Tensor:
    """λ times the mean over groups of each group's mean over its objects that are known, one object
    at a time: the error of the published vector at every past version, by explicit products."""
    means = []
    for group in groups:
        losses = []
        for side, row in group:
            if not known[side][row]:
                continue
            vector = tables[side][row] / tables[side][row].square().sum().sqrt()
            total, error = torch.zeros((), dtype=torch.float64), -past[side][row]
            for place, matrix in enumerate(reversed(matrices)):
                error = error + matrix @ vector if not place else matrix @ error
                total = total + error @ error
            losses.append(total / len(matrices))
        means.append(torch.stack(losses).mean())
    return STRENGTH * torch.stack(means).mean()


@pytest.mark.parametrize("versions", [1, 3])
@pytest.mark.parametrize(
    ("objects", "at_hand"), [("all", True), ("all", False), ("batch", False), ("paper-code", False)]
)
def test_it_aligns_known_objects_as_they_are_published_and_read(
    objects: AlignedObjects, at_hand: bool, versions: int
) -> None:
    torch.manual_seed(versions)
    dims = [3, 5, 2, 4][: versions + 1]
    dims[-1] = 6
    steps = [randn(old, new) for old, new in pairwise(dims[:-1])]
    weight = randn(dims[-2], dims[-1]).requires_grad_()
    past = {"query": randn(QUERIES, dims[-2]), "candidate": randn(CANDIDATES, dims[-2])}
    known = {side: (torch.rand(len(rows)) < 0.8).double() for side, rows in past.items()}
    known["query"][1] = known["candidate"][4] = known["candidate"][8] = 1.0
    tables = {"query": randn(QUERIES, 6), "candidate": randn(CANDIDATES, 6)}
    for table in tables.values():
        table.requires_grad_()
    user, item, negative = torch.tensor([3, 1, 3]), torch.tensor([4, 4, 0]), torch.tensor([2, 8, 3])
    everyone = [("query", row) for row in range(QUERIES)]
    everyone += [("candidate", row) for row in range(CANDIDATES)]
    pairs = [[("query", r) for r in user.tolist()], [("candidate", r) for r in item.tolist()]]
    groups: dict[str, Groups] = {
        "all": [everyone],
        "batch": [pairs[0] + pairs[1]],
        "paper-code": [*pairs, [("candidate", r) for r in negative.tolist()]],
    }
    slow = tables, past, known, [*steps, weight]
    theirs = slow_loss(groups[objects], *slow)

    transform = LinearTransform.from_matrix(weight.detach())
    transform.requires_grad_(True)
    chain = Chain([LinearTransform.from_matrix(step) for step in steps], dims[0])
    joint = JointAlignment(
        transform,
        AlignmentLoss(chain),
        past,
        known,
        STRENGTH,
        TransformTraining(objects=objects, rows=20),
    )
    embeddings = Tables(**tables, passes=at_hand, unit=True)
    batch = batch_of(user, item, negative)
    rows = embeddings.rows("query", user), embeddings.rows("candidate", item)
    ours = joint(*rows, batch, embeddings)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)
    inputs = [tables["query"], tables["candidate"]]
    gradients = torch.autograd.grad(ours, [transform.weight, *inputs])
    for mine, slow_one in zip(
        gradients, torch.autograd.grad(theirs, [weight, *inputs]), strict=True
    ):
        torch.testing.assert_close(mine, slow_one, rtol=1e-9, atol=1e-12)
    published = {s: embeddings.tables[s].detach() for s in SIDES}
    errors = [
        float(slow_loss([group], *slow).detach()) / STRENGTH
        for group in (everyone[:QUERIES], everyone[QUERIES:])
    ]
    assert joint.error(published) == pytest.approx(sum(errors) / 2, rel=1e-9)
