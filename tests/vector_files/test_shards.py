"""Folders of shards, and pairs of two files: every row once, and refusals."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.thread_processes import Threads, in_threads
from torch import Tensor

from evergram.errors import DataError
from evergram.vector_files.open_embeddings import Block, EmbeddingFile, open_embeddings
from evergram.vector_files.pairing import Pairing, ahead
from evergram.vector_files.shards import (
    FINISHED,
    RECORD,
    SUCCESS,
    Shards,
    WrittenShards,
    between,
    write_shards,
)
from evergram.vector_files.writers import write_vectors

MARKS = {"evergram.fingerprint": "x"}


def blocks_of(rows: int, size: int = 3) -> Iterator[Block]:
    """Rows with their number as id and as vector."""
    for start in range(0, rows, size):
        ids = torch.arange(start, min(start + size, rows))
        yield pa.array(ids.numpy()), ids.float()[:, None].repeat(1, 2)


def written(
    shards: Shards, rows: int = 20, size: int = 3, version: str = "0", overwrite: bool = False
) -> WrittenShards:
    return write_shards(
        shards,
        rows,
        lambda start, stop: between(blocks_of(rows, size), start, stop),
        MARKS,
        {"version": version},
        overwrite=overwrite,
    )


def ids_in(folder: Path) -> list[int]:
    parts = sorted(folder.glob("part-*.parquet"))
    return [i for part in parts for i in pq.read_table(part)["id"].to_pylist()]


@settings(deadline=None)
@given(st.integers(1, 40), st.data(), st.integers(1, 9))
def test_shards_have_every_row_once_and_differ_by_one(
    rows: int, data: st.DataObject, size: int
) -> None:
    count = data.draw(st.integers(1, rows))
    shards = Shards(Path("x"), count)
    ranges = [shards.rows(n, rows) for n in range(count)]
    assert [row for each in ranges for row in each] == list(range(rows))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    start, stop = sorted(data.draw(st.tuples(st.integers(0, rows), st.integers(0, rows))))
    cut = [i for ids, _ in between(blocks_of(rows, size), start, stop) for i in ids.to_pylist()]
    assert cut == list(range(start, stop))


def test_a_folder_is_whole_and_named_as_engines_expect(tmp_path: Path) -> None:
    outcome = written(Shards(tmp_path, 3))
    names = [f"part-0000{n}-of-00003.parquet" for n in range(3)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["_SHARDS.json", "_SUCCESS", *names]
    assert outcome == WrittenShards(20, [0, 1, 2], [], [])
    table = pq.read_table(tmp_path / names[1])
    assert table.schema.metadata[b"evergram.fingerprint"] == b"x"
    assert table["vector"].to_pylist() == [[float(i)] * 2 for i in range(6, 13)]
    assert ids_in(tmp_path) == list(range(20))
    contents = {name: (tmp_path / name).read_bytes() for name in names}
    assert json.loads((tmp_path / RECORD).read_text())[FINISHED] == {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    }


def test_missing_and_damaged_shards_are_written_again_and_others_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = Shards(tmp_path, 6)
    written(shards)
    before = {n: shards.path(n).read_bytes() for n in range(6)}
    kept = shards.path(0).stat().st_mtime_ns
    shards.path(1).unlink()
    shards.path(2).write_bytes(b"half of a file")
    pq.write_table(pq.read_table(shards.path(4)).slice(1), shards.path(4))
    # Zeros within a file, as a disk may leave; its length stays.
    shards.path(5).write_bytes(before[5][:20] + bytes(60) + before[5][80:])
    outcome = written(shards)
    assert (outcome.written, outcome.kept, outcome.missing) == ([1, 2, 4, 5], [0, 3], [])
    assert shards.path(0).stat().st_mtime_ns == kept
    assert {n: shards.path(n).read_bytes() for n in range(6)} == before
    assert "part-00005-of-00006.parquet has another SHA-256" in caplog.text
    assert (tmp_path / SUCCESS).exists()


def test_processes_share_the_work_and_the_last_marks_the_set(tmp_path: Path) -> None:
    for n in (2, 0, 1):
        assert not (tmp_path / "_SUCCESS").exists()
        outcome = written(Shards(tmp_path, 3, only=n))
        assert outcome.written == [n]
    assert outcome.missing == []
    assert (tmp_path / "_SUCCESS").exists()
    assert ids_in(tmp_path) == list(range(20))


def test_an_interrupted_shard_is_not_there(tmp_path: Path) -> None:
    def broken(start: int, stop: int) -> Iterator[Block]:
        yield from between(blocks_of(20), start, 9)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shards(Shards(tmp_path, 4), 20, broken, MARKS, {"version": "0"})
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["_SHARDS.json", "part-00000-of-00004.parquet"]
    assert written(Shards(tmp_path, 4)).kept == [0]
    assert ids_in(tmp_path) == list(range(20))


def test_other_settings_are_refused_or_start_again(tmp_path: Path) -> None:
    written(Shards(tmp_path, 5))
    for count, version in ((4, "0"), (5, "1")):
        with pytest.raises(DataError, match="shards of other settings"):
            written(Shards(tmp_path, count), version=version)
    assert written(Shards(tmp_path, 4), overwrite=True).written == [0, 1, 2, 3]
    assert ids_in(tmp_path) == list(range(20))
    assert len(list(tmp_path.glob("part-*"))) == 4


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="changed meanwhile"):
        write_shards(Shards(tmp_path / "z", 2), 20, lambda a, b: blocks_of(13), MARKS, {})
    assert not Shards(tmp_path / "z", 2).path(1).exists()
    for count, only, message in ((0, None, "1 to 100000"), (3, 3, "numbered 0 to 2")):
        with pytest.raises(DataError, match=message):
            Shards(tmp_path, count, only)
    (tmp_path / "mine").mkdir()
    mine = tmp_path / "mine" / "mine.parquet"
    mine.write_bytes(b"")
    for place, count, message in (
        (tmp_path / "new", 21, "at most 20"),
        (tmp_path / "mine", 2, r"other files in it, such as mine\.parquet"),
        (mine, 2, "cannot be written"),
    ):
        with pytest.raises(DataError, match=message):
            written(Shards(place, count), overwrite=True)
    for text in ["0", "8/8", "-1/8", "a/b", "/8", "3/"]:
        with pytest.raises(DataError):
            Shards.parsed(Path("x"), text)
    assert Shards.parsed(Path("x"), "3/8") == Shards(Path("x"), 8, 3)
    assert Shards.parsed(Path("x"), None) is None


@pytest.mark.parametrize("processes", [2, 9])
def test_processes_write_a_share_each_and_the_set_is_whole(tmp_path: Path, processes: int) -> None:
    reads: list[tuple[int, int]] = []

    def write(process: Threads, overwrite: bool = False) -> WrittenShards:
        shards = Shards(tmp_path / "out", 7, together=process)

        def read(start: int, stop: int) -> Iterator[Block]:
            reads.append((start, stop))
            return between(blocks_of(40), start, stop)

        return write_shards(shards, 40, read, MARKS, {"version": "0"}, overwrite=overwrite)

    for outcome in in_threads(processes, write)[0]:
        assert outcome == WrittenShards(40, list(range(7)), [], [])
    assert ids_in(tmp_path / "out") == list(range(40))
    assert (tmp_path / "out" / "_SUCCESS").is_file()
    # Each reads its rows once, in one pass.
    assert len(reads) == min(processes, 7)
    assert sorted(row for read in reads for row in range(*read)) == list(range(40))
    reads.clear()
    (tmp_path / "out" / "part-00005-of-00007.parquet").unlink()
    for outcome in in_threads(processes, write)[0]:
        assert outcome == WrittenShards(40, [5], [0, 1, 2, 3, 4, 6], [])
    assert len(reads) == 1
    again = in_threads(processes, lambda p: write(p, True))[0]
    assert again[0].written == list(range(7))


def test_processes_share_a_refusal_and_are_given_shards_to_share(tmp_path: Path) -> None:
    written(Shards(tmp_path / "out", 3), version="1")

    def refused(process: Threads) -> str:
        with pytest.raises(DataError, match="shards of other settings") as error:
            written(Shards(tmp_path / "out", 3, together=process))
        return str(error.value)

    assert len(set(in_threads(2, refused)[0])) == 1
    two = Threads(1, 2, [], Barrier(2))
    assert Shards.parsed(tmp_path, "5", two) == Shards(tmp_path, 5, together=two)
    for text in (None, "1/5"):
        with pytest.raises(DataError, match="2 processes share the shards of one folder"):
            Shards.parsed(tmp_path, text, two)


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
    st.sampled_from(["a.parquet", "a.safetensors", "a.arrow"]),
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
        with pytest.raises(DataError, match="no id in common"):
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
        with pytest.raises(DataError, match=r"b.parquet: 1 ids come more than once, such as 'y'"):
            Pairing(old, new)


def test_no_room_for_the_temporary_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = file_of(tmp_path / "a.parquet", ["x", "y"], torch.ones(2, 2))
    new = file_of(tmp_path / "b.parquet", ["y", "x"], torch.ones(2, 2))

    def full() -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("evergram.vector_files.pairing.tempfile.TemporaryFile", full)
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
