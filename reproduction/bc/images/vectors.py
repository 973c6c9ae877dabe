"""The vectors of images by both encoders: computed once, and kept beside the images.

`python -m reproduction.bc.images.vectors` computes them now; a run does it if they are missing.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from evergram.errors import DataError, EvergramError
from evergram.training import Progress
from reproduction.bc.images.encoders import NEW, OLD, ImageEncoder, embed_pictures, load
from reproduction.bc.images.pictures import (
    FOLDER,
    Picture,
    list_pictures,
    looks_of,
    read_pixels,
)

# What a file has of each image beside its vector; see `ImageVectors`.
FACTS = ("label", "test", "looks")


@dataclass(frozen=True)
class ImageSet:
    """Which images are encoded, and by which encoders.

    Args:
        folder: of the data set, among the data sets.
        counts: images of each class, of the training part and of the test part.
        old, new: the encoders of version 0 and of version 1.
    """

    folder: str
    counts: tuple[int, int]
    old: ImageEncoder
    new: ImageEncoder

    def path(self, data: Path, encoder: ImageEncoder) -> Path:
        """Return the file of an encoder's vectors, below the folder of data sets."""
        size = "-".join(map(str, self.counts))
        name = f"{encoder.name}.{encoder.pixels}px.{size}.safetensors"
        return data / self.folder / "vectors" / name


CIFAR = ImageSet(FOLDER, (1000, 500), OLD, NEW)


@dataclass(frozen=True)
class ImageVectors:
    """The same images by two encoders.

    Args:
        old: [N, D_0]; new: [N, D_1].
        label: int64 [N], the class.
        test: bool [N], whether an image is for measuring only.
        looks: float [N, 3], the `LOOKS` of each.
        classes: the names of classes.
    """

    old: Tensor
    new: Tensor
    label: Tensor
    test: Tensor
    looks: Tensor
    classes: tuple[str, ...]


def read_vectors(data: Path, images: ImageSet, progress: Progress) -> ImageVectors:
    """Return the vectors of images by both encoders; what is not kept yet is computed and kept.

    Args:
        data: the folder of data sets.
    Raises: DataError: images are missing, or vectors and the packages that compute them; a file
        of vectors is damaged.
    """
    encoders = images.old, images.new
    paths = [images.path(data, encoder) for encoder in encoders]
    for encoder, path in zip(encoders, paths, strict=True):
        if not path.is_file():
            _encode(data / images.folder, images.counts, encoder, path, progress)
    (old, classes), (new, of_new) = (_read(path) for path in paths)
    if classes != of_new or any(not torch.equal(old[name], new[name]) for name in FACTS):
        raise DataError(
            f"{paths[0]} and {paths[1].name} are of different images; remove both, and they are "
            "computed again."
        )
    label, test, looks = (old[name] for name in FACTS)
    return ImageVectors(old["vectors"], new["vectors"], label, test.bool(), looks, classes)


def _encode(
    folder: Path, counts: Sequence[int], encoder: ImageEncoder, path: Path, progress: Progress
) -> None:
    classes, pictures = list_pictures(folder, counts)
    progress.say(f"{encoder.name}: encoding {len(pictures):,} images, once")
    vectors = embed_pictures(load(encoder), pictures, encoder.pixels, progress)
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    save_file({"vectors": vectors, **_facts(pictures)}, part, {"classes": json.dumps(classes)})
    part.replace(path)


def _facts(pictures: Sequence[Picture]) -> dict[str, Tensor]:
    looks = [looks_of(read_pixels(picture.path)) for picture in pictures]
    return {
        "label": torch.tensor([picture.label for picture in pictures]),
        "test": torch.tensor([picture.test for picture in pictures], dtype=torch.uint8),
        "looks": torch.tensor(looks),
    }


def _read(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in ("vectors", *FACTS)}
            return tensors, tuple(json.loads(file.metadata()["classes"]))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is no file of vectors ({error}); remove it, and it is computed again."
        ) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Encode the images if their vectors are not kept yet. Returns: the exit status."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    data = os.environ.get("EVERGRAM_DATA") or "data"
    parser.add_argument("--data", type=Path, default=Path(data), help="the folder of data sets")
    chosen = parser.parse_args(arguments)
    progress = Progress()
    try:
        vectors = read_vectors(chosen.data, CIFAR, progress)
    except EvergramError as error:
        progress.say(str(error))
        return 2
    progress.say(f"vectors of {len(vectors.label):,} images: {CIFAR.path(chosen.data, OLD).parent}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
