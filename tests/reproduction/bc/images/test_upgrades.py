"""What one run does: both ways, on made-up images."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from reproduction.bc.images.heads import TRAINED, HeadSettings
from reproduction.bc.images.made_up import made_up_vectors
from reproduction.bc.images.roles import SEEN, TASKS, UNSEEN, roles_of
from reproduction.bc.images.upgrades import (
    ENCODERS,
    HEADS,
    POST_ORTHOGONAL,
    SMALL,
    TINY,
    encoder_readings,
    principal,
)
from reproduction.bc.methods import FIX, KEEP_ALL, NON_BC, POST_CLOSED, RECIPES
from torch.nn.functional import normalize

from evergram import Recipe
from evergram.errors import DataError
from evergram.training import Progress

VECTORS = made_up_vectors()
ROLES = roles_of(VECTORS, 0)
QUIET = Progress(quiet=True)


def recipe(name: str, **changed: Any) -> Recipe:
    values = tomllib.loads((RECIPES / f"images-{name}.toml").read_text())
    return Recipe.of(values | changed)


@pytest.mark.long
def test_a_run_measures_every_method_of_both_ways() -> None:
    series = TINY(recipe("tiny", seed=1), QUIET, "cpu")
    assert set(series) == {ENCODERS, HEADS, "images", "unseen"}
    shared = (FIX, KEEP_ALL, NON_BC)
    assert tuple(series[ENCODERS]) == (*shared, POST_CLOSED, POST_ORTHOGONAL)
    assert tuple(series[HEADS]) == (*shared, *TRAINED)
    assert series["images"] == {"fitted": 80, SEEN: 80, UNSEEN: 40}
    assert series["unseen"] == ["class 2", "class 3"]
    for way in (ENCODERS, HEADS):
        kept, fixed = series[way][KEEP_ALL], series[way][FIX]
        for measure in ("old index", "itself", "error", "consumers"):
            assert kept[measure] == fixed[measure]
        assert kept["own"] != fixed["own"]
        for method in series[way].values():
            assert set(method["consumers"]) == set(TASKS)


def test_transforms_of_encoders_are_fitted_to_seen_training_images_alone() -> None:
    readings = dict(encoder_readings(VECTORS, ROLES, 8))
    others = torch.ones(len(VECTORS.label), dtype=torch.bool)
    others[ROLES.fitted] = False
    changed = VECTORS.old.clone()
    changed[others] = torch.randn_like(changed[others])
    again = dict(encoder_readings(replace(VECTORS, old=changed), ROLES, 8))
    for method in (POST_CLOSED, POST_ORTHOGONAL):
        assert torch.equal(again[method].as_old, readings[method].as_old)
    moved = VECTORS.old.clone()
    moved[ROLES.fitted] = torch.randn_like(moved[ROLES.fitted])
    other = dict(encoder_readings(replace(VECTORS, old=moved), ROLES, 8))
    assert not torch.allclose(other[POST_CLOSED].as_old, readings[POST_CLOSED].as_old, atol=0.1)


def test_components_are_those_of_a_singular_value_decomposition() -> None:
    fitted = VECTORS.new[ROLES.fitted].double()
    centred = VECTORS.new.double() - fitted.mean(0)
    _, _, directions = torch.linalg.svd(fitted - fitted.mean(0), full_matrices=False)
    expected = normalize(centred @ directions[:5].T, dim=1)
    made = principal(VECTORS.new, ROLES.fitted, 5).double()
    # A direction has no sign.
    signs = (made * expected).sum(0).sign()
    assert torch.allclose(made, expected * signs, atol=1e-4)


def test_encoders_are_read_without_a_transform_as_they_are() -> None:
    readings = dict(encoder_readings(VECTORS, ROLES, 8))
    old, new = (principal(v, ROLES.fitted, 8) for v in (VECTORS.old, VECTORS.new))
    assert torch.equal(readings[FIX].own, old)
    assert torch.equal(readings[KEEP_ALL].own, new)
    assert torch.equal(readings[NON_BC].as_old, new)
    # A rotation keeps lengths.
    lengths = readings[POST_ORTHOGONAL].as_old.norm(dim=1)
    assert torch.allclose(lengths, torch.ones(len(lengths)), atol=1e-4)


def test_every_setting_is_in_the_name_that_makes_the_key() -> None:
    for part in (
        "lite0",
        "pixels=128",
        "lite2",
        "pixels=160",
        "counts=(1000, 500)",
        "dim=256",
        "(64, 80)",
    ):
        assert part in SMALL.__name__
    names = {
        run.__name__
        for run in (
            SMALL,
            TINY,
            replace(SMALL, heads=HeadSettings((64, 80), each=4)),
            replace(SMALL, consumers=1),
            replace(SMALL, dim=64),
            replace(SMALL, examples=10),
            replace(SMALL, depth=100),
        )
    }
    assert len(names) == 7


def test_images_that_are_not_there_are_named_with_their_command(tmp_path: Path) -> None:
    data = {"kind": "table", "path": str(tmp_path)}
    with pytest.raises(DataError, match=r"cifar10/train: get the images of CIFAR-10"):
        SMALL(recipe("small", data=data), QUIET, "cpu")
