"""What one run does: version 0 to version 1, of the encoders as they are, and of heads on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from evergram import Recipe
from evergram.compatibility import Aligner
from evergram.training import Progress
from reproduction.bc.images.heads import HeadSettings, head_readings
from reproduction.bc.images.made_up import made_up_vectors
from reproduction.bc.images.measures import Consumers, Reading, measure_all
from reproduction.bc.images.roles import Roles, roles_of, tasks_of
from reproduction.bc.images.vectors import CIFAR, ImageSet, ImageVectors, read_vectors
from reproduction.bc.methods import FIX, KEEP_ALL, NON_BC, POST_CLOSED

# The two ways: the encoders' own vectors, reduced; and those of a head on each.
ENCODERS, HEADS = "encoders", "heads"
POST_ORTHOGONAL = "post-orthogonal"


@dataclass(frozen=True)
class Upgrades:
    """Runs all methods with one seed, and measures them; its settings are part of a result's key.

    Args:
        images: the encoded images; None has made-up vectors.
        dim: principal components that are kept of an encoder's own vectors.
        heads: settings of heads.
        consumers: classifiers of a task.
        examples: images that a consumer learns from, at most.
        depth: images that a cascade ranks again.
    """

    images: ImageSet | None
    dim: int
    heads: HeadSettings
    consumers: int
    examples: int
    depth: int

    @property
    def __name__(self) -> str:
        return repr(self)

    def __call__(
        self, recipe: Recipe, progress: Progress, device: str, work: Path | None = None
    ) -> dict[str, Any]:
        """Return for `ENCODERS` and `HEADS` what `measure_all` says of each method, by its name;
        and "images" (how many, by role) and "unseen" (the names of classes).

        Args:
            recipe: of the heads; its `data.path` is the folder of data sets.
            work: not used; a run takes minutes.
        Raises: DataError: images are missing, or vectors and the packages that compute them.
        """
        vectors = self._vectors(recipe, progress)
        roles = roles_of(vectors, recipe.seed)
        with TemporaryDirectory() as folder:
            ways = {
                ENCODERS: encoder_readings(vectors, roles, self.dim),
                HEADS: head_readings(
                    recipe, vectors, roles, self.heads, (Path(folder), device, progress)
                ),
            }
            series: dict[str, Any] = {
                way: self._measured(readings, vectors, roles, recipe.seed)
                for way, readings in ways.items()
            }
        images = {"fitted": len(roles.fitted)} | {g: len(r) for g, r in roles.tested.items()}
        unseen = [vectors.classes[kind] for kind in roles.unseen]
        return series | {"images": images, "unseen": unseen}

    def _vectors(self, recipe: Recipe, progress: Progress) -> ImageVectors:
        if self.images is None:
            return made_up_vectors(recipe.seed)
        folder = Path(recipe.model_dump()["data"].get("path", ""))
        return read_vectors(folder, self.images, progress)

    def _measured(
        self,
        readings: Iterator[tuple[str, Reading]],
        vectors: ImageVectors,
        roles: Roles,
        seed: int,
    ) -> dict[str, Any]:
        """Return by method what it gives; the first reading is version 0's own."""
        first, version_0 = next(readings)
        old = version_0.as_old
        tasks = tasks_of(vectors, roles, self.examples, seed)
        consumers = Consumers.fit(old, tasks, self.consumers)
        each = {first: version_0, **dict(readings)}
        return measure_all(each, old, vectors.label, roles, consumers, self.depth)


def principal(features: Tensor, fitted: Tensor, dim: int) -> Tensor:
    """Return the first principal components of features [N, D] at length 1, [N, dim], as the rows
    `fitted` have them."""
    mean = features[fitted].mean(0)
    training = features[fitted] - mean
    _, directions = torch.linalg.eigh(training.T @ training)
    return normalize((features - mean) @ directions.flip(1)[:, :dim], dim=1)


def encoder_readings(
    vectors: ImageVectors, roles: Roles, dim: int
) -> Iterator[tuple[str, Reading]]:
    """Yield each method's reading of all images, of `principal` vectors; the first is `FIX`.

    Transforms are fitted to the training images of seen classes, post hoc and in closed form.
    """
    rows = roles.fitted
    old, new = (principal(features, rows, dim) for features in (vectors.old, vectors.new))
    yield FIX, Reading(old, old)
    yield KEEP_ALL, Reading(new, old)
    yield NON_BC, Reading(new, new)
    for name, kind in ((POST_CLOSED, "linear"), (POST_ORTHOGONAL, "orthogonal")):
        aligner = Aligner(kind).fit(new[rows], old[rows])
        yield name, Reading(new, torch.as_tensor(aligner.transform(new)))


SMALL = Upgrades(CIFAR, 256, HeadSettings((64, 80), each=6), consumers=2, examples=2000, depth=200)
TINY = replace(
    SMALL, images=None, dim=16, heads=HeadSettings((8, 12), each=8), consumers=1, depth=10
)
