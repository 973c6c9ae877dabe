"""Judged corpora: how their files are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import judged_corpora
from evergram.errors import DataError


def test_cranfields_files_are_read(tmp_path: Path) -> None:
    folder = tmp_path
    documents = "<doc>\n<docno>7</docno>\n<title>a\nb</title><text>a\nb c</text></doc>"
    (folder / "cran.all.1400.xml").write_text(
        documents + "<doc><docno>8</docno><text></text></doc>"
    )
    queries = "<num> 1</num>\n<title>\nx\n</title><num> 4</num><title>y z</title>"
    (folder / "cran.qry.xml").write_text(queries)
    (folder / "cranqrel.trec.txt").write_text("1 0 7 1\n2 0 8 0\n2 0\n")
    texts, asked, judgements = judged_corpora._cranfield(folder)
    assert texts == {"7": "a b c", "8": ""}
    assert asked == {"1": "x", "2": "y z"}
    assert judgements == {"1": {"7": 1}, "2": {"8": 0}}
    (folder / "cran.qry.xml").unlink()
    with pytest.raises(DataError, match=r"cran\.qry\.xml cannot be read"):
        judged_corpora._cranfield(folder)


def test_smart_entries_have_titles_and_words_and_nothing_else() -> None:
    first = ".I 1\n.T\nA title\n.A\nAn author\n.W\nwords\n of it\n.X\n1 2 3\n"
    text = first + ".I 002\n.W\n.I is no entry\n"
    assert judged_corpora.smart_entries(".I 3\n.W\nALL CAPITALS\n") == {"3": "all capitals"}
    assert judged_corpora.smart_entries(text) == {"1": "A title words of it", "2": ".I is no entry"}


@pytest.mark.parametrize(
    ("column", "judged"), [(1, "1 7 0 0\n01 8 0 0\n\n2 7 0 0\n"), (None, "1 7 8\n2 7\n")]
)
def test_smart_judgements_are_read_by_column_or_by_line(
    tmp_path: Path, column: int | None, judged: str
) -> None:
    (tmp_path / "texts.1").write_text(".I 7\n.W\na\n")
    (tmp_path / "texts.2").write_text(".I 8\n.W\nb\n")
    (tmp_path / "asked").write_text(".I 1\n.W\nx\n.I 2\n.W\ny\n")
    (tmp_path / "judged").write_text(judged)
    files = ("texts.?", "asked", "judged", column)
    texts, asked, judgements = judged_corpora._smart(tmp_path, files)
    assert texts == {"7": "a", "8": "b"}
    assert asked == {"1": "x", "2": "y"}
    assert judgements == {"1": {"7": 1, "8": 1}, "2": {"7": 1}}
