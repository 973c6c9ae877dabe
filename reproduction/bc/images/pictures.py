"""The images: CIFAR-10 as JPEG files, and what their pixels alone say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from evergram.data import existing
from evergram.errors import DataError

# The data set, as docs/data-sets.md fetches it: PART/CLASS/NUMBER.jpg.
FOLDER = "cifar10"
PARTS = ("train", "test")
# What pixels alone say of an image, a number each; see `looks_of`.
LOOKS = ("brightness", "warmth", "contrast")
# The weights of red, green and blue in the brightness of a pixel: ITU-R BT.601.
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Picture:
    """An image file.

    Args:
        label: the number of its class.
        test: whether it is of the test part.
    """

    path: Path
    label: int
    test: bool


def list_pictures(
    folder: Path, counts: Sequence[int]
) -> tuple[tuple[str, ...], tuple[Picture, ...]]:
    """Return the classes, by name in order, and the first images of each.

    Args:
        folder: has train/CLASS/NUMBER.jpg and test/CLASS/NUMBER.jpg.
        counts: images of each class of the training part, and of the test part.
    Raises: DataError: a folder is missing, or has fewer images.
    """
    train = existing(folder / PARTS[0])
    classes = tuple(sorted(path.name for path in train.iterdir() if path.is_dir()))
    pictures = []
    for part, count in zip(PARTS, counts, strict=True):
        for label, name in enumerate(classes):
            paths = sorted(existing(folder / part / name).glob("*.jpg"))[:count]
            if len(paths) < count:
                raise DataError(
                    f"{folder / part / name} has {len(paths)} images; {count} are needed: get the "
                    "data set again, whole."
                )
            pictures += [Picture(path, label, part == PARTS[1]) for path in paths]
    return classes, tuple(pictures)


def read_pixels(path: Path, size: int | None = None) -> Tensor:
    """Return the pixels of an image, uint8 [3, H, W], red, green and blue.

    Args:
        size: H and W after bicubic interpolation; None keeps the image's own.
    Raises: DataError: the file is no image.
    """
    try:
        with Image.open(path) as image:
            colours = image.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise DataError(f"{path} is no image that can be read ({error}); get it again.") from error
    if size is not None:
        colours = colours.resize((size, size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(colours)).permute(2, 0, 1)


def looks_of(pixels: Tensor) -> list[float]:
    """Return `LOOKS` of pixels [3, H, W]: the mean brightness, the mean of red less blue, and the
    deviation of the brightness; all in units of 0 to 255."""
    colours = pixels.double()
    brightness = torch.einsum("c,chw->hw", torch.tensor(LUMA, dtype=torch.float64), colours)
    warmth = (colours[0] - colours[2]).mean()
    return [float(brightness.mean()), float(warmth), float(brightness.std(correction=0))]
