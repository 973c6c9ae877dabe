"""The sidecar of a version: its file, and which rows it knows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.retrieval.sidecars.conftest import Made
from tests.support.embedding_files import file_of, randn

from evergram.compatibility.sidecar.sidecar_file import content_digest
from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.releasing.files.align_settings import AlignSettings
from evergram.retrieval.sidecars.make_sidecar import make_sidecar
from evergram.retrieval.sidecars.version_sidecar import KEY, VersionSidecar
from evergram.stores.rows import Rows


def test_a_file_reads_as_it_was_written(made: Made, tmp_path: Path) -> None:
    sidecar = VersionSidecar.open(made.sidecars[2])
    sidecar.save(tmp_path / "again")
    same = VersionSidecar.open(tmp_path / "again")
    assert same.ids.equals(sidecar.ids)
    assert same.ids.type == made.ids.type
    assert np.array_equal(same.marks, sidecar.marks)
    assert np.array_equal(same.old_marks, sidecar.old_marks)
    assert (same.version, same.target, same.side) == (2, 1, "object")
    assert (same.error, same.way_back_error) == (sidecar.error, sidecar.way_back_error)
    new = made.vectors[2].numpy()
    places = same.known(Rows(2, made.ids, new))
    assert np.array_equal(places, np.arange(len(new)))
    assert np.array_equal(same.read(places, new), sidecar.read(places, new))
    assert (same.known(Rows(2, made.ids, new + 1)) < 0).all()
    # As a store of float16 has them, and under ids that it has no codes of.
    half = new.astype(np.float16).astype(np.float32)
    assert (same.known(Rows(2, made.ids, half)) >= 0).all()
    others = pa.array([f"other{n}" for n in range(len(new))])
    assert (same.known(Rows(2, others, new)) < 0).all()
    # Under each other's ids.
    assert (same.known(Rows(2, made.ids, np.roll(new, 1, axis=0))) < 0).all()


def test_stores_may_have_ids_of_the_other_type(made: Made) -> None:
    sidecar, new = VersionSidecar.open(made.sidecars[2]), made.vectors[2].numpy()
    if pa.types.is_integer(made.ids.type):
        texts = made.ids.cast(pa.string())
        assert np.array_equal(sidecar.known(Rows(2, texts, new)), np.arange(len(new)))
    else:
        numbers = pa.array(range(len(new)))
        assert (sidecar.known(Rows(2, numbers, new)) < 0).all()


def test_ids_of_any_letters_are_kept(tmp_path: Path) -> None:
    ids = pa.array(["-1", "ä", "日本", "a b", *(f"x{n}" for n in range(896))])
    lineage = Lineage.create(tmp_path / "line", "line")
    files = [file_of(tmp_path / f"{n}.parquet", randn(n, 900, 4), ids) for n in (0, 1)]
    align(files[0], files[1], lineage, AlignSettings("affine"), max_error=float("inf"))
    make_sidecar(lineage, files[0], size=2).save(tmp_path / "s")
    assert VersionSidecar.open(tmp_path / "s").ids.equals(ids)


def test_a_damaged_file_is_refused(made: Made, tmp_path: Path) -> None:
    tensors, path = load_file(made.sidecars[2]), tmp_path / "s"
    with safe_open(made.sidecars[2], "pt") as file:
        record = json.loads(file.metadata()[KEY])
    for wrong, changed, message in (
        ({}, {"format_version": 3}, "format version 3"),
        ({}, {"memory": 7}, "damaged"),
        ({"codes": tensors["codes"][:-1].contiguous()}, {}, "damaged"),
        ({"marks": tensors["marks"][:-1].contiguous()}, {}, "damaged"),
        ({"old_marks": tensors["old_marks"][:, :2].contiguous()}, {}, "damaged"),
        ({"bits": tensors["bits"] * 0}, {}, "damaged"),
        ({"basis": tensors["basis"] * torch.nan}, {}, "damaged"),
    ):
        content = content_digest(tensors | wrong)
        save_file(tensors | wrong, path, {KEY: json.dumps(record | {"content": content} | changed)})
        with pytest.raises(DataError, match=message):
            VersionSidecar.open(path)
    for name in tensors:  # one bit
        wrong = {name: tensors[name].clone()}
        wrong[name].view(torch.uint8).flatten()[-1] ^= 1
        save_file(tensors | wrong, path, {KEY: json.dumps(record)})
        with pytest.raises(DataError, match="damaged"):
            VersionSidecar.open(path)
    save_file({"codes": tensors["codes"]}, path, {KEY: json.dumps(record)})
    with pytest.raises(DataError, match="no sidecar of a version"):
        VersionSidecar.open(path)
