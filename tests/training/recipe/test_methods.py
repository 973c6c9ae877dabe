"""The nine methods are nine settings of one trainer, and each does what its name says."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from evergram.errors import RecipeError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import load_corpus
from evergram.training.checkpoint import load_encoder
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import METHODS


@pytest.fixture
def lineage(small: Recipe, tmp_path: Path) -> Lineage:
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(small))
    return lineage


def by(small: Recipe, method: str, *overrides: str) -> Recipe:
    values = small.model_dump()
    values["upgrade"] = {"method": method, "alone": False}
    return Recipe.of(values, overrides)


def error_of(artefact: Artefact) -> float:
    assert artefact.error is not None
    return artefact.error.rms


@pytest.mark.long
def test_every_method_does_what_its_name_says(lineage: Lineage, small: Recipe) -> None:
    corpus = load_corpus(small)
    done = {m: upgrade(by(small, m), lineage, corpus) for m in METHODS}

    def model(name: str) -> dict[str, torch.Tensor]:
        encoder = done[name].encoder
        assert encoder is not None
        return dict(encoder.state)

    alone = model("keep-all")
    for name in ("non-bc", "post-lin-sloss", "post-lin-mloss", "post-closed"):
        assert all(torch.equal(v, alone[k]) for k, v in model(name).items()), name
    for name in ("joint-notrans", "joint-lin-sloss", "bc-aligner"):
        assert not torch.equal(model(name)["query.weight"], alone["query.weight"]), name
    # At one past version the two joint losses are one.
    both = [model(n)["query.weight"] for n in ("joint-lin-sloss", "bc-aligner")]
    assert torch.equal(*both)
    frozen = load_encoder(lineage, 0).state_dict()
    assert all(torch.equal(v, frozen[k]) for k, v in model("fix-m0").items())
    assert error_of(done["fix-m0"]) == pytest.approx(0, abs=1e-6)
    # Fine-tuning keeps version 0's dims, though the recipe's grow.
    dims = {name: artefact.dim for name, artefact in done.items()}
    assert {n for n, d in dims.items() if d == 8} == {"fix-m0", "finetune-m0"}
    kinds = {name: artefact.transform.kind for name, artefact in done.items() if artefact.transform}
    assert {n for n, k in kinds.items() if k == "linear"} == {
        "post-lin-sloss",
        "post-lin-mloss",
        "joint-lin-sloss",
        "bc-aligner",
        "post-closed",
        "evergram",
    }
    # Nothing ties Non-BC to the past; the others come nearer, joint training nearest.
    errors = {name: error_of(artefact) for name, artefact in done.items()}
    for name in ("post-lin-sloss", "joint-notrans", "bc-aligner"):
        assert errors[name] < 0.8 * errors["non-bc"], errors
    assert errors["bc-aligner"] < errors["post-lin-sloss"], errors
    # Gradient comes near the closed form, which it cannot pass on what both were fitted to.
    assert errors["post-closed"] < 1.02 * errors["post-lin-sloss"], errors


@pytest.mark.long
@pytest.mark.parametrize(
    "transform", ["affine", "orthogonal", "low_rank", "lambda_orthogonal", "residual_mlp"]
)
def test_every_transform_trains_with_a_model(
    small: Recipe, lineage: Lineage, transform: str
) -> None:
    corpus = load_corpus(small)
    rank = ["upgrade.rank=6"] if transform == "low_rank" else []
    recipe = by(small, "bc-aligner", f"upgrade.transform={transform}", *rank)
    for version in (1, 2):
        artefact = upgrade(recipe, lineage, corpus)
        assert artefact.transform is not None
        assert artefact.transform.kind == transform
        readings = artefact.metrics["compatibility"]
        for reading in readings.values():
            assert reading["ranking"]["chain"]["recall@20"] > 0
        assert set(artefact.metrics["certificate"]) == (
            set() if transform == "residual_mlp" else {str(j) for j in range(version)}
        )
        lineage.publish(artefact)


def test_a_model_that_was_trained_alone_is_not_trained_again(
    small: Recipe, lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = load_corpus(small)
    alone = upgrade(by(small, "keep-all"), lineage, corpus)
    other = shutil.copytree(lineage.path, lineage.path.parent / "keep-all")
    Lineage.open(other).publish(alone)
    encoder = load_encoder(Lineage.open(other), 1)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it was trained again")

    monkeypatch.setattr(sys.modules[upgrade.__module__], "fit_encoder", never)
    packaged = upgrade(by(small, "post-lin-sloss"), lineage, corpus, trained=encoder)
    assert torch.equal(packaged.block("query")[1], alone.block("query")[1])
    with pytest.raises(RecipeError, match=r"trained= needs .*; they are 'bc-aligner' and"):
        upgrade(by(small, "bc-aligner"), lineage, corpus, trained=encoder)
