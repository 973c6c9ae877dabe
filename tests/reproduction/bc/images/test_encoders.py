"""The image encoders: with the real packages where they are installed, and without them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
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
from reproduction.bc.images.pictures import list_pictures, read_pixels
from tests.support.image_files import write_images
from torch import Tensor, nn

from evergram.errors import DataError
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


def test_vectors_are_the_mean_of_the_map_of_scaled_pixels() -> None:
    pixels = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    expected = (pixels.double().mean((2, 3)) - MEAN) / DEVIATION
    assert torch.allclose(embed(Patches(), pixels).double(), expected, atol=1e-5)


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


@pytest.mark.parametrize("package", PACKAGES)
def test_a_missing_package_is_named_with_the_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    encoder = NEW if package == NEW.package else OLD
    with pytest.raises(DataError, match=r"pip install 'evergram\[images\]'"):
        load(encoder)


@real
@pytest.mark.parametrize("encoder", [OLD, NEW], ids=lambda e: e.name)
def test_a_real_encoder_gives_the_features_that_its_classifier_reads(
    encoder: ImageEncoder,
) -> None:
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
