"""The column of ids of a catalogue has any name, through every door alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pytest
from tests.support.command import Command

from evergram.data.corpus import Corpus, Side
from evergram.data.prepared.prepared_corpus import load_prepared
from evergram.errors import DataError
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe

CLICKS = pa.table({"user": [1, 2], "item": ["a", "b"]})
COLUMNS: dict[str, Any] = {"query": "user", "candidate": "item"}


@pytest.mark.parametrize(
    ("name", "others"), [("id", {}), ("item", {}), ("sku", {"id": [7, 8]}), ("sku", {})]
)
def test_it_is_called_id_or_as_in_the_interactions_or_is_named(
    name: str, others: dict[str, list[int]], tmp_path: Path, evergram: Command
) -> None:
    catalogue = pa.table({name: ["a", "b"], **others, "price": [1.5, 2.5]})
    columns = COLUMNS | ({"candidate_id": "sku"} if name == "sku" else {})
    clicks, path = tmp_path / "clicks.csv", tmp_path / "catalogue.csv"
    csv.write_csv(CLICKS, clicks)
    csv.write_csv(catalogue, path)
    data = {"kind": "table", "path": str(clicks), "columns": columns}
    of_recipe = load_corpus(Recipe.of({"data": data | {"candidate_features": str(path)}}))
    options = [f"--column={role}={column}" for role, column in columns.items()]
    made = evergram("prepare", clicks, tmp_path / "out", *options, "--candidate-features", path)
    assert made.code == 0, made.err
    in_memory = Corpus.of(CLICKS, candidate_features=catalogue, **columns)
    for corpus in (of_recipe, in_memory, load_prepared(tmp_path / "out")):
        assert prices(corpus.candidates) == [1.5, 2.5]


def test_a_catalogue_without_one_is_refused_with_its_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'id'.*sku, price"):
        Corpus.of(CLICKS, candidate_features={"sku": ["a"], "price": [1]}, **COLUMNS)


def prices(side: Side) -> list[float]:
    feature = side.features["price"]
    assert list(side.features) == ["price"]
    return [feature.vocabulary.keys[int(row)].as_py() for row in feature.indices]
