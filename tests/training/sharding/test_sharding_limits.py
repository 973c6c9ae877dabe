"""Refusals of trainings whose tables cannot be divided: each says what to set."""

from __future__ import annotations

import pytest
import torch
from tests.support.shared_training import BASE, joint_of, shared_corpus

from evergram.collectives import ALONE, Collectives
from evergram.errors import RecipeError
from evergram.training.build import Companions, prepare
from evergram.training.memory import needed_bytes
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.sharding import sharding_limits
from evergram.training.sharding.sharding_limits import refuse_unshardable

CORPUS = shared_corpus()
NONE = Companions()


def settings(*overrides: str, version: int = 0) -> FitSettings:
    values = {"data": {"kind": "synthetic"}, "model": {"dim": 4}, "training": {"batch_size": 25}}
    recipe = Recipe.of(values, [*BASE, "training.tables=sharded", *overrides])
    return FitSettings.of(recipe, CORPUS, version)


def processes(count: int) -> Collectives:
    collectives = Collectives()
    collectives.size = count
    return collectives


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_factorization_is_not_refused(count: int) -> None:
    for kind in sharding_limits.ESTIMATORS:
        refuse_unshardable(settings(f"gramian.kind={kind}"), CORPUS, NONE, processes(count))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.kind=two_tower"], "it is 'two_tower'; set training.tables = 'memory'"),
        (["gramian.kind=sagram"], "and it is 'sagram', which needs all rows"),
        (["gramian.kind=exact"], "'sogram' or 'storm' or 'sampled', and it is 'exact'"),
        (["model.start=svd"], r"model\.start is 'svd'; set model\.start = 'random'"),
        (["model.hash_rows=7"], r"model\.hash_rows is set; leave it out"),
        (
            ["model.normalize=true", "task.l2=0", "model.popularity=auto"],
            r"and model\.popularity is 'auto'; leav",
        ),
        (["training.watch_minutes=1.0"], r"training\.watch_minutes measures while"),
    ],
)
def test_what_needs_all_rows_in_a_process(overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        refuse_unshardable(settings(*overrides), CORPUS, NONE, ALONE)


def test_later_versions() -> None:
    with pytest.raises(RecipeError, match=r"this is version 1; .* 'evergram vectors align'"):
        refuse_unshardable(settings(version=1), CORPUS, NONE, ALONE)
    beside = Companions(joint_of("joint, all", CORPUS))
    with pytest.raises(RecipeError, match="trains version 0 of"):
        refuse_unshardable(settings(), CORPUS, beside, ALONE)


def test_more_processes_than_rows_fill() -> None:
    # 17 candidates: ⌈17/6⌉ = 3 rows each leave none for the sixth.
    refuse_unshardable(settings(), CORPUS, NONE, processes(5))
    with pytest.raises(RecipeError, match="17 candidates cannot be divided among 7 processes"):
        refuse_unshardable(settings(), CORPUS, NONE, processes(7))


def test_memory_is_that_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = needed_bytes(settings().model, CORPUS, 0)
    monkeypatch.setattr(sharding_limits, "memory_bytes", lambda: needed // 2)
    refuse_unshardable(settings(), CORPUS, NONE, processes(2))
    with pytest.raises(RecipeError, match=f"Each of 1 processes needs at least {needed:,} bytes"):
        refuse_unshardable(settings(), CORPUS, NONE, ALONE)


def test_preparing_a_run_refuses() -> None:
    with pytest.raises(RecipeError, match="and it is 'exact'"):
        prepare(settings("gramian.kind=exact"), CORPUS, torch.device("cpu"))
