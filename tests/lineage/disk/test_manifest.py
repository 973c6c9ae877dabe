"""The identity of a version: the same for the same training, another for anything else."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.forging import forge
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.data.corpus import Vocabulary
from evergram.errors import IntegrityError
from evergram.lineage.artefact import Artefact, EncoderParts
from evergram.lineage.disk.manifest import (
    Manifest,
    TransformRecord,
    check_files,
    read_manifest,
    sha256,
)
from evergram.lineage.lineage import Lineage

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


def model(scale: float = 1.0, seed: int = 3) -> Artefact:
    ids = pa.array(["a", "b"])
    z = torch.arange(4.0).reshape(2, 2) * scale
    return Artefact(
        dim=2,
        encoder=EncoderParts(
            kind="factorization",
            options={"dim": 2},
            state={"query.weight": z},
            inputs={"query": {"id": "query.id"}},
            vocabularies={"query.id": Vocabulary(ids)},
        ),
        embeddings={"query": (ids, z)},
        transform=None,
        metrics={"metrics": {"model": {}}, "seconds": float(torch.rand(()))},
        recipe={"seed": seed},
    )


def test_the_same_training_has_the_same_fingerprint_twice(tmp_path: Path) -> None:
    fingerprints = []
    for number, made in enumerate((model(), model(), model(2.0), model(seed=4))):
        lineage = Lineage.create(tmp_path / str(number), f"name{number}")
        lineage.publish(made)
        fingerprints.append(lineage.manifest(0).fingerprint)
        assert lineage.version_of(fingerprints[-1]) == 0
        assert lineage.version_of("sha256:" + "0" * 64) is None
    assert fingerprints[0] == fingerprints[1]
    assert len(set(fingerprints)) == 3


def test_a_lineage_knows_its_versions_by_fingerprint(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path)
    publish_next(lineage, model())
    back = LinearTransform.from_matrix(torch.eye(2))
    publish_next(lineage, Artefact(**{**vars(model(2.0)), "transform": back}))
    for manifest in lineage.versions:
        assert lineage.version_of(manifest.fingerprint) == manifest.version


def test_a_manifest_that_was_changed_contradicts_its_fingerprint(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path)
    publish_next(lineage, model())
    path = tmp_path / "versions" / "0" / "manifest.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "recipe": {"seed": 5}}))
    with pytest.raises(IntegrityError, match="its fingerprint is not that of its contents"):
        Lineage.open(tmp_path)


@pytest.mark.parametrize("side", ["../../../x", "/etc/x", "a/b", "", ".", "..", "a\n", "a" * 200])
@pytest.mark.parametrize("table", ["embeddings", "files"])
def test_a_name_in_a_manifest_is_a_name_of_a_file(lineage: Lineage, table: str, side: str) -> None:
    forge(lineage.path / "versions/1/manifest.json", lambda f: f[table].update({side: "0" * 64}))
    with pytest.raises(IntegrityError, match="cannot be the name of a file or a side"):
        Lineage.open(lineage.path)


def test_files_are_compared_with_their_hashes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    hashes = {"a": hashlib.sha256(b"x").hexdigest()}
    assert sha256(tmp_path / "a") == hashes["a"]
    check_files(tmp_path, hashes)
    with pytest.raises(IntegrityError, match="b is missing; restore it from a copy"):
        check_files(tmp_path, {**hashes, "b": "0" * 64})
    (tmp_path / "a").write_bytes(b"y")
    with pytest.raises(IntegrityError, match=r"a is not the file that was published \(its SHA-256"):
        check_files(tmp_path, hashes)


def test_a_manifest_without_a_checksum_is_refused(lineage: Lineage) -> None:
    folder = lineage.path / "versions" / "1"
    facts = json.loads((folder / "manifest.json").read_text())
    del facts["check"]
    (folder / "manifest.json").write_text(json.dumps(facts))
    with pytest.raises(IntegrityError, match=r"manifest\.json is damaged: it has no checksum"):
        read_manifest(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(IntegrityError, match=r"manifest\.json cannot be read: No such file"):
        read_manifest(folder)


def test_a_kind_of_another_process_is_read_and_what_is_no_name_is_not() -> None:
    assert TransformRecord(kind="diagonal").kind == "diagonal"
    with pytest.raises(ValueError, match="should match pattern"):
        TransformRecord(kind="../linear")
