"""Micro-batches of a `GramianPenalty`; its state: saved, copied, moved, and of float32."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.penalty_loops import CANDIDATES, DIM, ESTIMATORS, QUERIES, called, run, tables
from torch import Tensor, nn

from evergram.errors import ShapeError, TrainingError
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


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("prior", [0.0, 0.3])
def test_a_state_that_was_saved_goes_on_bit_by_bit(
    estimator: str, prior: float, tmp_path: Path
) -> None:
    first = GramianPenalty(DIM, estimator, prior=prior)
    run(first, 30)
    save_file(first.state_dict(), tmp_path / "penalty.safetensors")
    second = GramianPenalty(DIM, estimator, prior=prior)
    run(second, 3, seed=5)  # of another past, which must leave no trace
    second.load_state_dict(load_file(tmp_path / "penalty.safetensors"))
    third, fourth = copy.deepcopy(first), pickle.loads(pickle.dumps(first))
    expected = run(first, 30, seed=1)
    for other in (second, third, fourth):
        assert run(other, 30, seed=1) == expected
        for name, value in first.state_dict().items():
            assert torch.equal(other.state_dict()[name], value), name


@pytest.mark.parametrize("side", ["query", "candidate"])
def test_a_state_of_another_measure_is_refused(side: str) -> None:
    size = {"query": QUERIES, "candidate": CANDIDATES}[side]
    draw = torch.rand(size, generator=torch.Generator().manual_seed(0))

    def of_measure(measure: Any) -> GramianPenalty:
        return GramianPenalty(DIM, **{f"{side}_measure": measure})

    measures = ["uniform", "example", 0.5, torch.ones(size), draw, 2 * draw]
    penalties = [of_measure(measure) for measure in measures]
    for penalty in penalties:
        run(penalty, 3)
        for other in penalties:
            if other is not penalty:
                with pytest.raises(TrainingError, match=f"of another {side}_measure than this"):
                    other.load_state_dict(penalty.state_dict())
    of_measure(0).load_state_dict(penalties[0].state_dict())


def test_a_state_of_another_prior_is_refused() -> None:
    draw = torch.Generator().manual_seed(0)
    tables = torch.rand(QUERIES, 2, generator=draw), torch.rand(CANDIDATES, 2, generator=draw)
    priors: list[Any] = [0.0, 0.1, 0.2, tables, (tables[0], 2 * tables[1])]
    penalties = [GramianPenalty(DIM, prior=prior) for prior in priors]
    for penalty, prior in zip(penalties, priors, strict=True):
        run(penalty, 3)
        for other in penalties:
            if other is not penalty:
                with pytest.raises(TrainingError, match="of another prior than this penalty's"):
                    other.load_state_dict(penalty.state_dict())
        GramianPenalty(DIM, prior=prior).load_state_dict(penalty.state_dict())


def test_a_copy_can_be_made_in_the_middle_of_a_step() -> None:
    users, items = (t.requires_grad_() for t in tables())
    penalty = GramianPenalty(DIM)
    u, v = 1 * users, 1 * items
    penalty(u, v)
    for other in (copy.deepcopy(penalty), pickle.loads(pickle.dumps(penalty))):
        assert torch.equal(other.query_gramian, penalty.query_gramian)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_evaluation_leaves_no_trace(estimator: str) -> None:
    penalty = GramianPenalty(DIM, estimator)
    run(penalty, 5)
    before = copy.deepcopy(penalty.state_dict())
    run(penalty.eval(), 3)
    penalty.train()
    with torch.inference_mode():
        users, items = tables()
        penalty(users, items, torch.arange(len(users)), torch.arange(len(items)))
    for name, value in penalty.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("estimator", ["sogram", "sagram"])
def test_it_moves_to_a_gpu_and_back(estimator: str) -> None:
    # Of few batches SOGram's automatic rate is a tie, which rounding decides.
    rate = 0.05 if estimator == "sogram" else "auto"
    penalty = GramianPenalty(DIM, estimator, prior=0.1, rate=rate)
    other = copy.deepcopy(penalty).cuda()
    users, items = tables()
    for ids in (torch.arange(5), torch.arange(3, 9)):  # ids may stay on the CPU
        expected = called(penalty, users[ids], items[ids], ids, ids)
        with torch.autocast("cuda"):
            value = called(other, users[ids].cuda(), items[ids].cuda(), ids, ids)
        torch.testing.assert_close(value.cpu(), expected)
    with pytest.raises(ShapeError, match="move it once"):
        other(users, items)
    torch.testing.assert_close(other.cpu().query_gramian, penalty.query_gramian)


@pytest.mark.parametrize("width", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_half_precision_is_computed_with_in_float32(width: torch.dtype, estimator: str) -> None:
    users, items = (t.to(width).requires_grad_() for t in tables())
    a, b = torch.arange(QUERIES), torch.arange(CANDIDATES)
    half, full = GramianPenalty(DIM, estimator), GramianPenalty(DIM, estimator)
    model = nn.ModuleDict({"penalty": half}).to(width)
    assert model["penalty"] is half
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = called(half, 1 * users, 1 * items, a, b)
        expected = called(full, users.float(), items.float(), a, b)
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)
    value.backward()  # type: ignore[no-untyped-call]
    assert users.grad is not None
    assert users.grad.dtype == width
    for name, value in half.state_dict().items():
        assert value.dtype == full.state_dict()[name].dtype
        assert torch.equal(value, full.state_dict()[name])


@pytest.mark.parametrize(("wrong", "side"), [(float("nan"), 0), (float("inf"), 1), (1e30, 0)])
def test_a_batch_that_is_not_finite_shows_in_the_value_and_leaves_the_state(
    wrong: float, side: int
) -> None:
    penalty = GramianPenalty(DIM)
    run(penalty, 5)
    before = copy.deepcopy(penalty.state_dict())
    rows = [t[:CANDIDATES].clone() for t in tables()]
    rows[side][0, 0] = wrong
    ids = torch.arange(CANDIDATES)
    value = penalty(*rows, ids, ids)
    if wrong != 1e30:  # which float32 holds, but not its square
        assert not bool(torch.isfinite(value))
    for name, kept in penalty.state_dict().items():
        assert torch.equal(kept, before[name]), name
    assert all(torch.isfinite(torch.tensor(run(penalty, 5))))
