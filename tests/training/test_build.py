"""From a recipe's settings to the parts of a run."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import torch

from evergram.data.corpus import Corpus
from evergram.encoders.features import SIDES
from evergram.errors import RecipeError, ShapeError
from evergram.training.build import (
    Companions,
    build_sampler,
    pick_device,
    prepare,
)
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")
# a-x is there twice.
PAIRS = {"query": ["a", "a", "a", "b", "c"], "candidate": ["x", "x", "y", "y", "x"]}
CORPUS = Corpus.from_tables(pa.table(PAIRS))


def recipe(**tables: dict[str, Any]) -> Recipe:
    values: dict[str, Any] = {
        "data": {"kind": "synthetic"},
        "model": {"dim": [3, 4]},
        "training": {"batch_size": 2},
        **tables,
    }
    return Recipe.of(values)


def settings(version: int = 0, **tables: dict[str, Any]) -> FitSettings:
    return FitSettings.of(recipe(**tables), CORPUS, version)


def test_excluded_pairs_take_exactly_their_penalty_off_again() -> None:
    """Σ over all pairs of λ p q s², plus (1/n) Σ w s², is the sum over unobserved pairs alone."""
    task = {"penalty": 2.0, "sparse": "exclude", "query_measure": 0.5}
    sampler = build_sampler(settings(task=task), CORPUS)
    scores = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p, q = (sampler.measures[side][:, 0] for side in SIDES)
    everywhere = 2.0 * torch.outer(p, q) * scores.square()
    query, candidate = CORPUS.column("query"), CORPUS.column("candidate")
    assert sampler.pair_weight is not None
    sparse = (sampler.pair_weight * scores[query, candidate].square()).mean()
    unobserved = torch.ones(3, 2, dtype=torch.bool)
    unobserved[query, candidate] = False
    torch.testing.assert_close(everywhere.sum() + sparse, everywhere[unobserved].sum())


def test_an_epoch_has_a_short_batch_if_the_recipe_wants_it() -> None:
    sizes = {}
    for short in (False, True):
        chosen = settings(training={"batch_size": 3, "short_batch": short})
        _, sampler, _ = prepare(chosen, CORPUS, CPU)
        sizes[short] = [len(batch.query) for batch in sampler.epoch(0)]
    assert len(CORPUS) % 3
    assert sizes == {
        False: [3] * (len(CORPUS) // 3),
        True: [3] * (len(CORPUS) // 3) + [len(CORPUS) % 3],
    }


def test_a_run_has_only_what_its_objective_uses() -> None:
    step, _, draws = prepare(settings(), CORPUS, CPU)
    assert [len(step.estimators[side]) for side in SIDES] == [1, 1]
    assert draws is None
    _, _, draws = prepare(settings(gramian={"batch": "independent"}), CORPUS, CPU)
    assert draws is not None
    bare, _, draws = prepare(settings(task={"kind": "bpr", "penalty": 0.0}), CORPUS, CPU)
    assert [len(bare.estimators[side]) for side in SIDES] == [0, 0]
    assert draws is None


def test_versions_start_apart_and_one_may_go_on_from_another() -> None:
    first, second = (prepare(settings(v), CORPUS, CPU)[0].encoder for v in (0, 1))
    assert (first.dim, second.dim) == (3, 4)
    again = prepare(settings(0), CORPUS, CPU)[0].encoder
    assert torch.equal(first.get_parameter("query.weight"), again.get_parameter("query.weight"))
    same_dim = {"model": {"dim": 3}}
    other = prepare(settings(1, **same_dim), CORPUS, CPU)[0].encoder
    assert not torch.equal(first.get_parameter("query.weight"), other.get_parameter("query.weight"))
    onward = prepare(settings(1, **same_dim), CORPUS, CPU, Companions(start=first))[0].encoder
    assert torch.equal(first.get_parameter("query.weight"), onward.get_parameter("query.weight"))
    with pytest.raises(ShapeError, match=r"upgrade\.start = 'fresh'"):
        prepare(settings(1), CORPUS, CPU, Companions(start=first))


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
    step, _, _ = prepare(FitSettings.of(chosen, CORPUS, 0), CORPUS, CPU)
    assert step.encoder.layer_dtype == getattr(torch, precision)
