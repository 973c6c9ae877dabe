"""The closed form against slow searches over all candidates, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.errors import DataError, ShapeError
from evergram.gramian import query_form
from evergram.gramian.query_form import Interactions, Length, QueryForm, Term

DIM, CANDIDATES = 5, 30


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def met_of(lists: list[list[int]], weights: list[list[float]], seed: int = 0) -> Interactions:
    flat = torch.tensor([row for rows in lists for row in rows])
    query = torch.repeat_interleave(torch.tensor([len(rows) for rows in lists]))
    weight = torch.tensor([w for row in weights for w in row], dtype=torch.float64)
    target = drawn(seed + 1, CANDIDATES)[flat] + 2
    return Interactions(query, drawn(seed, CANDIDATES, DIM)[flat], weight, target)


def form_of(length: Length = "free", squares: float = 1.0) -> QueryForm:
    """Return ½Σw(⟨u,v⟩ − t)² + 0.4 m^½ Σ_b q_b (⟨u,v_b⟩ − 0.3)² + 0.1‖u‖²."""
    v, q = drawn(0, CANDIDATES, DIM), drawn(9, CANDIDATES).abs()
    pushed = Term(0.8, 0.5, v.T @ (q[:, None] * v), 0.3 * (q @ v))
    shrunk = Term(0.2, 0.0, torch.eye(DIM), torch.zeros(DIM))
    return QueryForm.of("exact", [pushed, shrunk], squares=squares, length=length)


def cost(u: Tensor, met: Interactions, squares: float = 1.0) -> Tensor:
    """Return what `form_of` says in words, of one query u [D], over all candidates."""
    v, q = drawn(0, CANDIDATES, DIM), drawn(9, CANDIDATES).abs()
    total = 0.1 * (u * u).sum()
    for vector, weight, target in zip(met.vectors, met.weight, met.target, strict=True):
        score = u @ vector
        total = total + weight * (0.5 * squares * score**2 - target * score)
    times = met.weight.sum()
    return total + 0.4 * times**0.5 * (q * (v @ u - 0.3) ** 2).sum()


def descended(met: Interactions, *, unit: bool) -> Tensor:
    """Return the minimiser by gradient descent, the better one of two starts."""
    best: Tensor | None = None
    for start in (drawn(3, DIM), -drawn(3, DIM)):
        u = start / start.norm()
        for _ in range(3000):
            u = u.detach().requires_grad_()
            (slope,) = torch.autograd.grad(cost(u, met), u)
            u = u.detach() - 0.01 * slope
            u = u / u.norm() if unit else u
        if best is None or cost(u, met) < cost(best, met):
            best = u
    assert best is not None
    return best


@pytest.mark.parametrize("length", ["free", "unit"])
def test_it_is_what_gradient_descent_over_all_candidates_ends_at(length: Length) -> None:
    lists, weights = [[1, 4, 4, 7], [2]], [[1.0, 2.0, 0.5, 3.0], [1.5]]
    folded = form_of(length).minimise(met_of(lists, weights))
    for row, ids, w in zip(folded, lists, weights, strict=True):
        slow = descended(met_of([ids], [w]), unit=length == "unit")
        assert torch.allclose(row, slow, atol=1e-8)


def test_it_is_the_least_squares_solution_of_all_equations() -> None:
    met = met_of([[3, 8, 11]], [[1.0, 2.0, 1.0]])
    v, q = drawn(0, CANDIDATES, DIM), drawn(9, CANDIDATES).abs()
    # One equation a term: √weight (⟨u, v⟩ − wanted) = 0.
    pushed = (0.8 * 4**0.5 * q).sqrt()
    rows = torch.cat(
        [
            met.weight.sqrt()[:, None] * met.vectors,
            pushed[:, None] * v,
            0.2**0.5 * torch.eye(DIM, dtype=torch.float64),
        ]
    )
    wanted = torch.cat([met.weight.sqrt() * met.target, 0.3 * pushed, torch.zeros(DIM)])
    slow = torch.linalg.lstsq(rows, wanted).solution
    assert torch.allclose(form_of().minimise(met)[0], slow, atol=1e-10)


def test_a_scaled_minimum_has_the_free_one_s_direction() -> None:
    met = met_of([[3, 8], [1]], [[1.0, 2.0], [1.0]])
    free, scaled = (form_of(length).minimise(met) for length in ("free", "scaled"))
    assert torch.allclose(scaled, free / free.norm(dim=1, keepdim=True), atol=1e-14)


def test_a_form_without_any_penalty_has_the_shortest_minimiser() -> None:
    nothing = Term(0.0, 0.0, torch.eye(DIM), torch.zeros(DIM))
    met = met_of([[3, 8]], [[1.0, 1.0]])
    folded = QueryForm.of("exact", [nothing]).minimise(met)[0]
    slow = torch.linalg.pinv(met.vectors) @ met.target
    assert torch.allclose(folded, slow, atol=1e-8)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_mean_is_the_weighted_mean(normalize: bool) -> None:
    met = met_of([[3, 8, 11]], [[1.0, 2.0, 0.5]])
    met = Interactions(met.query, met.vectors, met.weight, torch.ones(3))
    mean = (met.vectors * met.weight[:, None]).sum(0) / met.weight.sum()
    expected = mean / mean.norm() if normalize else mean
    folded = QueryForm.mean(DIM, normalize=normalize).minimise(met)[0]
    assert torch.allclose(folded, expected, atol=1e-14)


lists = st.lists(
    st.lists(st.integers(0, CANDIDATES - 1), min_size=1, max_size=8), min_size=1, max_size=4
)


@given(lists, st.randoms(use_true_random=False), st.sampled_from(["free", "unit", "scaled"]))
@settings(max_examples=60, deadline=None)
def test_the_order_of_a_list_is_nothing_and_twice_is_weight_two(
    ids: list[list[int]], random: object, length: Length
) -> None:
    form = form_of(length)
    ones = [[1.0] * len(row) for row in ids]
    folded = form.minimise(met_of(ids, ones))
    turned = [sorted(row, key=lambda _: random.random()) for row in ids]  # type: ignore[attr-defined]
    assert torch.allclose(form.minimise(met_of(turned, ones)), folded, atol=1e-9)
    distinct = [sorted(set(row)) for row in ids]
    times = [[float(row.count(x)) for x in once] for row, once in zip(ids, distinct, strict=True)]
    assert torch.allclose(form.minimise(met_of(distinct, times)), folded, atol=1e-9)


def test_many_queries_are_solved_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(2)
    ids = [torch.randint(CANDIDATES, (1 + i % 4,), generator=draw).tolist() for i in range(23)]
    met = met_of(ids, [[1.0] * len(row) for row in ids])
    whole = form_of().minimise(met)
    monkeypatch.setattr(query_form, "NUMBERS", 3 * DIM**2)
    assert torch.allclose(form_of().minimise(met), whole, atol=1e-13)


def test_what_has_no_direction_is_refused() -> None:
    opposite = torch.stack([torch.ones(DIM), -torch.ones(DIM)]).double()
    met = Interactions(torch.tensor([0, 0]), opposite, torch.ones(2), torch.ones(2))
    for form in (QueryForm.mean(DIM, normalize=True), form_without_centre("unit")):
        with pytest.raises(DataError, match="candidates of query 1 add up to zero"):
            form.minimise(met)


def form_without_centre(length: Length) -> QueryForm:
    return QueryForm.of("exact", [Term(1.0, 0.0, torch.eye(DIM), torch.zeros(DIM))], length=length)


def test_shapes_and_numbers_are_checked() -> None:
    wide = Interactions(torch.tensor([0]), torch.ones(1, 3), torch.ones(1), torch.ones(1))
    with pytest.raises(ShapeError, match=r"\[n, 5\]"):
        form_of().minimise(wide)
    with pytest.raises(DataError, match="NaN"):
        QueryForm.of("exact", [Term(1.0, 0.0, torch.eye(2) * torch.nan, torch.zeros(2))])
    one = torch.ones(1, dtype=torch.float64)
    with pytest.raises(ShapeError, match=r"\[1, 2, 2\]"):
        QueryForm("exact", one, one, torch.ones(1, 2, 3).double(), torch.ones(1, 2).double())


@pytest.mark.parametrize(("rows", "targets"), [([0], [0.3]), ([0, 1], [0.1, 0.2])])
def test_a_query_at_length_1_reaches_targets_that_other_axes_leave_room_for(
    rows: list[int], targets: list[float]
) -> None:
    """Without a penalty and with few candidates, nothing but the length fixes the other axes."""
    vectors = torch.eye(3, dtype=torch.float64)[rows]
    nothing = Term(0.0, 0.0, torch.zeros(3, 3), torch.zeros(3))
    form = QueryForm.of("exact", [nothing], values=True, length="unit")
    count = len(rows)
    met = Interactions(
        torch.zeros(count, dtype=torch.int64),
        vectors,
        torch.ones(count, dtype=torch.float64),
        torch.tensor(targets, dtype=torch.float64),
    )
    folded = form.minimise(met)[0].double()
    assert float(folded.norm()) == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(vectors @ folded, torch.tensor(targets).double(), atol=1e-6, rtol=0)
