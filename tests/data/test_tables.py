"""Tables with wrong or odd cells; the formats themselves are in test_loaders."""

from __future__ import annotations

import gzip
import re
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.tables import load_table, read_features, read_interactions, read_keyed
from evergram.errors import DataError
from evergram.ids import NOTHING

MANY = 300_000  # lines: several of Arrow's blocks of 1 MiB


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("query,candidate,value\n1,2,3\n1,3,good\n", "row 2: value is 'good'; it must be a number"),
        ("query,candidate,value\n1,2,x\n1,3,4\n", "row 1: value is 'x'"),
        ("query,candidate,value\n1,2,word\n1,3,nan\n", "row 1: value is 'word'"),
        ("query,candidate,time\n1,2,2020-01-01\n1,3,soon\n", "row 2: time is 'soon'"),
        ("query,candidate,time\n1,2,12:30:00\n", "row 1: time is '12:30:00'"),
        ("query,candidate,value\n1,2,1\n1,3\n", r"x\.csv row 2 cannot be read: it has 2 cells"),
        ("query,candidate,candidate\n1,2,3\n", "two columns 'candidate'"),
        ("query,candidate,value\n" + "1,2,3\n" * MANY + "1,2,good\n", f"row {MANY + 1}: value"),
    ],
)
def test_a_bad_cell_is_named_by_its_row(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        load_table(tmp_path / "x.csv")
    assert "\n" not in str(caught.value)


def test_a_column_is_of_one_type_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    text = "query,candidate,value\n" + "1,2,3\n" * MANY + "A1,2,3.5\n"
    (tmp_path / "x.csv").write_text(text)
    table = read_interactions(tmp_path / "x.csv")
    assert table["query"].type == pa.string()
    assert table["value"][-1].as_py() == 3.5


def test_dates_become_times_in_order(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("query,candidate,time\n1,2,2020-01-02\n2,2,2020-01-01\n")
    corpus = load_table(tmp_path / "x.csv")
    day = 24 * 60 * 60 * 1_000_000
    assert corpus.queries.vocabulary.keys.to_pylist() == [2, 1]
    assert corpus.column("time").diff().tolist() == [day]


def test_columns_may_swap_names_but_not_invent_one(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("query,candidate\n1,2\n")
    swapped = read_interactions(tmp_path / "x.csv", {"query": "candidate", "candidate": "query"})
    assert swapped.to_pylist() == [{"query": 2, "candidate": 1}]
    with pytest.raises(DataError, match="query and candidate are both the column 'candidate'"):
        read_interactions(tmp_path / "x.csv", {"query": "candidate"})
    with pytest.raises(DataError, match="no column 'user' to name"):
        read_interactions(tmp_path / "x.csv", {"user": "query"})


@pytest.mark.parametrize(("separator", "keys"), [("|", 1), (";", 2), ("", 1)])
def test_the_list_separator(tmp_path: Path, separator: str, keys: int) -> None:
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
        ("key,weight\n1,2\n", "no column 'id'; its columns are: key, weight"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_keyed(path, "weight")


@pytest.mark.parametrize(("sign", "suffix"), [(";", ".csv"), ("\t", ".csv"), (",", ".tsv")])
def test_the_first_line_says_what_divides_cells(tmp_path: Path, sign: str, suffix: str) -> None:
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


def test_a_folder_of_parquet(tmp_path: Path) -> None:
    for part in range(3):
        table = pa.table({"query": [part], "candidate": [7]})
        pq.write_table(table, tmp_path / f"part-{part}.parquet")
    assert load_table(tmp_path).queries.vocabulary.keys.to_pylist() == [0, 1, 2]
    (tmp_path / "part-3.parquet").write_text("not Parquet")
    with pytest.raises(DataError, match="cannot be read"):
        load_table(tmp_path)


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
