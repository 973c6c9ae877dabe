"""Wikispeedia: names, features and damaged files."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import pytest

from evergram.data.corpus import Corpus
from evergram.data.wikispeedia import load_wikispeedia
from evergram.errors import DataError


def speedia(folder: Path, **changed: str) -> Path:
    files = {
        "articles": "# all\n\n%C3%81ed\nA_b\nAlone\n",
        "links": "# FORMAT: a b\n\n%C3%81ed\tA_b\nA_b\t%C3%81ed\n",
        "categories": "A_b\tsubject.X\nA_b\tsubject.Y.Z\n%C3%81ed\tsubject.X\n",
    } | changed
    for name, text in files.items():
        (folder / f"{name}.tsv").write_text(text)
    return folder


def bags(corpus: Corpus, feature: str) -> list[set[str]]:
    column = corpus.candidates.features[feature]
    keys, ends = column.vocabulary.keys.to_pylist(), column.offsets.tolist()
    return [{keys[row] for row in column.indices[a:b]} for a, b in itertools.pairwise(ends)]


def test_wikispeedia(tmp_path: Path) -> None:
    corpus = load_wikispeedia(speedia(tmp_path))
    assert corpus.shared_ids
    assert corpus.queries.vocabulary.keys.to_pylist() == ["Áed", "A_b"]
    assert corpus.column("query").tolist() == [0, 1]
    assert corpus.column("candidate").tolist() == [1, 0]
    assert bags(corpus, "title") == [{"áed"}, {"a", "b", "a b"}]
    assert bags(corpus, "category") == [{"subject.X"}, {"subject.X", "subject.Y.Z"}]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"links": "A_b\tAlone\nA_b\tNobody\n"}, r"links\.tsv row 2: 'Nobody' is not in"),
        ({"links": "A_b\tAlone\nA_b\n"}, r"links\.tsv row 2 cannot be read"),
        ({"links": "# none\n"}, r"links\.tsv has no rows"),
        ({"categories": "Nobody\tX\n"}, r"categories\.tsv row 1: 'Nobody'"),
        ({"articles": "%FF\n"}, "not UTF-8"),
    ],
)
def test_wikispeedia_that_cannot_be_used(
    tmp_path: Path, changed: dict[str, str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load_wikispeedia(speedia(tmp_path, **changed))


def test_wikispeedia_files_that_are_missing_or_damaged(tmp_path: Path) -> None:
    (speedia(tmp_path) / "links.tsv").unlink()
    with pytest.raises(DataError, match=r"no links\.tsv or links\.tsv\.gz"):
        load_wikispeedia(tmp_path)
    whole = gzip.compress(b"A_b\tAlone\n" * 1000)
    for content in (whole[:-9], b"no gzip", whole[:20] + b"\xff" * 9 + whole[29:]):
        (tmp_path / "links.tsv.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"links\.tsv\.gz cannot be read"):
            load_wikispeedia(tmp_path)


def test_the_real_wikispeedia(real_data: Path) -> None:
    corpus = load_wikispeedia(real_data / "wikispeedia")
    assert len(corpus) == 119_882
    assert len(corpus.queries) == 4_592  # of 4,604: twelve have no link
    assert corpus.repeats == 0
    category = corpus.queries.features["category"]
    assert len(category.vocabulary) == 129
    assert "Édouard_Manet" in corpus.queries.vocabulary.keys.to_pylist()
    assert int((corpus.queries.features["title"].offsets.diff() == 0).sum()) == 0
