"""Which images are for what: alignment, measuring, and classes that nobody has seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reproduction.bc.images.pictures import LOOKS
from reproduction.bc.images.vectors import ImageVectors

# Groups of test images: of classes that the alignment has seen, and of those that it has not.
SEEN, UNSEEN = "seen", "unseen"
# The classes that a consumer tells apart.
CLASSES_SEEN, CLASSES_UNSEEN = "two seen classes", "two unseen classes"
TASKS = (*LOOKS, CLASSES_SEEN, CLASSES_UNSEEN)
# Share of a consumer's images that choose its epoch.
VALIDATION = 0.2


@dataclass(frozen=True)
class Roles:
    """Rows of images by their use with one seed.

    Args:
        fitted: int64, training images of seen classes: what heads and transforms learn from.
        tested: test images by group, int64 each; heads, transforms and consumers see none of them.
        unseen: the two classes of which no head and no transform sees an image.
    """

    fitted: Tensor
    tested: dict[str, Tensor]
    unseen: tuple[int, int]


def roles_of(vectors: ImageVectors, seed: int) -> Roles:
    """Return the roles of a seed: seed s leaves out the s-th pair of classes, so that of ten
    classes five seeds leave out each once."""
    pairs = len(vectors.classes) // 2
    first = 2 * (seed % pairs)
    unseen = (first, first + 1)
    is_unseen = (vectors.label == unseen[0]) | (vectors.label == unseen[1])
    groups = {SEEN: ~is_unseen, UNSEEN: is_unseen}
    return Roles(
        _rows(~vectors.test & ~is_unseen),
        {name: _rows(vectors.test & mask) for name, mask in groups.items()},
        unseen,
    )


@dataclass(frozen=True)
class ConsumerTask:
    """What a consumer of version 0 learns of images.

    Args:
        training, validation, test: int64 rows of images, each once.
        label: bool [N], of all images; those of no part mean nothing.
    """

    training: Tensor
    validation: Tensor
    test: Tensor
    label: Tensor


def tasks_of(
    vectors: ImageVectors, roles: Roles, examples: int, seed: int
) -> dict[str, ConsumerTask]:
    """Return the tasks by name: whether each of an image's looks is above the median, and which of
    two classes it is of, both seen by the alignment or both unseen.

    Args:
        examples: training and validation images of a task, at most.
    """
    draw = torch.Generator().manual_seed(seed)
    everything = torch.ones_like(vectors.test)
    labels = {}
    for name, values in zip(LOOKS, vectors.looks.T, strict=True):
        labels[name] = (everything, values > values[~vectors.test].median())
    seen = [(roles.unseen[0] + 2 + i) % len(vectors.classes) for i in range(2)]
    for name, (one, two) in {CLASSES_SEEN: seen, CLASSES_UNSEEN: roles.unseen}.items():
        mask = (vectors.label == one) | (vectors.label == two)
        labels[name] = (mask, vectors.label == one)
    return {
        name: _task(mask, vectors.test, label, examples, draw)
        for name, (mask, label) in labels.items()
    }


def _task(
    mask: Tensor, test: Tensor, label: Tensor, examples: int, draw: torch.Generator
) -> ConsumerTask:
    rows = _rows(mask & ~test)
    rows = rows[torch.randperm(len(rows), generator=draw)][:examples]
    count = round(VALIDATION * len(rows))
    return ConsumerTask(rows[count:], rows[:count], _rows(mask & test), label)


def _rows(mask: Tensor) -> Tensor:
    return torch.nonzero(mask).flatten()
