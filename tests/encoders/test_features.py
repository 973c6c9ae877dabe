"""Ids, features and tables in the rows of an encoder's own vocabularies; keys may be missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.encoder_inputs import columns_of, inputs_of
from evergram.encoders.features import EntityInputs, Schema
from evergram.errors import DataError

SCHEMA = Schema(
    {"ids": Vocabulary(pa.array(["b", "a"])), "words": Vocabulary(pa.array(["x", "y"]))},
    {"query": {"id": "ids"}, "candidate": {"id": "ids", "tags": "words", "also": "words"}},
)


def test_ids_and_features_are_rows_of_the_vocabularies() -> None:
    candidates = Corpus.from_tables(
        pa.table({"query": ["?"] * 3, "candidate": ["a", "c", "b"]}),
        candidate_features=pa.table(
            {"id": ["a", "c", "b"], "tags": [["y", "unknown", "x"], [], ["unknown"]]}
        ),
    ).candidates
    inputs = SCHEMA.read("candidate", candidates)
    assert inputs.ids.tolist() == [1, -1, 0]
    indices, offsets = inputs.bags["tags"]
    assert indices.tolist() == [1, 0]
    assert offsets.tolist() == [0, 2, 2, 2]
    # A feature that the corpus lacks has empty bags.
    assert inputs.bags["also"][1].tolist() == [0, 0, 0, 0]
    assert SCHEMA.read("query", candidates).bags == {}


def test_an_entity_is_known_by_its_id_or_by_a_feature() -> None:
    bag = torch.tensor([1]), torch.tensor([0, 0, 1, 1])
    inputs = EntityInputs(torch.tensor([0, -1, -1]), {"tags": bag})
    assert inputs.is_known.tolist() == [True, True, False]
    taken = inputs.take(torch.tensor([2, 1, 1]))
    assert len(taken) == 3
    assert taken.is_known.tolist() == [False, True, True]
    assert taken.bags["tags"][0].tolist() == [1, 1]


def test_features_that_would_share_a_table_are_refused() -> None:
    features = pa.table({"id": [1, 2], "genre.main": ["a", "b"], "genre/main": ["x", "y"]})
    pairs = pa.table({"query": [1, 2], "candidate": [1, 2]})
    corpus = Corpus.from_tables(pairs, candidate_features=features)
    with pytest.raises(DataError, match=r"genre\.main and genre/main would share one table"):
        Schema.of(corpus, features=True)
    assert len(Schema.of(corpus, features=False).vocabularies) == 2


ITEMS = Schema(
    {"items": Vocabulary(pa.array([10, 20, 30])), "genres": Vocabulary(pa.array(["war", "art"]))},
    {"candidate": {"id": "items", "genre": "genres"}},
)


def bags(objects: Any) -> list[list[int]]:
    rows, offsets = inputs_of(objects, "candidate", ITEMS).bags["genre"]
    return [
        rows[a:b].tolist() for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    ]


def test_ids_and_lists_of_keys_are_rows_of_the_vocabularies() -> None:
    objects = [
        {"id": 30, "genre": ["art", "war"]},
        {"id": 10},
        {"id": None, "genre": "art"},
        {"genre": ["opera", "war", None]},
    ]
    assert inputs_of(objects, "candidate", ITEMS).ids.tolist() == [2, 0, -1, -1]
    # An unknown key is left out; a single key is a list of one.
    assert bags(objects) == [[1, 0], [], [1], [0]]


@pytest.mark.parametrize("genres", [[["art"], ["war", "art"]], [("art",), {"art", "war"}]])
def test_a_table_of_any_kind_is_read_like_a_list_of_mappings(genres: list[Any]) -> None:
    expected = [sorted(bag) for bag in bags([{"genre": list(bag)} for bag in genres])]
    lists = [sorted(bag) for bag in genres]
    tables = [
        pa.table({"genre": lists}),
        pa.table({"genre": lists}).to_batches()[0],
        pd.DataFrame({"genre": lists}),
        pl.DataFrame({"genre": lists}),
    ]
    for table in tables:
        assert [sorted(bag) for bag in bags(table)] == expected


def test_columns_are_taken_apart_whatever_holds_them() -> None:
    for ids in (
        [1, 2],
        (1, 2),
        np.array([1, 2]),
        torch.tensor([1, 2]),
        pa.chunked_array([[1], [2]]),
    ):
        assert columns_of(ids) == {"id": pa.array([1, 2])}
    categories = pa.array(["a", "b", "a"]).dictionary_encode()
    assert columns_of(categories)["id"].to_pylist() == ["a", "b", "a"]
    assert columns_of(iter([3, 4]))["id"].to_pylist() == [3, 4]


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([{"genre": ["opera"]}], r"no vector for 1 of 1 objects.*number 0 \(genre \['opera'\]\)"),
        ([{"id": 10}, {"id": 99}], r"no vector for 1 of 2 objects.*number 1 \(id 99\)"),
        ([{"genre": [1.5]}], "'genre' holds double; keys are integers or texts"),
        ([1, "a"], "'id' cannot be read: .*of one kind in a column"),
        (pa.table({"year": [1999]}), "no feature 'year' of side 'candidate'; it has id, genre"),
    ],
)
def test_objects_that_cannot_be_embedded_are_named(objects: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        inputs_of(objects, "candidate", ITEMS)


def test_another_kind_of_table_is_refused() -> None:
    class Frame:
        columns = ("id",)

    with pytest.raises(DataError, match="A Frame cannot be read as a table; give a pandas"):
        columns_of(Frame())


def test_keys_of_a_feature_have_the_type_of_the_training() -> None:
    with pytest.raises(DataError, match=r"keys of feature 'genre' are int64; those .* are string"):
        inputs_of([{"id": 10, "genre": [1]}], "candidate", ITEMS)
    assert bags([{"id": 10, "genre": [None]}]) == [[]]
