"""What an upgrade costs: measures beside other algorithms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduction.bc.images.made_up import made_up_vectors
from reproduction.bc.images.measures import (
    Consumers,
    Reading,
    cascade_search,
    finds_itself,
    measure_all,
    search,
)
from reproduction.bc.images.roles import TASKS, roles_of, tasks_of
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor

VECTORS = made_up_vectors()
ROLES = roles_of(VECTORS, 0)


def naive_search(query: Tensor, index: Tensor, label: Tensor) -> float:
    """MAP@10 image by image."""
    total = []
    for i in range(len(label)):
        scores = (index.double() @ query[i].double()).numpy()
        order = [j for j in np.argsort(-scores, kind="stable") if j != i][:10]
        hits, precision = 0, 0.0
        for place, j in enumerate(order, 1):
            if label[j] == label[i]:
                hits += 1
                precision += hits / place
        total.append(precision / min(10, int((label == label[i]).sum()) - 1))
    return float(np.mean(total))


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), images=st.integers(12, 40))
def test_a_search_is_the_mean_average_precision(seed: int, images: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    query, index = torch.randn(2, images, 5, generator=draw)
    label = torch.arange(images) % 3
    assert search(query, index, label) == pytest.approx(naive_search(query, index, label))


def naive_cascade(own: Tensor, old: Tensor, index: Tensor, label: Tensor, depth: int) -> float:
    """MAP@10 image by image: sort by the old scores, cut, sort by the new ones."""
    total = []
    for i in range(len(label)):
        others = [j for j in range(len(label)) if j != i]
        first = sorted(others, key=lambda j: -float(old[i].double() @ index[j].double()))[:depth]
        order = sorted(first, key=lambda j: -float(own[i].double() @ own[j].double()))[:10]
        hits, precision = 0, 0.0
        for place, j in enumerate(order, 1):
            if label[j] == label[i]:
                hits += 1
                precision += hits / place
        total.append(precision / min(10, int((label == label[i]).sum()) - 1))
    return float(np.mean(total))


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), images=st.integers(12, 40), depth=st.integers(1, 45))
def test_a_cascade_ranks_what_the_old_index_proposes(seed: int, images: int, depth: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    own, old, index = torch.randn(3, images, 5, generator=draw)
    label = torch.arange(images) % 3
    expected = naive_cascade(own, old, index, label, depth)
    assert cascade_search(own, old, index, label, depth) == pytest.approx(expected)
    if depth >= images - 1:
        assert expected == pytest.approx(search(own, own, label))


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_an_image_finds_itself_by_distance(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    index = torch.randn(30, 4, generator=draw) * torch.rand(30, 1, generator=draw) * 5
    query = index + 0.4 * torch.randn(30, 4, generator=draw)
    nearest = torch.cdist(query.double(), index.double()).argmin(1)
    expected = float((nearest == torch.arange(30)).double().mean())
    assert finds_itself(query, index) == pytest.approx(expected)


def test_a_consumer_reads_what_a_logistic_regression_would() -> None:
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
