"""The files of a lineage: records and manifests, links out of its folder, permissions, and work."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.artefacts import artefact
from tests.support.folding import DIMS, form_of
from tests.support.forging import forge
from tests.support.lineages import publish
from tests.support.outside import SECRET
from tests.support.probe_files import add_probe
from tests.support.publishing import publish_next

from evergram.data.split import TrainedPairs
from evergram.errors import FormatError, IntegrityError, LineageError
from evergram.lineage.artefact import (
    FORM_TENSORS,
    load_tensors,
    read_query_form,
    read_trained_pairs,
    save_tensors,
    write_query_form,
    write_trained_pairs,
)
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.lineage.locks import (
    LOCK,
    PARTS,
    clear_work,
    training_claim,
)
from evergram.lineage.record import (
    LineageRecord,
    Manifest,
    parse_record,
    sha256,
)
from evergram.retrieval.fill import local_stores
from evergram.vector_files.open_embeddings import write_vectors


def record(**fields: Any) -> LineageRecord:
    return LineageRecord.model_validate(
        {"format_version": 1, "name": "shop", "versions": [0, 1], **fields}
    )


def test_a_field_that_was_changed_contradicts_the_checksum() -> None:
    facts = json.loads(record(labels={"stable": 1}).to_json())
    facts["labels"]["stable"] = 0
    with pytest.raises(IntegrityError, match=r"shop/lineage\.json is damaged: its checksum does"):
        parse_record(json.dumps(facts), "shop")


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (None, LineageError, r"^shop is not a lineage \(it has no lineage\.json\)"),
        ("{", IntegrityError, "is damaged"),
        ("[]", IntegrityError, "is damaged"),
        ('{"format_version": 9, "name": 1}', FormatError, "has format_version 9; .*reads 1,"),
        ('{"format_version": 1, "name": "a", "versions": []}', IntegrityError, "has no checksum"),
    ],
)
def test_another_text_says_what_is_wrong(
    text: str | None, kind: type[LineageError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        parse_record(text, "shop")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
HASHES = st.text("0123456789abcdef", min_size=64, max_size=64)
TABLE = st.dictionaries(st.text(min_size=1), PLAIN, max_size=3)


@st.composite
def trained(draw: st.DrawFn) -> dict[str, Any]:
    """The JSON of a manifest of a model."""
    return {
        "version": draw(st.integers(0, 9)),
        "name": draw(st.text()),
        "dim": draw(st.integers(1, 1024)),
        "created": draw(st.text()),
        "evergram": draw(st.text()),
        "encoder": {
            "kind": draw(st.sampled_from(["factorization", "two_tower"])),
            "options": draw(TABLE),
            "inputs": {"query": {"id": draw(st.text())}},
            "vocabularies": {"query.id": "string"},
        },
        "transform": draw(st.sampled_from([None, {"kind": "linear", "options": {}}])),
        "recipe": draw(TABLE),
        "files": {
            "encoder.safetensors": draw(HASHES),
            "vocabularies.parquet": draw(HASHES),
            "metrics.json": draw(HASHES),
        },
        "embeddings": {"query": draw(HASHES)},
    }


def identity(values: dict[str, Any]) -> str:
    return Manifest.model_validate(values).fingerprint


@settings(max_examples=40)
@given(values=trained(), other=trained())
def test_fields_that_change_no_vector_change_no_fingerprint(
    values: dict[str, Any], other: dict[str, Any]
) -> None:
    before = identity(values)
    assert len(before) == 71
    assert before.startswith("sha256:")
    for key in ("version", "name", "created", "evergram", "transform", "embeddings"):
        values[key] = other[key]
    values["files"]["metrics.json"] = other["files"]["metrics.json"]
    values["recipe"] = dict(reversed(values["recipe"].items()))
    assert identity(values) == before
    # Nor does writing and reading it.
    assert read(Manifest.model_validate(values)).fingerprint == before


def read(manifest: Manifest) -> Manifest:
    return Manifest.model_validate_json(manifest.model_dump_json())


@given(values=trained(), data=st.data())
def test_each_part_of_a_training_changes_the_fingerprint(
    values: dict[str, Any], data: st.DataObject
) -> None:
    changes: dict[str, Any] = {
        "dim": values["dim"] + 1,
        "recipe": {**values["recipe"], "new key": 1},
        "files encoder.safetensors": data.draw(HASHES),
        "files vocabularies.parquet": data.draw(HASHES),
        "encoder kind": "lightgcn",
        "encoder options": {**values["encoder"]["options"], "normalize": True, "n": 1},
        "encoder inputs": {"query": {"id": values["encoder"]["inputs"]["query"]["id"] + "x"}},
    }
    seen = {identity(values)}
    for path, value in changes.items():
        changed = copy.deepcopy(values)
        *way, last = path.split(" ", 1)
        place = changed[way[0]] if way else changed
        if place[last] != value:
            place[last] = value
            other = identity(changed)
            assert other not in seen, path
            seen.add(other)


@given(values=trained(), hashes=HASHES)
def test_the_fingerprint_of_files_is_that_of_their_vectors(
    values: dict[str, Any], hashes: str
) -> None:
    values["encoder"] = None
    before = identity(values)
    assert identity({**values, "recipe": {"other": 1}, "files": {}}) == before
    assert identity({**values, "dim": values["dim"] + 1}) != before
    if hashes != values["embeddings"]["query"]:
        assert identity({**values, "embeddings": {"query": hashes}}) != before
    assert identity({**values, "embeddings": {"object": values["embeddings"]["query"]}}) != before


def test_a_manifest_that_was_changed_contradicts_its_fingerprint(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path)
    publish_next(lineage, artefact(2))
    path = tmp_path / "versions" / "0" / "manifest.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "recipe": {"name": "y"}}))
    with pytest.raises(IntegrityError, match="its fingerprint does not match its contents"):
        Lineage.open(tmp_path)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    form = form_of(1, values=True)
    write_query_form(form, tmp_path)
    read = read_query_form(tmp_path, DIMS[1])
    for name in ("strengths", "powers", "matrices", "centres"):
        assert torch.equal(getattr(read, name), getattr(form, name))
    for name in ("rule", "squares", "pull", "length", "values"):
        assert getattr(read, name) == getattr(form, name)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_query_form(form_of(1), tmp_path)
    with pytest.raises(IntegrityError, match="has dim 4, its version 9"):
        read_query_form(tmp_path, 9)
    tensors = load_tensors(tmp_path / FORM_TENSORS)
    save_tensors({k: v for k, v in tensors.items() if k != "powers"}, tmp_path / FORM_TENSORS)
    with pytest.raises(IntegrityError, match="powers"):
        read_query_form(tmp_path, DIMS[1])
    save_tensors({**tensors, "matrices": tensors["matrices"] * torch.nan}, tmp_path / FORM_TENSORS)
    with pytest.raises(IntegrityError, match="NaN"):
        read_query_form(tmp_path, DIMS[1])


@pytest.mark.parametrize("count", [0, 1, 100_000])
def test_hashes_are_read_as_they_were_written(tmp_path: Path, count: int) -> None:
    draw = np.random.default_rng(0)
    marks = np.unique(draw.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32))
    write_trained_pairs(TrainedPairs(marks), tmp_path / "p")
    assert np.array_equal(read_trained_pairs(tmp_path / "p").marks, marks)
    # By their differences; as plain numbers they would take 32 bits each.
    assert (tmp_path / "p").stat().st_size < 1000 + 20 / 8 * count


def test_other_numbers_are_refused(tmp_path: Path) -> None:
    for numbers, kind in (([1, 2], pa.int64()), ([2, 1], pa.uint32()), ([1, 1], pa.uint32())):
        pq.write_table(pa.table({"pair": pa.array(numbers, kind)}), tmp_path / "p")
        with pytest.raises(IntegrityError, match="does not hold ascending 32-bit numbers"):
            read_trained_pairs(tmp_path / "p")


@pytest.mark.parametrize(
    ("ids", "dim", "named"),
    [
        ([1], 3, r"object\.parquet .* shape \[1, 3\], but its manifest has dim 8"),
        ([1, None], 8, "1 missing"),
    ],
)
def test_vectors_of_another_dim_or_without_ids_are_refused(
    lineage: Lineage, ids: list[Any], dim: int, named: str
) -> None:
    """Though their hash is in the manifest, as somebody who forges them would write it."""
    path = lineage.stored("object")
    write_vectors(path, [(pa.array(ids), torch.ones(len(ids), dim))])
    digest = sha256(path)
    manifest = lineage.path / "versions/1/manifest.json"
    forge(manifest, lambda facts: facts["embeddings"].update(object=digest))
    with pytest.raises(IntegrityError, match=named):
        Lineage.open(lineage.path).embeddings("object")


@pytest.mark.parametrize("name", ["../../../x", "..", "a b", "a\n", "\x1b]0;x", "a" * 200])
def test_a_forged_name_is_not_read(lineage: Lineage, name: str) -> None:
    """Names become paths that are read from and written to, and are shown on terminals."""
    path, manifest = lineage.path / "lineage.json", lineage.path / "versions/1/manifest.json"
    forged: list[tuple[Path, Callable[[dict[str, Any]], None]]] = [
        (path, lambda facts: facts.update(name=name)),
        (path, lambda facts: facts["labels"].update({name: 0})),
        (manifest, lambda facts: facts["files"].update({name: "0" * 64})),
        (manifest, lambda facts: facts["embeddings"].update({name: "0" * 64})),
    ]
    for file, change in forged:
        whole = file.read_text()
        forge(file, change)
        with pytest.raises(IntegrityError, match=rf"{re.escape(repr(name))} cannot be"):
            Lineage.open(lineage.path)
        file.write_text(whole)


def test_a_metric_that_could_not_be_measured_is_null_in_json(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    nothing = {"a": float("nan"), "b": [1.0, float("inf")], "c": {"d": 2}}
    lineage.publish(dataclasses.replace(artefact(2), metrics=nothing))
    assert lineage.metrics(0) == {"a": None, "b": [1.0, None], "c": {"d": 2}}


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


def test_a_new_lineage_takes_no_folder_of_other_files(tmp_path: Path) -> None:
    """They would be removed where they stand in `versions` or `embeddings`."""
    left = [".lock", "versions/0/manifest.json", "embeddings/.0.part/x"]
    taken = [[], [".gitkeep", "lost+found/x"], [".work/training.lock"], left]
    refused = [["readme.txt"], ["versions/0/manifest.json"], [".lock", "versions/1/manifest.json"]]
    refused.append([".lock", "versions/0/x", "consumers.json"])
    for number, files in enumerate([*taken, *refused]):
        folder = tmp_path / str(number)
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        if files in taken:
            Lineage.create(folder, "shop")
            continue
        with pytest.raises(LineageError, match=r"has other files .* give an empty folder"):
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


def test_a_checkpoint_stays_in_the_folder_and_nothing_empty_does(tmp_path: Path) -> None:
    work = tmp_path / "shop" / ".work"
    with training_claim(work, "shop"), training_claim(work, "shop"):
        assert work.is_dir()
    assert not (tmp_path / "shop").exists()
    with training_claim(work, "shop"):
        with training_claim(work, "shop"):
            pass
        assert work.is_dir(), "the outer claim still holds"
        (work / "checkpoint").write_text("x")
    assert {path.name for path in work.iterdir()} - {LOCK} == {"checkpoint"}


def test_checkpoints_go_unless_another_process_trains(tmp_path: Path) -> None:
    work = tmp_path / ".work"
    (work / "folder").mkdir(parents=True)
    (work / "folder" / "checkpoint").write_text("x")
    (work / "checkpoint").write_text("x")
    with FileLock(work / LOCK):  # another process trains
        clear_work(work)
        assert (work / "checkpoint").exists()
    clear_work(work)
    assert not work.exists()
