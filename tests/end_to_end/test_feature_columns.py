"""A catalogue of prices, dates and names, from its file to a new product's vector."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.command import Command

from evergram.exporting.pretrained_encoder import PretrainedEncoder
from evergram.lineage.lineage import Lineage
from evergram.releasing.publish import publish
from evergram.releasing.upgrade import train, upgrade
from evergram.training.recipe import Recipe

RECIPE = """
name = "lamps"
[data]
kind = "table"
path = "clicks.csv"
columns = { query = "user", candidate = "item" }
candidate_features = "catalogue.csv"
[model]
kind = "two_tower"
dim = 8
[task]
penalty = 10
l2 = 0.1
[training]
epochs = 1
table_rate = 0.1
[upgrade]
alone = false
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of clicks, a catalogue, and two versions trained on them."""
    folder, draw = tmp_path_factory.mktemp("shop"), random.Random(0)
    lines = ["id;preis;eingestellt;name"]
    for i in range(60):
        price = "" if i == 7 else f"{draw.uniform(5, 1500):.2f}"
        lines.append(f"i{i};{price};2025-01-{i % 28 + 1:02}T00:00:00+01:00;Lampe Nr {i}")
    (folder / "catalogue.csv").write_text("\n".join(lines))
    pairs = {(draw.randrange(60), draw.randrange(60)) for _ in range(900)}
    pairs |= {(i, i) for i in range(60)}
    clicks = "".join(f"u{u};i{i}\n" for u, i in sorted(pairs))
    (folder / "clicks.csv").write_text("user;item\n" + clicks)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def lineage(shop: Path) -> Lineage:
    recipe = Recipe.load(shop / "recipe.toml")
    lineage = Lineage.create(shop / "lineage", "lamps")
    publish(lineage, train(recipe, progress=False))
    # One more product, at a price above all.
    with (shop / "catalogue.csv").open("a") as file:
        file.write("\ni60;9999.00;2025-03-01T00:00:00+01:00;Lampe Nr 60")
    with (shop / "clicks.csv").open("a") as file:
        file.write("".join(f"u{u};i60\n" for u in range(30)))
    publish(lineage, upgrade(recipe, lineage, progress=False))
    return lineage


def test_train_says_what_each_feature_is_and_warns_of_names(
    lineage: Lineage, tmp_path: Path, evergram: Command
) -> None:
    result = evergram(
        "train", lineage.path.parent / "recipe.toml", "--lineage", tmp_path / "new", "--json"
    )
    said = {one["name"]: one for one in result.json["data"]["features"]}
    assert {n: one["type"] for n, one in said.items()} == {
        "preis": "number",
        "eingestellt": "time",
        "name": "category",
    }
    assert said["preis"]["coverage"] == 1 - 1 / said["name"]["values"]
    assert said["eingestellt"]["values"] == 29
    lines = result.err.splitlines()
    for name, kind in (("preis", "number"), ("eingestellt", "time"), ("name", "category")):
        assert any(line.startswith(f"Candidate feature {name}: {kind}") for line in lines)
    assert sum("warning" in line and "'name'" in line for line in lines) == 1


@pytest.mark.parametrize("version", [0, 1])
def test_a_new_product_is_encoded_by_its_price_as_the_others_are(
    lineage: Lineage, version: int, tmp_path: Path
) -> None:
    encoder = PretrainedEncoder.of_version(lineage, version)
    table = encoder.module.tables["feature/preis"].weight  # type: ignore[union-attr, index]
    vocabulary = encoder.module.schema.vocabularies["feature.preis"]
    assert (vocabulary.keys.type, vocabulary.keys.null_count) == (pa.float64(), 1)
    with torch.no_grad():  # no two rows are alike
        table.copy_(torch.arange(table.numel()).view_as(table))
    prices = ["12.34", 12.34, "1234.56", 1234.56, None]
    one, same, dear, as_dear, missing = (
        encoder.encode([{"preis": price, "eingestellt": "2025-01-05T00:00:00+01:00"}])[0]
        for price in prices
    )
    assert np.array_equal(one, same)
    assert np.array_equal(dear, as_dear)
    assert not np.allclose(one, dear)
    assert not np.allclose(missing, one)
    encoder.save_pretrained(tmp_path / "encoder")
    again = PretrainedEncoder.from_pretrained(tmp_path / "encoder")
    objects = [{"preis": 700, "eingestellt": "2025-01-09"}, {"preis": None, "name": "Lampe Nr 3"}]
    assert np.array_equal(again.encode(objects), encoder.encode(objects))
