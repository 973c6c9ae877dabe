"""`lineage.json`: its names, its checksum and its formats."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.artefacts import artefact
from tests.support.folding import DIMS, form_of
from tests.support.forging import forge
from tests.support.publishing import publish_next

from evergram.data.pair_hash import TrainedPairs
from evergram.errors import FormatError, IntegrityError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.lineage.manifest import (
    Manifest,
    read_manifest,
    sha256,
)
from evergram.lineage.record import (
    LineageRecord,
    parse_record,
)
from evergram.lineage.version_files import (
    FORM_TENSORS,
    load_tensors,
    read_query_form,
    read_trained_pairs,
    save_tensors,
    write_query_form,
    write_trained_pairs,
)
from evergram.vector_files.writers import write_embeddings


def record(**fields: Any) -> LineageRecord:
    return LineageRecord.model_validate(
        {"format_version": 1, "name": "shop", "versions": [0, 1], **fields}
    )


def test_a_field_that_was_changed_contradicts_the_checksum() -> None:
    facts = json.loads(record(labels={"stable": 1}).to_json())
    facts["labels"]["stable"] = 0
    with pytest.raises(IntegrityError, match=r"shop/lineage\.json is damaged: its checksum is not"):
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
    with pytest.raises(IntegrityError, match="its fingerprint is not that of its contents"):
        Lineage.open(tmp_path)


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


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2], pa.int64()),
        pa.array([2, 1], pa.uint32()),
        pa.array([1, 1], pa.uint32()),
    ],
)
def test_other_numbers_are_refused(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"pair": column}), tmp_path / "p")
    with pytest.raises(IntegrityError, match="does not hold ascending 32-bit numbers"):
        read_trained_pairs(tmp_path / "p")


@pytest.mark.parametrize(
    ("ids", "dim", "named"),
    [([1], 3, r"object\.parquet has dim 3, its manifest 8"), ([1, None], 8, "without an id or")],
)
def test_vectors_of_another_dim_or_without_ids_are_refused(
    lineage: Lineage, ids: list[Any], dim: int, named: str
) -> None:
    """Though their hash is in the manifest, as somebody who forges them would write it."""
    path = lineage.stored("object")
    write_embeddings(path, [(pa.array(ids), torch.ones(len(ids), dim))])
    digest = sha256(path)
    manifest = lineage.path / "versions/1/manifest.json"
    forge(manifest, lambda facts: facts["embeddings"].update(object=digest))
    with pytest.raises(IntegrityError, match=named):
        Lineage.open(lineage.path).embeddings("object")


def test_a_metric_that_could_not_be_measured_is_null_in_json(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    nothing = {"a": float("nan"), "b": [1.0, float("inf")], "c": {"d": 2}}
    lineage.publish(dataclasses.replace(artefact(2), metrics=nothing))
    assert lineage.metrics(0) == {"a": None, "b": [1.0, None], "c": {"d": 2}}
