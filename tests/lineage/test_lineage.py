"""A lineage on disk: whole or not there, and what was published or an error."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from filelock import FileLock
from tests.support.artefacts import artefact
from tests.support.dying import is_alone

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import (
    DataError,
    FormatError,
    IntegrityError,
    LineageError,
    ShapeError,
    UnknownVersionError,
)
from evergram.lineage.lineage import Lineage
from evergram.vector_files.open_embeddings import open_embeddings


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 to 2, of dims 2, 3 and 4."""
    found = Lineage.create(tmp_path / "lineage", "shop")
    found.publish(artefact(2))
    found.publish(artefact(3, 2, seed=1))
    found.publish(artefact(4, 3, seed=2))
    return found


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted(path.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }


def test_what_was_published_is_read_back(lineage: Lineage) -> None:
    again = Lineage.open(lineage.path)
    assert [(m.version, m.dim, m.name) for m in again.versions] == [
        (0, 2, "shop@v0"),
        (1, 3, "shop@v1"),
        (2, 4, "shop@v2"),
    ]
    published = artefact(4, 3, seed=2)
    ids, vectors = again.embeddings("candidate")
    assert ids.equals(published.block("candidate")[0])
    assert torch.equal(vectors, published.block("candidate")[1])
    record, state, vocabularies = again.encoder_parts(1)
    assert record.kind == "factorization"
    assert torch.equal(state["query.weight"], artefact(3, 2, seed=1).block("query")[1])
    assert vocabularies["candidate.id"].keys.equals(pa.array([10, 20]))
    assert again.metrics(0) == {"metrics": {"model": {"recall@20": 0.5}}}
    canary = pq.read_table(again.path / "versions" / "0" / "canary.parquet")
    assert canary["id"].to_pylist() == ["a", "10"]


def test_only_the_newest_embeddings_are_stored(lineage: Lineage) -> None:
    assert [p.name for p in (lineage.path / "embeddings").iterdir()] == ["2"]


def test_a_view_is_the_product_of_the_transforms(lineage: Lineage) -> None:
    steps = []
    for published in (artefact(3, 2, seed=1), artefact(4, 3, seed=2)):
        assert isinstance(published.transform, LinearTransform)
        steps.append(published.transform.weight.detach())
    z = artefact(4, 3, seed=2).block("query")[1]
    expected = {2: z, 1: z @ steps[1].T, 0: z @ steps[1].T @ steps[0].T}
    for version, vectors in expected.items():
        view = lineage.view(version)
        ids, found = view.embeddings("query")
        assert ids.to_pylist() == ["a", "b", "c"]
        torch.testing.assert_close(found, vectors)
        assert (view.version, view.source, view.dim) == (version, 2, vectors.shape[1])
    assert torch.equal(lineage.view().embeddings("query")[1], z)


def test_an_export_is_ids_and_fixed_size_lists(lineage: Lineage, tmp_path: Path) -> None:
    rows = lineage.view(0).export(tmp_path / "out.parquet", "query", batch=2)
    table = pq.read_table(tmp_path / "out.parquet")
    assert rows == table.num_rows == 3
    assert table.column_names == ["id", "vector"]
    assert table["vector"].type == pa.list_(pa.float32(), 2)
    assert table["vector"][1].as_py() == lineage.view(0).embeddings("query")[1][1].tolist()


def test_an_export_is_what_its_suffix_says_and_is_not_written_over(
    lineage: Lineage, tmp_path: Path
) -> None:
    path = tmp_path / "out.npy"
    view = lineage.view(0)
    assert view.export(path, "query") == 3
    assert np.load(path).tolist() == view.embeddings("query")[1].tolist()
    assert open_embeddings(path).ids().to_pylist() == ["a", "b", "c"]
    with pytest.raises(DataError, match="is there already and is not written over"):
        view.export(path, "query")
    assert view.export(path, "query", overwrite=True) == 3


def test_an_export_that_cannot_be_written(lineage: Lineage, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="make the folder first"):
        lineage.view(0).export(tmp_path / "nowhere" / "out.parquet", "query")


def test_what_is_not_there_is_said(lineage: Lineage, tmp_path: Path) -> None:
    with pytest.raises(UnknownVersionError, match="its versions are: 0, 1, 2"):
        lineage.view(3)
    with pytest.raises(LineageError, match="no side 'item'"):
        lineage.embeddings("item")
    with pytest.raises(LineageError, match="not a lineage"):
        Lineage.open(tmp_path)
    with pytest.raises(LineageError, match="already holds"):
        Lineage.create(lineage.path)
    with pytest.raises(UnknownVersionError, match="no version yet"):
        _ = Lineage.create(tmp_path / "new").newest
    assert not (tmp_path / "new").exists()


def test_a_transform_that_does_not_fit_is_refused(lineage: Lineage) -> None:
    before = contents(lineage.path)
    with pytest.raises(ShapeError, match=r"\(4, 5\)"):
        lineage.publish(artefact(5, 3))
    with pytest.raises(ShapeError, match="Version 3 needs"):
        lineage.publish(artefact(5))
    assert contents(lineage.path) == before


FILES = [
    "versions/1/encoder.safetensors",
    "versions/1/vocabularies.parquet",
    "versions/2/transform.safetensors",
    "versions/1/metrics.json",
    "embeddings/2/query.parquet",
]


def read_everything(path: Path) -> None:
    found = Lineage.open(path)
    for n in range(3):
        found.encoder_parts(n)
        found.metrics(n)
        found.view(n).embeddings("query")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_noticed(lineage: Lineage, name: str, damage: str) -> None:
    path = lineage.path / name
    content = bytearray(path.read_bytes())
    read_everything(lineage.path)
    if damage == "remove":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(IntegrityError, match=path.name):
        read_everything(lineage.path)


@pytest.mark.parametrize("name", ["lineage.json", "versions/1/manifest.json"])
def test_damaged_json_is_noticed(lineage: Lineage, name: str) -> None:
    (lineage.path / name).write_text("{")
    with pytest.raises(IntegrityError, match="damaged"):
        Lineage.open(lineage.path)


def test_format_1_is_still_read(lineage: Lineage) -> None:
    expected = lineage.view(0).embeddings("query")[1]
    for path in (lineage.path, *(lineage.path / "versions").iterdir()):
        file = path / ("lineage.json" if path == lineage.path else "manifest.json")
        found = json.loads(file.read_text())
        if "format_version" in found:
            found = {k: found[k] for k in ("name", "versions")} | {"format_version": 1}
        else:
            del found["fingerprint"], found["check"]
            found["transform"] = found["transform"] and found["transform"]["kind"]
        file.write_text(json.dumps(found))
    again = Lineage.open(lineage.path)
    assert torch.equal(again.view(0).embeddings("query")[1], expected)


def test_a_later_format_is_refused(lineage: Lineage) -> None:
    path = lineage.path / "lineage.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 99}))
    with pytest.raises(FormatError, match="format_version 99"):
        Lineage.open(lineage.path)


def test_a_version_in_another_ones_place_is_refused(lineage: Lineage) -> None:
    versions = lineage.path / "versions"
    shutil.rmtree(versions / "1")
    shutil.copytree(versions / "2", versions / "1")
    with pytest.raises(IntegrityError, match="another version"):
        Lineage.open(lineage.path)


def _die_at(call: int, path: Path) -> None:
    """Publish, and die without a word at the given system call that changes a name or syncs."""
    left = call

    def counted(real: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left == 0:
                os._exit(9)
            left -= 1
            return real(*args, **kwargs)

        return wrapper

    for name in ("rename", "replace", "fsync"):
        setattr(os, name, counted(getattr(os, name)))
    Lineage.open(path).publish(artefact(5, 4, seed=3))
    os._exit(0)


@pytest.mark.long
def test_death_at_any_moment_of_a_publication_leaves_the_lineage_whole(
    lineage: Lineage, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not is_alone(request):
        return
    before = contents(lineage.path)
    context = multiprocessing.get_context("fork")
    died = 0
    for call in range(100):
        copy = tmp_path / f"copy{call}"
        shutil.copytree(lineage.path, copy)
        process = context.Process(target=_die_at, args=(call, copy))
        process.start()
        process.join()
        found = Lineage.open(copy)
        if process.exitcode == 0:
            assert found.newest == 3
            break
        died += 1
        assert found.newest in (2, 3)
        if found.newest == 2:
            left = contents(copy)
            assert {k: left[k] for k in before} == before
            # The next publication clears away what was left and succeeds.
            assert found.publish(artefact(5, 4, seed=3)) == 3
        assert Lineage.open(copy).view(0).embeddings("query")[1].shape == (3, 2)
        assert not list(copy.rglob(".*.part"))
    assert died > 10


def test_a_publication_against_an_older_state_is_refused(lineage: Lineage) -> None:
    stale = Lineage.open(lineage.path)
    lineage.publish(artefact(5, 4))
    before = contents(lineage.path)
    with pytest.raises(LineageError, match="newest version is 3"):
        stale.publish(artefact(6, 4))
    with pytest.raises(LineageError, match="open it again"):
        stale.embeddings("query")
    kept = contents(lineage.path)
    # Beside the lineage the model that came too late is kept; see test_nothing_silent.
    assert {k: v for k, v in kept.items() if not k.startswith(".work/lost/")} == before


def test_what_could_not_be_measured_is_null_in_json(tmp_path: Path) -> None:
    found = Lineage.create(tmp_path / "lineage")
    nothing = {"a": float("nan"), "b": [1.0, float("inf")], "c": {"d": 2}}
    found.publish(dataclasses.replace(artefact(2), metrics=nothing))
    assert found.metrics(0) == {"a": None, "b": [1.0, None], "c": {"d": 2}}


def test_two_publications_at_once_do_not_mix(lineage: Lineage) -> None:
    with (
        FileLock(lineage.path / ".lock"),
        pytest.raises(LineageError, match="Another process"),
    ):
        Lineage.open(lineage.path).publish(artefact(5, 4))
