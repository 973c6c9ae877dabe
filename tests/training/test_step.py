"""One step: its gradient, its estimators, and a look that changes nothing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.pools.pool import Pool
from evergram.data.sampling import Batch
from evergram.encoders.features import SIDES
from evergram.encoders.kinds import ENCODERS
from evergram.errors import RecipeError, ShapeError
from evergram.kinds import kinds_where
from evergram.training.build import (
    Companions,
    build_independent,
    build_sampler,
    pick_device,
    prepare,
)
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.step import Step

CPU = torch.device("cpu")


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
    corpus = Corpus.from_tables(
        pa.table({"query": pairs[:, 0].numpy(), "candidate": pairs[:, 1].numpy()})
    )
    recipe = Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"dim": 3, "scale": 1.0},
            "task": {
                "penalty": 1.0,
                "l2": 0.0,
                "query_measure": measure,
                "candidate_measure": measure,
            },
            # Rate 1: all of Ĝ is one batch, so that a dependence shows in full.
            "gramian": {"rate": 1.0, "batch": batch}
            | ({"sampler": sampler, "gradient": gradient} if batch == "independent" else {}),
            "training": {"batch_size": 4, "precondition": 0.0},
        }
    )
    step, pairs_sampler, draws = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)
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


def small_step(**gramian: Any) -> tuple[Step, list[Batch]]:
    """A step on six pairs, and the batches of an epoch."""
    corpus = Corpus.from_tables(pa.table({"query": [*"aabbcc"], "candidate": [*"xyxzyz"]}))
    recipe = Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"dim": 3},
            "task": {"penalty": 1.0, "l2": 0.0},
            "gramian": gramian,
            "training": {"batch_size": 2},
        }
    )
    step, sampler, _ = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)
    step.begin_epoch()
    return step, list(sampler.epoch(0))


def test_the_exact_gramian_is_that_of_the_parameters_before_the_step() -> None:
    step, batches = small_step(kind="exact")
    with step.look() as embeddings:
        rows = embeddings.rows("query", torch.arange(3)).double()
    exact = rows.T @ rows / 3
    step(batches[0])
    estimate = step.estimators["query"][0].moment().dense.double()
    torch.testing.assert_close(estimate, exact, rtol=1e-5, atol=1e-6)


def adaptive_step(penalty: float | list[float], **settings: Any) -> tuple[Step, dict[str, Pool]]:
    """A step on six pairs with SOGram, and a pool of each side of which it keeps 200."""
    corpus = Corpus.from_tables(pa.table({"query": [*"aabbcc"], "candidate": [*"xyxzyz"]}))
    measures = [0.0, 1.0] if isinstance(penalty, list) else [0.0]
    task = {"penalty": penalty, "query_measure": measures, "candidate_measure": measures}
    recipe = Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"dim": 3, "scale": 1.0},
            "task": {**task, "l2": 0.0, **settings},
            "gramian": {
                "rate": 0.5,
                "batch": "independent",
                "sampler": "adaptive",
                "batch_size": 200,
                "pool_size": 300,
            },
            "training": {"batch_size": 2},
        }
    )
    step, _, draws = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)
    assert draws is not None
    pools = {side: next(iter(draws[side].epoch(0, 1))) for side in SIDES}
    kept: dict[str, Pool] = {}
    for side, pool in pools.items():
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
        assert torch.equal(pool.resample(torch.zeros(300)).ids, even[side].ids)


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


PAIRS = {"query": ["a", "a", "a", "b", "c"], "candidate": ["x", "x", "y", "y", "x"]}


CORPUS = Corpus.from_tables(pa.table(PAIRS))


def settings(**gramian: Any) -> FitSettings:
    values = {
        "data": {"kind": "synthetic"},
        "model": {"dim": 3},
        "training": {"batch_size": 2},
        "gramian": {"batch": "independent", **gramian},
    }
    return FitSettings.of(Recipe.of(values), CORPUS, 0)


def test_entities_are_drawn_apart_from_pairs_in_batches_of_their_own_size() -> None:
    sizes = {}
    for size in (3, None):
        chosen = settings(**({} if size is None else {"batch_size": size}))
        sampler = build_sampler(chosen, CORPUS)
        draws = build_independent(chosen.gramian, CORPUS, sampler, 5)
        sizes[size] = [len(next(iter(draws[side].epoch(0, 1))).ids) for side in SIDES]
    assert sizes == {3: [3, 3], None: [2, 2]}


def test_a_pool_smaller_than_what_is_kept_of_it_is_refused_before_training() -> None:
    chosen = settings(sampler="adaptive", pool_size=1)
    with pytest.raises(RecipeError, match=r"gramian.pool_size is 1 and 2 entities .*make it 2 or"):
        prepare(chosen, CORPUS, CPU)


@pytest.mark.long
@pytest.mark.parametrize("encoder", kinds_where(ENCODERS, "made_by_recipe"))
@pytest.mark.parametrize("gramian", ["kind=sampled gradient=sampled", "kind=sogram", "kind=sagram"])
def test_adaptive_sampling_trains_every_encoder_the_same_for_the_same_seed(
    small: Recipe, encoder: str, gramian: str
) -> None:
    keys = [f"gramian.{key}" for key in ("batch=independent", "sampler=adaptive", *gramian.split())]
    recipe = Recipe.of(small.model_dump(), [f"model.kind={encoder}", "training.epochs=2", *keys])
    split = split_for(recipe, load_corpus(recipe), 0)
    one, again = (fit_encoder(recipe, split, 0, RunContext(CPU)) for _ in range(2))
    assert bool(torch.isfinite(one.query).all())
    assert torch.equal(one.query, again.query)
    assert torch.equal(one.candidate, again.candidate)
    linear = Recipe.of(recipe.model_dump(), ["gramian.sampler=linear"])
    other = fit_encoder(linear, split, 0, RunContext(CPU))
    # The cache of tables of ids is exact: what is drawn apart has nothing to correct.
    exact = encoder == "factorization" and gramian == "kind=sagram"
    assert torch.equal(one.query, other.query) == exact


# a-x is there twice.
MET_PAIRS = {"query": ["a", "a", "a", "b", "c"], "candidate": ["x", "x", "y", "y", "x"]}


MET = Corpus.from_tables(pa.table(MET_PAIRS))


def recipe(**tables: dict[str, Any]) -> Recipe:
    values: dict[str, Any] = {
        "data": {"kind": "synthetic"},
        "model": {"dim": [3, 4]},
        "training": {"batch_size": 2},
        **tables,
    }
    return Recipe.of(values)


def run_settings(version: int = 0, **tables: dict[str, Any]) -> FitSettings:
    return FitSettings.of(recipe(**tables), MET, version)


def test_excluded_pairs_take_exactly_their_penalty_off_again() -> None:
    """Σ over all pairs of λ p q s², plus (1/n) Σ w s², is the sum over unobserved pairs alone."""
    task = {"penalty": 2.0, "sparse": "exclude", "query_measure": 0.5}
    sampler = build_sampler(run_settings(task=task), MET)
    scores = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p, q = (sampler.measures[side][:, 0] for side in SIDES)
    everywhere = 2.0 * torch.outer(p, q) * scores.square()
    query, candidate = MET.column("query"), MET.column("candidate")
    assert sampler.pair_weight is not None
    sparse = (sampler.pair_weight * scores[query, candidate].square()).mean()
    unobserved = torch.ones(3, 2, dtype=torch.bool)
    unobserved[query, candidate] = False
    torch.testing.assert_close(everywhere.sum() + sparse, everywhere[unobserved].sum())


def test_an_epoch_has_a_short_batch_if_the_recipe_wants_it() -> None:
    sizes = {}
    for short in (False, True):
        chosen = run_settings(training={"batch_size": 3, "short_batch": short})
        _, sampler, _ = prepare(chosen, MET, CPU)
        sizes[short] = [len(batch.query) for batch in sampler.epoch(0)]
    assert len(MET) % 3
    assert sizes == {
        False: [3] * (len(MET) // 3),
        True: [3] * (len(MET) // 3) + [len(MET) % 3],
    }


def test_a_run_has_only_what_its_objective_uses() -> None:
    step, _, draws = prepare(run_settings(), MET, CPU)
    assert [len(step.estimators[side]) for side in SIDES] == [1, 1]
    assert draws is None
    _, _, draws = prepare(run_settings(gramian={"batch": "independent"}), MET, CPU)
    assert draws is not None
    bare, _, draws = prepare(run_settings(task={"kind": "bpr", "penalty": 0.0}), MET, CPU)
    assert [len(bare.estimators[side]) for side in SIDES] == [0, 0]
    assert draws is None


def test_versions_start_apart_and_one_may_go_on_from_another() -> None:
    first, second = (prepare(run_settings(v), MET, CPU)[0].encoder for v in (0, 1))
    assert (first.dim, second.dim) == (3, 4)
    again = prepare(run_settings(0), MET, CPU)[0].encoder
    assert torch.equal(first.get_parameter("query.weight"), again.get_parameter("query.weight"))
    same_dim = {"model": {"dim": 3}}
    other = prepare(run_settings(1, **same_dim), MET, CPU)[0].encoder
    assert not torch.equal(first.get_parameter("query.weight"), other.get_parameter("query.weight"))
    onward = prepare(run_settings(1, **same_dim), MET, CPU, Companions(start=first))[0].encoder
    assert torch.equal(first.get_parameter("query.weight"), onward.get_parameter("query.weight"))
    with pytest.raises(ShapeError, match=r"upgrade\.start = 'fresh'"):
        prepare(run_settings(1), MET, CPU, Companions(start=first))


def test_a_device_that_is_not_there_is_refused() -> None:
    assert pick_device("cpu") == CPU
    with pytest.raises(RecipeError, match="tpu is not known; it must be auto, cpu or cuda"):
        pick_device("tpu")
    if not torch.cuda.is_available():
        assert pick_device("auto") == CPU
        with pytest.raises(RecipeError, match="this machine has none; use auto or cpu"):
            pick_device("cuda")


@pytest.mark.parametrize("precision", ["bfloat16"])
def test_layers_have_the_precision_of_the_recipe(precision: str) -> None:
    chosen = recipe(model={"kind": "two_tower"}, training={"precision": precision})
    step, _, _ = prepare(FitSettings.of(chosen, MET, 0), MET, CPU)
    assert step.encoder.layer_dtype == getattr(torch, precision)
