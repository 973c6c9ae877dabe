"""Files of vectors are written whole in every format, and never over others by mistake."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.support.vector_file_makers import NAMES, NUMBERS, TEXT, blocks_of, whole
from torch import Tensor

from evergram.errors import DataError
from evergram.vector_files.base import FINGERPRINT, TEXT_ENCODER
from evergram.vector_files.open_embeddings import companion, open_embeddings
from evergram.vector_files.writers import LONGEST_SAFETENSORS_HEADER, write_vectors


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.sampled_from(["numbers", "text", "rows"]),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 10**6),
)
def test_rows_that_are_written_are_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    kind: str,
    rows: int,
    dim: int,
    size: int,
    seed: int,
) -> None:
    path = tmp_path_factory.mktemp("round") / name
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.randn(rows, dim, generator=draw)
    ids: list[Any] = list(range(rows))
    if kind == "numbers":
        ids = [7 * i - 3 for i in torch.randperm(rows, generator=draw).tolist()]
    elif kind == "text":
        ids = [f"ü {i}" for i in ids]
    # What an earlier run left of other ids must not be taken for these, nor is it removed.
    stale = "stale\n" * rows
    companion(path).write_text(stale)
    assert write_vectors(path, blocks_of(ids, vectors, size)) == rows
    if path.suffix in (".npy", ".safetensors"):
        # By other readers.
        again = np.load(path) if path.suffix == ".npy" else load_file(path)["vector"]
        assert torch.equal(torch.as_tensor(again), vectors)
        beside = kind == "text" or path.suffix == ".npy"
        lines = "".join(f"{i}\n" for i in ids)
        assert companion(path).read_text() == (lines if beside else stale)
    read_ids, matrix = whole(open_embeddings(path), size)
    assert read_ids == ids
    assert torch.equal(matrix, vectors)
    assert not list(path.parent.glob(".*"))


@pytest.mark.parametrize("name", NAMES)
def test_a_failure_leaves_the_files_of_before(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_vectors(path, blocks_of(TEXT, torch.ones(5, 2), 2), {FINGERPRINT: "sha256:a"})
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def failing() -> Iterator[tuple[pa.Array, Tensor]]:
        yield pa.array(["a"]), torch.zeros(1, 2)
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        write_vectors(path, failing())
    with pytest.raises(DataError, match="no embeddings to write"):
        write_vectors(path, iter([]), {FINGERPRINT: "sha256:b"})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_ids_and_paths_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    one = [(pa.array(["a\nb"]), torch.ones(1, 2))]
    for name in ("x.npy", "x.safetensors"):
        with pytest.raises(DataError, match=r"'a\\nb' has a line break"):
            write_vectors(tmp_path / name, one)
    for name, message in (("x.txt", "known format"), ("no/x.npy", "is not there"), (".", "folder")):
        with pytest.raises(DataError, match=message):
            write_vectors(tmp_path / name, one)
    assert write_vectors(tmp_path / "x.parquet", one) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x.parquet"]


def test_a_safetensors_file_has_space_for_any_provenance(tmp_path: Path) -> None:
    both: list[list[Any]] = [TEXT, NUMBERS]
    for ids in both:
        for length in [*range(600, 1200, 106), 100_000]:
            path = tmp_path / "x.safetensors"
            vectors = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
            provenance = {FINGERPRINT: "sha256:a", TEXT_ENCODER: "ü" + "e" * length}
            write_vectors(path, blocks_of(ids, vectors, 2), provenance)
            content = path.read_bytes()
            assert int.from_bytes(content[:8], "little") % 8 == 0
            assert torch.equal(load_file(path)["vector"], vectors)
            again = open_embeddings(path)
            assert again.provenance == provenance
            read_ids, matrix = whole(again)
            assert read_ids == ids
            assert torch.equal(matrix, vectors)


def test_a_provenance_that_no_safetensors_file_has_space_for_is_refused(tmp_path: Path) -> None:
    provenance = {TEXT_ENCODER: "e" * LONGEST_SAFETENSORS_HEADER}
    with pytest.raises(DataError, match=r"takes 100,.* bytes.* has space for 100,000,000; write P"):
        write_vectors(tmp_path / "x.safetensors", blocks_of(TEXT, torch.ones(5, 2), 2), provenance)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ids", [NUMBERS, ['say "x"', "a,b", "line\nbreak", "00017", ""]])
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
    matrix = np.array([[np.float32(x) for x in line[1:]] for line in lines])
    assert (matrix == vectors.numpy()).all()
    assert json.loads((tmp_path / "x.csv.json").read_text()) == {FINGERPRINT: "sha256:a"}
    # Without marks, those of the vectors before are gone.
    write_vectors(path, blocks_of(ids, vectors, 2))
    assert [p.name for p in tmp_path.iterdir()] == ["x.csv"]
    with pytest.raises(DataError, match="no embeddings"):
        write_vectors(path, iter([]))
    assert [p.name for p in tmp_path.iterdir()] == ["x.csv"]


@pytest.mark.parametrize(
    ("name", "ids"), [*((name, TEXT) for name in NAMES), ("vectors.csv", NUMBERS)]
)
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
    looks = (["0", "1", "00017"], ["1.5", "1e5", "2"], ["None", "nan", " "])
    for ids in (*looks, [0, 1, 2], [2**62, -5, 0]):
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
