"""Heads on frozen encoders, and their upgrades, on made-up images."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from reproduction.bc.images.heads import (
    TRAINED,
    HeadSettings,
    corpus_of,
    head_modules,
    head_readings,
    standardised,
    with_method,
)
from reproduction.bc.images.made_up import made_up_vectors
from reproduction.bc.images.measures import Reading
from reproduction.bc.images.roles import roles_of
from reproduction.bc.methods import EVERGRAM, FIX, KEEP_ALL, NO_TRANS, NON_BC, POST_CLOSED, RECIPES

from evergram import Recipe
from evergram.training import Progress

VECTORS = made_up_vectors()
ROLES = roles_of(VECTORS, 0)
SETTINGS = HeadSettings((8, 12), each=8)


def tiny_recipe(**training: Any) -> Recipe:
    values = tomllib.loads((RECIPES / "images-tiny.toml").read_text())
    return Recipe.of({**values, "training": values["training"] | training})


@cache
def readings() -> dict[str, Reading]:
    with TemporaryDirectory() as folder:
        at = (Path(folder), "cpu", Progress(quiet=True))
        return dict(head_readings(tiny_recipe(epochs=8), VECTORS, ROLES, SETTINGS, at))


def test_pairs_are_of_one_class_and_of_training_images_alone() -> None:
    corpus = corpus_of(VECTORS.label, ROLES.fitted, 8, seed=0)
    sides = corpus.queries, corpus.candidates
    query, candidate = (
        torch.tensor(side.vocabulary.keys.to_pylist())[torch.as_tensor(corpus.column(name))]
        for side, name in zip(sides, ("query", "candidate"), strict=True)
    )
    assert torch.equal(VECTORS.label[query], VECTORS.label[candidate])
    assert not (query == candidate).any()
    allowed = set(ROLES.fitted.tolist())
    assert set(query.tolist()) == allowed
    assert set(candidate.tolist()) <= allowed
    # Each image draws 8, of which one in twenty is itself.
    assert 0.9 * 8 * len(allowed) < len(corpus) <= 8 * len(allowed)
    other = corpus_of(VECTORS.label, ROLES.fitted, 8, seed=1)
    assert len(corpus) != len(other) or not torch.equal(
        torch.as_tensor(corpus.column("candidate")), torch.as_tensor(other.column("candidate"))
    )


def test_features_are_scaled_by_the_training_images_alone() -> None:
    scaled = standardised(VECTORS.old, ROLES.fitted)
    training = scaled[ROLES.fitted].double()
    assert float(training.mean(0).abs().max()) < 1e-5
    assert float(training.square().mean()) == pytest.approx(1, abs=1e-5)
    changed = VECTORS.old.clone()
    changed[VECTORS.test] += 100
    again = standardised(changed, ROLES.fitted)
    assert torch.equal(again[~VECTORS.test], scaled[~VECTORS.test])


def test_a_head_is_linear_and_of_both_sides() -> None:
    features = torch.randn(10, 6)
    modules = head_modules(features, 3)
    assert modules.query is modules.candidate
    assert torch.equal(modules.query_inputs([4, 2]), features[[4, 2]])
    head = modules.query
    assert isinstance(head, torch.nn.Linear)
    assert (head.in_features, head.out_features) == (6, 3)


@pytest.mark.parametrize("method", TRAINED)
def test_a_recipe_changes_in_its_method_alone(method: str) -> None:
    recipe = tiny_recipe()
    changed = with_method(recipe, method)
    assert changed.upgrade.method == method
    assert not changed.upgrade.alone
    assert changed.upgrade.weight == recipe.upgrade.weight
    assert changed.upgrade.fit == ("posthoc" if method == POST_CLOSED else "joint")
    assert changed.model_dump(exclude={"upgrade"}) == recipe.model_dump(exclude={"upgrade"})


@pytest.mark.long
def test_each_method_reads_all_images_in_both_versions() -> None:
    assert list(readings()) == [FIX, KEEP_ALL, NON_BC, *TRAINED]
    old = readings()[FIX].own
    for name, reading in readings().items():
        assert reading.as_old.shape == (len(VECTORS.label), 8)
        assert reading.own.shape == (len(VECTORS.label), 8 if name == FIX else 12)
    assert torch.equal(readings()[KEEP_ALL].as_old, old)
    alone = readings()[POST_CLOSED].own
    assert torch.equal(readings()[KEEP_ALL].own, alone)
    assert torch.equal(readings()[NON_BC].as_old, alone[:, :8])
    # Without a transform, version 0 is read as the first coordinates.
    joint = readings()[NO_TRANS]
    assert torch.allclose(joint.as_old, joint.own[:, :8])


@pytest.mark.long
def test_vectors_have_length_1_and_transforms_are_linear() -> None:
    for name, reading in readings().items():
        lengths = reading.own.norm(dim=1)
        assert torch.allclose(lengths, torch.ones(len(lengths)), atol=1e-4)
        if name in (POST_CLOSED, EVERGRAM):
            own, as_old = reading.own.double(), reading.as_old.double()
            solved = torch.linalg.lstsq(own, as_old).solution
            assert torch.allclose(own @ solved, as_old, atol=1e-4)


@pytest.mark.long
def test_a_transform_comes_closer_to_version_0_than_none() -> None:
    old = readings()[FIX].own
    distance = {
        name: float((reading.as_old - old)[VECTORS.test].norm(dim=1).mean())
        for name, reading in readings().items()
    }
    assert distance[KEEP_ALL] == distance[FIX] == 0
    assert distance[POST_CLOSED] < 0.7 * distance[NON_BC]
    assert distance[EVERGRAM] < 0.7 * distance[NON_BC]
