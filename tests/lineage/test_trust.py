"""A lineage that somebody else wrote: its names and links lead nowhere, and others cannot read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.forging import forge
from tests.support.lineages import lineage_of, publish, vectors_of

from evergram.compatibility.transforms import LinearTransform
from evergram.data.pair_hash import TrainedPairs
from evergram.errors import DataError, EvergramError, IntegrityError, LineageError
from evergram.lineage.artefact import Artefact
from evergram.lineage.consumers.record import Probe
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.disk.path_check import PARTS
from evergram.lineage.lineage import Lineage
from evergram.lineage.publishing.lost_race import keep_lost
from evergram.retrieval.backfill import Backfill
from evergram.retrieval.fill import local_stores
from evergram.stores.open_store import open_store

SECRET = b"what was there before"


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return lineage_of(tmp_path / "line", versions=2)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of somebody's own, with a file in it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "own").write_bytes(SECRET)
    return folder


def add_probe(lineage: Lineage, folder: Path) -> Probe:
    save_file({"weight": torch.ones(1, 6)}, folder / "m.safetensors")
    (folder / "d.parquet").write_bytes(b"data")
    probe = Probe(
        model=str(folder / "m.safetensors"),
        data=str(folder / "d.parquet"),
        side="object",
        metric="auc",
    )
    added = ConsumerRegistry.open(lineage.path).add("ads", "v0", lineage.resolve, probe=probe).probe
    assert added is not None
    return added


@pytest.mark.parametrize("side", ["../../../x", "/etc/x", "a/b", "", ".", "..", "a\n", "a" * 200])
@pytest.mark.parametrize("table", ["embeddings", "files"])
def test_a_name_in_a_manifest_is_a_name_of_a_file(lineage: Lineage, table: str, side: str) -> None:
    forge(lineage.path / "versions/1/manifest.json", lambda f: f[table].update({side: "0" * 64}))
    with pytest.raises(IntegrityError, match="cannot be the name of a file or a side"):
        Lineage.open(lineage.path)


def test_a_side_that_is_no_name_is_not_published(lineage: Lineage) -> None:
    vectors = lineage.embeddings("object")
    back = lineage.chain.transforms[0]
    wide = Artefact(10, {"../x": vectors}, back, {"metrics": {"model": {}}}, {})
    with pytest.raises(LineageError, match="cannot be the name of a side"):
        lineage.publish(wide)


@pytest.mark.parametrize(
    "metrics",
    [{"metrics": []}, {"metrics": {"model": {"a": "x"}}}, {"probes": [1]}, {"probes": {}}],
)
def test_metrics_that_could_not_be_read_are_not_published(
    lineage: Lineage, metrics: dict[str, Any]
) -> None:
    vectors = lineage.embeddings("object")
    found = Artefact(8, {"object": vectors}, LinearTransform.from_matrix(torch.eye(8)), metrics, {})
    with pytest.raises(DataError, match="nothing was published"):
        lineage.publish(found)
    assert Lineage.open(lineage.path).newest == 1


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "ü", "a\n", "x" * 129, "shop@v0"])
def test_a_lineage_has_a_name_that_can_be_asked_for(tmp_path: Path, name: str) -> None:
    with pytest.raises(LineageError, match="cannot be the name of a lineage"):
        Lineage.create(tmp_path / "new", name)
    assert not (tmp_path / "new").exists()


def test_a_lineage_that_was_named_before_there_was_a_rule_is_read(lineage: Lineage) -> None:
    forge(lineage.path / "lineage.json", lambda f: f.update(name="my films, 1"))
    assert Lineage.open(lineage.path).name == "my films, 1"
    forge(lineage.path / "lineage.json", lambda f: f.update(name="\x1b]0;x"))
    with pytest.raises(IntegrityError, match="cannot be printed"):
        Lineage.open(lineage.path)


@pytest.mark.parametrize("label", ["../x", "a b", "\x1b"])
def test_a_label_that_is_no_name_is_not_read(lineage: Lineage, label: str) -> None:
    forge(lineage.path / "lineage.json", lambda f: f["labels"].update({label: 0}))
    with pytest.raises(IntegrityError, match="cannot be a label"):
        Lineage.open(lineage.path)


@pytest.mark.parametrize("name", ["Stable", "NEWEST", "V1", "prod"])
def test_labels_that_differ_in_capitals_alone_are_refused(lineage: Lineage, name: str) -> None:
    lineage.label("Prod", 0)
    with pytest.raises(LineageError, match="cannot be a label"):
        lineage.label(name, 1)


def test_consumers_that_differ_in_capitals_alone_are_refused(lineage: Lineage) -> None:
    """Where a disk does not tell them apart, one would remove the other's probe."""
    record = ConsumerRegistry.open(lineage.path)
    record.add("Ads", "v0", lineage.resolve)
    with pytest.raises(LineageError, match="There is a consumer 'Ads' already"):
        record.add("ads", "v1", lineage.resolve)


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
    found = Lineage.open(tmp_path / "here")
    found.check()
    publish(found, 2)
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


@pytest.mark.parametrize("part", ["stores", "stores/object", "stores/object/segments"])
def test_a_store_of_the_lineage_stays_in_it(lineage: Lineage, outside: Path, part: str) -> None:
    """A store removes what it does not list."""
    for store in local_stores(lineage).values():
        store.close()
    place = lineage.path / part
    place.rename(lineage.path / "moved")
    place.symlink_to(outside)
    with pytest.raises(IntegrityError, match="by a symbolic link"):
        local_stores(lineage)
    assert [p.name for p in outside.iterdir()] == ["own"]


def test_a_store_reads_and_removes_no_file_outside(lineage: Lineage, outside: Path) -> None:
    """Its `store.json` names files, with a checksum that anybody can make."""
    (store,) = local_stores(lineage).values()
    store.close()
    path = lineage.path / "stores/object/store.json"
    record = json.loads(path.read_text())
    body = record["store"]
    body["segments"][0]["data"]["name"] = os.path.relpath(
        outside / "own", lineage.path / "stores/object/segments"
    )
    record["sha256"] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(record))
    with pytest.raises(IntegrityError, match="outside of the store's folder"):
        local_stores(lineage)
    assert (outside / "own").read_bytes() == SECRET


def test_a_backfill_stays_in_the_lineage(lineage: Lineage, outside: Path, tmp_path: Path) -> None:
    with open_store(str(tmp_path / "s"), create="int64") as store:
        work = Backfill(lineage, store, "object")
        work.plan()
        (work.folder / "journal").rmdir()
        (work.folder / "journal").symlink_to(outside)
        with pytest.raises(IntegrityError, match="by a symbolic link"):
            Backfill(lineage, store, "object")


@pytest.mark.parametrize("part", ["probes", "probes/ads", "model"])
def test_a_probe_stays_in_the_lineage(
    lineage: Lineage, outside: Path, tmp_path: Path, part: str
) -> None:
    probe = add_probe(lineage, tmp_path)
    place = lineage.path / (probe.model if part == "model" else part)
    place.rename(outside / "copy")
    place.symlink_to(outside / "copy")
    with pytest.raises(IntegrityError, match="by a symbolic link"):
        ConsumerRegistry.open(lineage.path).probe_files(probe)
    if part != "model":
        before = sorted(outside.rglob("*"))
        with pytest.raises(IntegrityError, match="by a symbolic link"):
            ConsumerRegistry.open(lineage.path).remove("ads")
        assert sorted(outside.rglob("*")) == before


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "probes/../../x", "model", "probes//../../x", "probes"]
)
def test_a_forged_path_of_a_probe_is_refused(lineage: Lineage, tmp_path: Path, name: str) -> None:
    add_probe(lineage, tmp_path)

    def change(facts: dict[str, Any]) -> None:
        facts["consumers"][0]["probe"]["model"] = name

    forge(lineage.path / "consumers.json", change)
    forged = ConsumerRegistry.open(lineage.path).get("ads").probe
    assert forged is not None
    with pytest.raises(IntegrityError):
        ConsumerRegistry.open(lineage.path).probe_files(forged)


# Who may read what is written.


def modes(folder: Path) -> dict[str, int]:
    """Permissions by path, of all that is in a lineage but stores' own files."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if not name.startswith(("stores/", "backfills/")):
            found[name] = stat.S_IMODE(path.stat().st_mode)
    return found


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
def test_what_is_shared_once_stays_shared(lineage: Lineage, tmp_path: Path) -> None:
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
def test_a_lineage_that_everybody_reads_tells_no_tokens(lineage: Lineage, tmp_path: Path) -> None:
    """Such as one that was made before: its versions stay readable, consumers' files do not."""
    for path in [lineage.path, *lineage.path.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    publish(lineage, 2)
    probe = add_probe(lineage, tmp_path)
    found = modes(lineage.path)
    assert found["versions/2/manifest.json"] == found["lineage.json"] == 0o644
    assert found["embeddings/2"] == 0o755
    assert found["consumers.json"] == found[probe.model] == 0o640
    assert found["probes"] == 0o750


# What is in its files, with hashes that are right.


def rewritten(lineage: Lineage, name: str, content: Callable[[Path], object]) -> Path:
    """A file of version 1 changed, and its hash in the manifest with it."""
    path = lineage.path / "versions/1" / name
    content(path)

    def change(facts: dict[str, Any]) -> None:
        facts["files"][name] = hashlib.sha256(path.read_bytes()).hexdigest()

    forge(lineage.path / "versions/1/manifest.json", change)
    return lineage.path


def tensors(**changed: torch.Tensor | None) -> Callable[[Path], None]:
    """A file of tensors with some others in their place, or without them."""

    def write(path: Path) -> None:
        found = {**load_file(path), **changed}
        save_file({k: v for k, v in found.items() if v is not None}, path)

    return write


def column(name: str, values: list[Any] | None) -> Callable[[Path], None]:
    """A Parquet file with another column in its place, or without it."""

    def write(path: Path) -> None:
        table = pq.read_table(path)
        place = table.column_names.index(name)
        table = table.remove_column(place)
        if values is not None:
            values_of_all = pa.array(values * len(table))
            table = table.add_column(place, name, values_of_all)
        pq.write_table(table, path)

    return write


NAN = torch.full((6, 8), torch.nan)
FORGED: list[tuple[str, Callable[[Path], object], Callable[[Lineage], Any]]] = [
    ("transform.safetensors", tensors(weight=NAN), lambda line: line.chain),
    ("transform.safetensors", tensors(weight=None), lambda line: line.chain),
    ("transform.safetensors", lambda path: path.write_bytes(b"x"), lambda line: line.chain),
    ("forward.safetensors", tensors(offset=None), lambda line: line.forward(0, 1)),
    ("forward.safetensors", tensors(weight=torch.ones(3)), lambda line: line.forward(0, 1)),
    (
        "moments.safetensors",
        tensors(**{"object.count": torch.ones(2)}),
        lambda line: line.moments(1),
    ),
    ("moments.safetensors", tensors(**{"object.mean": None}), lambda line: line.moments(1)),
    ("canary.parquet", column("side", None), lambda line: line.canaries(1)),
    ("canary.parquet", column("side", [[1]]), lambda line: line.canaries(1)),
    ("canary.parquet", column("id", [[1]]), lambda line: line.canaries(1)),
    ("canary.parquet", column("vector", [[1.0]]), lambda line: line.canaries(1)),
    ("canary.parquet", lambda path: path.write_bytes(b"x"), lambda line: line.canaries(1)),
    ("trained_pairs.parquet", column("pair", None), lambda line: line.pair_history),
    ("trained_pairs.parquet", column("pair", [[1]]), lambda line: line.pair_history),
    ("trained_pairs.parquet", column("pair", ["5"]), lambda line: line.pair_history),
    ("metrics.json", lambda path: path.write_text("[]"), lambda line: line.metrics(1)),
    ("metrics.json", lambda path: path.write_text("{"), lambda line: line.metrics(1)),
    ("metrics.json", lambda path: path.write_bytes(b"\xff"), lambda line: line.metrics(1)),
    (
        "metrics.json",
        lambda path: path.write_text('{"metrics": {"model": {"a": []}}}'),
        lambda line: line.metrics(1),
    ),
    ("metrics.json", lambda path: path.write_text('{"probes": [1]}'), lambda line: line.metrics(1)),
]


@pytest.mark.parametrize(
    ("name", "content", "read"), FORGED, ids=[f"{n} {i}" for i, (n, *_) in enumerate(FORGED)]
)
def test_contents_that_do_not_fit_are_an_error(
    tmp_path: Path,
    name: str,
    content: Callable[[Path], object],
    read: Callable[[Lineage], Any],
) -> None:
    lineage = Lineage.create(tmp_path / "line")
    ids = pa.array(range(300))
    for version in range(2):
        back = None if not version else LinearTransform.from_matrix(torch.eye(6, 8))
        vectors = vectors_of(version)
        found = Artefact(
            dim=vectors.shape[1],
            embeddings={"object": (ids, vectors)},
            transform=back,
            metrics={"metrics": {"model": {}}},
            recipe={},
            canaries={"object": (ids[:20], vectors[:20])},
            trained=("line", TrainedPairs(np.array([7 + version], np.uint32))),
        )
        lineage.publish(found)
    read(Lineage.open(lineage.path))
    path = rewritten(lineage, name, content)
    with pytest.raises(EvergramError, match=name):
        read(Lineage.open(path))
