"""A lineage whose files are whole and contradict each other is found by `lineage check`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.command import Command, evergram
from tests.support.forging import forge
from tests.support.lineages import lineage_of, publish, vectors_of

from evergram.lineage.disk.manifest import sha256
from evergram.lineage.lineage import Lineage
from evergram.vector_files.parquet import write_embeddings

__all__ = ["evergram"]


@pytest.fixture
def line(tmp_path: Path) -> Path:
    """Versions 0 to 2, each with canaries."""
    return lineage_of(tmp_path / "line", 3, canaries=3).path


def rehashed(folder: Path, version: int, name: str) -> None:
    """Give the manifest the hash that a changed file has now."""

    def change(facts: dict[str, Any]) -> None:
        if name in facts["files"]:
            facts["files"][name] = sha256(folder / "versions" / str(version) / name)
        else:
            path = folder / "embeddings" / str(version) / name
            facts["embeddings"][path.stem] = sha256(path)

    forge(folder / "versions" / str(version) / "manifest.json", change)


def said(evergram: Command, line: Path) -> str:
    result = evergram("lineage", "check", line)
    assert result.code == 1
    return result.err


def test_a_whole_lineage_has_no_contradiction(line: Path, evergram: Command) -> None:
    assert evergram.json("lineage", "check", line)["contradictions"] == []


def test_a_transform_with_the_right_hash_is_another_one(line: Path, evergram: Command) -> None:
    path = line / "versions" / "1" / "transform.safetensors"
    save_file({name: 1.5 * t for name, t in load_file(path).items()}, path)
    rehashed(line, 1, path.name)
    assert "transform of version 1 errs by 0.5" in said(evergram, line)


def test_stored_vectors_that_are_not_the_canaries(line: Path, evergram: Command) -> None:
    vectors = vectors_of(2).clone()
    vectors[3] *= 2
    path = line / "embeddings" / "2" / "object.parquet"
    write_embeddings(path, [(pa.array(range(300)), vectors)])
    rehashed(line, 2, path.name)
    assert "Version 2: The canary '3'" in said(evergram, line)


def test_stable_on_a_version_without_vectors(line: Path, evergram: Command) -> None:
    assert Lineage.open(line).versions_with_embeddings == [2]
    forge(line / "lineage.json", lambda facts: facts["labels"].update(stable=0))
    assert "'stable' is on version 0" in said(evergram, line)


def test_an_older_record_over_newer_files(line: Path, tmp_path: Path, evergram: Command) -> None:
    shutil.copy(line / "lineage.json", tmp_path / "older.json")
    publish(Lineage.open(line), 3, promote=False, canaries=3)
    assert evergram("lineage", "check", line).code == 0
    forge(tmp_path / "older.json", lambda facts: facts["labels"].update(stable=2))
    shutil.copy(tmp_path / "older.json", line / "lineage.json")
    assert "versions/3 holds version 3" in said(evergram, line)
    # Another number in the folder's name, or half of a version, is what a killed process left.
    shutil.rmtree(line / "versions" / "3")
    (line / "versions" / "3").mkdir()
    assert evergram("lineage", "check", line).code == 0
    assert torch.is_tensor(Lineage.open(line).embeddings("object")[1])
