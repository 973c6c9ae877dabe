"""Sweeps, against the dense sum over all pairs in float64, and exact least squares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduction.recipe import PaperRecipe
from tests.support.fits import CPU, assert_same, killed_and_resumed, parts_of
from tests.support.tiny_training import tiny_recipe
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.sorted_pairs import SortedPairs
from evergram.encoders.encoder import SIDES
from evergram.errors import RecipeError, TrainingError
from evergram.gramian.estimator import Moment
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.tasks.task import Encoded
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.resuming import CheckpointSettings
from evergram.training.sweeps import (
    OTHER,
    PairSquares,
    SweepSolver,
    SweepStep,
    row_groups,
    squares_of,
)

SIZES = {"query": 7, "candidate": 5}


def sorted_pairs(pairs: Mapping[str, Tensor], **columns: Tensor) -> dict[str, SortedPairs]:
    sizes = SIZES["query"], SIZES["candidate"]
    rows = pairs["query"], pairs["candidate"]
    return {
        "query": SortedPairs.of(*rows, sizes, columns),
        "candidate": SortedPairs.of(*rows[::-1], sizes[::-1], columns),
    }


def small_squares(seed: int, *, sparse: bool = False, prior: int = 0) -> PairSquares:
    """Draw pairs with repeats, two measures, and a query and a candidate that are in no pair."""
    made = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=made, dtype=torch.float64)

    pairs = {s: torch.randint(0, n - 1, (18,), generator=made) for s, n in SIZES.items()}
    measures = {s: draw(n, 2) for s, n in SIZES.items()}
    columns = {"value": draw(18) * 3} | ({"weight": draw(18) - 0.3} if sparse else {})
    return PairSquares(
        sorted_pairs(pairs, **columns),
        {s: m / m.sum(0) for s, m in measures.items()},
        (0.7, 0.2),
        {s: draw(n, prior) for s, n in SIZES.items()},
        {s: draw(n) * 0.05 for s, n in SIZES.items()},
    )


def small_tables(squares: PairSquares, dim: int, seed: int) -> dict[str, Tensor]:
    """Draw normal rows, float64 [N, D]."""
    made = torch.Generator().manual_seed(seed)
    return {
        s: torch.randn(len(m), dim, generator=made, dtype=torch.float64)
        for s, m in squares.norms.items()
    }


def over_all_pairs(squares: PairSquares, tables: dict[str, Tensor]) -> Tensor:
    """Return F by a dense matrix of all scores, for autograd too."""
    tables = {side: table.double() for side, table in tables.items()}
    scores = tables["query"] @ tables["candidate"].T
    missed = scores - squares.factors["query"].double() @ squares.factors["candidate"].double().T
    columns, counts = squares.pairs["query"].columns, squares.pairs["query"].counts
    at = torch.repeat_interleave(torch.arange(len(counts)), counts), columns["partner"].long()
    target = columns.get("value", torch.ones(1)).double()
    total = 0.5 * (scores[at] - target).square().mean()
    if "weight" in columns:
        total = total + (columns["weight"] * missed[at].square()).mean()
    excluded = torch.ones_like(scores)
    if squares.excludes:
        excluded[at] = 0.0
    for r, strength in enumerate(squares.penalty):
        p, q = (squares.measures[s][:, r] for s in ("query", "candidate"))
        total = total + strength * p @ (excluded * missed.square()) @ q
    for side, table in tables.items():
        total = total + squares.l2 * squares.norms[side].double() @ table.square().sum(1)
    return total


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(["none", "sparse", "excluded"]),
    st.sampled_from([0, 2]),
    st.sampled_from([1, 2, 9]),
    st.sampled_from([1, 64, None]),
    st.sampled_from([(100, 100), (1, 100), (7, 3), (2, 0)]),
)
def test_no_solve_raises_the_objective_and_it_returns_its_value(
    seed: int, weights: str, prior: int, steps: int, gathered: int | None, cuts: tuple[int, int]
) -> None:
    squares = small_squares(seed, sparse=weights == "sparse", prior=prior)
    squares = replace(squares, excludes=weights == "excluded")
    tables = small_tables(squares, 4, seed)
    solver = SweepSolver(squares, steps, gathered)
    before = over_all_pairs(squares, tables)
    for side in ("query", "candidate"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SortedPairs, "block", cuts[0])
            patch.setattr(SortedPairs, "long", cuts[1])
            value = solved(solver, side, tables)
        after = over_all_pairs(squares, tables)
        assert after <= before * (1 + 1e-12)
        torch.testing.assert_close(value, after, rtol=1e-10, atol=1e-12)
        before = after


def solved(solver: SweepSolver, side: str, tables: dict[str, Tensor]) -> Tensor:
    """Update one side's rows in place, with the other fixed. Return F."""
    fixed = solver.fix(OTHER[side], tables)
    blocks = solver.squares.pairs[side].blocks
    terms = [solver.solve_block(side, block, fixed, tables[side]) for block in blocks]
    return (fixed.constant + torch.stack(terms).sum()) / solver.n


def swept(solver: SweepSolver, tables: dict[str, Tensor]) -> Tensor:
    solved(solver, "query", tables)
    return solved(solver, "candidate", tables)


def sweep_to_its_end(solver: SweepSolver, tables: dict[str, Tensor], moves: float = 1e-11) -> None:
    for _ in range(2000):
        before = tables["candidate"].clone()
        swept(solver, tables)
        if torch.allclose(tables["candidate"], before, rtol=0, atol=moves):
            return


@pytest.mark.parametrize(("sparse", "steps"), [(False, 1), (True, 2)])
def test_a_fixed_point_has_no_gradient(sparse: bool, steps: int) -> None:
    squares = small_squares(8, sparse=sparse, prior=2)
    tables = small_tables(squares, 4, seed=1)
    sweep_to_its_end(SweepSolver(squares, steps), tables)
    ready = {side: table.clone().requires_grad_() for side, table in tables.items()}
    gradients = torch.autograd.grad(over_all_pairs(squares, ready), list(ready.values()))
    assert max(float(g.abs().max()) for g in gradients) < 1e-8


def test_single_precision_follows_double() -> None:
    squares = small_squares(6, sparse=True, prior=2)
    double = small_tables(squares, 4, seed=3)
    single = {side: table.float() for side, table in double.items()}
    value = swept(SweepSolver(squares), double)
    torch.testing.assert_close(swept(SweepSolver(squares), single), value, rtol=1e-4, atol=1e-5)
    for side, table in single.items():
        torch.testing.assert_close(table.double(), double[side], rtol=1e-3, atol=1e-4)


def test_as_many_steps_as_dims_are_dense_least_squares() -> None:
    squares = small_squares(4, sparse=True, prior=2)
    tables = small_tables(squares, 3, seed=2)
    held, row = tables["candidate"].clone(), 2
    # A least-squares problem of one equation a term of F, for one query.
    equations, wanted, weights = [], [], []
    observed = squares.pairs["query"]
    before, count = int(observed.counts[:row].sum()), int(observed.counts[row])
    for i in range(before, before + count):
        b = int(observed.columns["partner"][i])
        prior = squares.factors["query"][row] @ squares.factors["candidate"][b]
        equations += [held[b], held[b]]
        wanted += [observed.columns["value"][i], prior]
        halves = torch.tensor(0.5 / 18, dtype=torch.float64)
        weights += [halves, observed.columns["weight"][i] / 18]
    for other in range(len(held)):
        for r, strength in enumerate(squares.penalty):
            equations.append(held[other])
            wanted.append(squares.factors["query"][row] @ squares.factors["candidate"][other])
            p, q = squares.measures["query"][row, r], squares.measures["candidate"][other, r]
            weights.append(strength * p * q)
    left, right, scale = torch.stack(equations), torch.stack(wanted), torch.stack(weights)
    normal = left.T @ (left * scale[:, None]) + squares.norms["query"][row] * torch.eye(
        3, dtype=torch.float64
    )
    expected = torch.linalg.lstsq(normal, left.T @ (scale * right)).solution
    solved(SweepSolver(squares, steps=6), "query", tables)
    torch.testing.assert_close(tables["query"][row], expected, rtol=1e-8, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=12), st.integers(1, 60))
def test_groups_are_a_partition_of_rows_and_of_pairs(counts: list[int], at: int) -> None:
    numbers = torch.arange(1, sum(counts) + 1).double()
    rows = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    members, seen = [], []
    for group in row_groups(torch.tensor(counts), numbers.int(), numbers, 2 * numbers, pairs=at):
        assert len(group.rows) == 1 or len(group.rows) * max(group.longest, 4) <= at
        assert torch.equal(group.target, 2 * group.pull)
        members += group.rows.tolist()
        for row, its, own in zip(group.rows.tolist(), group.partners, group.pull, strict=True):
            places = own[own > 0].long() - 1
            assert rows[places].eq(row).all()
            assert torch.equal(numbers[places].int(), its[own > 0])
            seen += places.tolist()
    assert sorted(members) == list(range(len(counts)))
    assert sorted(seen) == list(range(sum(counts)))


def test_an_objective_without_a_minimum_or_not_finite_is_refused() -> None:
    squares = small_squares(6)
    cases: list[tuple[dict[str, Tensor], str]] = [
        ({"weight": torch.full((18,), -50.0)}, "without a minimum"),
        ({"value": torch.full((18,), float("inf"))}, r"training\.optimizer = 'als'"),
    ]
    for change, named in cases:
        pairs = {
            side: replace(each, columns={**each.columns, **change})
            for side, each in squares.pairs.items()
        }
        with pytest.raises(TrainingError, match=named):
            swept(SweepSolver(replace(squares, pairs=pairs)), small_tables(squares, 4, seed=3))


def prepared(task: dict[str, Any], optimizer: str, **more: Any) -> Any:
    """Return a run's step and sampler, whose one batch is all pairs."""
    made = torch.Generator().manual_seed(0)
    pairs = torch.randint(6, (24, 2), generator=made)
    weight, value = torch.rand(2, 24, generator=made)
    columns = {"query": pairs[:, 0], "candidate": pairs[:, 1], "weight": weight, "value": value}
    corpus = Corpus.of(pa.table({k: v.numpy() for k, v in columns.items()}))
    values = {"model": {"dim": 3, "scale": 1.0}, "task": task, "training": {"optimizer": optimizer}}
    recipe = PaperRecipe.of({"data": {"kind": "synthetic"}, **values, **more})
    return parts_of(recipe, corpus)[:2]


TASKS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"penalty": 0.4, "l2": 0.02, "target": "value"}, {}),
    ({"penalty": 0.4, "l2": 0.02, "l2_measure": "penalty", "query_measure": 0.5}, {}),
    ({"penalty": 0.1, "sparse": "exclude", "l2": 1e-3}, {}),
    ({"penalty": 0.4, "sparse": "weight"}, {"prior": {"kind": "svd"}}),
    ({"penalty": 0.4}, {"prior": {"kind": "constant", "value": 0.3}}),
    ({"penalty": [0.3, 0.2], "query_measure": [0.0, 1.0], "candidate_measure": [0.5, 1.0]}, {}),
    ({"penalty": 0.0, "l2": 0.02}, {}),
]


@pytest.mark.parametrize(("task", "more"), TASKS)
def test_a_solved_run_has_no_gradient_by_the_trainers_objective(
    task: dict[str, Any], more: dict[str, Any]
) -> None:
    step, sampler = prepared(task, "adaptive", **more)
    squares = squares_of(*prepared(task, "als", **more))
    tables = {s: getattr(step.encoder, s).weight.detach().double() for s in SIDES}

    def slopes() -> tuple[float, torch.Tensor]:
        """The largest gradient of the objective, and its value, on one batch of all pairs."""
        (batch,) = sampler.epoch(0, 0)
        rows = {s: table.clone().requires_grad_() for s, table in tables.items()}
        moments = {}
        for s, table in tables.items():
            factors = step.factors[s].double()
            beside = torch.cat([table, factors], dim=1)
            measures = step.measures[s].double().T
            moments[s] = [Moment(table.T @ (p[:, None] * beside)) for p in measures]
        encoded = Encoded(
            rows["query"][batch.query],
            rows["candidate"][batch.candidate],
            query_factors=step.factors["query"].double()[batch.query],
            candidate_factors=step.factors["candidate"].double()[batch.candidate],
        )
        loss = step.objective(encoded, batch, moments)
        gradients = torch.autograd.grad(loss.total, list(rows.values()))
        return max(float(g.abs().max()) for g in gradients), loss.objective

    before, value = slopes()
    torch.testing.assert_close(
        value.double(), over_all_pairs(squares, tables), rtol=1e-5, atol=1e-6
    )
    assert before > 0.01
    sweep_to_its_end(SweepSolver(squares), tables, moves=1e-8)
    after, value = slopes()
    torch.testing.assert_close(
        value.double(), over_all_pairs(squares, tables), rtol=1e-5, atol=1e-6
    )
    # Weights of batches are float32.
    assert after < 1e-6


def test_an_epoch_is_a_sweep_whose_steps_average_to_the_objective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SortedPairs, "block", 6)
    step, sampler = prepared(*TASKS[0][:1], "als")
    assert isinstance(step, SweepStep)
    assert not step.optimizers
    assert len(sampler) > 5
    means = []
    for epoch in range(5):
        steps = [float(value) for _, value in run_epoch(step, sampler, None, epoch, CPU)]
        assert len(steps) == len(sampler)
        means.append(sum(steps) / len(steps))
    assert means == sorted(means, reverse=True)
    expected = over_all_pairs(squares_of(step, sampler), step.tables)
    of_candidates = len(sampler.pairs["candidate"].blocks)
    assert sum(steps[-of_candidates:]) / of_candidates == pytest.approx(float(expected), rel=1e-5)


def test_entities_without_a_pair_keep_their_rows_whatever_their_measure(tmp_path: Path) -> None:
    ids = tmp_path / "weights.csv"
    ids.write_text("id,weight\n" + "".join(f"a{i},{i + 1}\n" for i in range(9)))
    corpus = Corpus.of([(f"a{i % 7}", f"b{i * i % 7}") for i in range(60)], shared_ids=True)
    recipe = tiny_recipe("training.optimizer=als", f"task.query_measure='{ids}'")
    step, sampler, _ = parts_of(recipe, corpus)
    assert isinstance(step, SweepStep)
    before = {side: table.clone() for side, table in step.tables.items()}
    for _ in run_epoch(step, sampler, None, 0, CPU):
        pass
    for side, table in step.tables.items():
        met = corpus.counts(side) > 0
        assert torch.equal(table[~met], before[side][~met])
        assert not torch.isclose(table[met], before[side][met]).any(dim=1).all()
        assert not bool(met.all())


def test_a_run_resumes_bit_for_bit_and_ends_by_its_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SortedPairs, "block", 300)
    recipe = recipe_of("training.epochs=20", "training.patience=2", "model.dim=4")

    def run(**kept: Any) -> Artefact:
        return train(recipe, progress=False, **kept)

    often = CheckpointSettings(every=1)
    whole, blocks = run(), len(parts_of(recipe)[1])
    # Inside the queries' and inside the candidates' half of a sweep.
    for block in (1, blocks - 2):
        at = 4, block
        again, begun = killed_and_resumed(monkeypatch, run, at, tmp_path / str(block), often)
        assert begun[0] == at
        assert_same(whole, again)
    trained = whole.metrics["training"]
    assert trained["ended"] == "patience"
    objectives = [record["objective"] for record in trained["history"]]
    assert objectives == sorted(objectives, reverse=True)


def recipe_of(*overrides: str) -> Recipe:
    return tiny_recipe("training.optimizer=als", "training.epochs=2", *overrides)


def test_an_upgrade_fits_its_transform_afterwards(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path, "tiny")
    lineage.publish(train(recipe_of(), progress=False))
    with pytest.raises(RecipeError, match=r"upgrade\.method = 'post-closed'"):
        upgrade(recipe_of(), lineage, progress=False)
    after = recipe_of("upgrade.method=post-closed")
    version = lineage.publish(upgrade(after, lineage, progress=False))
    assert lineage.manifest(version).dim == 5
