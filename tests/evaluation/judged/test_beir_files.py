"""BEIR's files: what is read, and what is refused with the line that is wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from evergram.errors import DataError
from evergram.evaluation.judged.beir_files import read_judgements, read_texts


def test_texts_come_in_order_with_their_titles(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"_id": "b", "title": "T", "text": "x y"}\n\n{"_id": "a", "text": "z"}\n')
    assert list(read_texts(path).items()) == [("b", "T x y"), ("a", "z")]


def test_a_compressed_file_is_read_under_its_plain_name(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "queries.jsonl.gz", "wt") as file:
        file.write('{"_id": "1", "text": "q"}\n')
    assert read_texts(tmp_path / "queries.jsonl") == {"1": "q"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no texts"),
        ("{", "line 1 is not a JSON object"),
        ("[1]", "line 1 is not a JSON object"),
        ('{"_id": 1, "text": "x"}', "line 1 is not a JSON object"),
        ('{"_id": "1", "text": "x"}\n{"_id": "1", "text": "y"}', "line 2 has the id '1' again"),
    ],
)
def test_wrong_texts_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_texts(path)


def test_judgements_of_beir_and_of_trec_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    beir = "query-id\tcorpus-id\tscore\nq 1\td1\t1\nq2\td2\t0\nq2\td1\t2\n"
    (tmp_path / "qrels" / "test.tsv").write_text(beir)
    expected = {"q 1": {"d1": 1}, "q2": {"d2": 0, "d1": 2}}
    assert read_judgements(tmp_path) == expected
    trec = tmp_path / "qrels.txt"
    trec.write_text("q1 0 d1 1\nq2 0 d2 -1\n")
    assert read_judgements(trec) == {"q1": {"d1": 1}, "q2": {"d2": -1}}
    trec.write_text("\n" + beir)
    assert read_judgements(trec) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("query-id\tcorpus-id\tscore\n", "has no judgements"),
        ("a\tb\t1\na\tb\n", "line 2 is"),
        ("h\th\th\na\tb\t0.5\n", "line 2 is"),
        ("a\tb\t1.0\na\tc\t1\n", "line 1 is"),
        ("a\tb\t\na\tc\t1\n", "line 1 is"),
        ("a 0 b +1\na 0 c 1\n", "line 1 is"),
        (f"a\tb\t{'9' * 400}\n", "line 1 is"),
        ("a\tb\t1\na\tb\t2\n", "line 2 grades query 'a' and text 'b' again"),
    ],
)
def test_wrong_judgements_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "q.tsv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_judgements(path)


def test_a_missing_or_damaged_file_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_judgements(tmp_path / "none.tsv")
    content = bytearray(
        gzip.compress(b"q\td\ts\n" + b"".join(b"%d\td\t1\n" % i for i in range(2000)))
    )
    content[60:90] = bytes(byte ^ 0xFF for byte in content[60:90])
    (tmp_path / "bad.tsv.gz").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        read_judgements(tmp_path / "bad.tsv.gz")
    (tmp_path / "bad.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match="cannot be read"):
        read_texts(tmp_path / "bad.jsonl.gz")
