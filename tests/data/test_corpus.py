"""A corpus: vocabularies, order, repeats, types and rows of features; the planted corpus."""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.prepared import bags_of, pairs_of

from evergram.data import corpus as corpus_module
from evergram.data import generate, random_split
from evergram.data.corpus import Corpus, Vocabulary, plain, summaries, take_ragged, to_tensor
from evergram.data.feature_types import NUMBER, TIME, bucket_starts, typed
from evergram.data.split import HeldOut
from evergram.data.synthetic import Planted
from evergram.errors import DataError
from evergram.evaluation.ranking import popularity_metrics, rank_metrics, relevance_of
from evergram.training.recipe import Recipe


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_the_order_is_stable(times: list[int]) -> None:
    data = Corpus.of({"query": range(len(times)), "candidate": [0] * len(times), "time": times})
    # Query i is line i: Python's sort is stable too, and another algorithm.
    expected = sorted(range(len(times)), key=lambda i: times[i])
    assert data.queries.vocabulary.keys.to_pylist() == expected


def test_repeats_and_shared_ids() -> None:
    data = Corpus.of([(1, 5), (1, 5), (1, 6), (2, 5)])
    assert (len(data), data.repeats, data.counts("candidate").tolist()) == (4, 1, [3, 1])
    data = Corpus.of([("a", "b"), ("b", "c")], shared_ids=True)
    assert data.queries.vocabulary is data.candidates.vocabulary
    part = data.restrict(torch.tensor([1]))
    assert part.queries.vocabulary is part.candidates.vocabulary
    assert part.queries.vocabulary.keys.to_pylist() == ["b", "c"]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30), st.data()
)
def test_restriction_keeps_external_ids_and_features(
    pairs: list[tuple[int, int]], chosen: st.DataObject
) -> None:
    bags = {"id": range(7), "bag": [list(range(i)) for i in range(7)]}
    data = Corpus.of(pairs, candidate_features=bags)
    rows = chosen.draw(st.lists(st.sampled_from(range(len(pairs))), unique=True, min_size=1))
    part = data.restrict(torch.tensor(sorted(rows)))
    assert pairs_of(part) == [pairs[i] for i in sorted(rows)]
    keys = part.candidates.vocabulary.keys.to_pylist()
    assert set(keys) == {candidate for _, candidate in pairs_of(part)}
    assert bags_of(part.candidates, "bag") == {key: list(range(key)) for key in keys}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_rows_are_those_of_first_appearance_for_numbers_and_for_their_texts(
    keys: list[int],
) -> None:
    distinct = list(dict.fromkeys(keys))
    expected = [distinct.index(key) for key in keys]
    for asked in (pa.array(keys), pa.array([str(key) for key in keys])):
        vocabulary = Vocabulary.by_first_appearance(asked)
        assert vocabulary.rows(pa.array(keys)).tolist() == expected
        assert vocabulary.rows(pa.array([str(key) for key in keys])).tolist() == expected


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 99)), st.lists(st.integers(0, 99) | st.none(), max_size=60))
def test_rows_of_few_values_are_those_of_many(keys: set[int], asked: list[int | None]) -> None:
    row = {key: i for i, key in enumerate(keys)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "KEYS_AT_ONCE", 7)
        for kind in (pa.int64(), pa.string()):
            vocabulary = Vocabulary(pa.array(list(keys), pa.int64()).cast(kind))
            for size in (3, len(asked)):
                values = pa.array(asked[:size], pa.int64()).cast(kind)
                expected = [-1 if value is None else row.get(value, -1) for value in asked[:size]]
                assert vocabulary.rows(values).tolist() == expected


def test_a_text_that_is_no_64_bit_number_is_no_key_of_numbers() -> None:
    texts = ["10", "010", " 10", "1e1", "", "9223372036854775808", "-9223372036854775809"]
    rows = Vocabulary(pa.array([10])).rows(pa.array(texts)).tolist()
    assert rows == [0, -1, -1, -1, -1, -1, -1]
    zeros = ["0", "-0", "00", "-010", "0000000000000000010", "-10", "-9223372036854775808"]
    numbers = Vocabulary(pa.array([0, -10, 10, -(2**63)]))
    assert numbers.rows(pa.array(zeros)).tolist() == [0, -1, -1, -1, -1, 1, 3]


def test_plain_ids_are_one_array_of_int64_or_string_and_a_tensor_never_writes_into_arrow() -> None:
    chunked = pa.chunked_array([["b"], ["a", "b"]])
    for values in (chunked, chunked.dictionary_encode(), chunked.cast(pa.large_string())):
        assert plain(values).equals(pa.array(["b", "a", "b"]))
    # A number that int64 cannot hold makes texts of all.
    assert plain(pa.array([1, 2**63], pa.uint64())).to_pylist() == ["1", str(2**63)]
    column = pa.chunked_array([[1, 2], [3]])
    to_tensor(column).zero_()
    assert column.to_pylist() == [1, 2, 3]


def test_features_follow_the_rows_and_share_a_vocabulary_by_name() -> None:
    data = Corpus.of(
        [("u", "y"), ("v", "x")],
        query_features={"id": ["v", "u"], "tag": [["b"], ["a", "b"]]},
        candidate_features={"id": ["x", "z"], "tag": [["a"], ["c"]], "year": [1999, 2000]},
    )
    assert bags_of(data.queries, "tag") == {"u": ["a", "b"], "v": ["b"]}
    # y has no row; z has no interaction.
    assert bags_of(data.candidates, "tag") == {"y": [], "x": ["a"]}
    assert bags_of(data.candidates, "year") == {"y": [], "x": [1999]}
    both = (side.features["tag"].vocabulary for side in (data.queries, data.candidates))
    assert next(both) is next(both)


def test_columns_that_are_declared_without_nulls_are_read_as_others() -> None:
    required = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("tag", pa.string(), nullable=False)]
    )
    features = pa.table({"id": [2, 1], "tag": ["b", "a"]}, required)
    pairs = pa.table(
        {"query": [1, 2], "candidate": [3, 3]},
        pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("query", "candidate")]),
    )
    data = Corpus.of(pairs, query_features=features)
    assert bags_of(data.queries, "tag") == {1: ["a"], 2: ["b"]}


def test_bad_features_are_refused() -> None:
    for features, message in [
        ({"id": [1, 1], "a": [1, 2]}, "1 ids are repeated, such as 1;"),
        ({"id": [1], "price": [[1.5]]}, "holds list<item: double>"),
        ({"id": [1], "tags": [["a", None]]}, "null inside a list"),
        ({"id": [1], "raw": [b"\xe9"]}, "holds binary"),
        (
            {"id": [1], "age": pa.nulls(1, pa.month_day_nano_interval())},
            "'age' cannot be read",
        ),
    ]:
        with pytest.raises(DataError, match=message):
            Corpus.of([(1, 1)], query_features=features)
    for queries, message in [
        ({"id": ["1574"], "x": ["war"]}, "they have text, such as '1574', and the interactions"),
        ({"id": [1], "x": [1.5]}, "'x' is a number of queries and a category of candidates"),
    ]:
        candidates = {"id": [1], "x": ["new"]}
        with pytest.raises(DataError, match=message):
            Corpus.of([(1, 1)], query_features=queries, candidate_features=candidates)


@pytest.mark.parametrize("make", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)])
def test_bags_in_lists_of_any_kind(make: Callable[[pa.DataType], pa.DataType]) -> None:
    features = pa.table({"id": [1, 2], "bag": pa.array([[7, 8], None], make(pa.int64()))})
    queries = Corpus.of([(2, 0), (1, 0)], query_features=features).queries
    assert bags_of(queries, "bag") == {2: [], 1: [7, 8]}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=8),
    st.lists(st.integers(0, 100), max_size=10),
)
def test_rows_of_a_ragged_table_are_those_of_a_list_of_lists(
    bags: list[list[int]], asked: list[int]
) -> None:
    rows = [row % len(bags) for row in asked]
    offsets = torch.tensor([0, *(len(bag) for bag in bags)]).cumsum(0)
    flat = torch.tensor([key for bag in bags for key in bag], dtype=torch.int64)
    values, ends = take_ragged(flat, offsets, torch.tensor(rows, dtype=torch.int64))
    assert [values[a:b].tolist() for a, b in pairwise(ends)] == [bags[row] for row in rows]


NOON = datetime.datetime(2025, 1, 1, 12)


def test_numbers_and_times_are_what_they_are_however_they_are_written() -> None:
    cases: list[Any] = [
        (["658.36", "1234.5", None, "n/a", "12"], [658.36, 1234.5, None, None, 12]),
        (["1e3", " -2.5 ", ""], [1000, -2.5, None]),
        ([3, None, 4], [3, None, 4]),
        ([1.5, float("nan")], [1.5, None]),
        ([decimal.Decimal("1.5")], [1.5]),
        (["2025-01-01T13:00:00+01:00", "2025-01-01 12:00Z"], [NOON, NOON]),
        (["2025-01-01", "2025-01-01 12:00"], [datetime.datetime(2025, 1, 1), NOON]),
        ([datetime.date(2025, 1, 1)], [datetime.datetime(2025, 1, 1)]),
    ]
    for cells, values in cases:
        column = typed(pa.chunked_array([pa.array(cells)]), "x", "features")
        assert column.type == (TIME if isinstance(values[0], datetime.datetime) else NUMBER)
        assert column.to_pylist() == values


def test_all_else_are_keys() -> None:
    for name, cells in [
        ("zip", ["0017", "18"]),
        ("size", ["17", "18"]),
        ("price", ["1,234.5", "7"]),
        ("price", ["1.5", "unknown"]),
        ("listed", ["31.12.2025", "30.12.2025"]),
        ("listed", ["2025-02-28", "2025-02-30"]),
        ("brand_id", [1, 2]),
        ("brandId", [1, 2]),
        ("tags", [[1, 2], [3]]),
        ("sold", [True, None]),
    ]:
        column = pa.chunked_array([pa.array(cells)])
        assert typed(column, name, "features").equals(column)


def test_times_with_a_zone_and_without_in_one_column_are_refused_by_row() -> None:
    column = pa.chunked_array([["2025-01-01T12:00:00Z", "2025-01-02"]])
    with pytest.raises(DataError, match=r"features row 2: listed is '2025-01-02'"):
        typed(column, "listed", "features")


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_buckets_ascend_and_the_row_of_a_value_is_that_of_its_bucket(values: list[float]) -> None:
    starts = bucket_starts(np.array(values), NUMBER, missing=True)
    vocabulary, bounds = Vocabulary(starts), starts.drop_null().to_pylist()
    assert bounds == sorted(set(bounds))
    asked = [*values, min(values) - 1, max(values) + 1, None]
    rows = vocabulary.rows(pa.array(asked, NUMBER)).tolist()
    for value, row in zip(asked[:-1], rows[:-1], strict=True):
        assert row == max(sum(bound <= value for bound in bounds) - 1, 0)
    assert rows[-1] == len(bounds) == vocabulary.row_of_missing


def test_buckets_hold_about_as_many_objects_each_and_a_frequent_value_has_its_own() -> None:
    starts = bucket_starts(np.arange(10_000.0), NUMBER, missing=False)
    sizes = np.bincount(Vocabulary(starts).rows(pa.array(np.arange(10_000.0))).numpy())
    assert (len(sizes), sizes.min(), sizes.max()) == (64, 156, 157)
    often = np.array([0.0] * 80 + [*range(1, 21)])
    assert bucket_starts(often, NUMBER, missing=False).to_pylist()[:2] == [0, 0.5]
    # Years, of which each has films enough.
    assert len(bucket_starts(np.repeat(np.arange(40.0), 4), NUMBER, missing=False)) == 40


def test_what_is_said_of_each_feature() -> None:
    ids = list(range(40))
    features = pa.table(
        {
            "id": ids,
            "price": [None, *("1.50" for _ in ids[1:])],
            "listed": ["2025-01-01T01:00:00+01:00"] * 40,
            "name": [f"lamp {i}" for i in ids],
            "stock": [*map(str, ids[1:]), "sold out"],
            "kind": ["lamp", "shade"] * 20,
            "day": ["2025-02-28", "2025-02-30"] * 20,
            "euros": ["1.234,50 €", "950,00 €"] * 20,
            "code": ["00017", "00018"] * 20,
        }
    )
    corpus = Corpus.of([(1, i) for i in ids], candidate_features=features)
    said = {one.name: one for one in summaries(corpus.queries, corpus.candidates)}
    assert (said["price"].type, said["price"].values, said["price"].coverage) == (
        "number",
        1,
        39 / 40,
    )
    assert said["listed"].most_frequent == "2025-01-01 00:00:00"
    assert (said["kind"].share, said["kind"].warning) == (0.5, None)
    assert "'2025-02-30' is neither" in str(said["day"].warning)
    assert "'name' has 40 values for 40 objects" in str(said["name"].warning)
    assert "'sold out' is neither" in str(said["stock"].warning)
    assert "'1.234,50 €' is neither" in str(said["euros"].warning)
    assert (said["code"].type, said["code"].warning) == ("category", None)


def test_the_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page, space = (Path(__file__).parents[2] / "docs" / "data.md").read_text(), dict[str, Any]()
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "data.md", "exec"), space)
    assert f"prints `{capsys.readouterr().out.strip()}`" in page
    assert isinstance(space["recipe"], Recipe)
    assert list(space["corpus"].candidates.features) == ["genres"]


def test_the_same_arguments_give_the_same_corpus() -> None:
    one, two, other = (
        generate(queries=50, candidates=40, interactions=500, seed=seed) for seed in (0, 0, 1)
    )
    assert one.corpus.interactions.equals(two.corpus.interactions)
    assert torch.equal(one.candidate_factors, two.candidate_factors)
    assert not one.corpus.interactions.equals(other.corpus.interactions)
    for interactions in (1, 3, 80):
        corpus = generate(queries=5, candidates=5, interactions=interactions).corpus
        assert corpus.column("time").tolist() == list(range(interactions))


@pytest.fixture(scope="module")
def planted() -> Planted:
    return generate()


@pytest.mark.long
def test_the_planted_ranking_is_far_better_than_popularity(planted: Planted) -> None:
    split = random_split(planted.corpus, share=0.2, held_out=HeldOut("test"))
    training = split.training
    query = planted.corpus.queries.vocabulary.rows(training.queries.vocabulary.keys)
    candidate = planted.corpus.candidates.vocabulary.rows(training.candidates.vocabulary.keys)
    relevance = relevance_of(training, split.test)
    oracle = rank_metrics(planted.scores(query)[:, candidate], torch.eye(len(candidate)), relevance)
    baseline = popularity_metrics(training.counts("candidate"), relevance)
    assert oracle["recall@20"] > 2 * baseline["recall@20"] > 0.1


@pytest.mark.long
def test_ratings_follow_quality_and_candidates_of_a_group_are_alike(planted: Planted) -> None:
    corpus = planted.corpus
    value, candidate = corpus.column("value"), corpus.column("candidate")
    assert set(value.tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0}
    pair = torch.stack([value, planted.quality[candidate]])
    assert float(torch.corrcoef(pair)[0, 1]) > 0.5
    early = corpus.column("time") < 15_000
    assert len(torch.unique(candidate[early])) < 0.8 * len(corpus.candidates)
    group = corpus.candidates.features["group"]
    assert torch.equal(group.offsets.diff(), torch.ones(len(group.indices), dtype=torch.int64))
    same = group.indices[:, None] == group.indices
    alike = planted.candidate_factors @ planted.candidate_factors.T
    assert float(alike[same].mean()) > float(alike[~same].mean()) + 0.5
    # A tag "t3-1" is mostly borne by group "g3".
    groups = bags_of(corpus.candidates, "group")
    tags = bags_of(corpus.candidates, "tags")
    own = [f"g{tag[1:].split('-')[0]}" in groups[i] for i, bag in tags.items() for tag in bag]
    assert sum(own) > 0.7 * len(own) >= 0.7 * len(groups)
