"""The penalty as a module in somebody's own loop."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from evergram.errors import DataError, ShapeError, TrainingError
from evergram.gramian import GramianPenalty

DIM, QUERIES, CANDIDATES = 4, 30, 12
ESTIMATORS = ("sogram", "sagram", "sampled")


def tables(seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(QUERIES, DIM, generator=draw), torch.randn(CANDIDATES, DIM, generator=draw)


def run(penalty: GramianPenalty, steps: int, seed: int = 0, size: int = 8) -> list[float]:
    """Values of `steps` calls in training mode, with ids, of embeddings that move."""
    draw = torch.Generator().manual_seed(seed)
    users, items = tables()
    values = []
    for step in range(steps):
        a = torch.randint(QUERIES, (size,), generator=draw)
        b = torch.randint(CANDIDATES, (size,), generator=draw)
        moved = 1 + step / 50
        values.append(float(penalty(moved * users[a], moved * items[b], a, b)))
    return values


# The value and the gradient, against sums over all pairs.


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 7),
    st.integers(1, 4),
    st.sampled_from(["zero", "number", "tables"]),
    st.sampled_from(["sogram", "sagram", "sampled"]),
    st.integers(0, 10**6),
)
def test_with_exact_gramians_it_is_the_double_sum(
    a: int, b: int, dim: int, kind: str, estimator: str, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=draw)

    query, candidate = normal(a, dim).requires_grad_(), normal(b, dim).requires_grad_()
    p, q = (torch.rand(n, dtype=torch.float64, generator=draw) + 0.1 for n in (a, b))
    prior: Any = 0.0
    scores = torch.zeros(a, b, dtype=torch.float64)
    if kind == "number":
        prior = 0.75
        scores += prior
    elif kind == "tables":
        prior = normal(a, 2).float(), normal(b, 2).float()
        for i in range(a):
            for j in range(b):
                scores[i, j] = torch.dot(prior[0][i].double(), prior[1][j].double())
    naive = torch.zeros((), dtype=torch.float64)
    for i in range(a):
        for j in range(b):
            missed = torch.dot(query[i], candidate[j]) - scores[i, j]
            naive = naive + p[i] * q[j] / p.sum() / q.sum() * missed**2
    expected = torch.autograd.grad(naive, [query, candidate])
    penalty = GramianPenalty(dim, estimator, p, q, prior).double()
    # A batch of everybody makes the estimate exact; so is then the next call's.
    ids = torch.arange(a), torch.arange(b)
    penalty(query.detach().clone(), candidate.detach().clone(), *ids)
    value = penalty(query, candidate, *ids)
    assert value.dtype == torch.float64
    torch.testing.assert_close(value, naive, rtol=1e-10, atol=1e-10)
    found = torch.autograd.grad(3 * value, [query, candidate])
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, 3 * theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("prior", [0.0, -0.5])
def test_its_gradient_is_that_of_its_value(estimator: str, prior: float) -> None:
    penalty = GramianPenalty(DIM, estimator, prior=prior).double()
    run(penalty, 20)
    penalty.eval()
    users, items = (t.double() for t in tables(1))
    a, b = torch.tensor([1, 5, 5, 9, 0]), torch.tensor([2, 2, 11])
    assert torch.autograd.gradcheck(
        lambda u, v: penalty(u, v, a, b), (users[a].requires_grad_(), items[b].requires_grad_())
    )


def gradients(penalty: GramianPenalty, own_batch: bool) -> Tensor:
    """Mean gradient by both tables over many batches of six pairs."""
    draw = torch.Generator().manual_seed(0)
    users, items = (t[:12].clone().requires_grad_() for t in tables())
    rounds = 3000
    for _ in range(rounds):
        a = torch.randint(12, (6,), generator=draw)
        b = a  # each query has one candidate: what is close together must not push itself apart
        if own_batch:
            with torch.no_grad():
                penalty.train()(users[a], items[b])
            penalty.eval()
        penalty(users[a], items[b]).backward()
    assert users.grad is not None
    assert items.grad is not None
    return torch.cat([users.grad, items.grad]) / rounds


def test_the_estimate_of_a_gradient_does_not_contain_its_own_batch() -> None:
    users, items = (t[:12].double().clone().requires_grad_() for t in tables())
    exact = torch.cat(torch.autograd.grad((users @ items.T).square().mean(), [users, items]))

    def error(mean: Tensor) -> float:
        return float((mean.double() - exact).norm() / exact.norm())

    assert error(gradients(GramianPenalty(DIM, "sampled"), own_batch=False)) < 0.1
    assert error(gradients(GramianPenalty(DIM, "sampled"), own_batch=True)) > 0.25


def test_the_first_call_is_zero_and_pushes_nothing() -> None:
    users, items = (t.requires_grad_() for t in tables())
    value = GramianPenalty(DIM)(users, items)
    value.backward()
    assert float(value.detach()) == 0
    assert users.grad is not None
    assert not bool(users.grad.any())


@pytest.mark.parametrize("by_id", [True, False])
def test_sides_may_have_batches_of_different_sizes(by_id: bool) -> None:
    """Shared negatives: positives and more candidates, beside few queries."""
    users, items = tables()
    a, b = torch.arange(3), torch.arange(CANDIDATES)
    penalty = GramianPenalty(DIM, "sampled")
    ids = (a, b) if by_id else (None, None)
    penalty(users[a], items[b], *ids)
    value = penalty(users[a], items[b], *ids)
    expected = (users[a] @ items[b].T).square().mean()
    torch.testing.assert_close(value, expected)


# The rule, guarded.


def test_embeddings_that_are_in_the_estimate_are_refused() -> None:
    users, items = (t.requires_grad_() for t in tables())
    penalty = GramianPenalty(DIM)
    u, v = 1 * users, 1 * items
    penalty(u, v)
    with pytest.raises(TrainingError, match="in the estimate already"):
        penalty(u, v)
    with pytest.raises(TrainingError, match="accumulate"):
        penalty(1 * users, v)
    with torch.no_grad():  # no gradient is made
        penalty(u, v)
    penalty(1 * users, 1 * items)
    penalty(users, items)
    penalty(users, items)  # a parameter is the same tensor in every step
    with penalty.accumulate():
        u, v = 1 * users, 1 * items
        for part in (slice(0, 5), slice(5, None)):
            penalty(u, v[part])


# Gradient accumulation.


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
        value = whole(users[a], items[b], *((a, b) if by_id else ()))
        expected = torch.autograd.grad(value, [users, items])
        total = 0.0
        with parts.accumulate():
            for micro in torch.arange(12).view(3, 4):
                i, j = a[micro], b[micro]
                part = parts(users[i], items[j], *((i, j) if by_id else ())) / 3
                part.backward()
                total += float(part.detach())
        for table, gradient in zip((users, items), expected, strict=True):
            assert table.grad is not None
            assert bool(gradient.any()) == (step > 0)
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


def test_what_is_held_does_not_change_with_the_callers_tensor() -> None:
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


# State.


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
        run(penalty, 3)
    for name, value in penalty.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_it_has_no_parameters_and_shows_its_settings() -> None:
    penalty = GramianPenalty(DIM, rate=0.1)
    assert not list(penalty.parameters())
    assert "4, estimator='sogram', rate=0.1" in repr(penalty)


# Precision.


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
            found = half(1 * users, 1 * items, a, b)
        expected = full(users.float(), items.float(), a, b)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    found.backward()
    assert users.grad is not None
    assert users.grad.dtype == width
    for name, value in half.state_dict().items():
        assert value.dtype == full.state_dict()[name].dtype
        assert torch.equal(value, full.state_dict()[name])


def test_accumulation_under_autocast_is_in_float32() -> None:
    users, items = tables()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        penalty = GramianPenalty(DIM)
        with penalty.accumulate():
            penalty(users, items)
    torch.testing.assert_close(penalty.query_gramian, users.T @ users / QUERIES)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("side", [0, 1])
def test_what_is_not_finite_is_in_the_value_and_not_in_the_state(wrong: float, side: int) -> None:
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


def test_a_side_without_rows_changes_nothing_and_is_as_its_estimate() -> None:
    users, items = tables()
    penalty = GramianPenalty(DIM, prior=0.2)
    run(penalty, 5)
    # By ids, as in the calls before.
    none, few = torch.empty(0, dtype=torch.long), torch.arange(5)
    before = penalty.query_gramian, penalty.candidate_gramian
    empty = users[:0].clone().requires_grad_()
    penalty(empty, items[:5], none, few)
    assert torch.equal(penalty.query_gramian, before[0])
    assert not torch.equal(penalty.candidate_gramian, before[1])
    value = penalty(empty, 1 * items[:0], none, none)
    value.backward()
    assert empty.grad is not None
    moments = penalty.query.moment(torch.float32), penalty.candidate.moment(torch.float32)
    g, h = ((getattr(moments[0], n) * getattr(moments[1], n)).sum() for n in ("gramian", "cross"))
    assert float(value.detach()) == pytest.approx(float(g - 2 * h + 0.04), rel=1e-5)
    with penalty.accumulate():
        penalty(users[:0], items[:0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_it_moves_to_a_gpu_and_back(estimator: str) -> None:
    penalty = GramianPenalty(DIM, estimator, prior=0.1)
    other = copy.deepcopy(penalty).cuda()
    users, items = tables()
    for ids in (torch.arange(5), torch.arange(3, 9)):  # ids may stay on the CPU
        expected = penalty(users[ids], items[ids], ids, ids)
        with torch.autocast("cuda"):
            found = other(users[ids].cuda(), items[ids].cuda(), ids, ids)
        torch.testing.assert_close(found.cpu(), expected)
    with pytest.raises(ShapeError, match="move it once"):
        other(users, items)
    torch.testing.assert_close(other.cpu().query_gramian, penalty.query_gramian)


# What is refused, in plain words.


@pytest.mark.parametrize(
    ("query", "candidate", "ids", "message"),
    [
        (torch.ones(3, 5), torch.ones(3, 4), (None, None), r"takes \[batch, 4\]"),
        (torch.ones(3, 4), torch.ones(2, 3, 4), (None, None), "Flatten other dims"),
        (torch.ones(4), torch.ones(3, 4), (None, None), r"query embeddings have shape \[4\]"),
        ([[1.0] * 4], torch.ones(3, 4), (None, None), "are list; give a floating-point tensor"),
        (torch.ones(3, 4).long(), torch.ones(3, 4), (None, None), "torch.int64"),
        (torch.ones(3, 4), torch.ones(3, 4), (torch.arange(2), None), r"must be \[3\]"),
        (torch.ones(3, 4), torch.ones(3, 4), (None, torch.ones(3)), "candidate_ids are .*float32"),
        (torch.ones(3, 4), torch.ones(3, 4), (torch.ones(3, 1).long(), None), r"\[3, 1\]"),
    ],
)
def test_wrong_shapes_are_refused(
    query: Any, candidate: Any, ids: tuple[Any, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        GramianPenalty(DIM)(query, candidate, *ids)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": "storm"}, "embed each batch again"),
        ({"estimator": "exact"}, "embed every entity"),
        ({"estimator": "best"}, "sogram, sagram, sampled"),
        ({"estimator": "sagram", "query_measure": 0.5}, "give query_counts"),
        ({"estimator": "sampled", "rate": 0.1}, "only 'sogram'"),
        ({"rate": 0.0}, r"must lie in \(0, 1\]"),
        ({"rate": "fast"}, "'auto'"),
        ({"dim": 0}, "whole number"),
        ({"dim": 2.5}, "whole number"),
        ({"candidate_measure": "popular"}, "candidate_measure is 'popular'"),
        ({"prior": float("nan")}, "finite score"),
        ({"prior": (torch.ones(3, 2), torch.ones(3, 1))}, "with one K"),
        ({"prior": (torch.ones(3, 2),)}, "with one K"),
        (
            {"prior": (torch.ones(3, 2), torch.ones(3, 2)), "query_counts": torch.ones(4)},
            "one row an entity",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GramianPenalty(**{"dim": DIM, **settings})


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"estimator": "sagram"}, "last embedding"),
        ({"query_measure": 0.5}, "counts entities"),
        ({"query_measure": torch.ones(QUERIES)}, "a table by id"),
        ({"query_counts": torch.ones(QUERIES)}, "a table by id"),
        ({"prior": (torch.ones(QUERIES, 1), torch.ones(CANDIDATES, 1))}, "prior is a table"),
    ],
)
def test_ids_are_needed_where_something_is_by_id(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(TrainingError, match=why):
        GramianPenalty(DIM, **settings)(*tables())


def test_ids_in_some_calls_and_none_in_others_are_refused() -> None:
    users, items = tables()
    penalty = GramianPenalty(DIM)
    penalty(users, items, torch.arange(QUERIES))  # of one side alone is well
    with pytest.raises(TrainingError, match="without query_ids, earlier ones were with"):
        penalty(users, items)
    with pytest.raises(TrainingError, match="with candidate_ids, earlier ones were without"):
        penalty(users, items, torch.arange(QUERIES), torch.arange(CANDIDATES))


def test_ids_beyond_the_tables_are_refused() -> None:
    users, items = tables()
    ids = torch.arange(QUERIES) + 3
    with pytest.raises(DataError, match="must lie in 0 … 29"):
        GramianPenalty(DIM, query_counts=torch.ones(QUERIES))(users, items, ids)
    prior = torch.ones(QUERIES, 1), torch.ones(CANDIDATES, 1)
    with pytest.raises(DataError, match="the prior has 30 rows"):
        GramianPenalty(DIM, prior=prior)(users, items, ids, torch.arange(CANDIDATES))
    penalty = GramianPenalty(DIM)
    penalty(users, items, ids, list(range(CANDIDATES)))
    with pytest.raises(ShapeError, match="30 query rows, and ids up to 32"):
        penalty.gramian_error(users, items)


# The trial: in ten lines, without reading the source, is the Gramian followed?


def world(seed: int) -> tuple[Tensor, Tensor]:
    """Popularity is skewed, and every query likes one of ten kinds of candidates."""
    draw = torch.Generator().manual_seed(seed)
    popular_a, popular_b = (1 / (1 + torch.arange(n)) ** 0.8 for n in (1000, 400))
    a = torch.multinomial(popular_a, 20_000, replacement=True, generator=draw)
    likes = torch.where(torch.arange(400) % 10 == torch.arange(10)[:, None], 10.0, 1.0)
    b = torch.multinomial(popular_b * likes[a % 10], 1, generator=draw)[:, 0]
    return a, b


@pytest.mark.parametrize("seed", [0, 1])
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
    for _ in range(10):
        for rows in torch.split(torch.randperm(len(a)), 256):
            u, v = users(a[rows]), items(b[rows])
            task = 0.5 * ((u * v).sum(1) - 1).square().mean()
            ids = (a[rows], b[rows]) if with_ids else (None, None)
            loss = task + 10 * penalty(u, v, *ids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
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
