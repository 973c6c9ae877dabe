"""`GramianPenalty`, its value and gradient, against sums over all pairs; its state and measures."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.support.penalty_loops import CANDIDATES, DIM, ESTIMATORS, QUERIES, run, tables
from torch import Tensor, nn

from evergram.errors import DataError, ShapeError, TrainingError
from evergram.gramian import GramianPenalty
from evergram.gramian.entity_measure import EntityMeasure


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 7),
    st.integers(1, 4),
    st.sampled_from(["zero", "number", "tables"]),
    st.sampled_from(ESTIMATORS),
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
    gradients_by_both = torch.autograd.grad(3 * value, [query, candidate])
    for mine, theirs in zip(gradients_by_both, expected, strict=True):
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
    rounds = 1000
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


@pytest.mark.parametrize("measure", ["uniform", "example", 0.5, torch.arange(QUERIES) + 1.0])
@pytest.mark.parametrize("counted", [False, True])
def test_evaluation_of_every_entity_is_the_double_sum_however_they_were_drawn(
    measure: str | float | Tensor, counted: bool
) -> None:
    users, items = (table.double() for table in tables())
    # Query a is drawn in proportion to (1 + a)², far from evenly.
    draws = torch.arange(QUERIES).repeat_interleave((1 + torch.arange(QUERIES)) ** 2)
    draws = draws[torch.randperm(len(draws), generator=torch.Generator().manual_seed(0))]
    counts = torch.bincount(draws)
    weights = {"uniform": counts**0.0, "example": counts, 0.5: counts**0.5}
    p = (measure if isinstance(measure, Tensor) else weights[measure]).double()
    expected = (p[:, None] * (users @ items.T).square()).sum() / p.sum() / CANDIDATES
    penalty = GramianPenalty(
        DIM, query_measure=measure, query_counts=counts if counted else None
    ).double()
    everyone, everything = torch.arange(QUERIES), torch.arange(CANDIDATES)
    penalty(users[draws], items, draws, everything)  # all of an epoch: the estimate is exact
    penalty.eval()
    torch.testing.assert_close(penalty(users, items, everyone, everything), expected)
    # In another order, some of them twice, and with one that was never seen.
    ids = torch.cat([everyone.flip(0), everyone[:7]])
    torch.testing.assert_close(penalty(users[ids], items, ids, everything), expected)
    if not counted and not isinstance(measure, Tensor):
        ids, unseen = torch.cat([everyone, torch.tensor([99])]), torch.ones(1, DIM)
        value = penalty(torch.cat([users, unseen.double()]), items, ids, everything)
        torch.testing.assert_close(value, expected)


def test_embeddings_that_are_in_the_estimate_are_refused() -> None:
    users, items = (t.requires_grad_() for t in tables())
    penalty = GramianPenalty(DIM)
    u, v = 1 * users, 1 * items
    penalty(u, v)
    with pytest.raises(TrainingError, match="already in the estimate"):
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


PAGE = (Path(__file__).parents[3] / "docs" / "penalty.md").read_text()


def test_the_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    loop = first.split("penalty = ")[1].split("print")[0]
    assert len(loop.splitlines()) <= 10, "the page promises ten lines"
    torch.manual_seed(0)
    draw = [torch.randint(n, (6400,)) for n in (100, 50)]
    pairs = list(zip(*(ids.view(100, 64) for ids in draw), strict=True))
    space: dict[str, Any] = {
        "users": torch.nn.Embedding(100, 32),
        "items": torch.nn.Embedding(50, 32),
        "batches": pairs * 8,
        "micro_batches": pairs[:4],
    }
    exec(compile(first, "penalty.md", "exec"), space)
    errors = re.fullmatch(r"GramianErrors\(query=(.*), candidate=(.*)\)\n", capsys.readouterr().out)
    assert errors is not None
    assert all(float(error) < 0.1 for error in errors.groups())
    before = space["penalty"].query_gramian
    exec(compile(second, "penalty.md", "exec"), space)
    assert not torch.equal(space["penalty"].query_gramian, before)


def test_every_argument_is_documented_with_its_default() -> None:
    table = PAGE.split("## Arguments")[1].split("\n\n")[1]
    rows = {
        name: row.split("|")[2].strip().strip("`").strip('"')
        for row in table.splitlines()[2:]
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    defaults = {n: p.default for n, p in inspect.signature(GramianPenalty).parameters.items()}
    assert set(rows) == set(defaults)
    for name, default in defaults.items():
        expected = {inspect.Parameter.empty: "", None: "none"}.get(default, str(default))
        assert rows[name] == expected, name


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("by_id", [True, False])
def test_accumulated_micro_batches_are_one_batch(estimator: str, by_id: bool) -> None:
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
    with penalty.accumulate(), pytest.raises(TrainingError, match="cannot be nested"), opened:
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


@pytest.mark.parametrize("what", ["query_measure", "candidate_measure", "prior"])
def test_a_state_of_another_measure_or_prior_is_refused(what: str) -> None:
    draw = torch.Generator().manual_seed(0)
    first, second = (
        torch.rand(QUERIES, 2, generator=draw),
        torch.rand(CANDIDATES, 2, generator=draw),
    )
    values: list[Any] = [0.0, 0.1, 0.2, (first, second), (first, 2 * second)]
    if what != "prior":
        share = (first if what == "query_measure" else second)[:, 0]
        values = ["uniform", "example", 0.5, torch.ones_like(share), share, 2 * share]
    penalties = [GramianPenalty(DIM, **{what: value}) for value in values]
    for penalty, value in zip(penalties, values, strict=True):
        run(penalty, 3)
        for other in penalties:
            if other is not penalty:
                with pytest.raises(TrainingError, match=f"saved with another {what}"):
                    other.load_state_dict(penalty.state_dict())
        GramianPenalty(DIM, **{what: value}).load_state_dict(penalty.state_dict())
    if what == "query_measure":  # the same measure by another name
        GramianPenalty(DIM, query_measure=0).load_state_dict(penalties[0].state_dict())


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
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_it_moves_to_a_gpu_and_back(estimator: str) -> None:
    # Of few batches SOGram's automatic rate is a tie, which rounding decides.
    rate = 0.05 if estimator == "sogram" else "auto"
    penalty = GramianPenalty(DIM, estimator, prior=0.1, rate=rate)
    other = copy.deepcopy(penalty).cuda()
    users, items = tables()
    for ids in (torch.arange(5), torch.arange(3, 9)):  # ids may stay on the CPU
        expected = penalty(users[ids], items[ids], ids, ids)
        with torch.autocast("cuda"):
            value = other(users[ids].cuda(), items[ids].cuda(), ids, ids)
        torch.testing.assert_close(value.cpu(), expected)
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
            value = half(1 * users, 1 * items, a, b)
        expected = full(users.float(), items.float(), a, b)
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)
    value.backward()
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


Measure = str | float | Tensor


def exact(measure: Measure, counts: Tensor) -> Tensor:
    """p by its definition, entity by entity."""
    power = {"uniform": 0.0, "example": 1.0}.get(measure) if isinstance(measure, str) else measure
    weights = []
    for entity, count in enumerate(counts.tolist()):
        if not count:
            weights.append(0.0)
        elif isinstance(power, Tensor):
            weights.append(float(power[entity]))
        else:
            assert power is not None
            weights.append(count**power)
    return torch.tensor(weights, dtype=torch.float64) / sum(weights)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=30),
    st.sampled_from(["uniform", "example", 0.5, 2.0, "shares"]),
    st.integers(1, 7),
)
def test_an_epoch_of_weighted_rows_is_the_measure(ids: list[int], kind: Measure, size: int) -> None:
    """Σ over all rows of μ / n, once counts are complete, is p; streamed or given."""
    rows = torch.tensor(ids)
    counts = torch.bincount(rows, minlength=7)
    measure: Measure = torch.arange(1.0, 8.0) if kind == "shares" else kind
    streamed = EntityMeasure(measure)
    for part in torch.split(rows, size):
        streamed.count(part)
    # Counts are of any scale: shares of rows do as well.
    fixed = EntityMeasure(measure, counts / 10)
    expected = exact(measure, counts)
    for made in (streamed, fixed):
        weights = made.weights(rows) / len(rows)
        sums = torch.zeros(7, dtype=torch.float64).index_add(0, rows, weights)
        torch.testing.assert_close(sums, expected, rtol=1e-6, atol=1e-12)
        known = made.probabilities()[:7]
        torch.testing.assert_close(known, expected[: len(known)], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("measure", ["uniform", "example", 0.5])
def test_streamed_counts_have_no_wrong_start(measure: Measure) -> None:
    """Over every order of the rows, a batch in the middle of the first epoch has on average the
    measure of what had been seen by then, given the counts by then."""
    rows, size = [0, 0, 0, 1, 1, 2], 2
    sums: dict[tuple[float, ...], list[Tensor]] = {}
    for order in permutations(rows):
        made = EntityMeasure(measure, name="query")
        made.resize(3)
        for start in (0, 2):
            part = torch.tensor(order[start : start + size])
            made.count(part)
        mass = torch.zeros(3, dtype=torch.float64).index_add(0, part, made.weights(part) / size)
        sums.setdefault(tuple(made.counts[:3].tolist()), []).append(mass)
    assert len(sums) > 3
    for counts, every in sums.items():
        mean = torch.stack(every).mean(0)
        torch.testing.assert_close(mean, exact(measure, torch.tensor(counts)))


def test_an_entity_that_was_never_seen_weighs_nothing() -> None:
    made = EntityMeasure("uniform")
    assert made.weights(torch.tensor([4])).tolist() == [0.0]
    made.count(torch.tensor([1, 1]))
    assert made.weights(torch.tensor([0, 1, 99])).tolist() == [0.0, 1.0, 0.0]


def test_exact_weights_need_every_entity_that_was_seen() -> None:
    made = EntityMeasure("example")
    assert made.exact_weights(torch.tensor([0, 1])) is None
    made.count(torch.tensor([0, 2, 2, 2]))
    assert made.exact_weights(torch.tensor([0, 1])) is None
    # Entity 0 has a quarter, 2 has three, in two rows; 1 and 99 were never seen.
    weights = made.exact_weights(torch.tensor([2, 0, 2, 1, 99]))
    assert weights is not None
    assert (weights / 5).tolist() == [0.375, 0.25, 0.375, 0, 0]


def test_counts_grow_and_come_back() -> None:
    made = EntityMeasure("uniform")
    for first in (0, 3, 1000):
        made.count(torch.arange(first, first + 5))
    assert float(made.total) == 15
    assert float(made.mass) == 12 + 1  # 3 and 4 twice: 0 … 7 and 1000 … 1004
    other = EntityMeasure("uniform")
    other.count(torch.tensor([5000]))  # larger than what is loaded
    other.load_state_dict(made.state_dict())
    ids = torch.tensor([0, 3, 1003, 4999])
    assert torch.equal(other.weights(ids), made.weights(ids))


def test_wrong_shapes_are_refused() -> None:
    rows, none = torch.ones(3, 4), (None, None)
    cases: list[tuple[Any, Any, tuple[Any, Any], str]] = [
        (torch.ones(3, 5), rows, none, "[batch, 4]"),
        (rows, torch.ones(2, 3, 4), none, "Flatten other dims"),
        (torch.ones(4), rows, none, "shape [4]"),
        (rows, rows, (torch.arange(2), None), "must be [3]"),
        (rows, rows, (None, torch.ones(3)), "candidate_ids are torch.float32"),
        (rows, rows, (torch.ones(3, 1).long(), None), "[3, 1]"),
    ]
    for query, candidate, ids, named in cases:
        with pytest.raises(ShapeError, match=re.escape(named)):
            GramianPenalty(DIM)(query, candidate, *ids)


def test_settings_that_cannot_be_are_refused() -> None:
    two = torch.ones(3, 2)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"estimator": "sagram"}, "evergram.train"),
        ({"estimator": "best"}, "'sogram' or 'sampled'"),
        ({"estimator": "sampled", "rate": 0.1}, "'sampled'"),
        ({"rate": 0.0}, "(0, 1]"),
        ({"candidate_measure": "popular"}, "candidate_measure is 'popular'"),
        ({"query_measure": 400.0}, "0 to 16"),
        ({"query_measure": True}, "query_measure is"),
        ({"query_measure": torch.tensor([1.0, -1.0])}, "not negative"),
        ({"query_measure": torch.zeros(3)}, "not all zero"),
        ({"query_measure": torch.ones(2, 2)}, "[N]"),
        ({"query_counts": torch.tensor([1.0, torch.inf])}, "query_counts must be finite"),
        ({"query_measure": torch.ones(3), "query_counts": torch.ones(4)}, "3 entities"),
        ({"prior": float("nan")}, "prior is"),
        ({"prior": "a"}, "prior is"),
        ({"prior": (two, torch.ones(3, 1))}, "with the same K"),
        ({"prior": (two, two), "query_counts": torch.ones(4)}, "one row per entity"),
    ]
    for options, named in cases:
        with pytest.raises(ValueError, match=re.escape(named)):
            GramianPenalty(**{"dim": DIM, **options})


def test_ids_are_needed_where_something_is_by_id() -> None:
    cases: list[dict[str, Any]] = [
        {"query_measure": 0.5},
        {"query_measure": torch.ones(QUERIES)},
        {"query_counts": torch.ones(QUERIES)},
        {"prior": (torch.ones(QUERIES, 1), torch.ones(CANDIDATES, 1))},
    ]
    for options in cases:
        with pytest.raises(TrainingError, match="query_ids"):
            GramianPenalty(DIM, **options)(*tables())


def test_ids_in_some_calls_and_none_in_others_are_refused() -> None:
    users, items = tables()
    penalty = GramianPenalty(DIM)
    penalty(users, items, torch.arange(QUERIES))  # of one side alone is well
    with pytest.raises(TrainingError, match="without query_ids, but earlier calls were with"):
        penalty(users, items)
    with pytest.raises(TrainingError, match="with candidate_ids, but earlier calls were without"):
        penalty(users, items, torch.arange(QUERIES), torch.arange(CANDIDATES))


def test_ids_beyond_the_tables_are_refused() -> None:
    users, items = tables()
    ids, few = torch.arange(QUERIES) + 3, torch.arange(CANDIDATES)
    prior = torch.ones(QUERIES, 1), torch.ones(CANDIDATES, 1)
    once = torch.ones(QUERIES + 3)
    once[5] = 0
    cases: list[tuple[dict[str, Any], Tensor, str]] = [
        ({"query_counts": torch.ones(QUERIES)}, ids, "0 … 29"),
        ({"query_measure": torch.ones(QUERIES)}, ids, "query_measure"),
        ({"query_counts": once}, ids, "id 5"),
        ({"prior": prior}, ids, "the prior has only 30 rows"),
        ({}, ids - 4, "-1"),
        ({}, ids + 2**40, "from 0"),
    ]
    for options, met, named in cases:
        with pytest.raises(DataError, match=named):
            GramianPenalty(DIM, **options)(users, items, met, few)
    penalty = GramianPenalty(DIM)
    penalty(users, items, ids, list(range(CANDIDATES)))
    with pytest.raises(ShapeError, match="30 query rows, but ids up to 32"):
        penalty.gramian_error(users, items)


def world(seed: int) -> tuple[Tensor, Tensor]:
    """Popularity is skewed, and every query likes one of ten kinds of candidates."""
    draw = torch.Generator().manual_seed(seed)
    popular_a, popular_b = (1 / (1 + torch.arange(n)) ** 0.8 for n in (1000, 400))
    a = torch.multinomial(popular_a, 20_000, replacement=True, generator=draw)
    likes = torch.where(torch.arange(400) % 10 == torch.arange(10)[:, None], 10.0, 1.0)
    b = torch.multinomial(popular_b * likes[a % 10], 1, generator=draw)[:, 0]
    return a, b


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("with_ids", [True, False])
def test_a_plain_loop_follows_the_gramian(with_ids: bool, seed: int) -> None:
    a, b = world(seed)
    torch.manual_seed(seed)
    users, items = nn.Embedding(1000, 32), nn.Embedding(400, 32)
    penalty = GramianPenalty(32)
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
        assert float((estimate - exact).norm() / exact.norm()) < 0.1
    everybody = (users.weight, items.weight) if with_ids else (users(a), items(b))
    assert max(penalty.gramian_error(*everybody)) < 0.1
