"""Vectors of images: computed once, kept, and checked when they are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from reproduction.bc.images.encoders import NEW, OLD, ImageEncoder, embed_pictures
from reproduction.bc.images.pictures import list_pictures, looks_of, read_pixels
from reproduction.bc.images.vectors import CIFAR, main, read_vectors
from safetensors.torch import save_file
from tests.support.image_files import write_images
from torch import Tensor, nn

from evergram.errors import DataError
from evergram.training import Progress
from reproduction.bc.images import vectors as module

QUIET = Progress(quiet=True)
FEW = replace(CIFAR, counts=(3, 2))


class Colours(nn.Module):
    def extract_features(self, inputs: Tensor) -> Tensor:
        return inputs


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the encoders that were loaded, in place of which others are used."""
    names: list[str] = []

    def load(encoder: ImageEncoder) -> nn.Module:
        names.append(encoder.name)
        return Colours()

    monkeypatch.setattr(module, "load", load)
    return names


def test_vectors_are_computed_once_and_then_read(tmp_path: Path, loaded: list[str]) -> None:
    folder = write_images(tmp_path, ("cat", "dog"), (4, 3))
    first = read_vectors(tmp_path, FEW, QUIET)
    assert loaded == [OLD.name, NEW.name]
    again = read_vectors(tmp_path, FEW, QUIET)
    assert loaded == [OLD.name, NEW.name]
    _, pictures = list_pictures(folder, FEW.counts)
    for vectors in (first, again):
        assert vectors.classes == ("cat", "dog")
        assert vectors.label.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
        assert vectors.test.tolist() == [False] * 6 + [True] * 4
        looks = [looks_of(read_pixels(picture.path)) for picture in pictures]
        assert torch.allclose(vectors.looks, torch.tensor(looks))
        for encoder, own in ((OLD, vectors.old), (NEW, vectors.new)):
            expected = embed_pictures(Colours(), pictures, encoder.pixels, QUIET)
            assert torch.equal(own, expected)
    # Nothing half-written is left, and images of other counts are another file.
    assert len([*(folder / "vectors").iterdir()]) == 2
    read_vectors(tmp_path, replace(FEW, counts=(1, 1)), QUIET)
    assert len(loaded) == 4


def test_a_damaged_file_is_named(tmp_path: Path, loaded: list[str]) -> None:
    write_images(tmp_path, ("cat", "dog"), (3, 2))
    read_vectors(tmp_path, FEW, QUIET)
    path = FEW.path(tmp_path, NEW)
    whole = path.read_bytes()
    for damaged in (b"", b"{}", whole[:-5], whole[:40]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"lite2.*is no file of vectors .*remove it"):
            read_vectors(tmp_path, FEW, QUIET)
    save_file({"vectors": torch.zeros(1, 2)}, path)  # no classes
    with pytest.raises(DataError, match="is no file of vectors"):
        read_vectors(tmp_path, FEW, QUIET)


def test_a_file_without_labels_is_named(tmp_path: Path, loaded: list[str]) -> None:
    write_images(tmp_path, ("cat",), (3, 2))
    read_vectors(tmp_path, FEW, QUIET)
    save_file({"vectors": torch.zeros(5, 2)}, FEW.path(tmp_path, OLD), {"classes": '["cat"]'})
    with pytest.raises(DataError, match=r"lite0.*is no file of vectors"):
        read_vectors(tmp_path, FEW, QUIET)


def test_files_of_different_images_are_refused(tmp_path: Path, loaded: list[str]) -> None:
    folder = write_images(tmp_path, ("cat", "dog"), (3, 2))
    read_vectors(tmp_path, FEW, QUIET)
    FEW.path(tmp_path, OLD).unlink()
    (folder / "train" / "cat").rename(folder / "train" / "cow")
    (folder / "test" / "cat").rename(folder / "test" / "cow")
    with pytest.raises(DataError, match="are of different images; remove both"):
        read_vectors(tmp_path, FEW, QUIET)


def test_the_command_says_what_is_missing_and_where_vectors_are(
    tmp_path: Path,
    loaded: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert "curl" in capsys.readouterr().err
    write_images(tmp_path, ("cat",), (3, 2))
    monkeypatch.setattr(module, "CIFAR", FEW)
    monkeypatch.setenv("EVERGRAM_DATA", str(tmp_path))
    assert main([]) == 0
    assert f"vectors of 5 images: {tmp_path}/cifar10/vectors" in capsys.readouterr().err
