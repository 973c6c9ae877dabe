"""What the README promises of real data: quality only, for time belongs to the benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gowalla, pinned
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import load_corpus
from evergram.training.recipe import Recipe

RECIPES = Path(__file__).parents[2] / "recipes"
# Real, and trained on in seconds; the larger sets are the benchmarks'.
SMALL_MOVIELENS = "movielens-latest-small/ml-latest-small.zip"


@pytest.mark.long
def test_movielens_upgrades_without_breaking_version_0(real_data: Path, tmp_path: Path) -> None:
    data = real_data / SMALL_MOVIELENS
    recipe = Recipe.load(RECIPES / "movielens.toml", [f"data.path={data}", "upgrade.alone=false"])
    corpus = load_corpus(recipe)
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(recipe, corpus))
    lineage.publish(upgrade(recipe, lineage, corpus))
    for version in (0, 1):
        metrics = lineage.metrics(version)["metrics"]
        assert metrics["model"]["recall@20"] >= 2 * metrics["popularity"]["recall@20"]
    ranking = lineage.metrics(1)["compatibility"]["0"]["ranking"]
    recall = {name: values["recall@20"] for name, values in ranking.items()}
    assert recall["chain"] >= 0.95 * recall["past"]
    assert recall["chain_candidates"] >= 0.95 * recall["past"]
    assert recall["raw_candidates"] <= 0.2 * recall["past"]


@pytest.mark.long
def test_two_towers_learn_as_much_as_a_factorization(real_data: Path) -> None:
    settings = [f"data.path={real_data / SMALL_MOVIELENS}", "training.epochs=20"]
    recall: dict[str, float] = {}
    for name, model in (("two_tower", []), ("factorization", ["model.kind=factorization"])):
        recipe = Recipe.load(RECIPES / "movielens-two-tower.toml", [*settings, *model])
        recall[name] = train(recipe).metrics["metrics"]["model"]["recall@20"]
    # Seeds of either differ by two percent here.
    assert recall["two_tower"] >= 0.96 * recall["factorization"]


@pytest.mark.long
def test_gowalla_by_its_public_split(real_data: Path, tmp_path: Path) -> None:
    if not gowalla.available():
        pytest.skip(f"Gowalla is not at {gowalla.DATA}")
    folder = gowalla.convert(tmp_path)
    recipe = Recipe.load(
        RECIPES / "gowalla.toml",
        [
            f"data.path={folder / 'train.parquet'}",
            f"data.test={folder / 'test.parquet'}",
            # A few epochs come as far as the recipe's minute does, however slow the machine.
            "training.epochs=4",
            "training.evaluate_every=4",
            "training.patience=0",
            "training.refit=false",
            'metrics=["recall@20"]',
        ],
    )
    report = train(recipe).metrics
    assert report["data"]["test_pairs"] == 217_242
    assert report["metrics"]["model"]["recall@20"] >= 0.150


GROWING = (
    'split.kind="time"',
    "split.versions=[0.5, 0.6, 0.7, 0.8]",
    "model.dim=[32, 40, 48, 56]",
)


def holds(rows: list[dict[str, float]], least: float) -> None:
    assert [row["version"] for row in rows] == [0, 1, 2, 3]
    first = rows[0]["consumer"]
    assert first > least
    for row in rows[1:]:
        assert row["consumer"] > first - 0.08
        assert row["consumer"] > row["raw"]


@pytest.mark.long
def test_on_synthetic_data() -> None:
    settings = (*GROWING, "training.epochs=8", "upgrade.alone=false")
    holds(pinned.measure("recipes/synthetic.toml", settings), 0.6)
