"""Tables in every format, and what is said of those that cannot be used."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.files.column_names import guess, has_no_header, lacking
from evergram.data.tables import load_table, read_features, read_interactions, read_keyed
from evergram.errors import DataError
from evergram.ids import NOTHING

MANY = 300_000  # lines: several of Arrow's blocks of 1 MiB


def test_a_column_is_of_one_type_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    text = "query,candidate,value\n" + "1,2,3\n" * MANY + "A1,2,3.5\n"
    (tmp_path / "x.csv").write_text(text)
    table = read_interactions(tmp_path / "x.csv")
    assert table["query"].type == pa.string()
    assert table["value"][-1].as_py() == 3.5


def test_columns_may_swap_names_but_not_invent_one(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("query,candidate\n1,2\n")
    swapped = read_interactions(tmp_path / "x.csv", {"query": "candidate", "candidate": "query"})
    assert swapped.to_pylist() == [{"query": 2, "candidate": 1}]
    with pytest.raises(DataError, match="query and candidate are both the column 'candidate'"):
        read_interactions(tmp_path / "x.csv", {"query": "candidate"})
    with pytest.raises(DataError, match="no column 'user' to name"):
        read_interactions(tmp_path / "x.csv", {"user": "query"})


def test_the_list_separator(tmp_path: Path) -> None:
    for separator, keys in [("|", 1), (";", 2), ("", 1)]:
        (tmp_path / "x.csv").write_text("query,candidate\n1,5\n")
        (tmp_path / "f.csv").write_text("id,tags\n5,a;b\n6,\n")
        corpus = load_table(
            tmp_path / "x.csv", candidate_features=tmp_path / "f.csv", list_separator=separator
        )
        assert len(corpus.candidates.features["tags"].indices) == keys


def test_only_text_has_separators(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("query,candidate\n1,5\n")
    features = pa.table({"id": [5], "title": ["Either|Or"], "tags": [["a", "b"]]})
    pq.write_table(features, tmp_path / "f.parquet")
    features = load_table(
        tmp_path / "x.csv", candidate_features=tmp_path / "f.parquet"
    ).candidates.features
    assert features["title"].vocabulary.keys.to_pylist() == ["Either|Or"]
    assert features["tags"].vocabulary.keys.to_pylist() == ["a", "b"]


def test_a_file_by_id_has_each_id_once_and_no_other_kind(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text("id;weight\n0017;2\n18;3\n")
    ids, weights = read_keyed(path, "weight")
    assert (ids.to_pylist(), weights.to_pylist()) == (["0017", "18"], [2, 3])
    for text, message in (
        ("id,weight\n1,2\n1,3\n", "names the id 1 twice"),
        ("id,weight\n1,2\nnull,3\n", "row 2: id is 'null'"),
        ("id,weight\n1.5,2\n", "column 'id' is of numbers"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_keyed(path, "weight")


def test_the_first_line_says_what_divides_cells(tmp_path: Path) -> None:
    for sign, suffix in [(";", ".csv"), ("\t", ".csv"), (",", ".tsv")]:
        path = tmp_path / f"x{suffix}"
        path.write_text(f"query{sign}candidate{sign}value\n1{sign}a{sign}3\n")
        assert read_interactions(path).to_pylist() == [{"query": 1, "candidate": "a", "value": 3}]
        with gzip.open(tmp_path / "x.csv.gz", "wt") as file:
            file.write(path.read_text())
        assert read_interactions(tmp_path / "x.csv.gz").num_rows == 1


def test_ids_of_a_feature_and_its_keys_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("query,candidate\n007,5\n7,6\n")
    (tmp_path / "f.csv").write_text("id,zip,size\n007,00017,1\n7,17,2\n")
    corpus = load_table(tmp_path / "x.csv", query_features=tmp_path / "f.csv")
    assert corpus.queries.vocabulary.keys.to_pylist() == ["007", "7"]
    features = corpus.queries.features
    assert features["zip"].vocabulary.keys.to_pylist() == ["00017", "17"]
    assert features["size"].vocabulary.keys.to_pylist() == [1, 2]


def test_shared_ids_of_two_types(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("query,candidate\n1,a\n2,1\n")
    corpus = load_table(tmp_path / "x.csv", shared_ids=True)
    assert corpus.queries.vocabulary.keys.to_pylist() == ["1", "2", "a"]
    assert corpus.column("candidate").tolist() == [2, 0]


# A word for nothing is refused in a CSV alone, which other tests show.
CELL = st.text(
    st.characters(codec="utf-8", exclude_characters='\r\n",\x00'), min_size=1, max_size=5
).filter(lambda text: re.match(NOTHING, text) is None)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(CELL, st.integers(0, 9)), min_size=1, max_size=20))
def test_csv_and_parquet_say_the_same(rows: list[tuple[str, int]]) -> None:
    # One id that is a word, so that CSV cannot take a column of digits for numbers.
    table = pa.table(
        {"query": ["word", *(r[0] for r in rows)], "candidate": [0, *(r[1] for r in rows)]}
    )
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, Path(folder) / "x.parquet")
        lines = [f"{r['query']},{r['candidate']}\n" for r in table.to_pylist()]
        (Path(folder) / "x.csv").write_text("query,candidate\n" + "".join(lines), "utf-8")
        one, two = (load_table(Path(folder) / name) for name in ("x.parquet", "x.csv"))
    assert one.interactions.equals(two.interactions)
    assert one.queries.vocabulary.same_keys(two.queries.vocabulary)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_rows_that_a_quotation_mark_took_in_are_missed(tmp_path: Path, suffix: str) -> None:
    text = b'id,title\na,"one\nb,"two"\nc,three\n'
    path = tmp_path / f"features{suffix}"
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    with pytest.raises(DataError, match="line 2: a quotation mark opens a cell there that ends"):
        read_features(path)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv", ".tsv", ".csv.gz"])
def test_every_table_format(tmp_path: Path, suffix: str) -> None:
    table = pa.table({"user": ["a", "b"], "candidate": [1, 2], "time": [2, 1], "extra": [0, 0]})
    path = tmp_path / f"x{suffix}"
    if suffix == ".parquet":
        pq.write_table(table, path)
    elif suffix == ".arrow":
        feather.write_feather(table, path)
    else:
        plain = tmp_path / "plain"
        delimiter = "\t" if suffix == ".tsv" else ","
        csv.write_csv(table, plain, csv.WriteOptions(delimiter=delimiter))
        content = plain.read_bytes()
        path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    corpus = load_table(path, columns={"query": "user"})
    assert corpus.queries.vocabulary.keys.to_pylist() == ["b", "a"]
    assert set(corpus.interactions.column_names) == {"query", "candidate", "time"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "", "is empty"),
        ("x.csv", "query,item\n1,2\n", "no column 'candidate'"),
        ("x.csv", "query,candidate,value\n1,2,3.5\n1,3,NaN\n", "row 2: value is 'NaN'"),
        ("x.csv", "query,candidate,value\n1,2,3\n1,3,good\n", "row 2: value is 'good'"),
        ("x.csv", "query,candidate,time\n1,2,2020-01-01\n1,3,soon\n", "row 2: time is 'soon'"),
        ("x.csv", "query,candidate,value\n1,2,1\n1,3\n", "row 2 cannot be read"),
        ("x.csv", "query,candidate,candidate\n1,2,3\n", "two columns 'candidate'"),
        ("x.csv", "query,candidate,value\n" + "1,2,3\n" * MANY + "1,2,good\n", f"row {MANY + 1}"),
        ("x.csv", "query,candidate\n1,2\n,3\n", "row 2: query is empty"),
        ("x.parquet", "not parquet", "cannot be read"),
        ("x.xlsx", "?", "no known format"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        load_table(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_usual_names_are_known() -> None:
    for names, roles in [
        ("user,item,rating,timestamp", "user,item,rating,timestamp"),
        ("userId,movieId,rating,timestamp", "userId,movieId,rating,timestamp"),
        ("reviewerID,asin,overall,unixReviewTime", "reviewerID,asin,overall,unixReviewTime"),
        ("session_id,sku,ts", "session_id,sku,,ts"),
        ("visitor,product_name,clicks", "visitor,product_name,clicks,"),
        ("a,b,c", ",,,"),
        ("id,when", ",,,"),
    ]:
        expected = zip(("query", "candidate", "value", "time"), roles.split(","), strict=True)
        assert guess(names.split(",")) == {role: name for role, name in expected if name}


def test_a_row_is_no_header() -> None:
    for names, is_row in [
        ("1,31,2.5,1260759144", True),
        ("u1,17,4.0", True),
        ("user,17", False),
        ("a,b", False),
    ]:
        assert has_no_header(names.split(",")) == is_row


def test_the_line_to_write_is_toml() -> None:
    sentence = lacking("x.csv", {"query", "candidate"}, ["User ID", '"item"', "stars"], {})
    assert 'its columns are: User ID, "item", stars.' in sentence
    line = re.search(r"columns = .*$", sentence)
    assert line is not None
    columns = tomllib.loads(line[0])["columns"]
    assert columns == {"query": "User ID", "candidate": '"item"', "value": "stars"}
    # What is written already stays.
    some = lacking("x.csv", {"candidate"}, ["a", "item"], {"query": "a"})
    assert f'columns = {{query = {json.dumps("a")}, candidate = "item"}}' in some


def test_the_error_about_a_missing_header_gives_the_line_to_write() -> None:
    sentence = lacking("x.csv", {"query", "candidate"}, ["1", "31", "2.5"], {})
    assert "its first line (1, 31, 2.5) seems to be a row" in sentence
    assert "query,candidate,value." in sentence


def test_a_first_line_of_words_may_be_a_row() -> None:
    both = {"query", "candidate"}
    sentence = lacking("x.tsv", both, ["Aruba", "Ant%C3%A9"], {})
    assert "columns are: Aruba, Ant%C3%A9. If that is a row" in sentence
    for chosen, names, header_line in (
        ({"query": "Aruba"}, ["Aruba", "Ant"], True),  # a person named one of them
        ({}, ["user", "thing"], True),  # one is a usual name
        ({}, ["Aruba", "Ant"], False),  # Parquet always has names
        ({}, ["0", "1"], False),
    ):
        assert "row" not in lacking("x", both, names, chosen, header_line=header_line)
