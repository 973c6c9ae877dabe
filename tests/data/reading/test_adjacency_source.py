"""An adjacency list that is prepared is the corpus that the loader makes of it."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from tests.support.prepared_folders import assert_is_corpus

from evergram.data.files import adjacency_list
from evergram.data.prepared.writing.prepare import prepare
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.data.reading.interaction_source import Interactions, source_of_adjacency_list
from evergram.data.tables import load_adjacency_list
from evergram.errors import DataError

LISTS = PrepareSettings(kind="adjacency_list", memory="256MiB", threads=1)


@pytest.mark.parametrize("last", ["7 8", "7 08", "ann 8", f"7 {2**63}"])
@pytest.mark.parametrize("block", [10, 1 << 20])
def test_a_prepared_list_is_the_loaded_one(
    last: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are texts if one of them is, wherever it stands."""
    monkeypatch.setattr(adjacency_list, "BLOCK", block)
    draw = random.Random(0)
    lines = [
        " ".join(str(draw.randint(0, 30)) for _ in range(draw.randint(0, 9))) for _ in "x" * 50
    ]
    path = tmp_path / "lists.txt.gz"
    path.write_bytes(gzip.compress("\n".join([*lines, last]).encode()))
    prepare(path, tmp_path / "out", LISTS)
    assert_is_corpus(tmp_path / "out", load_adjacency_list(path))


def test_batches_are_texts_and_can_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "lists.txt").write_text("0 5 6\n1\n2 6\n")
    source = source_of_adjacency_list(tmp_path / "lists.txt")
    for _ in range(2):
        (batch,) = source.read()
        columns = {"query": ["0", "0", "2"], "candidate": ["5", "6", "6"], "row": [1, 1, 3]}
        assert batch.to_pydict() == columns
    assert Interactions([source]).table()["query"].to_pylist() == [0, 0, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"0 1\n\n2 NULL\n", "row 3: candidate is 'NULL'"),
        (b"0\n1\n", "has no pairs"),
        (b"0 1\n1 2.5\n", "numbers with decimals"),
        (b"0 \xff\n", "is not in UTF-8"),
    ],
)
def test_what_cannot_be_used_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "lists.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepare(tmp_path / "lists.txt", tmp_path / "out", LISTS)
    assert not (tmp_path / "out").exists()
