"""Frames, matrices and lists in memory give the same corpus as a file of the same rows."""

from __future__ import annotations

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
from tests.support.prepared import assert_same, bags_of, pairs_of

from evergram.data.corpus import Corpus
from evergram.data.tables import load_table
from evergram.errors import DataError

ROWS = [("00017", 3, 2.0, 50), ("b", 1, 1.0, 20), ("00017", 1, 0.5, 20), ("c", 3, 4.0, 10)]
COLUMNS = {
    name: [row[i] for row in ROWS]
    for i, name in enumerate(("query", "candidate", "weight", "time"))
}


MAKERS: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": pd.DataFrame,
    "pandas categories": lambda c: pd.DataFrame(c).astype({"query": "category"}),
    "pandas indexed": lambda c: pd.DataFrame(c, index=range(90, 90 + len(c["query"]))),
    "polars": pl.DataFrame,
    "polars lazy": pl.LazyFrame,
    "polars categories": lambda c: pl.DataFrame(c).cast({"query": pl.Categorical}),
    "arrow": pa.table,
    "arrow batch": pa.RecordBatch.from_pydict,
    "columns": dict,
    "numpy columns": lambda c: {n: np.array(v) for n, v in c.items()},
    "polars columns": lambda c: {n: pl.Series(v) for n, v in c.items()},
    "mappings": lambda c: [dict(zip(c, row, strict=True)) for row in zip(*c.values(), strict=True)],
    "tuples": lambda c: list(zip(*c.values(), strict=True)),
    "named tuples": lambda c: list(pd.DataFrame(c).itertuples()),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_of_table_is_read_as_its_file(kind: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(COLUMNS), tmp_path / "rows.parquet")
    corpus = Corpus.of(MAKERS[kind](COLUMNS))
    assert_same(corpus, load_table(tmp_path / "rows.parquet"))
    assert corpus.queries.vocabulary.keys.to_pylist() == ["c", "b", "00017"]
    assert corpus.column("weight").tolist() == [4.0, 1.0, 0.5, 2.0]
    if kind != "tuples":  # whose places say which column is which
        renamed = {"user": COLUMNS["query"], "query": COLUMNS["candidate"], "t": COLUMNS["time"]}
        names: dict[str, Any] = {"query": "user", "candidate": "query", "time": "t"}
        maker = MAKERS[kind if "categories" not in kind else "pandas"]
        other = Corpus.of(maker(renamed | {"stars": [1, 2, 3, 4]}), value="stars", **names)
        assert pairs_of(other) == pairs_of(corpus)
        assert other.column("value").tolist() == [4, 2, 3, 1]


@pytest.mark.parametrize("make", [sp.csr_matrix, sp.csr_array, sp.coo_array, sp.csc_matrix])
def test_a_sparse_matrix_has_a_pair_for_each_entry(make: Callable[..., Any]) -> None:
    corpus = Corpus.of(make(np.array([[0, 2, 0], [0, 0, 0], [3, 0, 1]])))
    weights = dict(zip(pairs_of(corpus), corpus.column("weight").tolist(), strict=True))
    assert weights == {(0, 1): 2.0, (2, 0): 3.0, (2, 2): 1.0}


def test_a_matrix_of_ones_has_no_weight_and_stored_zeros_are_no_pairs() -> None:
    matrix = sp.csr_array(np.array([[1, 1], [0, 1]]))
    matrix.data[1] = 0
    corpus = Corpus.of(matrix, query_ids=["ann", "ben"], candidate_ids=[70, 80])
    assert corpus.interactions.column_names == ["query", "candidate"]
    assert pairs_of(corpus) == [("ann", 70), ("ben", 80)]


def test_features_and_times_in_frames() -> None:
    corpus = Corpus.of(
        [("a", 1), ("b", 2)],
        candidate_features=pl.DataFrame({"id": [2, 1], "tags": [["x", "y"], ["x"]]}),
        query_features=pd.DataFrame({"id": ["a", "b"], "city": ["Rome", "Oslo"]}),
    )
    assert bags_of(corpus.candidates, "tags") == {1: ["x"], 2: ["x", "y"]}
    assert bags_of(corpus.queries, "city") == {"a": ["Rome"], "b": ["Oslo"]}
    frame = pd.DataFrame({"query": [1, 2], "candidate": [5, 5]})
    frame["time"] = pd.to_datetime(["2020-01-02", "2020-01-01"])
    assert pairs_of(Corpus.of(frame)) == [(2, 5), (1, 5)]
    assert_same(Corpus.of(pl.DataFrame(frame.to_dict("list"))), Corpus.of(frame))


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
        (list(pd.DataFrame({"user": [1]}).itertuples()), "its columns are: Index, user"),
    ]:
        with pytest.raises(DataError, match=message) as caught:
            Corpus.of(data)
        assert "\n" not in str(caught.value)
    square: list[tuple[Any, dict[str, Any], str]] = [
        (sp.csr_array(np.eye(2)), {"query_ids": ["a"]}, "query_ids has 1 ids and the matrix 2 row"),
        (sp.csr_array(np.eye(2)), {"candidate_ids": [7, 7]}, "candidate_ids names 7 twice"),
        (pd.DataFrame(COLUMNS), {"query_ids": ["a"]}, "of a DataFrame, .* with query=…"),
    ]
    for data, ids, message in square:
        with pytest.raises(DataError, match=message):
            Corpus.of(data, **ids)


def test_neither_pandas_nor_polars_need_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    assert len(Corpus.of([("a", 1), ("b", 1)])) == 2
    assert len(Corpus.of({"query": ["a"], "candidate": [1]})) == 1
