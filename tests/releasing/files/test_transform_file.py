"""A file of one version's vectors is written as another version's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.command import Command, run_process
from tests.support.embedding_files import file_of, file_without_ids, randn
from tests.support.lineages import DIMS, lineage_of, read_as, vectors_of
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import DataError, LineageError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.import_file import import_embeddings
from evergram.releasing.files.transform_file import transform_file, transform_shards
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.shards import Shards
from evergram.vector_files.writers import write_vectors

ROWS = 300
IDS = pa.array(range(ROWS))


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return lineage_of(tmp_path / "line")


@pytest.mark.parametrize("suffix", [".parquet", ".npy", ".safetensors"])
@pytest.mark.parametrize("source", [1, 2])
def test_vectors_are_read_through_the_chain_and_ids_stay(
    lineage: Lineage, tmp_path: Path, suffix: str, source: int
) -> None:
    file = file_of(tmp_path / f"new{suffix}", vectors_of(source), IDS)
    out = tmp_path / f"back{suffix}"
    given: dict[str, Any] = {} if source == 2 else {"source": source}
    assert transform_file(file, lineage, 0, out, **given) == ROWS
    back = open_embeddings(out)
    parts = list(back.blocks())
    ids = [str(i) for chunk, _ in parts for i in chunk.to_pylist()]
    assert ids == [str(i) for i in range(ROWS)]
    torch.testing.assert_close(torch.cat([v for _, v in parts]).float(), read_as(source, 0))
    # The file says what it is: a wrong --from is noticed later.
    assert back.fingerprint == lineage.manifest(0).fingerprint


def test_a_vector_that_would_overflow_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    back = LinearTransform.from_matrix(10 * torch.eye(DIMS[0]))
    artefact = {"object": (IDS, vectors_of(0))}
    facts: dict[str, Any] = {"metrics": {"model": {}}}
    publish_next(lineage, Artefact(DIMS[0], artefact, back, facts, {}))
    vectors = torch.ones(ROWS, DIMS[0])
    vectors[4, 1] = -3e38
    file, out = file_of(tmp_path / "new.parquet", vectors, IDS), tmp_path / "out.parquet"
    message = r"row 5 \(id 4\): its vector \(column 'vector'\) has numbers as large as -3e\+38"
    with pytest.raises(DataError, match=message):
        transform_file(file, lineage, 0, out)
    with pytest.raises(DataError, match=message):
        transform_shards(file, lineage, (None, 0), Shards(tmp_path / "out", 100))
    assert not out.exists()


def test_rows_without_ids_are_written_without_them_or_not_at_all(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "named")
    import_embeddings(file_of(tmp_path / "first.parquet", randn(0, 60, 4)), lineage)
    bare = file_without_ids(tmp_path / "bare.npy", randn(0, 60, 4))
    with pytest.raises(DataError, match=r"or write an \.npy, which has none either"):
        transform_file(bare, lineage, 0, tmp_path / "out.parquet")
    assert transform_file(bare, lineage, 0, tmp_path / "out.npy") == 60
    assert not open_embeddings(tmp_path / "out.npy").has_ids


def test_an_earlier_version_is_read_as_a_later_one_by_the_forward_maps(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = file_of(tmp_path / "old.parquet", vectors_of(0), IDS), tmp_path / "out.parquet"
    assert transform_file(file, lineage, 2, out, source=0) == ROWS
    forward = lineage.forward(0, 2)
    assert forward is not None
    weight, offset = (part.float() for part in forward)
    written = open_embeddings(out)
    (_, vectors), *_ = written.blocks()
    torch.testing.assert_close(vectors.float(), vectors_of(0) @ weight.T + offset)
    assert written.fingerprint == lineage.manifest(2).fingerprint
    shards = Shards(tmp_path / "out", 1)
    transform_shards(file, lineage, (0, 2), shards)
    (_, again), *_ = open_embeddings(shards.path(0)).blocks()
    assert torch.equal(again, vectors)
    monkeypatch.setattr(Lineage, "forward", lambda *_: None)
    with pytest.raises(LineageError, match="no forward map was published between them"):
        transform_file(file, lineage, 2, tmp_path / "none.parquet", source=0)


# Ends the process as a kill does, when so many shards are written and half of the next one is.
KILL = """
import os
from evergram.vector_files import shards
whole, calls = shards.write_embeddings, []
def write(path, blocks, provenance=None):
    calls.append(path)
    if len(calls) == {after} + 1:
        def half():
            yield next(iter(blocks))
            os._exit(137)
        whole(path, half(), provenance)
    return whole(path, blocks, provenance)
shards.write_embeddings = write
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lineage_of(tmp_path / "l")
    write_vectors(tmp_path / "z.parquet", [(pa.array(range(ROWS)), vectors_of(2))])
    return tmp_path


def transform(folder: Path, *more: object) -> tuple[object, ...]:
    out = folder / "out"
    return (
        *("vectors", "transform", folder / "z.parquet", "--lineage", folder / "l", "--as", "v0"),
        *("--out", out, *more),
    )


def vectors_in(folder: Path) -> np.ndarray:
    # As an engine reads a folder: what begins with _ or . is no part of the table.
    table = pq.ParquetDataset(folder).read()
    assert table["id"].to_pylist() == list(range(ROWS))
    return np.array(table["vector"].to_pylist())


@pytest.mark.long
@pytest.mark.parametrize("after", [0, 3])
def test_a_killed_run_goes_on_with_the_missing_shards(
    folder: Path, evergram: Command, after: int
) -> None:
    killed = run_process(*transform(folder, "--shards", 8), before=KILL.format(after=after))
    assert killed.code == 137
    assert len(list((folder / "out").glob("part-*.parquet"))) == after
    assert not (folder / "out" / "_SUCCESS").exists()
    facts = evergram.json(*transform(folder, "--shards", 8))
    assert facts["kept"] == list(range(after))
    assert facts["written"] == list(range(after, 8))
    assert (facts["rows"], facts["missing"]) == (ROWS, [])
    read = vectors_in(folder / "out")
    np.testing.assert_allclose(read, read_as(2, 0).numpy(), rtol=1e-5, atol=1e-5)
    assert not list((folder / "out").glob(".*"))


def test_one_shard_at_a_time_and_a_sentence(folder: Path, evergram: Command) -> None:
    first = evergram(*transform(folder, "--shard", "1/2"))
    assert "shards written: 1; there already: 0; missing: 1" in first.out
    assert "the set is whole" in evergram(*transform(folder, "--shards", 2)).out
    read = vectors_in(folder / "out")
    np.testing.assert_allclose(read, read_as(2, 0).numpy(), rtol=1e-5, atol=1e-5)


def test_a_file_that_changed_is_refused(folder: Path, evergram: Command) -> None:
    evergram.json(*transform(folder, "--shard", "0/2"))
    write_vectors(folder / "z.parquet", [(pa.array(range(ROWS)), vectors_of(2) + 1)])
    assert "changed_ns was" in evergram.refused(*transform(folder, "--shards", 2))
    assert evergram.json(*transform(folder, "--shards", 2, "--force"))["written"] == [0, 1]
    assert "write I/2" in evergram.refused(*transform(folder, "--shards", 2, "--shard", "0/3"))
