"""Adjacency lists: pairs, ids, and files that cannot be used."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evergram.data.corpus import Corpus
from evergram.data.files import adjacency_list
from evergram.data.tables import load_adjacency_list
from evergram.errors import DataError


def pairs(corpus: Corpus) -> list[tuple[object, object]]:
    """The pairs of a corpus by their ids, in its order."""
    ids = corpus.queries.vocabulary.keys, corpus.candidates.vocabulary.keys
    rows = zip(corpus.column("query").tolist(), corpus.column("candidate").tolist(), strict=True)
    return [(ids[0][q].as_py(), ids[1][c].as_py()) for q, c in rows]


def written(folder: Path, text: str) -> Path:
    path = folder / "train.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_line_is_a_query_and_its_candidates(tmp_path: Path) -> None:
    corpus = load_adjacency_list(written(tmp_path, "0 5 7 \n\n2\n1\t5\n0 9\n"))
    assert pairs(corpus) == [(0, 5), (0, 7), (1, 5), (0, 9)]
    assert not corpus.has_times
    assert not corpus.shared_ids


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_byte_order_mark_is_no_part_of_the_first_id(tmp_path: Path, suffix: str) -> None:
    content = b"\xef\xbb\xbf0 5 7\n1 5\n"
    path = tmp_path / f"train.txt{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    assert pairs(load_adjacency_list(path)) == [(0, 5), (0, 7), (1, 5)]


def test_ids_are_texts_where_one_is_no_integer(tmp_path: Path) -> None:
    assert pairs(load_adjacency_list(written(tmp_path, "0 007\n1 8\n"))) == [(0, "007"), (1, "8")]
    assert pairs(load_adjacency_list(written(tmp_path, "ann 7\n"))) == [("ann", 7)]


@given(
    st.integers(1, 30),
    st.lists(
        st.tuples(st.integers(0, 50), st.lists(st.integers(0, 50), max_size=5)), min_size=1
    ).filter(lambda lines: any(candidates for _, candidates in lines)),
)
def test_every_pair_of_every_line_is_read(
    tmp_path_factory: pytest.TempPathFactory, block: int, lines: list[tuple[int, list[int]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adjacency_list, "BLOCK", block)
        reads_every_pair(tmp_path_factory, lines)


def reads_every_pair(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, list[int]]]
) -> None:
    text = "".join(" ".join(map(str, (query, *each))) + "\n" for query, each in lines)
    path = written(tmp_path_factory.mktemp("lists"), text)
    expected = [(query, candidate) for query, each in lines for candidate in each]
    assert pairs(load_adjacency_list(path)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no pairs"),
        ("0\n1\n", "has no pairs"),
        ("0 1\n\n1 2 NULL\n", r"row 3: candidate is 'NULL'"),
        ("0 12 3.0\n", "'candidate' is of numbers with decimals"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_adjacency_list(written(tmp_path, text))


def test_a_file_that_is_damaged_or_in_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(b"0 \xff\xfe\n")
    with pytest.raises(DataError, match=r"train\.txt is not in UTF-8"):
        load_adjacency_list(tmp_path / "train.txt")
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(b"0 1\n" * 1000)[:-9])
    with pytest.raises(DataError, match=r"train\.txt\.gz cannot be read"):
        load_adjacency_list(tmp_path / "train.txt.gz")
    with pytest.raises(DataError, match="cannot be read"):
        load_adjacency_list(tmp_path)


def test_the_real_gowalla(real_data: Path) -> None:
    corpus = load_adjacency_list(real_data / "gowalla" / "train.txt.gz")
    assert len(corpus) == 810_128
    assert (len(corpus.queries), len(corpus.candidates)) == (29_858, 40_981)
    assert corpus.repeats == 0
