"""`GramianPenalty` in loops of one's own: SAGram's Algorithm 1, and ten plain lines."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.penalty_loops import tables
from torch import Tensor, nn

from evergram.errors import ShapeError, TrainingError
from evergram.gramian import GramianPenalty
from evergram.gramian.estimator import EntityBatch
from evergram.gramian.gramian_penalty.growing_sagram import GrowingSAGram

N, M, D, K = 30, 12, 4, 2


PRIORS: dict[str, tuple[Tensor, Tensor] | float] = {
    "no prior": 0.0,
    "a prior": (torch.linspace(-1, 1, N * K).view(N, K), torch.linspace(0, 1, M * K).view(M, K)),
}


def outer_sum(table: Tensor, factors: Tensor, shares: Tensor) -> Tensor:
    """Σ p_a u_a ⊗ (u_a, f_a), entity by entity."""
    total = torch.zeros(D, D + factors.shape[1], dtype=torch.float64)
    for row, factor, share in zip(table.double(), factors.double(), shares.double(), strict=True):
        total += share * torch.outer(row, torch.cat([row, factor]))
    return total


def positive(gramian: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(gramian)
    nearest: Tensor = (vectors * values.clamp(min=0)) @ vectors.T
    return nearest


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("beta", ["1/n", "1"])
@pytest.mark.parametrize("counted", [True, False])
def test_of_tables_by_sgd_the_gramian_is_exact_after_every_step(
    beta: str, prior: str, counted: bool
) -> None:
    """And before each gradient it is that of lines 7 and 8, with the cache as it was."""
    draw = torch.Generator().manual_seed(0)
    users, items = (t.double().requires_grad_() for t in tables())
    counts = [torch.ones(n) if counted else None for n in (N, M)]
    penalty = GramianPenalty(
        D, "sagram", prior=PRIORS[prior], beta=beta, query_counts=counts[0],
        candidate_counts=counts[1],
    ).double()  # fmt: skip
    optimizer = torch.optim.SGD([users, items], lr=0.05)
    factors = {"query": torch.zeros(N, 0), "candidate": torch.zeros(M, 0)}
    if prior == "a prior":
        factors = dict(zip(factors, PRIORS[prior], strict=True))  # type: ignore[arg-type]
    everyone = torch.arange(N), torch.arange(M)
    for step in range(12):
        other = [torch.randint(n, (9,), generator=draw) for n in (N, M)]
        if not step:
            other = [e.repeat(k) for e, k in zip(everyone, (2, 5), strict=True)]
        own = [torch.randint(n, (9,), generator=draw) // 2 for n in (N, M)]  # many twice
        with torch.no_grad():
            penalty.before_step(users[other[0]], items[other[1]], *other)
        value = penalty(users[own[0]], items[own[1]], *own)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            penalty.after_step(users[own[0]], items[own[1]])
        for side, table in ((penalty.query, users), (penalty.candidate, items)):
            size = len(table)
            exact = outer_sum(table.detach(), factors[side.name], torch.ones(size).double() / size)
            mine = side.moment(torch.float64).dense
            torch.testing.assert_close(mine, exact, rtol=1e-12, atol=1e-12)
    assert float(value.detach()) != 0


@pytest.mark.parametrize("beta", ["1/n", "1"])
def test_the_estimate_of_a_gradient_is_that_of_lines_7_and_8(beta: str) -> None:
    """Every row moves, as in a tower, so that the cache is behind."""
    draw = torch.Generator().manual_seed(1)
    users, items = (t.double() for t in tables())
    penalty = GramianPenalty(
        D, "sagram", beta=beta, query_counts=torch.ones(N), candidate_counts=torch.ones(M)
    ).double()
    cache: Tensor | None = None
    for step in range(8):
        users = users + 0.3 * torch.randn(N, D, dtype=torch.float64, generator=draw)
        other = torch.randint(N, (9,), generator=draw) if step else torch.arange(N)
        own = torch.randint(N, (9,), generator=draw)
        cache = users.clone() if cache is None else cache
        penalty.before_step(users[other], items, other, torch.arange(M))
        expected = cache.T @ cache / N
        if beta == "1":
            change = users[other].T @ users[other] - cache[other].T @ cache[other]
            expected = positive(expected + change / len(other))
        else:
            for a in set(other.tolist()):
                expected += torch.outer(users[a], users[a]) / N
                expected -= torch.outer(cache[a], cache[a]) / N
        penalty(users[own], items, own, torch.arange(M))
        torch.testing.assert_close(penalty.query_gramian, expected, rtol=1e-12, atol=1e-12)
        users = users + 0.3 * torch.randn(N, D, dtype=torch.float64, generator=draw)
        penalty.after_step(users[own], items)
        cache[own] = users[own]
        torch.testing.assert_close(penalty.query_gramian, cache.T @ cache / N, rtol=1e-12, atol=0)


def test_micro_batches_are_one_step_and_what_overflowed_is_left_out() -> None:
    users, items = tables()
    penalty = GramianPenalty(D, "sagram")
    ids = torch.arange(M)
    penalty.before_step(users[:M], items, ids, ids)
    before = penalty.query_gramian.clone()
    with penalty.accumulate():
        penalty(users[:2], items[:2], ids[:2], ids[:2])
        penalty(users[2:4] * torch.inf, items[2:4], ids[2:4], ids[2:4])
    moved = users.clone()
    moved[:4] += 1
    assert torch.equal(penalty.query_gramian, before)
    penalty.after_step(moved[:4], items[:4])
    moved[2:4] = users[2:4]
    torch.testing.assert_close(penalty.query_gramian, moved[:M].T @ moved[:M] / M)


WRONG: dict[str, tuple[type[Exception], str]] = {
    "no batch apart": (TrainingError, "call"),
    "no step": (TrainingError, "after"),
    "not as many rows": (ShapeError, "before call after-fewer"),
    "a step before was not written": (TrainingError, "before call before"),
    "the same batch": (TrainingError, "before-own call"),
}


@pytest.mark.parametrize("case", WRONG)
def test_another_order_is_refused(case: str) -> None:
    penalty, table = GramianPenalty(D, "sagram"), torch.randn(5, D, requires_grad=True)
    ids, rows = torch.arange(5), 1 * table
    error, calls = WRONG[case]
    *allowed, refused = calls.split()

    def make(call: str) -> None:
        if call == "call":
            penalty(rows, rows, ids, ids)
        elif call.startswith("before"):
            given = rows if call == "before-own" else table.detach().clone()
            penalty.before_step(given, given, ids, ids)
        else:
            penalty.after_step(rows[:1] if call == "after-fewer" else rows, rows)

    for call in allowed:
        make(call)
    with pytest.raises(error):
        make(refused)


def test_estimators_without_a_cache_have_no_such_calls_and_no_beta() -> None:
    penalty, rows, ids = GramianPenalty(D, "sagram"), torch.randn(5, D), torch.arange(5)
    with pytest.raises(TrainingError, match="accumulate"), penalty.accumulate():
        penalty.before_step(rows, rows, ids, ids)
    penalty = GramianPenalty(D)
    for call in (penalty.before_step, penalty.after_step):
        with pytest.raises(TrainingError, match="'sagram'"):
            call(rows, rows)
    with pytest.raises(ValueError, match="beta is '1'"):
        GramianPenalty(D, beta="1")
    with pytest.raises(ValueError, match="'2'"):
        GramianPenalty(D, "sagram", beta="2")


def test_a_side_may_be_without_rows() -> None:
    penalty, rows, ids = GramianPenalty(D, "sagram"), torch.randn(5, D), torch.arange(5)
    penalty.before_step(rows, rows, ids, ids)
    penalty(rows[:0], rows, None, ids)
    penalty.after_step(rows[:0], 2 * rows)
    torch.testing.assert_close(penalty.query_gramian, rows.T @ rows / 5)
    torch.testing.assert_close(penalty.candidate_gramian, 4 * rows.T @ rows / 5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_two_calls_may_stand_in_inference_mode_and_a_loaded_state_ends_the_step(
    mode: type[torch.no_grad],
) -> None:
    users, items = (t.requires_grad_() for t in tables())
    penalty = GramianPenalty(D, "sagram")
    optimizer = torch.optim.SGD([users, items], lr=0.05)
    ids = torch.arange(N), torch.arange(N) % M
    for _ in range(3):
        with mode():
            penalty.before_step(users[ids[0]], items[ids[1]], *ids)
        optimizer.zero_grad()
        penalty(users[ids[0]], items[ids[1]], *ids).backward()
        optimizer.step()
        with mode():
            penalty.after_step(users[ids[0]], items[ids[1]])
    assert max(penalty.gramian_error(users, items)) < 1e-5
    state = penalty.state_dict()
    with torch.no_grad():
        penalty.before_step(users[ids[0]], items[ids[1]], *ids)
        penalty(users[ids[0]], items[ids[1]], *ids)
        penalty.load_state_dict(state)
        with pytest.raises(TrainingError):
            penalty.after_step(users[ids[0]], items[ids[1]])
        penalty.before_step(users[ids[0]], items[ids[1]], *ids)


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


WIDTH, MOST = 3, 20


def naive(last: dict[int, Tensor], shares: Tensor, factors: Tensor) -> Tensor:
    """Entity by entity, from a dictionary."""
    width = WIDTH + factors.shape[1]
    total, mass = torch.zeros(WIDTH, width, dtype=torch.float64), 0.0
    for entity, row in last.items():
        right = torch.cat([row, factors[entity]]).double()
        total += float(shares[entity]) * torch.outer(row.double(), right)
        mass += float(shares[entity])
    return total / mass


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, MOST - 1), min_size=1, max_size=6), min_size=1, max_size=8),
    st.sampled_from(["grows", "shares", "one factor", "table"]),
    st.integers(0, 10**6),
)
def test_the_estimate_is_the_gramian_of_the_entities_met(
    batches: list[list[int]], kind: str, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    shares = torch.rand(MOST, generator=draw) + 0.1 if kind == "shares" else torch.ones(MOST)
    factors = torch.zeros(MOST, 0)
    table_of_factors: Tensor | None = None
    if kind == "one factor":
        table_of_factors = torch.randn(1, 2, generator=draw)
        factors = table_of_factors.expand(MOST, -1)
    elif kind == "table":
        table_of_factors = factors = torch.randn(MOST, 2, generator=draw)
    starts_empty = kind in ("grows", "one factor")
    estimator = GrowingSAGram(WIDTH, shares[:0] if starts_empty else shares, table_of_factors)
    assert not bool(estimator.moment().dense.any())
    last: dict[int, Tensor] = {}
    for batch in batches:
        ids = torch.tensor(batch)
        table = torch.randn(MOST, WIDTH, generator=draw)
        estimator.after_step(EntityBatch(ids, torch.ones(len(ids)), table[ids], factors[ids]))
        last |= {entity: table[entity] for entity in batch}
        torch.testing.assert_close(
            estimator.moment().dense.double(), naive(last, shares, factors), rtol=1e-4, atol=1e-5
        )
    # Into a fresh one, and into one that has seen other things.
    for elsewhere in ([], [MOST - 1], [90]):
        if elsewhere == [90] and not starts_empty:
            continue
        other = GrowingSAGram(WIDTH, shares[:0] if starts_empty else shares, table_of_factors)
        if elsewhere:
            one = torch.ones(1, WIDTH)
            other.after_step(EntityBatch(torch.tensor(elsewhere), torch.ones(1), one, factors[:1]))
        other.load_state_dict(estimator.state_dict())
        assert torch.equal(other.moment().dense, estimator.moment().dense)
        table = torch.randn(MOST, WIDTH, generator=draw)
        for each in (other, estimator):
            each.update(EntityBatch(torch.arange(MOST), torch.ones(MOST), table, factors))
        torch.testing.assert_close(other.moment().dense, estimator.moment().dense)


def test_a_state_of_another_size_is_refused_where_entities_are_fixed() -> None:
    with pytest.raises(RuntimeError, match="size mismatch"):
        GrowingSAGram(WIDTH, torch.ones(4)).load_state_dict(
            GrowingSAGram(WIDTH, torch.ones(5)).state_dict()
        )
