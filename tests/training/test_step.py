"""One step: its gradient, its estimators, and the optimisers that move each parameter."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
import torch
from reproduction.recipe import PaperRecipe
from tests.support.fits import CPU, changed, parts_of, split_of
from tests.support.tensor_bytes import TensorBytes
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch, ExampleSampler, Pool
from evergram.encoders.encoder import SIDES, Encoder
from evergram.errors import RecipeError, ShapeError
from evergram.gramian.estimator import HostBuffers, Moment
from evergram.gramian.penalty import preconditioner
from evergram.tasks.task import Encoded, WeightedRows
from evergram.training.build import FitSettings, pick_device, prepare
from evergram.training.loop import run_epoch
from evergram.training.optimizers import DenseAdam, RowAdagrad, build_optimizers, decay_rates
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import StepSettings
from evergram.training.step import Step, precondition_gradients

PAIRS = Corpus.of(pa.table({"query": [*"aabbcc"], "candidate": [*"xyxzyz"]}))
# a-x is there twice.
MET = Corpus.of(pa.table({"query": [*"aaabc"], "candidate": [*"xxyyx"]}))


def recipe_of(*overrides: str, **tables: dict[str, Any]) -> Recipe:
    values: dict[str, Any] = {"data": {"kind": "synthetic"}, "model": {"dim": 3}, **tables}
    return PaperRecipe.of(
        {**values, "training": {"batch_size": 2, **values.get("training", {})}}, overrides
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("batch", "gradient", "sampler"),
    [
        ("previous", "examples", ""),
        ("independent", "examples", "sqrt"),
        ("independent", "sampled", "sqrt"),
        ("independent", "examples", "adaptive"),
        ("independent", "sampled", "adaptive"),
    ],
)
@pytest.mark.parametrize("measure", [0.0, 0.5])
def test_the_gradient_is_independent_of_its_own_batch(
    batch: str, gradient: str, sampler: str, measure: float
) -> None:
    """Averaged over batches at fixed embeddings, the step's gradient is that of the objective,
    whether the penalty's is over the pairs' entities or over those that were drawn.

    With the same batch in Ĝ and in the gradient it would not be: positives repel each other.
    """
    draw = torch.Generator().manual_seed(0)
    pairs = torch.randint(6, (24, 2), generator=draw)
    corpus = Corpus.of(pa.table({"query": pairs[:, 0].numpy(), "candidate": pairs[:, 1].numpy()}))
    apart = {"sampler": sampler, "gradient": gradient} if batch == "independent" else {}
    powers = {"query_measure": measure, "candidate_measure": measure}
    recipe = recipe_of(
        model={"dim": 3, "scale": 1.0},
        task={"penalty": 1.0, "l2": 0.0, **powers},
        # Rate 1: all of Ĝ is one batch, so that a dependence shows in full.
        gramian={"rate": 1.0, **apart},
        training={"batch_size": 4, "precondition": 0.0},
    )
    step, pairs_sampler, draws = parts_of(recipe, corpus)
    step.optimizers = []
    encoder = step.encoder
    total: dict[str, Tensor] = {n: torch.zeros_like(p) for n, p in encoder.named_parameters()}
    steps = 0
    for epoch in range(1000):
        for _ in run_epoch(step, pairs_sampler, draws, epoch, CPU):
            if epoch:  # the first steps have no Gramian yet
                steps += 1
                for name, parameter in encoder.named_parameters():
                    assert parameter.grad is not None
                    total[name] += parameter.grad.to_dense()
            encoder.zero_grad()
    query, candidate = (encoder.get_parameter(f"{side}.weight") for side in SIDES)
    scores = query @ candidate.T
    observed = scores[corpus.column("query"), corpus.column("candidate")]
    p, q = (corpus.counts(side).double() ** measure for side in SIDES)
    weight = torch.outer(p / p.sum(), q / q.sum()).float()
    objective = 0.5 * (observed - 1).square().mean() + (weight * scores.square()).sum()
    expected = torch.autograd.grad(objective, [query, candidate])
    for mean, exact in zip(total.values(), expected, strict=True):
        assert float((mean / steps - exact).norm() / exact.norm()) < 0.05


def test_the_exact_gramian_is_that_of_the_parameters_before_the_step() -> None:
    recipe = recipe_of(task={"penalty": 1.0, "l2": 0.0}, gramian={"kind": "exact"})
    step, sampler, _ = parts_of(recipe, PAIRS)
    step.begin_epoch()
    with step.look() as embeddings:
        rows = embeddings.rows("query", torch.arange(3)).double()
    exact = rows.T @ rows / 3
    step(next(iter(sampler.epoch(0))))
    estimate = step.estimators["query"][0].moment().dense.double()
    torch.testing.assert_close(estimate, exact, rtol=1e-5, atol=1e-6)


def adaptive_step(penalty: float | list[float]) -> tuple[Step, dict[str, Pool]]:
    """A step on six pairs with SOGram, and a pool of each side of which it keeps 200."""
    measures = [0.0, 1.0] if isinstance(penalty, list) else [0.0]
    pools = {"sampler": "adaptive", "batch_size": 200}
    recipe = recipe_of(
        model={"dim": 3, "scale": 1.0},
        task={"penalty": penalty, "l2": 0.0} | {f"{side}_measure": measures for side in SIDES},
        gramian={"rate": 0.5, **pools},
    )
    step, _, draws = parts_of(recipe, PAIRS)
    assert draws is not None
    kept: dict[str, Pool] = {}
    for side in SIDES:
        pool = next(iter(draws[side].epoch(0, 1)))
        assert isinstance(pool, Pool)
        kept[side] = pool
    return step, kept


def shares(ids: Tensor) -> Tensor:
    return torch.bincount(ids, minlength=3) / len(ids)


@pytest.mark.parametrize("penalty", [4.0, [3.0, 0.5]])
def test_a_pool_is_drawn_from_by_contribution_to_the_penalty(penalty: float | list[float]) -> None:
    """Against Σ_r λ_r μ_r vᵀ Ĝ v by loops, with the estimates that the step had before the draw."""
    step, pools = adaptive_step(penalty)
    gramians = {s: torch.eye(3) * torch.tensor([5.0, 1.0, 0.1]) for s in SIDES}
    for side in SIDES:
        for estimator in step.estimators[side]:
            estimator.matrix = gramians[side]
            estimator.missing = torch.zeros((), dtype=torch.float64)
    step.encoder.train()
    with step.look() as embeddings:
        draws = step.resampled(embeddings, pools)
    for side, pool in pools.items():
        table = step.encoder.get_parameter(f"{side}.weight").detach()
        strengths = penalty if isinstance(penalty, list) else [penalty]
        scores = torch.tensor(
            [
                sum(
                    lam
                    * float(pool.weights[i, r])
                    * float(table[row] @ gramians[side] @ table[row])
                    for r, lam in enumerate(strengths)
                )
                for i, row in enumerate(pool.ids.tolist())
            ]
        )
        expected = pool.resample(scores)
        assert torch.equal(draws[side].ids, expected.ids)
        torch.testing.assert_close(draws[side].weights, expected.weights)
        assert len(expected.ids) == 200
    assert step.encoder.training
    # Without an estimate yet, a pool is drawn from evenly.
    fresh, _ = adaptive_step(penalty)
    with fresh.look() as embeddings:
        even = fresh.resampled(embeddings, pools)
    for side, pool in pools.items():
        assert float((shares(even[side].ids) - shares(pool.ids)).abs().max()) < 0.1
        assert torch.equal(pool.resample(torch.zeros(len(pool.ids))).ids, even[side].ids)


def test_the_estimate_after_a_step_is_that_of_what_was_kept_of_the_pool() -> None:
    step, pools = adaptive_step(1.0)
    step.begin_epoch()
    with step.look() as embeddings:
        kept = step.resampled(embeddings, pools)
        rows = {s: embeddings.rows(s, kept[s].ids) for s in SIDES}
    one = torch.zeros(2, dtype=torch.int64)
    weight = torch.ones(2, 1)
    step(Batch(one, one, torch.ones(2), weight, weight), pools)
    for side in SIDES:
        weighted = rows[side] * kept[side].weights / 200
        torch.testing.assert_close(
            step.estimators[side][0].gramian(), weighted.T @ rows[side], rtol=1e-5, atol=1e-6
        )


def test_entities_are_drawn_apart_from_pairs_in_batches_of_their_own_size() -> None:
    for override, size in (("gramian.batch_size=3", 3), ("gramian.sampler=linear", 2)):
        draws = parts_of(recipe_of("gramian.sampler=linear", override), MET)[2]
        assert draws is not None
        assert [len(next(iter(draws[side].epoch(0, 1))).ids) for side in SIDES] == [size, size]


def test_an_epoch_has_a_short_batch_if_the_recipe_wants_it() -> None:
    for short, sizes in (("false", [3]), ("true", [3, 2])):
        recipe = recipe_of("training.batch_size=3", f"training.short_batch={short}")
        assert [len(batch.query) for batch in parts_of(recipe, MET)[1].epoch(0)] == sizes


def test_versions_start_apart_and_one_may_go_on_from_another() -> None:
    def encoder(version: int, *overrides: str, **companions: Any) -> Encoder:
        recipe = recipe_of("model.dim=[3, 4]", *overrides)
        return parts_of(recipe, MET, version, **companions)[0].encoder

    def table(encoder: Encoder) -> Tensor:
        return encoder.get_parameter("query.weight")

    first, second = encoder(0), encoder(1)
    assert (first.dim, second.dim) == (3, 4)
    assert torch.equal(table(first), table(encoder(0)))
    other = encoder(1, "model.dim=3")
    assert not torch.equal(table(first), table(other))
    assert torch.equal(table(first), table(encoder(1, "model.dim=3", start=first)))
    with pytest.raises(ShapeError, match=r"upgrade\.start = 'fresh'"):
        encoder(1, start=first)


def test_a_device_that_is_not_there_is_refused() -> None:
    assert pick_device("cpu") == CPU
    with pytest.raises(RecipeError, match="tpu is unknown"):
        pick_device("tpu")
    if not torch.cuda.is_available():
        assert pick_device("auto") == CPU
        with pytest.raises(RecipeError, match="cuda"):
            pick_device("cuda")


def tower_run(**training: Any) -> tuple[Recipe, Step, ExampleSampler]:
    """Return a step of towers with a feature, whose layers learn at 0.1 and features at 0.2."""
    corpus = Corpus.of(
        pa.table({"query": ["a", "b", "a"], "candidate": ["x", "y", "y"]}),
        candidate_features=pa.table({"id": ["x", "y"], "tags": [["s"], ["s", "t"]]}),
    )
    recipe = PaperRecipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"kind": "two_tower", "dim": 3, "hidden": [5], "residual": False},
            "training": {"feature_rate": 0.2, "layer_rate": 0.1, **training},
        }
    )
    return recipe, *parts_of(recipe, corpus)[:2]


def rate_of(name: str, table: float) -> float:
    return 0.1 if not name.startswith("tables") else 0.2 if "feature" in name else table


@pytest.mark.parametrize(
    ("training", "table"),
    [
        ({"optimizer": "adaptive", "table_rate": 0.3}, 0.3),
        ({"optimizer": "adam"}, 0.01),
        ({"optimizer": "sgd", "table_rate": 0.3}, 0.3),
    ],
)
def test_every_parameter_of_model_and_task_has_one_optimizer_and_the_rate_of_its_kind(
    training: dict[str, Any], table: float
) -> None:
    recipe, step = tower_run(**training)[:2]
    task = nn.Module()
    task.scale, task.still = (nn.Parameter(torch.ones(2), requires_grad=b) for b in (True, False))
    assert isinstance(recipe.training, StepSettings)
    made = build_optimizers(step.encoder, recipe.training, table, task=task)
    for optimizers, more in ((step.optimizers, {}), (made, {"task.scale": task.scale})):
        rates = {p: g["lr"] for o in optimizers for g in o.param_groups for p in g["params"]}
        for name, parameter in [*step.encoder.named_parameters(), *more.items()]:
            assert rates.pop(parameter) == rate_of(name, table), name
        assert not rates


def test_plain_sgd_moves_each_parameter_by_its_rate_times_its_gradient() -> None:
    _, step, sampler = tower_run(optimizer="sgd", table_rate=0.3)
    before = {n: p.detach().clone() for n, p in step.encoder.named_parameters()}
    step.begin_epoch()
    step(next(iter(sampler.epoch(0))))
    moved = 0
    for name, parameter in step.encoder.named_parameters():
        assert parameter.grad is not None
        gradient = parameter.grad.to_dense()
        expected = before[name] - rate_of(name, 0.3) * gradient
        torch.testing.assert_close(parameter.detach(), expected)
        moved += int(gradient.any())
    assert moved > 6


def test_sparse_gradients_are_dense_ones() -> None:
    tables = [nn.Embedding(5, 3, sparse=sparse) for sparse in (True, False)]
    tables[1].load_state_dict(tables[0].state_dict())
    optimizers = [
        DenseAdam(tables[0].parameters(), 0.1),
        torch.optim.Adam(tables[1].parameters(), 0.1),
    ]
    for ids in ([0, 3, 3], [1], [4, 0]):
        for table, optimizer in zip(tables, optimizers, strict=True):
            optimizer.zero_grad()
            table(torch.tensor(ids)).square().sum().backward()
            optimizer.step()
    # By the same formula; in some runs one of fifteen numbers is rounded otherwise.
    torch.testing.assert_close(tables[0].weight, tables[1].weight, rtol=1e-6, atol=1e-7)
    rest = tables[0].weight.detach()[3].clone()
    tables[0].zero_grad()
    tables[0](torch.tensor([1])).sum().backward()
    optimizers[0].step()
    assert not torch.equal(tables[0].weight[3], rest)  # it goes on by its mean


def test_every_group_has_its_rate_times_the_decay_to_the_epoch() -> None:
    one, two = (nn.Parameter(torch.ones(1)) for _ in range(2))
    adam = torch.optim.Adam([{"params": [one], "lr": 0.5}, {"params": [two], "lr": 0.1}])
    for epoch in (0, 1, 4, 2):
        decay_rates([adam], 0.9, epoch)
        rates = [group["lr"] for group in adam.param_groups]
        assert rates == pytest.approx([0.5 * 0.9**epoch, 0.1 * 0.9**epoch])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(rows: Tensor, *, sparse: bool = True) -> nn.Embedding:
    table = nn.Embedding(len(rows), rows.shape[1], sparse=sparse)
    with torch.no_grad():
        table.weight.copy_(rows)
    return table


def run(table: nn.Embedding, batches: list[list[int]], turn: Tensor | None = None) -> Tensor:
    """Pull the rows of each batch towards fixed targets."""
    optimizer = RowAdagrad(table.parameters(), 0.1)
    target = normal(6, 3, seed=5)
    target = target if turn is None else target @ turn
    for ids in batches:
        rows = torch.tensor(ids)
        loss = (table(rows) - target[rows]).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return table.weight.detach()


BATCHES = [[0, 1, 1, 4], [1, 2], [0, 0, 0], [5, 1]]


def test_each_row_goes_by_the_squares_of_its_own_gradients() -> None:
    start = normal(6, 3)
    table = filled(start)
    moved = run(table, BATCHES)
    expected, target = start.clone(), normal(6, 3, seed=5)
    for row in range(6):
        total = 0.0
        for ids in BATCHES:
            if row in ids:  # a row that a batch holds twice has the sum of both gradients
                gradient = ids.count(row) * 2 * (expected[row] - target[row])
                total += float(gradient.square().mean())
                expected[row] -= 0.1 * gradient / total**0.5
    torch.testing.assert_close(moved, expected)
    assert torch.equal(moved[3], start[3])


def test_sparse_and_dense_gradients_give_the_same() -> None:
    tables = [filled(normal(6, 3), sparse=sparse) for sparse in (True, False)]
    torch.testing.assert_close(*(run(table, BATCHES) for table in tables))


def test_the_basis_does_not_matter() -> None:
    turn = torch.linalg.qr(normal(3, 3, seed=9)).Q
    plain = filled(normal(6, 3))
    turned = filled(normal(6, 3) @ turn)
    moved = run(turned, BATCHES, turn)
    torch.testing.assert_close(moved, run(plain, BATCHES) @ turn, rtol=1e-4, atol=1e-5)


def test_a_sparse_step_makes_nothing_of_the_size_of_the_table() -> None:
    table = nn.Embedding(50_000, 3, sparse=True)
    optimizer = RowAdagrad(table.parameters(), 0.1)
    table(torch.tensor([7, 7, 49_999])).square().sum().backward()
    with TensorBytes() as made:
        optimizer.step()
    assert made.largest < 1000


def random_moments() -> dict[str, list[Moment]]:
    roots = {side: torch.randn(5, 3) for side in ("query", "candidate")}
    return {side: [Moment(root.T @ root)] for side, root in roots.items()}


@pytest.mark.parametrize("one_table", [False, True])
def test_each_side_is_turned_by_the_other_once_and_rows_of_one_table_by_the_mean(
    one_table: bool,
) -> None:
    """Also a pair's query without its candidate, and the same with it."""
    names = ("query", "candidate", "negative", "whole_query")
    rows = {name: torch.randn(4, 3).requires_grad_() for name in names}
    shown: dict[str, Any] = {name: r * 1.0 for name, r in rows.items()}
    moments = random_moments()
    precondition_gradients(Encoded(**shown), moments, [2.0], 0.1, whole=False, one_table=one_table)
    torch.autograd.backward(sum(shown.values(), torch.zeros(4, 3)).sum())
    matrices = {side: preconditioner(moments[side], [2.0], 0.1) for side in moments}
    for name in names:
        other = matrices["candidate" if "query" in name else "query"]
        matrix = (matrices["query"] + matrices["candidate"]) / 2 if one_table else other
        torch.testing.assert_close(rows[name].grad, torch.ones(4, 3) @ matrix)


def test_rows_taken_from_all_entities_are_turned_with_them_alone() -> None:
    whole = {s: torch.randn(6, 3).requires_grad_() for s in ("query", "candidate")}
    shown = {s: r * 1.0 for s, r in whole.items()}
    moments = {s: [Moment(torch.diag(torch.tensor([1.0, 2.0, 3.0])))] for s in whole}
    all_entities = {s: WeightedRows(rows, torch.ones(6, 1)) for s, rows in shown.items()}
    pairs = {s: rows[:2] for s, rows in shown.items()}
    encoded = Encoded(pairs["query"], pairs["candidate"], all_entities=all_entities)
    precondition_gradients(encoded, moments, [1.0], 0.1, whole=True)
    torch.autograd.backward(pairs["query"].sum() + pairs["candidate"].sum())
    matrix = preconditioner(moments["query"], [1.0], 0.1)
    for side in whole:
        expected = torch.zeros(6, 3)
        expected[:2] = torch.ones(2, 3) @ matrix
        torch.testing.assert_close(whole[side].grad, expected)


# Operations whose result, or its shape, the processor needs before it goes on.
WAITING = {"_local_scalar_dense", "nonzero", "_unique2", "is_nonzero", "equal", "masked_select"}
RATE, PLAIN = "gramian.kind=sogram gramian.rate=0.05", "training.precondition=0.0"
WITHOUT_WAITING = ["task.penalty=0.0", f"{RATE} {PLAIN}", f"gramian.kind=sampled {PLAIN}"]


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of `WAITING`, but for those that read numbers kept on the host."""

    def __init__(self, step: Step) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted: Counter[str] = Counter()
        estimators = [e for of_side in step.estimators.values() for e in of_side]
        self.modules = [m for e in estimators for m in e.modules() if isinstance(m, HostBuffers)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        kept = {id(getattr(m, buffer)) for m in self.modules for buffer in m.on_host}
        if name in WAITING and not kept & {id(read) for read in tree_leaves(args)}:
            self.counted[name] += 1
        return func(*args, **(kwargs or {}))


def steps(recipe: Recipe, settings: str, device: torch.device) -> tuple[Step, Any]:
    chosen = changed(recipe, *settings.split())
    corpus = split_of(chosen).training
    step, sampler, draws = prepare(FitSettings.of(chosen, corpus, 0), corpus, device)
    return step, run_epoch(step, sampler, draws, 0, device)


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        *((settings, {}) for settings in WITHOUT_WAITING),
        # Cholesky's test of one matrix a side.
        (RATE, {"_local_scalar_dense": 2}),
        # Distinct ids of each side: of the batch apart, and of the pairs.
        (f"gramian.kind=sagram {PLAIN}", {"_unique2": 4}),
    ],
)
def test_a_step_reads_back_only_what_it_must(
    small: Recipe, settings: str, waits: dict[str, int]
) -> None:
    step, running = steps(small, settings, CPU)
    for _ in range(3):
        next(running)
    with Waits(step) as counted:
        next(running)
    assert counted.counted == waits


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("settings", WITHOUT_WAITING)
def test_a_step_on_cuda_does_not_wait(small: Recipe, settings: str) -> None:
    _, running = steps(small, settings, torch.device("cuda"))
    next(running)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*prototype")  # said once a process
            torch.cuda.set_sync_debug_mode("error")
        next(running)
    finally:
        torch.cuda.set_sync_debug_mode("default")
