"""The record of a folder of shards: what is finished, what differs from it, and other files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.vector_files.test_shards import ids_in, written

from evergram.errors import DataError
from evergram.vector_files.shard_record import FINISHED, RECORD, SUCCESS
from evergram.vector_files.shards import Shards


def zero(path: Path) -> None:
    """Put zeros in the place of bytes within a file, as a disk may; its length stays."""
    content = path.read_bytes()
    path.write_bytes(content[:20] + bytes(60) + content[80:])


def test_size_and_sha_256_of_each_finished_shard_are_recorded(tmp_path: Path) -> None:
    shards = Shards(tmp_path, 3)
    written(shards)
    finished = json.loads((tmp_path / RECORD).read_text())[FINISHED]
    for n in range(3):
        content = shards.path(n).read_bytes()
        expected = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        assert finished.pop(shards.path(n).name) == expected
    assert finished == {}


def test_a_damaged_shard_is_written_again_with_a_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = Shards(tmp_path, 3)
    written(shards)
    whole = shards.path(1).read_bytes()
    zero(shards.path(1))
    outcome = written(shards)
    assert (outcome.written, outcome.kept, outcome.missing) == ([1], [0, 2], [])
    assert shards.path(1).read_bytes() == whole
    assert "part-00001-of-00003.parquet has another SHA-256" in caplog.text
    assert (tmp_path / SUCCESS).exists()


def test_force_writes_all_shards_anew(tmp_path: Path) -> None:
    shards = Shards(tmp_path, 3)
    written(shards)
    zero(shards.path(1))
    outcome = written(shards, overwrite=True)
    assert (outcome.written, outcome.kept) == ([0, 1, 2], [])
    assert ids_in(tmp_path) == list(range(20))


@pytest.mark.parametrize("name", ["mine.parquet", "part-00000-of-00009.parquet"])
def test_other_files_are_refused_after_shards_exist(tmp_path: Path, name: str) -> None:
    written(Shards(tmp_path, 3))
    (tmp_path / name).write_bytes(b"mine")
    for overwrite in (False, True):
        with pytest.raises(DataError, match=f"other files in it, such as {name}"):
            written(Shards(tmp_path, 3), overwrite=overwrite)
    assert (tmp_path / name).read_bytes() == b"mine"
