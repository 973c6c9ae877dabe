"""What one run does: version 0 to version 1, of the encoders as they are, and of heads on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.nn.functional import normalize

from evergram import Recipe
from evergram.compatibility import Aligner
from evergram.evaluation import as_dim
from evergram.training import Progress
from reproduction.bc.images.heads import HeadSettings, head_readings
from reproduction.bc.images.made_up import made_up_vectors
from reproduction.bc.images.measures import Consumers, Reading, measured
from reproduction.bc.images.roles import Roles, roles_of, tasks_of
from reproduction.bc.images.vectors import CIFAR, ImageSet, ImageVectors, read_vectors
from reproduction.bc.methods import FIX, KEEP_ALL, NON_BC, POST_CLOSED

# The two ways: the encoders' own vectors, of length 1; and those of a head on each.
ENCODERS, HEADS = "encoders", "heads"
POST_ORTHOGONAL = "post-orthogonal"


@dataclass(frozen=True)
class Upgrades:
    """Runs all methods with one seed, and measures them; its settings are part of a result's key.

    Args:
        images: the encoded images; None has made-up vectors.
        heads: settings of heads.
        consumers: classifiers of a task.
        examples: images that a consumer learns from, at most.
    """

    images: ImageSet | None
    heads: HeadSettings
    consumers: int
    examples: int

    @property
    def __name__(self) -> str:
        return repr(self)

    def __call__(
        self, recipe: Recipe, progress: Progress, device: str, work: Path | None = None
    ) -> dict[str, Any]:
        """Return for `ENCODERS` and `HEADS` what `measured` says of each method, by its name;
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
                ENCODERS: encoder_readings(vectors, roles),
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
        return read_vectors(Path(recipe.data.path or ""), self.images, progress)

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
        return {
            name: measured(reading, old, vectors.label, roles, consumers)
            for name, reading in each.items()
        }


def encoder_readings(vectors: ImageVectors, roles: Roles) -> Iterator[tuple[str, Reading]]:
    """Yield each method's reading of all images, of vectors of length 1; the first is `FIX`.

    Transforms are fitted to the training images of seen classes, post hoc and in closed form.
    """
    old, new = normalize(vectors.old, dim=1), normalize(vectors.new, dim=1)
    yield FIX, Reading(old, old)
    yield KEEP_ALL, Reading(new, old)
    yield NON_BC, Reading(new, as_dim(new, old.shape[1]))
    rows = roles.fitted
    for name, kind in ((POST_CLOSED, "linear"), (POST_ORTHOGONAL, "orthogonal")):
        aligner = Aligner(kind).fit(new[rows], old[rows])
        yield name, Reading(new, torch.as_tensor(aligner.transform(new)))


SMALL = Upgrades(CIFAR, HeadSettings((64, 80), each=8), consumers=3, examples=4000)
TINY = replace(SMALL, images=None, heads=HeadSettings((8, 12), each=8), consumers=1)
