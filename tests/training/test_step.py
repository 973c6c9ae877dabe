"""One step: its gradient, its estimators, and a look that changes nothing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.fits import CPU, changed, fitted, parts_of
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.pools.pool import Pool
from evergram.data.sampling import Batch
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES
from evergram.encoders.kinds import ENCODERS
from evergram.errors import RecipeError, ShapeError
from evergram.kinds import kinds_where
from evergram.training.build import pick_device
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.step import Step

PAIRS = Corpus.from_tables(pa.table({"query": [*"aabbcc"], "candidate": [*"xyxzyz"]}))
# a-x is there twice.
MET = Corpus.from_tables(pa.table({"query": [*"aaabc"], "candidate": [*"xxyyx"]}))


def recipe_of(*overrides: str, **tables: dict[str, Any]) -> Recipe:
    values: dict[str, Any] = {"data": {"kind": "synthetic"}, "model": {"dim": 3}, **tables}
    return Recipe.of(
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
    corpus = Corpus.from_tables(
        pa.table({"query": pairs[:, 0].numpy(), "candidate": pairs[:, 1].numpy()})
    )
    apart = {"sampler": sampler, "gradient": gradient} if batch == "independent" else {}
    powers = {"query_measure": measure, "candidate_measure": measure}
    recipe = recipe_of(
        model={"dim": 3, "scale": 1.0},
        task={"penalty": 1.0, "l2": 0.0, **powers},
        # Rate 1: all of Ĝ is one batch, so that a dependence shows in full.
        gramian={"rate": 1.0, "batch": batch, **apart},
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
    pools = {"batch": "independent", "sampler": "adaptive", "batch_size": 200, "pool_size": 300}
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


def test_entities_are_drawn_apart_from_pairs_in_batches_of_their_own_size() -> None:
    for override, size in (("gramian.batch_size=3", 3), ("gramian.batch=independent", 2)):
        draws = parts_of(recipe_of("gramian.batch=independent", override), MET)[2]
        assert draws is not None
        assert [len(next(iter(draws[side].epoch(0, 1))).ids) for side in SIDES] == [size, size]
    adaptive = "gramian.batch=independent", "gramian.sampler=adaptive", "gramian.pool_size=1"
    with pytest.raises(RecipeError, match=r"gramian.pool_size is 1 and 2 entities"):
        parts_of(recipe_of(*adaptive), MET)


@pytest.mark.long
@pytest.mark.parametrize("encoder", kinds_where(ENCODERS, "made_by_recipe"))
@pytest.mark.parametrize("gramian", ["kind=sampled gradient=sampled", "kind=sogram", "kind=sagram"])
def test_adaptive_sampling_trains_every_encoder_the_same_for_the_same_seed(
    small: Recipe, encoder: str, gramian: str
) -> None:
    keys = [f"gramian.{key}" for key in ("batch=independent", "sampler=adaptive", *gramian.split())]
    recipe = changed(small, f"model.kind={encoder}", "training.epochs=2", *keys)
    one, again = (fitted(recipe) for _ in range(2))
    assert bool(torch.isfinite(one.query).all())
    assert torch.equal(one.query, again.query)
    assert torch.equal(one.candidate, again.candidate)
    other = fitted(changed(recipe, "gramian.sampler=linear"))
    # The cache of tables of ids is exact: what is drawn apart has nothing to correct.
    exact = encoder == "factorization" and gramian == "kind=sagram"
    assert torch.equal(one.query, other.query) == exact


def test_excluded_pairs_take_exactly_their_penalty_off_again() -> None:
    """Σ over all pairs of λ p q s², plus (1/n) Σ w s², is the sum over unobserved pairs alone."""
    task = {"penalty": 2.0, "sparse": "exclude", "query_measure": 0.5}
    sampler = parts_of(recipe_of(task=task), MET)[1]
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
    for short, sizes in (("false", [3]), ("true", [3, 2])):
        recipe = recipe_of("training.batch_size=3", f"training.short_batch={short}")
        assert [len(batch.query) for batch in parts_of(recipe, MET)[1].epoch(0)] == sizes


def test_a_run_has_only_what_its_objective_uses() -> None:
    for overrides, estimators, apart in (
        ("", 1, False),
        ("gramian.batch=independent", 1, True),
        ("task.kind=bpr task.penalty=0.0", 0, False),
    ):
        step, _, draws = parts_of(recipe_of(*overrides.split()), MET)
        assert [len(step.estimators[side]) for side in SIDES] == [estimators] * 2
        assert (draws is not None) == apart


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
    with pytest.raises(RecipeError, match="tpu is not known"):
        pick_device("tpu")
    if not torch.cuda.is_available():
        assert pick_device("auto") == CPU
        with pytest.raises(RecipeError, match="cuda"):
            pick_device("cuda")


def test_layers_have_the_precision_of_the_recipe() -> None:
    recipe = recipe_of("model.kind=two_tower", "training.precision=bfloat16")
    assert parts_of(recipe, MET)[0].encoder.layer_dtype == torch.bfloat16
