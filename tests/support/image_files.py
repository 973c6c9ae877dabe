"""Small image files in the layout of the data set `cifar10`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 32


def write_images(data: Path, classes: Sequence[str], counts: tuple[int, int]) -> Path:
    """Write smooth random images of each class and return the folder of the data set.

    Args:
        counts: images of the training part and of the test part.
    """
    draw = np.random.default_rng(0)
    folder = data / "cifar10"
    for part, count in zip(("train", "test"), counts, strict=True):
        for name in classes:
            place = folder / part / name
            place.mkdir(parents=True)
            for number in range(count):
                coarse = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
                image = Image.fromarray(coarse).resize((SIZE, SIZE))
                image.save(place / f"{number:04}.jpg", quality=95)
    return folder
