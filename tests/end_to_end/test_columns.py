"""A missing column is named next to those that are there, and ids stay what they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pytest
from tests.support.click_shop import RECIPE, click_pairs
from tests.support.command import Command

from evergram.data.corpus import Corpus
from evergram.data.prepared.mapped_corpus import load_prepared
from evergram.lineage.lineage import Lineage
from evergram.training.build import load_corpus
from evergram.training.recipe import Recipe

TRAIN = "train shop.toml --lineage l --set data.path=clicks.csv"
HEADER = "query,candidate\n"


def test_a_missing_column_is_answered_with_the_line_to_write(evergram: Command, shop: Path) -> None:
    rows = [f"u{q};i{c};3;7\n" for q, c in click_pairs()]
    (shop / "clicks.csv").write_text("userId;movieId;rating;timestamp\n" + "".join(rows))
    sentence = evergram.refused(TRAIN)
    assert "userId, movieId, rating, timestamp" in sentence
    line = re.search(r"columns = \{.*\}", sentence)
    assert line is not None
    (shop / "shop.toml").write_text(RECIPE.replace('kind = "table"', f'kind = "table"\n{line[0]}'))
    assert evergram(TRAIN).code == 0
    recipe = Lineage.open("l").manifest(0).recipe["data"]["columns"]
    assert (recipe["query"], recipe["candidate"]) == ("userId", "movieId")


def test_ids_of_a_csv_stay_what_they_are(evergram: Command, shop: Path) -> None:
    rows = HEADER + "".join(f"{q:05d},{c}\n" for q, c in click_pairs())
    (shop / "clicks.csv").write_text(rows)
    (shop / "f.csv").write_text("id,zip,stars\n00001,00017,1\n00002,17,2\n")
    ran = evergram(f"{TRAIN} --set data.query_features=f.csv --set model.kind=two_tower")
    assert ran.code == 0, ran.err
    ids, _ = Lineage.open("l").embeddings("query")
    assert "00017" in ids.to_pylist()
    assert Lineage.open("l").embeddings("candidate")[0].type == pa.int64()
    vocabularies = Lineage.open("l").reader(0).encoder()[2]
    assert vocabularies["feature.zip"].keys.to_pylist() == ["17", "00017"]
    # The next version's cannot become text, which is said before it trains.
    (shop / "clicks.csv").write_text(rows + "00003,00017\n")
    refused = evergram(TRAIN.replace("train", "upgrade"))
    assert "'00017'" in refused.refusal()
    assert "epoch" not in refused.err


def test_a_rating_that_is_not_read_is_warned_of(evergram: Command, shop: Path) -> None:
    rows = "".join(f"u{q},i{c},4\n" for q, c in click_pairs())
    (shop / "clicks.csv").write_text("query,candidate,stars\n" + rows)
    assert 'value = "stars"' in evergram(TRAIN).err


CLICKS = {"user": [1, 1, 2], "item": ["a", "b", "a"], "event": ["view", " purchase", "cart"]}
COLUMNS: dict[str, Any] = {"query": "user", "candidate": "item"}


def options_of(columns: dict[str, Any]) -> list[str]:
    return [f"--column={role}={name}" for role, name in columns.items()]


@pytest.mark.parametrize(
    ("name", "others"), [("id", {}), ("item", {}), ("sku", {"id": [7, 8]}), ("sku", {})]
)
def test_the_ids_of_a_catalogue_are_found_alike_through_every_door(
    name: str, others: dict[str, list[int]], tmp_path: Path, evergram: Command
) -> None:
    catalogue = pa.table({name: ["a", "b"], **others, "price": [1.5, 2.5]})
    columns = COLUMNS | ({"candidate_id": "sku"} if name == "sku" else {})
    clicks, path, folder = (tmp_path / n for n in ("clicks.csv", "catalogue.csv", "out"))
    csv.write_csv(pa.table(CLICKS).drop("event"), clicks)
    csv.write_csv(catalogue, path)
    data = {"kind": "table", "path": str(clicks), "columns": columns}
    of_recipe = load_corpus(Recipe.of({"data": data | {"candidate_features": str(path)}}))
    made = evergram("prepare", clicks, folder, *options_of(columns), "--candidate-features", path)
    assert made.code == 0, made.err
    described = catalogue.select([name, "price"]).rename_columns(["id", "price"])
    in_memory = Corpus.of(pa.table(CLICKS).drop("event"), candidate_features=described, **COLUMNS)
    for corpus in (of_recipe, in_memory, load_prepared(folder)):
        (price,) = corpus.candidates.features.values()
        assert [price.vocabulary.keys[int(row)].as_py() for row in price.indices] == [1.5, 2.5]
