"""A file rewritten into shards by the command, killed on the way, and gone on with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.command import Command, run_process
from tests.support.lineages import lineage_of, read_as, vectors_of

from evergram.vector_files.writers import write_vectors

ROWS = 300
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


def test_an_export_of_shards_is_the_export(folder: Path, evergram: Command) -> None:
    arguments = (
        "vectors",
        "export",
        folder / "l",
        folder / "out",
        "--side",
        "object",
        "--as",
        "v1",
    )
    facts = evergram.json(*arguments, "--shards", 4)
    assert (facts["rows"], facts["written"], facts["missing"]) == (ROWS, [0, 1, 2, 3], [])
    read = vectors_in(folder / "out")
    np.testing.assert_allclose(read, read_as(2, 1).numpy(), rtol=1e-5, atol=1e-5)
    other = ("vectors", "export", folder / "l", folder / "out", "--side", "object", "--as", "v0")
    assert "evergram.fingerprint was" in evergram.refused(*other, "--shards", 4)
