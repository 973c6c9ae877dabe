"""`GramianPenalty.accumulate`: micro-batches of one step are one batch."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.support.penalty_loops import CANDIDATES, DIM, ESTIMATORS, QUERIES, tables
from torch import Tensor, nn

from evergram.errors import TrainingError
from evergram.gramian import GramianPenalty


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("by_id", [True, False])
def test_accumulated_micro_batches_are_one_batch(estimator: str, by_id: bool) -> None:
    if estimator == "sagram" and not by_id:
        pytest.skip("sagram needs ids")
    counts: list[Tensor | None] = [None, None]
    if by_id:
        counts = [torch.arange(1, n + 1) for n in (QUERIES, CANDIDATES)]
    whole = GramianPenalty(
        DIM, estimator, prior=0.1, query_counts=counts[0], candidate_counts=counts[1]
    )
    parts = copy.deepcopy(whole)
    draw = torch.Generator().manual_seed(0)
    for step in range(3):
        a, b = torch.randint(QUERIES, (12,), generator=draw), torch.arange(12)
        users, items = (t.requires_grad_() for t in tables(step))
        if estimator == "sagram":
            for penalty in (whole, parts):
                penalty.before_step(users[a].detach(), items[b].detach(), a, b)
        value = whole(users[a], items[b], *((a, b) if by_id else ()))
        expected = torch.autograd.grad(value, [users, items])
        total = 0.0
        with parts.accumulate():
            for micro in torch.arange(12).view(3, 4):
                i, j = a[micro], b[micro]
                part = parts(users[i], items[j], *((i, j) if by_id else ())) / 3
                part.backward()
                total += float(part.detach())
        if estimator == "sagram":
            for penalty in (whole, parts):
                penalty.after_step(users[a], items[b])
        for table, gradient in zip((users, items), expected, strict=True):
            assert table.grad is not None
            assert bool(gradient.any()) == (step > 0 or estimator == "sagram")
            torch.testing.assert_close(table.grad, gradient)
        assert total == pytest.approx(float(value.detach()), rel=1e-4, abs=1e-5)
        torch.testing.assert_close(parts.query_gramian, whole.query_gramian)
        torch.testing.assert_close(parts.candidate_gramian, whole.candidate_gramian)


def test_streamed_counts_are_complete_when_micro_batches_are_folded_in() -> None:
    users, _ = tables()
    penalty = GramianPenalty(DIM)
    ids = torch.tensor([0, 0, 1, 0])
    with penalty.accumulate():
        for part in ids.view(2, 2):
            penalty(users[part], users[part], part, part)
    distinct = users[:2]
    torch.testing.assert_close(penalty.query_gramian, distinct.T @ distinct / 2)


def test_an_error_while_accumulating_folds_nothing_in() -> None:
    penalty, (users, items) = GramianPenalty(DIM), tables()

    def interrupted() -> None:
        with penalty.accumulate():
            penalty(users, items)
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert not bool(penalty.query_gramian.any())
    opened = penalty.accumulate()
    with penalty.accumulate(), pytest.raises(TrainingError, match="open already"), opened:
        pass
    with penalty.accumulate():
        pass
    assert not bool(penalty.query_gramian.any())


def test_rows_that_are_held_do_not_change_with_the_callers_tensor() -> None:
    users, _ = tables()
    expected = users.T @ users / len(users)
    for penalty in (GramianPenalty(DIM), GramianPenalty(DIM, "sampled"), GramianPenalty(64)):
        wide = nn.functional.pad(users, (0, penalty.dim - DIM))
        with penalty.accumulate():
            penalty(wide, wide)
            wide.zero_()
        torch.testing.assert_close(penalty.query_gramian[:DIM, :DIM], expected)
    penalty, wide = GramianPenalty(64, "sampled"), nn.functional.pad(users, (0, 60))
    penalty(wide, wide)
    wide.zero_()
    torch.testing.assert_close(penalty.query_gramian[:DIM, :DIM], expected)


@pytest.mark.parametrize(
    ("where", "estimator", "measure"),
    [("after a call", "sogram", "uniform"), ("within a call", "sampled", 0.5)],
)
def test_an_error_while_accumulating_leaves_counts_as_they_were(
    where: str, estimator: str, measure: str | float
) -> None:
    users, items = tables()
    ids = torch.arange(len(users)) % 7, torch.arange(len(items)) % 5
    penalty = GramianPenalty(
        DIM, estimator, query_measure=measure, candidate_measure=measure, prior=0.5
    )
    penalty(users, items, *ids)
    before = {name: value.clone() for name, value in penalty.state_dict().items()}

    def interrupted() -> None:
        with penalty.accumulate():
            penalty(users, items, ids[0] % 3, ids[1] % 3)
            if where == "after a call":
                raise KeyError
            penalty.candidate.learn_prior = None  # type: ignore[assignment]
            penalty(users, items, *ids)

    with pytest.raises((KeyError, TypeError)):
        interrupted()
    penalty.candidate.__dict__.pop("learn_prior", None)
    torch.testing.assert_close(penalty.state_dict(), before, rtol=0, atol=0)
    with penalty.accumulate():
        penalty(users, items, *ids)
    assert penalty.query.measure.counts.sum() == 2 * len(users)
