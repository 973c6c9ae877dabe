"""Rows of divided tables in safetensors files; nothing of them is a pickle."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from evergram.collectives import ALONE
from evergram.errors import TrainingError
from evergram.training.sharding.shard_files import (
    digests,
    load_shards,
    remove_folder_of_rows,
    remove_lone_shards,
    save_shards,
    shard_folder,
)


def written(folder: Path) -> dict[str, torch.Tensor]:
    tensors = {"query.weight": torch.randn(5, 3), "query.sum": torch.rand(5)}
    save_shards(tensors, folder, ALONE)
    return tensors


def test_they_are_read_as_they_were_without_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = written(tmp_path / "rows")
    names = set()
    for path in (tmp_path / "rows").iterdir():
        with safe_open(path, framework="pt") as file:
            names |= set(file.keys())
    assert names == set(tensors)
    assert len(list((tmp_path / "rows").iterdir())) == len(tensors)

    def refused(*arguments: object) -> None:
        raise AssertionError("a pickle is read")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refused)
    read = {name: torch.zeros_like(value) for name, value in tensors.items()}
    load_shards(read, tmp_path / "rows", ALONE)
    assert all(read[name].equal(value) for name, value in tensors.items())


def test_what_is_not_there_is_an_error_of_ours(tmp_path: Path) -> None:
    written(tmp_path / "rows")
    with pytest.raises(TrainingError, match=r"cannot be read in .*rows .*other.weight"):
        load_shards({"other.weight": torch.zeros(5, 3)}, tmp_path / "rows", ALONE)
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="cannot be written in"):
        save_shards({"x": torch.zeros(2)}, tmp_path / "file", ALONE)


def test_a_changed_file_has_another_digest(tmp_path: Path) -> None:
    written(tmp_path)
    before = digests(tmp_path)
    path = next(tmp_path.iterdir())
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert digests(tmp_path).keys() == before.keys()
    assert digests(tmp_path) != before
    assert digests(tmp_path / "missing") == {}


def test_rows_without_their_checkpoint_are_removed(tmp_path: Path) -> None:
    one, other = tmp_path / "a.000000000001.safetensors", tmp_path / "a.000000000002.safetensors"
    for path in (one, other):
        path.touch()
        written(shard_folder(path))
    one.unlink()
    remove_lone_shards(tmp_path)
    assert sorted(tmp_path.iterdir()) == [other, shard_folder(other)]
    remove_folder_of_rows(other)
    assert not shard_folder(other).exists()
