"""Stored embeddings read as a past version, and written to files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.artefacts import artefact, shop_of_three
from tests.support.encoders import lineage_with_encoder, without_recorded_pairs
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import (
    DataError,
    ShapeError,
)
from evergram.lineage.lineage import Lineage
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.parquet import read_embeddings
from evergram.vector_files.provenance import provenance_of
from evergram.vector_files.shards import Shards


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 to 2, of dims 2, 3 and 4."""
    return shop_of_three(tmp_path / "lineage")


def test_a_view_is_the_product_of_the_transforms(lineage: Lineage) -> None:
    steps = []
    for published in (artefact(3, 2, seed=1), artefact(4, 3, seed=2)):
        assert isinstance(published.transform, LinearTransform)
        steps.append(published.transform.weight.detach())
    z = artefact(4, 3, seed=2).block("query")[1]
    expected = {2: z, 1: z @ steps[1].T, 0: z @ steps[1].T @ steps[0].T}
    for version, vectors in expected.items():
        view = lineage.view(version)
        ids, read = view.embeddings("query")
        assert ids.to_pylist() == ["a", "b", "c"]
        torch.testing.assert_close(read, vectors)
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


def test_shards_have_the_rows_of_a_view_and_those_that_are_there_are_kept(
    lineage: Lineage, tmp_path: Path
) -> None:
    view, shards = lineage.view(0), Shards(tmp_path / "as_v0", 2)
    first = view.export_shards(Shards(shards.folder, 2, only=1), "query", batch=1)
    assert (first.written, first.kept, first.missing) == ([1], [], [0])
    both = view.export_shards(shards, "query", batch=2)
    assert (both.rows, both.written, both.kept, both.missing) == (3, [0], [1], [])
    ids, vectors = view.embeddings("query")
    files = [open_embeddings(shards.path(number)) for number in (0, 1)]
    blocks = [block for file in files for block in file.blocks(2)]
    assert pa.concat_arrays([block[0] for block in blocks]).equals(ids)
    # A library may sum the product of one row in another order than that of several.
    torch.testing.assert_close(torch.cat([block[1] for block in blocks]), vectors)
    marks = provenance_of(view.fingerprint, view.computed_from)
    assert [file.provenance for file in files] == [marks, marks]
    with pytest.raises(DataError):
        lineage.view(1).export_shards(shards, "query")
    anew = lineage.view(1).export_shards(shards, "query", overwrite=True)
    assert (anew.written, anew.kept) == ([0, 1], [])


def test_an_export_that_cannot_be_written(lineage: Lineage, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="make the folder first"):
        lineage.view(0).export(tmp_path / "nowhere" / "out.parquet", "query")


def test_a_row_is_read_like_all_rows_in_a_tensor_or_an_array(lineage: Lineage) -> None:
    view = lineage.view(0)
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    truth = rows.double() @ lineage.chain.matrix(2, 0).T
    torch.testing.assert_close(view.transform(rows).double(), truth, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(view.transform(rows[0]).double(), truth[0], rtol=1e-5, atol=1e-6)
    read = view.transform(rows.numpy())
    np.testing.assert_allclose(read, truth.numpy(), rtol=1e-5, atol=1e-6)
    backwards = view.transform(rows.numpy()[::-1])
    np.testing.assert_allclose(backwards, truth.numpy()[::-1], rtol=1e-5, atol=1e-6)
    assert view.transform(rows.numpy().astype(">f8")).dtype == np.float64


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.zeros((2, 4), np.int64), r"floats in a tensor .* an array of int64 was given"),
        (torch.zeros(2, 4, dtype=torch.int32), r"a tensor of torch\.int32 was given"),
        (torch.tensor(1.0), "a single number was given"),
        ([[1.0] * 4], "a list was given"),
    ],
)
def test_vectors_of_another_kind_are_refused(lineage: Lineage, vectors: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        lineage.view(0).transform(vectors)


def test_a_vector_that_is_not_finite_is_refused(lineage: Lineage) -> None:
    vectors = torch.ones(2, 4)
    vectors[1, 2] = torch.inf
    with pytest.raises(DataError, match=r"not finite \(NaN or infinity\).*leave its row out"):
        lineage.view(0).transform(vectors)


def test_shards_of_another_version_of_one_space_are_not_kept(tmp_path: Path) -> None:
    """An encoder that is kept has one fingerprint, though its vectors change with the data."""
    films = lineage_with_encoder(tmp_path / "films")
    shards = Shards(tmp_path / "out", 3)
    films.view().export_shards(shards, "candidate")
    ids, vectors = films.embeddings("candidate")
    artefact = without_recorded_pairs(films)
    moved = {**artefact.embeddings, "candidate": (ids, 2 * vectors)}
    publish_next(films, replace(artefact, embeddings=moved))
    assert films.manifest(1).fingerprint == films.manifest(0).fingerprint
    with pytest.raises(DataError, match="shards of other settings"):
        films.view().export_shards(shards, "candidate")
    written = films.view().export_shards(shards, "candidate", overwrite=True)
    assert not written.kept
    parts = [read_embeddings(path)[1] for path in sorted((tmp_path / "out").glob("*.parquet"))]
    assert torch.equal(torch.cat(parts), 2 * vectors)
