"""Frames, matrices and lists in memory give the same corpus as a file of the same rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from evergram.data.corpus import Corpus
from evergram.data.tables import load_table
from evergram.errors import DataError

ROWS = [("00017", 3, 2.0, 50), ("b", 1, 1.0, 20), ("00017", 1, 0.5, 20), ("c", 3, 4.0, 10)]
COLUMNS = {
    name: [row[i] for row in ROWS]
    for i, name in enumerate(("query", "candidate", "weight", "time"))
}


def pandas_categories(columns: dict[str, list[Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(columns)
    return frame.astype({"query": "category"}) if "query" in columns else frame


def polars_categories(columns: dict[str, list[Any]]) -> pl.DataFrame:
    frame = pl.DataFrame(columns)
    return frame.with_columns(pl.col("query").cast(pl.Categorical))


MAKERS: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": pd.DataFrame,
    "pandas categories": pandas_categories,
    "pandas indexed": lambda c: pd.DataFrame(c, index=range(90, 90 + len(c["query"]))),
    "polars": pl.DataFrame,
    "polars lazy": pl.LazyFrame,
    "polars categories": polars_categories,
    "arrow": pa.table,
    "arrow batch": lambda c: pa.RecordBatch.from_pydict(c),
    "columns": dict,
    "numpy columns": lambda c: {n: np.array(v) for n, v in c.items()},
    "polars columns": lambda c: {n: pl.Series(v) for n, v in c.items()},
    "mappings": lambda c: [dict(zip(c, row, strict=True)) for row in zip(*c.values(), strict=True)],
    "tuples": lambda c: list(zip(*c.values(), strict=True)),
}


def same(one: Corpus, other: Corpus) -> None:
    assert one.interactions.equals(other.interactions)
    for side in ("queries", "candidates"):
        keys, others = getattr(one, side).vocabulary.keys, getattr(other, side).vocabulary.keys
        assert keys.equals(others)
        assert keys.type == others.type


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_of_table_is_read_as_its_file(kind: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(COLUMNS), tmp_path / "rows.parquet")
    corpus = Corpus.of(MAKERS[kind](COLUMNS))
    same(corpus, load_table(tmp_path / "rows.parquet"))
    assert corpus.queries.vocabulary.keys.to_pylist() == ["c", "b", "00017"]
    assert corpus.column("weight").tolist() == [4.0, 1.0, 0.5, 2.0]


@pytest.mark.parametrize("kind", ["pandas indexed", "polars lazy", "arrow batch", "mappings"])
def test_columns_may_have_other_names(kind: str) -> None:
    renamed = {"user": COLUMNS["query"], "query": COLUMNS["candidate"], "when": COLUMNS["time"]}
    corpus = Corpus.of(
        MAKERS[kind]({**renamed, "stars": [1, 2, 3, 4]}),
        query="user",
        candidate="query",
        time="when",
        value="stars",
    )
    expected = {name: COLUMNS[name] for name in ("query", "candidate", "time")}
    same(corpus, Corpus.of({**expected, "value": [1, 2, 3, 4]}))


def test_a_sparse_matrix_has_a_pair_for_each_entry() -> None:
    for make in [sp.csr_matrix, sp.csr_array, sp.coo_array, sp.csc_matrix]:
        dense = np.array([[0, 2, 0], [0, 0, 0], [3, 0, 1]])
        corpus = Corpus.of(make(dense))
        triples = {
            (
                corpus.queries.vocabulary.keys[q].as_py(),
                corpus.candidates.vocabulary.keys[c].as_py(),
                w,
            )
            for q, c, w in zip(
                *(corpus.column(n).tolist() for n in ("query", "candidate", "weight")), strict=True
            )
        }
        assert triples == {(0, 1, 2.0), (2, 0, 3.0), (2, 2, 1.0)}


def test_a_matrix_of_ones_has_no_weight_and_stored_zeros_are_no_pairs() -> None:
    matrix = sp.csr_array(np.array([[1, 1], [0, 1]]))
    matrix.data[1] = 0
    corpus = Corpus.of(matrix, query_ids=["ann", "ben"], candidate_ids=[70, 80])
    assert corpus.interactions.column_names == ["query", "candidate"]
    assert corpus.queries.vocabulary.keys.to_pylist() == ["ann", "ben"]
    assert corpus.candidates.vocabulary.keys.to_pylist() == [70, 80]
    assert len(corpus) == 2


def test_features_may_be_frames_too() -> None:
    corpus = Corpus.of(
        [("a", 1), ("b", 2)],
        candidate_features=pl.DataFrame({"id": [2, 1], "tags": [["x", "y"], ["x"]]}),
        query_features=pd.DataFrame({"id": ["a", "b"], "city": ["Rome", "Oslo"]}),
    )
    assert corpus.candidates.features["tags"].offsets.tolist() == [0, 1, 3]
    assert corpus.queries.features["city"].vocabulary.keys.to_pylist() == ["Rome", "Oslo"]


def test_times_may_be_dates() -> None:
    for frame in (
        pd.DataFrame({"query": [1, 2], "candidate": [5, 5], "time": ["2020-01-02", "2020-01-01"]}),
    ):
        frame["time"] = pd.to_datetime(frame["time"])
        assert Corpus.of(frame).queries.vocabulary.keys.to_pylist() == [2, 1]
        polars = pl.DataFrame({n: frame[n].tolist() for n in ("query", "candidate", "time")})
        same(Corpus.of(polars), Corpus.of(frame))


def test_errors_name_the_row_and_the_remedy() -> None:
    for data, message in [
        (pd.DataFrame({"query": [1, None], "candidate": [1, 2]}), "'query' is double.*integers"),
        (pd.DataFrame({"query": ["a", None], "candidate": [1, 2]}), "row 2: query is empty"),
        (pd.DataFrame({"query": ["a", 1], "candidate": [1, 2]}), "mixes types: row 2 is 1"),
        (pl.DataFrame({"query": ["a", ""], "candidate": [1, 2]}), "row 2: query is empty"),
        (
            pd.DataFrame({"query": [1], "candidate": [2], "weight": [-1.0]}),
            "row 1: weight is -1.0; it must be a finite number of at least 0",
        ),
        (
            pl.DataFrame({"user_id": [1], "item": [2]}),
            r"no column 'query'; its columns are: user_id, item\. Name the right ones: "
            r"Corpus.of\(…, query='user_id', candidate='item'\)",
        ),
        (pd.DataFrame([[1, 2]], columns=["query", "query"]), "two columns 'query'"),
        (
            pd.DataFrame({"query": [1], "candidate": [2]}).set_index("query"),
            r"has 'query' in its index, which is not read; give frame\.reset_index\(\)",
        ),
        ([(1, 2), (1, 2, 3)], r"row 2 is \(1, 2, 3\); it must be a tuple of 2 values"),
        ([(1, 2), ("b", 3)], "column 'query' mixes types: row 2 is 'b'"),
        ([(2**70, 2)], "at most 64 bits"),
        ([(1,)], "tuples of 1; they must be"),
        ([], "The list has no rows; at least one interaction is needed"),
        (pd.Series([1, 2]), "A Series is no table of interactions; give a DataFrame"),
        (pa.table({"query": [], "candidate": []}), "has no rows"),
        ("rows.csv", "A str is no table of interactions"),
        (sp.csr_array((2, 2)), "The matrix has no rows"),
        ([{"query": 1, "candidate": 2}, {"query": 1}], "row 2: candidate is empty"),
    ]:
        with pytest.raises(DataError, match=message) as caught:
            Corpus.of(data)
        assert "\n" not in str(caught.value)


def test_ids_of_a_matrix_are_one_for_each_row_and_column() -> None:
    with pytest.raises(DataError, match="query_ids has 1 ids and the matrix 2 rows"):
        Corpus.of(sp.csr_array(np.eye(2)), query_ids=["a"])
    with pytest.raises(DataError, match="candidate_ids names 7 twice; give each row and column"):
        Corpus.of(sp.csr_array(np.eye(2)), candidate_ids=[7, 7])
    with pytest.raises(DataError, match=r"of a DataFrame, give the columns of ids with query=…"):
        Corpus.of(pd.DataFrame({"query": [1], "candidate": [2]}), query_ids=["a"])


REFUSING = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pandas", "polars"):
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Refusing())
import evergram
assert len(evergram.Corpus.of([("a", 1), ("b", 1)])) == 2
"""


def test_neither_pandas_nor_polars_need_be_installed() -> None:
    subprocess.run([sys.executable, "-c", REFUSING], check=True)


def test_named_tuples_say_which_column_is_which() -> None:
    frame = pd.DataFrame({"candidate": [5, 6], "query": ["a", "b"], "value": [1.0, 2.0]})
    corpus = Corpus.of(list(frame.itertuples()))
    assert corpus.queries.vocabulary.keys.to_pylist() == ["a", "b"]
    assert corpus.candidates.vocabulary.keys.to_pylist() == [5, 6]
    assert corpus.column("value").tolist() == [1.0, 2.0]
    with pytest.raises(DataError, match="no column 'query'; its columns are: Index, user, item"):
        Corpus.of(list(pd.DataFrame({"user": [1], "item": [2]}).itertuples()))
