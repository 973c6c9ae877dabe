"""What files of vectors are written as, and what is not written over."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.vector_blocks import NAMES, NUMBERS, TEXT, blocks_of

from evergram.errors import DataError
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.provenance import FINGERPRINT
from evergram.vector_files.writers import write_vectors


@pytest.mark.parametrize("ids", [TEXT, NUMBERS, ['say "x"', "a,b", "line\nbreak", "00017", ""]])
def test_csv_is_read_by_others_to_the_last_bit(tmp_path: Path, ids: list[Any]) -> None:
    path = tmp_path / "x.csv"
    vectors = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [1.0, 1e-30, 1e30]
    )
    assert write_vectors(path, blocks_of(ids, vectors, 2), {FINGERPRINT: "sha256:a"}) == 5
    with path.open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["id", "vector_0", "vector_1", "vector_2"]
    assert [line[0] for line in lines] == [str(i) for i in ids]
    found = np.array([[np.float32(x) for x in line[1:]] for line in lines])
    assert (found == vectors.numpy()).all()
    assert json.loads((tmp_path / "x.csv.json").read_text()) == {FINGERPRINT: "sha256:a"}
    # Without marks, those of the vectors before are gone.
    write_vectors(path, blocks_of(ids, vectors, 2))
    assert [p.name for p in tmp_path.iterdir()] == ["x.csv"]
    with pytest.raises(DataError, match="no embeddings"):
        write_vectors(path, iter([]))
    assert [p.name for p in tmp_path.iterdir()] == ["x.csv"]


@pytest.mark.parametrize("name", [*NAMES, "vectors.csv"])
@pytest.mark.parametrize("ids", [TEXT, NUMBERS], ids=["text", "numbers"])
def test_nothing_is_written_over_unless_it_may_be(tmp_path: Path, name: str, ids: Any) -> None:
    """Neither the file nor any that would be put beside it."""
    path = tmp_path / name
    one, other = (blocks_of(ids, torch.full((5, 2), float(n)), 2) for n in (1, 2))
    write_vectors(path, one, {FINGERPRINT: "sha256:a"}, overwrite=False)
    written = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(DataError, match="is there already and is not written over"):
        write_vectors(path, other, overwrite=False)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == written
    for mine in written:
        for written_name in written:
            (tmp_path / written_name).unlink(missing_ok=True)
        (tmp_path / mine).write_text("mine")
        with pytest.raises(DataError, match=f"{mine} is there already"):
            write_vectors(path, blocks_of(ids, torch.ones(5, 2), 2), overwrite=False)
        assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(mine, "mine")]
        assert write_vectors(path, blocks_of(ids, torch.ones(5, 2), 2)) == 5


def test_ids_beside_an_array_are_as_they_were_written(tmp_path: Path) -> None:
    """Text that looks like numbers stays text, and ids that are gone are missed."""
    path = tmp_path / "x.npy"
    for ids in (["0", "1", "00017"], [0, 1, 2], [2**62, -5, 0]):
        write_vectors(path, blocks_of(ids, torch.ones(3, 2), 2))
        assert open_embeddings(path).ids().to_pylist() == ids
    beside = tmp_path / "x.ids.txt"
    beside.write_text("a\nb\nc\n")
    with pytest.raises(DataError, match=r"ids\.txt has an id that is no integer.*restore it"):
        open_embeddings(path)
    assert open_embeddings(path, ids=beside).ids().to_pylist() == ["a", "b", "c"]
    beside.unlink()
    with pytest.raises(DataError, match=r"ids\.txt is missing"):
        open_embeddings(path)
    (tmp_path / "x.npy.json").unlink()
    assert open_embeddings(path).ids().to_pylist() == [0, 1, 2]
