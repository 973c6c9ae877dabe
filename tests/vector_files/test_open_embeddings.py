"""The suffix of a file tells its format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.support.vector_blocks import NAMES, TEXT, blocks_of
from tests.support.vector_file_makers import (
    junk,
    whole,
)

from evergram.errors import DataError
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.writers import write_vectors


@pytest.mark.parametrize("name", [*NAMES, "vectors.PQ", "vectors.feather"])
def test_every_suffix_opens_its_format(tmp_path: Path, name: str) -> None:
    write_vectors(tmp_path / name, blocks_of(TEXT, torch.ones(5, 2), 2))
    ids, vectors = whole(open_embeddings(tmp_path / name))
    assert ids == TEXT
    assert torch.equal(vectors, torch.ones(5, 2))


def test_a_file_of_ids_goes_only_with_a_file_without_ids(tmp_path: Path) -> None:
    write_vectors(tmp_path / "x.parquet", blocks_of(TEXT, torch.ones(5, 2), 2))
    with pytest.raises(DataError, match=r"x\.parquet has its ids in its column 'id'; a file"):
        open_embeddings(tmp_path / "x.parquet", ids=tmp_path / "ids.txt")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (junk("x.txt"), r"no known format; the known ones end in \.parquet"),
        (junk("x.csv"), r"not read from it; give a file that ends in one of \.parquet"),
        (lambda folder: folder, "is a folder"),
        (lambda folder: folder / "none.npy", "is not there"),
    ],
)
def test_paths_that_are_no_file_of_a_known_format_are_refused(
    tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    path = make(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        whole(open_embeddings(path))
    assert str(path) in str(caught.value) or "x.ids.txt" in str(caught.value)
