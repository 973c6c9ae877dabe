"""Who sees which images."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from reproduction.bc.images.made_up import made_up_vectors
from reproduction.bc.images.pictures import LOOKS
from reproduction.bc.images.roles import (
    CLASSES_SEEN,
    CLASSES_UNSEEN,
    SEEN,
    TASKS,
    UNSEEN,
    roles_of,
    tasks_of,
)

VECTORS = made_up_vectors()
EVERYTHING = set(range(len(VECTORS.label)))


@pytest.mark.parametrize("seed", range(4))
def test_what_is_fitted_is_neither_tested_nor_unseen(seed: int) -> None:
    roles = roles_of(VECTORS, seed)
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


def test_seeds_leave_out_each_class_once() -> None:
    pairs = [roles_of(VECTORS, seed).unseen for seed in range(3)]
    assert sorted(chain(*pairs)) == list(range(6))
    assert roles_of(VECTORS, 3).unseen == pairs[0]


@pytest.mark.parametrize("seed", range(3))
def test_consumers_are_tested_on_test_images_alone(seed: int) -> None:
    roles = roles_of(VECTORS, seed)
    tasks = tasks_of(VECTORS, roles, 50, seed)
    assert tuple(tasks) == TASKS
    for task in tasks.values():
        learned = set(task.training.tolist()) | set(task.validation.tolist())
        assert len(task.training) + len(task.validation) == len(learned) <= 50
        assert len(task.validation) == round(len(learned) / 5)
        assert not any(VECTORS.test[list(learned)])
        assert all(VECTORS.test[task.test])
        assert set(task.label[task.test].tolist()) == {False, True}


def test_classes_are_told_apart_that_the_transform_has_seen_or_not() -> None:
    for seed in range(3):
        roles = roles_of(VECTORS, seed)
        tasks = tasks_of(VECTORS, roles, 1000, seed)
        seen, unseen = (
            set(VECTORS.label[tasks[name].test].tolist()) for name in (CLASSES_SEEN, CLASSES_UNSEEN)
        )
        assert unseen == set(roles.unseen)
        assert len(seen) == 2
        assert not seen & unseen


def test_looks_are_above_the_median_of_the_training_images() -> None:
    tasks = tasks_of(VECTORS, roles_of(VECTORS, 0), 1000, 0)
    for name, values in zip(LOOKS, VECTORS.looks.T, strict=True):
        task = tasks[name]
        training = ~VECTORS.test
        assert abs(float(task.label[training].float().mean()) - 0.5) < 0.02
        assert values[task.label].min() > values[~task.label].max()


def test_a_seed_draws_its_own_examples() -> None:
    roles = roles_of(VECTORS, 0)
    one, same, other = (tasks_of(VECTORS, roles, 30, s)["warmth"].training for s in (0, 0, 3))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
