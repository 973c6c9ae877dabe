"""Symbolic links of a lineage lead nowhere outside of its folder."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from filelock import FileLock
from tests.support.artefacts import artefact, shop_of_three
from tests.support.lineages import publish, vectors_of
from tests.support.outside import SECRET
from tests.support.probe_files import add_probe
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import (
    IntegrityError,
    LineageError,
)
from evergram.lineage.artefact import Artefact
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.lineage.locks import (
    LOCK,
    OWNER,
    clear_work,
    training_claim,
)
from evergram.lineage.paths import (
    PARTS,
    refuse_occupied,
)
from evergram.lineage.publication import keep_lost, read_lost
from evergram.retrieval.fill import local_stores


@pytest.mark.parametrize(
    "part",
    [
        *("versions/1", "versions/1/manifest.json", "versions/1/metrics.json", "embeddings/1"),
        *("versions/1/transform.safetensors", "versions/1/canary.parquet", *PARTS),
        "embeddings/1/object.parquet",
    ],
)
def test_a_link_out_of_the_folder_is_refused(lineage: Lineage, outside: Path, part: str) -> None:
    """Even one to a copy of what it replaces."""
    place, copy = lineage.path / part, outside / "copy"
    if place.exists():
        place.rename(copy)
    place.symlink_to(copy)
    with pytest.raises(IntegrityError, match="outside of the lineage's folder, by a symbolic link"):
        Lineage.open(lineage.path).check()


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


def modes(folder: Path) -> dict[str, int]:
    """Permissions by path, of all that is in a lineage but stores' own files."""
    permissions = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if not name.startswith(("stores/", "backfills/")):
            permissions[name] = stat.S_IMODE(path.stat().st_mode)
    return permissions


@pytest.fixture
def usual_umask() -> Any:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
def test_a_new_lineage_is_its_owners_alone(lineage: Lineage, tmp_path: Path) -> None:
    add_probe(lineage, tmp_path)
    for store in local_stores(lineage).values():
        store.close()
    lineage.label("kept", 0)
    for name, mode in modes(lineage.path).items():
        is_folder = (lineage.path / name).is_dir()
        assert mode == (0o700 if is_folder else 0o600), name
    assert {"lineage.json", "consumers.json", "stores", "probes"} <= modes(lineage.path).keys()


@pytest.mark.usefixtures("usual_umask")
def test_a_lineage_that_is_shared_once_stays_shared(lineage: Lineage, tmp_path: Path) -> None:
    """`chmod -R g+rX DIR`: what comes later has the permissions of `lineage.json`."""
    for path in [lineage.path, *lineage.path.rglob("*")]:
        path.chmod(path.stat().st_mode | (0o2050 if path.is_dir() else 0o040))
    publish(lineage, 2)
    lineage.label("kept", 1)
    add_probe(lineage, tmp_path)
    for name, mode in modes(lineage.path).items():
        is_folder = (lineage.path / name).is_dir()
        assert mode & 0o777 == (0o750 if is_folder else 0o640), name
        if is_folder:
            # Who comes later is in the same group.
            assert mode & 0o2000, name


@pytest.mark.usefixtures("usual_umask")
def test_a_lineage_that_everybody_reads_keeps_hashes_of_tokens_private(
    lineage: Lineage, tmp_path: Path
) -> None:
    """Such as one that was made before: its versions stay readable, consumers' files do not."""
    for path in [lineage.path, *lineage.path.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    publish(lineage, 2)
    probe = add_probe(lineage, tmp_path)
    permissions = modes(lineage.path)
    assert permissions["versions/2/manifest.json"] == permissions["lineage.json"] == 0o644
    assert permissions["embeddings/2"] == 0o755
    assert permissions["consumers.json"] == permissions[probe.model] == 0o640
    assert permissions["probes"] == 0o750


def test_a_checkpoint_stays_in_the_folder_and_its_owner_does_not(tmp_path: Path) -> None:
    work = tmp_path / "shop" / ".work"
    with training_claim(work, "shop"), training_claim(work, "shop"):
        assert (work / OWNER).is_file()
    assert not (tmp_path / "shop").exists()
    with training_claim(work, "shop"):
        with training_claim(work, "shop"):
            (work / "checkpoint").write_text("x")
        assert (work / OWNER).is_file(), "the outer claim still holds"
    assert {path.name for path in work.iterdir()} - {LOCK} == {"checkpoint"}


def test_what_is_kept_outlives_the_checkpoints(tmp_path: Path) -> None:
    work = tmp_path / ".work"
    (work / "lost").mkdir(parents=True)
    (work / "lost" / "model").write_text("x")
    (work / "folder").mkdir()
    (work / "folder" / "checkpoint").write_text("x")
    (work / "checkpoint").write_text("x")
    with FileLock(work / LOCK):  # another process trains
        clear_work(work, "lost")
        assert (work / "checkpoint").exists()
    clear_work(work, "lost")
    assert {path.name for path in work.iterdir()} <= {"lost", LOCK}
    assert (work / "lost" / "model").read_text() == "x"


def test_a_kept_model_with_a_link_out_of_the_folder_is_refused(
    lineage: Lineage, outside: Path
) -> None:
    vectors = vectors_of(0)
    ids = pa.array(range(len(vectors)))
    back = LinearTransform.from_matrix(torch.eye(vectors_of(1).shape[1], vectors.shape[1]))
    kept = keep_lost(
        lineage.work_dir, 2, Artefact(vectors.shape[1], {"object": (ids, vectors)}, back, {}, {})
    )
    assert lineage.lost().manifest.version == 2
    (kept / "more").symlink_to(outside / "own")
    with pytest.raises(IntegrityError, match="symbolic link"):
        lineage.lost()


def test_the_kept_model_is_the_one_that_was_trained(tmp_path: Path) -> None:
    work = tmp_path / ".work"
    keep_lost(work, 3, artefact(2))
    keep_lost(work, 4, artefact(3, 2, seed=1))
    lost = read_lost(tmp_path, work, "shop")
    assert (lost.manifest.version, lost.manifest.name) == (4, "lost@v4")
    published = artefact(3, 2, seed=1).block("query")[1]
    assert torch.equal(lost.encoder()[1]["query.weight"], published)
    assert lost.moments() == {}


def test_a_kept_model_outlives_other_publications_and_is_forgotten_by_name(tmp_path: Path) -> None:
    lineage = shop_of_three(tmp_path / "shop")
    lineage.forget_lost()  # there is none
    keep_lost(lineage.work_dir, 3, artefact(3, 2, seed=1))
    publish_next(lineage, artefact(5, 4))
    assert lineage.lost().manifest.version == 3
    lineage.forget_lost()
    with pytest.raises(LineageError, match="No model is kept"):
        lineage.lost()
