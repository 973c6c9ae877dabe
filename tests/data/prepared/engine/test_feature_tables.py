"""Features are kept by the rules of `Corpus.from_tables`, and refused with the same sentences."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.prepared_folders import assert_is_corpus

from evergram.data.corpus import Corpus
from evergram.data.prepared.writing.prepare import prepare
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.data.tables import load_table
from evergram.errors import DataError

PAIRS = pa.table({"query": [3, 1, 3], "candidate": ["a", "b", "a"]})
FEATURES = pa.table(
    {
        "id": ["b", "a", "unseen"],
        "Genre": [["x", "y"], [], ["z"]],
        "genre": pa.array([1, None, 3], pa.int16()),
        "new": [True, False, None],
        "maker": pa.array(["m", "n", "m"]).dictionary_encode(),
        "codes": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
        'odd "name"; --': ["p", "q", "r"],
    }
)


def test_features_of_any_type_are_those_of_the_corpus(tmp_path: Path) -> None:
    half = [FEATURES.slice(0, 1), FEATURES.slice(1)]
    paths: list[str | Path] = []
    for number, table in enumerate(half):
        paths.append(tmp_path / f"{number}.parquet")
        pq.write_table(table, paths[-1])
    settings = PrepareSettings(candidate_features=paths)
    prepare(PAIRS, tmp_path / "out", settings)
    assert_is_corpus(tmp_path / "out", Corpus.from_tables(PAIRS, None, FEATURES))


def test_numbers_and_times_of_text_are_those_of_the_corpus_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("user,sku\n3,a\n1,b\n3,c\n")
    lines = ["sku;price;stock;listed", "a;1.234,5;3;2025-01-01", "b;;n/a;2025-02-01", "c;7;9;"]
    (tmp_path / "f.csv").write_text("\n".join(lines))
    columns = {"query": "user", "candidate": "sku"}
    settings = PrepareSettings(columns=columns, candidate_features=tmp_path / "f.csv")
    prepare(tmp_path / "t.csv", tmp_path / "out", settings)
    expected = load_table(
        tmp_path / "t.csv", columns=columns, candidate_features=tmp_path / "f.csv"
    )
    assert_is_corpus(tmp_path / "out", expected)
    features = expected.candidates.features
    assert features["price"].vocabulary.keys.to_pylist() == [7, 1234.5]
    assert features["stock"].vocabulary.keys.to_pylist() == [3, 9]
    assert len(features["listed"].vocabulary) == 2
    prepare(expected, tmp_path / "again")
    assert_is_corpus(tmp_path / "again", expected)
    (tmp_path / "f.csv").write_text("sku;price;stock;listed\nd;cheap;3;2025-01-01")
    (tmp_path / "t.csv").write_text("user,sku\n3,d\n")
    with pytest.raises(DataError, match=r"'price' is a number.*a category"):
        prepare(tmp_path / "t.csv", tmp_path / "out", settings, append=True)


def test_features_in_text_have_bags(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("query,candidate\n3,a\n1,b\n")
    (tmp_path / "f.csv").write_text("id,tags,zip\na,x|y,00017\nb,,5\n")
    settings = PrepareSettings(candidate_features=tmp_path / "f.csv")
    prepare(tmp_path / "t.csv", tmp_path / "out", settings)
    expected = load_table(tmp_path / "t.csv", candidate_features=tmp_path / "f.csv")
    assert_is_corpus(tmp_path / "out", expected)


@pytest.mark.parametrize("sides", ["same", "apart", "clash"])
def test_shared_ids_have_one_table_of_entities(tmp_path: Path, sides: str) -> None:
    pairs = pa.table({"query": [1, 2], "candidate": [2, 3]})
    one = pa.table({"id": [1, 2, 3], "x": ["a", "b", "c"]})
    other = one.rename_columns(["id", "y" if sides == "apart" else "x"])
    pq.write_table(one, tmp_path / "one.parquet")
    pq.write_table(other, tmp_path / "other.parquet")
    second = tmp_path / ("one.parquet" if sides == "same" else "other.parquet")
    settings = PrepareSettings(
        shared_ids=True, query_features=tmp_path / "one.parquet", candidate_features=second
    )
    if sides == "clash":
        with pytest.raises(DataError, match=r"Both tables of features have 'x'"):
            prepare(pairs, tmp_path / "out", settings)
        return
    prepare(pairs, tmp_path / "out", settings)
    expected = Corpus.from_tables(pairs, one, one if sides == "same" else other, shared_ids=True)
    assert_is_corpus(tmp_path / "out", expected)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"key": ["a"]}, "no column 'id'"),
        ({"id": ["a", "a"], "x": [1, 2]}, "name the id a twice"),
        ({"id": ["a", None], "x": [1, 2]}, "row 2: id is empty"),
        ({"id": ["a"], "x": [[1.5]]}, "lists of floats"),
        ({"id": ["a"], "x": [{"y": 1}]}, "holds struct"),
        ({"id": ["a"], "x": [["p", None]]}, "null inside a list"),
        ({"id": ["a"], "count": [1]}, "rename it"),
        ({"id": ["other"], "x": [1]}, "none of the ids"),
    ],
)
def test_what_is_no_feature_is_refused(
    tmp_path: Path, columns: dict[str, list[object]], why: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    settings = PrepareSettings(candidate_features=[tmp_path / "f.parquet"])
    with pytest.raises(DataError, match=why):
        prepare(PAIRS, tmp_path / "out", settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("f.csv", "id,from\na,2025-01-01\nb,2025-01-01T00:00Z\n", "row 1: from is '2025-01-01'"),
        ("f.csv", "key,price\na,1\n", "no column 'id'"),
        ("f.csv", "id,count\na,1\n", "rename it"),
    ],
)
def test_columns_are_checked_before_any_interaction_is_read(
    tmp_path: Path, name: str, content: str, why: str
) -> None:
    (tmp_path / name).write_text(content)
    settings = PrepareSettings(candidate_features=tmp_path / name)
    lines: list[str] = []
    with pytest.raises(DataError, match=why):
        prepare(PAIRS, tmp_path / "out", settings, progress=lines.append)
    assert lines == []


def test_texts_are_no_features_of_integers(tmp_path: Path) -> None:
    pq.write_table(FEATURES, tmp_path / "f.parquet")
    settings = PrepareSettings(query_features=tmp_path / "f.parquet")
    with pytest.raises(DataError, match=r"theirs are text, such as 'b'"):
        prepare(PAIRS, tmp_path / "out", settings)
    pq.write_table(FEATURES.select(["id"]), tmp_path / "g.parquet")
    both: list[str | Path] = [tmp_path / "f.parquet", tmp_path / "g.parquet"]
    with pytest.raises(DataError, match="has a column 'Genre' and"):
        prepare(PAIRS, tmp_path / "out", PrepareSettings(candidate_features=both))
