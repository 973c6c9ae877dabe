"""Symbolic links of a lineage lead nowhere outside of its folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.lineages import publish
from tests.support.outside import SECRET

from evergram.errors import IntegrityError, LineageError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.disk.path_check import (
    PARTS,
    check_inside,
    check_parts,
    check_tree,
    refuse_occupied,
)
from evergram.lineage.lineage import Lineage


@pytest.mark.parametrize("part", ["versions/1", "versions/1/manifest.json", *PARTS])
def test_a_link_out_of_the_folder_is_refused(lineage: Lineage, outside: Path, part: str) -> None:
    """Even one to a copy of what it replaces."""
    place, copy = lineage.path / part, outside / "copy"
    if place.exists():
        place.rename(copy)
    place.symlink_to(copy)
    with pytest.raises(IntegrityError, match="outside of the lineage's folder, by a symbolic link"):
        Lineage.open(lineage.path)


@pytest.mark.parametrize(
    ("part", "read"),
    [
        ("embeddings/1", lambda line: line.embeddings("object")),
        ("embeddings/1/object.parquet", lambda line: line.embeddings("object")),
        ("versions/1/metrics.json", lambda line: line.metrics(1)),
        ("versions/1/transform.safetensors", lambda line: line.chain),
        ("versions/1/canary.parquet", lambda line: line.check()),
    ],
)
def test_a_linked_file_is_refused_when_it_is_read(
    lineage: Lineage, outside: Path, part: str, read: Callable[[Lineage], Any]
) -> None:
    place = lineage.path / part
    place.rename(outside / "copy")
    place.symlink_to(outside / "copy")
    with pytest.raises(IntegrityError, match="by a symbolic link"):
        read(Lineage.open(lineage.path))


def test_a_link_in_a_circle_is_refused(lineage: Lineage) -> None:
    shutil.rmtree(lineage.path / "embeddings")
    (lineage.path / "embeddings").symlink_to(lineage.path / "embeddings")
    with pytest.raises(IntegrityError, match="in a circle"):
        Lineage.open(lineage.path)


def test_links_that_stay_inside_are_followed(lineage: Lineage, tmp_path: Path) -> None:
    """And so is one to the whole lineage."""
    place = lineage.path / "versions/1/metrics.json"
    place.rename(lineage.path / "kept.json")
    place.symlink_to(lineage.path / "kept.json")
    (tmp_path / "here").symlink_to(lineage.path)
    linked = Lineage.open(tmp_path / "here")
    linked.check()
    publish(linked, 2)
    assert Lineage.open(lineage.path).newest == 2


@pytest.mark.parametrize("part", ["embeddings", "versions"])
def test_nothing_is_removed_through_a_link(lineage: Lineage, outside: Path, part: str) -> None:
    """Laid while the lineage is open: a publication clears away what it does not list."""
    place = lineage.path / part
    place.rename(lineage.path / "moved")
    place.symlink_to(outside)
    with pytest.raises(IntegrityError, match="by a symbolic link"):
        publish(lineage, 2)
    assert [p.name for p in outside.iterdir()] == ["own"]


@pytest.mark.parametrize("name", [".2.part", "77", "left"])
def test_a_link_that_is_left_over_is_removed_alone(
    lineage: Lineage, outside: Path, name: str
) -> None:
    (lineage.path / "embeddings" / name).symlink_to(outside)
    publish(lineage, 2)
    assert (outside / "own").read_bytes() == SECRET
    assert not (lineage.path / "embeddings" / name).is_symlink()


def test_nothing_is_written_through_a_link(lineage: Lineage, outside: Path) -> None:
    """To a file whose name is known before it is written."""
    for name in (".lineage.json.part", ".consumers.json.part"):
        (lineage.path / name).symlink_to(outside / "own")
    lineage.label("kept", 0)
    ConsumerRegistry.open(lineage.path).add("ads", "v0", lineage.resolve)
    assert (outside / "own").read_bytes() == SECRET
    assert Lineage.open(lineage.path).labels == {"kept": 0}


def test_paths_without_links_are_inside_whether_or_not_they_are_there(tmp_path: Path) -> None:
    check_inside(tmp_path, tmp_path, tmp_path / "not" / "there")
    with pytest.raises(IntegrityError, match=r"leads to .*, outside of the lineage's folder"):
        check_inside(tmp_path / "line", tmp_path / "line-2")


def test_a_tree_is_searched_at_any_depth(tmp_path: Path) -> None:
    deep = tmp_path / "line" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "inside").symlink_to(tmp_path / "line")
    check_tree(tmp_path / "line", tmp_path / "line" / "a")
    (deep / "out").symlink_to(tmp_path)
    check_parts(tmp_path / "line")
    with pytest.raises(IntegrityError, match="by a symbolic link; nothing is read or written"):
        check_tree(tmp_path / "line", tmp_path / "line" / "a")


@pytest.mark.parametrize(
    ("files", "refused"),
    [
        ([], False),
        ([".gitkeep", "lost+found/x"], False),
        ([".work/training.json"], False),
        ([".lock", "versions/0/manifest.json", "embeddings/.0.part/x"], False),
        (["readme.txt"], True),
        (["versions/0/manifest.json"], True),
        ([".lock", "versions/1/manifest.json"], True),
        ([".lock", "versions/0/x", "consumers.json"], True),
    ],
)
def test_a_new_lineage_takes_no_folder_of_other_files(
    tmp_path: Path, files: list[str], refused: bool
) -> None:
    """They would be removed where they stand in `versions` or `embeddings`."""
    folder = tmp_path / "shop"
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    if not refused:
        refuse_occupied(folder, "shop")
        return
    with pytest.raises(LineageError, match=r"holds other files .* give an empty folder"):
        Lineage.create(folder, "shop")
