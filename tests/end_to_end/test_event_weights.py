"""A column of event names becomes weights, through every door alike."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from tests.support.command import Command

from evergram.data.corpus import Corpus
from evergram.data.prepared.prepared_corpus import load_prepared
from evergram.errors import DataError
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe

EVENTS = {"user": [1, 1, 2], "item": ["a", "b", "a"], "event": ["view", " purchase", "cart"]}
WEIGHTS = {"view": 1.0, "cart": 3.0, "purchase": 10.0}
COLUMNS = {"query": "user", "candidate": "item", "weight": "event"}


def recipe_of(path: Path, weights: dict[str, float]) -> Recipe:
    data = {"kind": "table", "path": str(path), "columns": COLUMNS, "weights": weights}
    return Recipe.of({"data": data})


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_events_weigh_what_the_setting_says(suffix: str, tmp_path: Path, evergram: Command) -> None:
    path, table = tmp_path / f"log{suffix}", pa.table(EVENTS)
    csv.write_csv(table, path) if suffix == ".csv" else pq.write_table(table, path)
    columns = [f"--column={role}={name}" for role, name in COLUMNS.items()]
    weights = [f"--weight={name}={weight}" for name, weight in WEIGHTS.items()]
    folder = tmp_path / "prepared"
    assert evergram("prepare", path, folder, *columns, *weights).code == 0
    assert evergram("prepare", path, folder, "--append").code == 0  # keeps them
    of_recipe = load_corpus(recipe_of(path, WEIGHTS))
    in_memory = Corpus.of(EVENTS, query="user", candidate="item", weight="event", weights=WEIGHTS)
    for corpus in (of_recipe, in_memory):
        assert corpus.column("weight").tolist() == [1, 10, 3]
    assert load_prepared(folder).column("weight").tolist() == [1, 10, 3] * 2


def test_an_unknown_event_is_refused_by_row_with_those_that_have_a_weight(
    tmp_path: Path, evergram: Command
) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table(EVENTS), path)
    known, wanted = {"view": 1.0, "purchase": 9.0}, r"row 3.*'cart'.*view, purchase"
    with pytest.raises(DataError, match=wanted):
        load_corpus(recipe_of(path, known))
    with pytest.raises(DataError, match=wanted):
        Corpus.of(EVENTS, query="user", candidate="item", weight="event", weights=known)
    columns = [f"--column={role}={name}" for role, name in COLUMNS.items()]
    weights = [f"--weight={name}={weight}" for name, weight in known.items()]
    refused = evergram("prepare", path, tmp_path / "out", *columns, *weights)
    assert refused.code == 2
    assert "'cart'" in refused.err
    assert "view, purchase" in refused.err


def test_weights_without_names_or_names_without_weights_are_refused() -> None:
    with pytest.raises(DataError, match=r"data\.weights"):
        Corpus.of(EVENTS, query="user", candidate="item", weight="event")
    with pytest.raises(DataError, match="no column of them"):
        Corpus.of(EVENTS, query="user", candidate="item", weights=WEIGHTS)
    with pytest.raises(DataError, match="'view' is -1"):
        Corpus.of(EVENTS, query="user", candidate="item", weight="event", weights={"view": -1})
