"""Images in files: which are read, and what their pixels say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image, ImageStat
from reproduction.bc.images.pictures import list_pictures, looks_of, read_pixels
from tests.support.image_files import write_images

from evergram.errors import DataError


def test_the_first_images_of_each_class_are_listed_in_order(tmp_path: Path) -> None:
    folder = write_images(tmp_path, ("cat", "bird"), (3, 2))
    classes, pictures = list_pictures(folder, (2, 1))
    assert classes == ("bird", "cat")
    listed = [(str(p.path.relative_to(folder)), p.label, p.test) for p in pictures]
    assert listed == [
        ("train/bird/0000.jpg", 0, False),
        ("train/bird/0001.jpg", 0, False),
        ("train/cat/0000.jpg", 1, False),
        ("train/cat/0001.jpg", 1, False),
        ("test/bird/0000.jpg", 0, True),
        ("test/cat/0000.jpg", 1, True),
    ]


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    folder = write_images(tmp_path, ("cat",), (2, 2))
    with pytest.raises(DataError, match=r"test/cat has 2 images; 3 are needed"):
        list_pictures(folder, (2, 3))


def test_a_missing_data_set_is_named_with_its_command(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cifar10/train: get .*curl"):
        list_pictures(tmp_path / "cifar10", (1, 1))


def test_a_file_that_is_no_image_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "0000.jpg"
    path.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"0000\.jpg is no image that can be read"):
        read_pixels(path)
    folder = write_images(tmp_path, ("cat",), (1, 1))
    whole = folder / "train" / "cat" / "0000.jpg"
    whole.write_bytes(whole.read_bytes()[:-60])  # cut off
    with pytest.raises(DataError, match="get it again"):
        read_pixels(whole)


def test_pixels_have_the_size_that_is_asked_for(tmp_path: Path) -> None:
    folder = write_images(tmp_path, ("cat",), (1, 1))
    path = folder / "train" / "cat" / "0000.jpg"
    assert read_pixels(path).shape == (3, 32, 32)
    assert read_pixels(path, 48).shape == (3, 48, 48)
    assert read_pixels(path, 48).dtype == torch.uint8


def test_grey_images_are_read_as_colours(tmp_path: Path) -> None:
    Image.new("L", (4, 4), 100).save(tmp_path / "grey.png")
    assert read_pixels(tmp_path / "grey.png").tolist() == [[[100] * 4] * 4] * 3


def test_looks_are_what_pillow_says_of_the_same_pixels(tmp_path: Path) -> None:
    folder = write_images(tmp_path, ("cat", "dog"), (3, 1))
    for path in sorted(folder.rglob("*.jpg")):
        image = Image.open(path).convert("RGB")
        grey, colours = ImageStat.Stat(image.convert("L")), ImageStat.Stat(image)
        brightness, warmth, contrast = looks_of(read_pixels(path))
        # Pillow rounds the brightness of each pixel.
        assert brightness == pytest.approx(grey.mean[0], abs=0.6)
        assert warmth == pytest.approx(colours.mean[0] - colours.mean[2])
        assert contrast == pytest.approx(grey.stddev[0], abs=0.6)
