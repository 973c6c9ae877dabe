"""Pairs of the vectors of two files: every object once, and refusals."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.errors import DataError
from evergram.vector_files.open_embeddings import (
    EmbeddingFile,
    Pairing,
    ahead,
    open_embeddings,
    write_vectors,
)


def file_of(path: Path, ids: list[Any], vectors: Tensor) -> EmbeddingFile:
    write_vectors(path, [(pa.array(ids), vectors)])
    return open_embeddings(path)


def collected(pairing: Pairing, size: int) -> dict[str, tuple[list[float], list[float]]]:
    old, new = zip(*pairing.blocks(size), strict=True)
    assert all(len(block) == size for block in old[:-1])
    ids = [str(i) for i in pairing.ids.to_pylist()]
    rows = zip(torch.cat(old).tolist(), torch.cat(new).tolist(), strict=True)
    return dict(zip(ids, rows, strict=True))


@settings(max_examples=50, deadline=None)
@given(
    st.permutations(range(8)),
    st.permutations(range(8)),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from(["a.parquet", "a.npy", "a.arrow"]),
)
def test_pairs_are_those_of_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory,
    one: list[int],
    two: list[int],
    rows: int,
    others: int,
    size: int,
    sort: bool,
    name: str,
) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    old_ids, new_ids = one[:rows], two[:others]
    if sort:
        old_ids, new_ids = sorted(old_ids), sorted(new_ids)
    old_vectors, new_vectors = torch.randn(rows, 2), torch.randn(others, 3)
    old = file_of(folder / name, old_ids, old_vectors)
    new = file_of(folder / "new.npy", new_ids, new_vectors)
    known = dict(zip(old_ids, old_vectors.tolist(), strict=True))
    expected = {
        str(i): (known[i], vector)
        for i, vector in zip(new_ids, new_vectors.tolist(), strict=True)
        if i in known
    }
    if not expected:
        with pytest.raises(DataError, match="no ids in common"):
            Pairing(old, new)
        return
    pairing = Pairing(old, new)
    assert collected(pairing, size) == expected
    assert collected(pairing, size) == expected  # as often as asked
    assert len(pairing) == len(expected)
    assert (pairing.only_old, pairing.only_new) == (rows - len(expected), others - len(expected))
    if sort:
        assert pairing.in_order


def test_float64_stays_float64_on_both_ways(tmp_path: Path) -> None:
    values = np.array([[0.1], [0.2], [0.3]])
    np.save(tmp_path / "old.npy", values)
    np.save(tmp_path / "new.npy", values[::-1])
    (tmp_path / "new.ids.txt").write_text("2\n1\n0\n")
    pairing = Pairing(open_embeddings(tmp_path / "old.npy"), open_embeddings(tmp_path / "new.npy"))
    assert not pairing.in_order
    for old, new in pairing.blocks(2):
        assert torch.equal(old, new)
        assert old.dtype == new.dtype == torch.float64


def test_an_id_that_is_there_twice_is_named(tmp_path: Path) -> None:
    good = file_of(tmp_path / "a.parquet", ["x", "y", "z"], torch.ones(3, 2))
    bad = file_of(tmp_path / "b.parquet", ["x", "y", "y"], torch.ones(3, 2))
    for old, new in ((good, bad), (bad, good)):
        with pytest.raises(DataError, match=r"b.parquet: 1 ids are repeated, such as 'y'"):
            Pairing(old, new)


def test_no_room_for_the_temporary_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = file_of(tmp_path / "a.parquet", ["x", "y"], torch.ones(2, 2))
    new = file_of(tmp_path / "b.parquet", ["y", "x"], torch.ones(2, 2))

    def full() -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(DataError, match="No space left on device; set TMPDIR"):
        next(Pairing(old, new).blocks())


def test_the_next_item_is_made_while_one_is_used_and_an_error_comes_after_those_before_it() -> None:
    made = threading.Semaphore(0)

    def items() -> Iterator[int]:
        for i in range(3):
            made.release()
            yield i
        raise ValueError("three")

    items_ahead = ahead(items())
    assert next(items_ahead) == 0
    assert made.acquire(timeout=5)
    assert made.acquire(timeout=5)  # the second, which nobody has asked for
    assert [next(items_ahead) for _ in range(2)] == [1, 2]
    with pytest.raises(ValueError, match="three"):
        next(items_ahead)
