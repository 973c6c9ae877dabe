"""Entities drawn apart from the pairs: how many, by which sampler, and on every encoder."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import torch

from evergram.data.corpus import Corpus
from evergram.encoders.features import SIDES
from evergram.encoders.kinds import ENCODERS
from evergram.errors import RecipeError
from evergram.kinds import kinds_where
from evergram.training.build import build_independent, build_sampler, prepare
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")
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
    linear = Recipe.of(
        recipe.model_dump(), ["gramian.sampler=linear", "gramian.pool_size=null"][:1]
    )
    other = fit_encoder(linear, split, 0, RunContext(CPU))
    # The cache of tables of ids is exact: what is drawn apart has nothing to correct.
    exact = encoder == "factorization" and gramian == "kind=sagram"
    assert torch.equal(one.query, other.query) == exact
