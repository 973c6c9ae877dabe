"""Files of every format carry the version that their vectors are of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from evergram.errors import DataError
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.provenance import COMPUTED_FROM, FINGERPRINT, provenance_of
from evergram.vector_files.writers import write_vectors

FORMATS = ("parquet", "pq", "arrow", "arrows", "npy", "safetensors")
PROVENANCE = provenance_of("sha256:" + "a" * 64, "sha256:" + "b" * 64)
VECTORS = torch.arange(8.0).reshape(4, 2)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("ids", [[0, 1, 2, 3], [7, 5, 3, 1], ["a", "b", "c", "d"]])
def test_provenance_that_is_written_is_read(
    tmp_path: Path, suffix: str, ids: list[int | str]
) -> None:
    path = tmp_path / f"x.{suffix}"
    blocks = [(pa.array(ids[:3]), VECTORS[:3]), (pa.array(ids[3:]), VECTORS[3:])]
    write_vectors(path, blocks, PROVENANCE)
    file = open_embeddings(path)
    assert file.fingerprint == "sha256:" + "a" * 64
    assert file.provenance == {
        FINGERPRINT: "sha256:" + "a" * 64,
        COMPUTED_FROM: "sha256:" + "b" * 64,
    }
    assert [str(i) for i in file.ids().to_pylist()] == [str(i) for i in ids]
    assert torch.equal(torch.cat([v for _, v in file.blocks()]), VECTORS)
    # Without any, the file says nothing, also where one that did was in its place.
    write_vectors(path, blocks)
    again = open_embeddings(path)
    assert (again.fingerprint, again.provenance) == (None, {})
    assert {p.name for p in tmp_path.iterdir()} <= {path.name, "x.ids.txt", "x.npy.json"}


def test_other_metadata_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_vectors(path, [(pa.array([1]), VECTORS[:1])], {"author": "somebody", "pandas": "{}"})
    assert open_embeddings(path).provenance == {}


@pytest.mark.parametrize("text", ["{", "[1]", "null"])
def test_damaged_provenance_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.npy"
    np.save(path, VECTORS.numpy())
    (tmp_path / "x.npy.json").write_text(text)
    with pytest.raises(DataError, match=r"x\.npy\.json"):
        open_embeddings(path)


def test_a_failed_write_keeps_the_provenance_of_before(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    write_vectors(path, [(pa.array([0, 1, 2, 3]), VECTORS)], PROVENANCE)
    with pytest.raises(DataError, match="no embeddings"):
        write_vectors(path, [], provenance_of("sha256:" + "c" * 64, "sha256:" + "c" * 64))
    file = open_embeddings(path)
    assert (file.provenance, file.rows) == (PROVENANCE, 4)
