"""The pages of docs/extend: the code of each is a kind in one file outside the package."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.command import Command

import evergram
from evergram.cli.models import diagnosis_parts
from evergram.cli.printing import show
from evergram.compatibility.kinds import TRANSFORMS
from evergram.data.loaders import LOADERS
from evergram.encoders.encoder import SIDES
from evergram.encoders.kinds import ENCODERS
from evergram.errors import RecipeError
from evergram.gramian.estimator import EntityBatch
from evergram.gramian.kinds import ESTIMATORS
from evergram.tasks.kinds import LOSSES, TASKS
from evergram.training.build import load_corpus
from evergram.training.checkpoint import load_encoder
from evergram.training.recipe import Recipe

PAGES = Path(__file__).parents[1] / "docs" / "extend"
TABLES: tuple[dict[str, Any], ...] = (ESTIMATORS, TASKS, ENCODERS, TRANSFORMS)
OURS: dict[str, Any] = {
    "data": {"kind": "synthetic", "queries": 150, "candidates": 80, "interactions": 3000},
    "split": {"kind": "time", "versions": [0.7, 0.85]},
    "model": {"kind": "bottleneck", "dim": [12, 16], "width": 6},
    "task": {"kind": "hinge", "margin": 0.5},
    "gramian": {"kind": "window", "batches": 3},
    "training": {"epochs": 8, "batch_size": 128, "layer_rate": 0.01},
    "upgrade": {"transform": "diagonal", "alone": False},
}


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)


@pytest.fixture
def kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the files of the four pages to a folder, and put their kinds into the tables."""
    kept = [dict(table) for table in TABLES]
    names = []
    monkeypatch.syspath_prepend(tmp_path)
    for page in ("estimator", "task", "encoder", "transform"):
        code, line = blocks(page)
        name = code.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(code)
        names.append(name.removesuffix(".py"))
        exec(compile(line, f"{page}.md", "exec"), {})
    yield tmp_path
    restore(kept)
    for name in names:
        del sys.modules[name]


def restore(kept: list[dict[str, Any]]) -> None:
    for table, before in zip(TABLES, kept, strict=True):
        table.clear()
        table.update(before)


@pytest.mark.usefixtures("kinds")
def test_kinds_from_outside_are_trained_upgraded_and_read_again(tmp_path: Path) -> None:
    recipe = Recipe.of(OURS)
    lineage = evergram.Lineage.create(tmp_path / "lineage")
    lineage.publish(evergram.train(recipe))
    first = lineage.manifest(0)
    assert first.encoder is not None
    assert (first.encoder.kind, first.encoder.options["width"]) == ("bottleneck", 6)
    assert first.recipe["gramian"]["batches"] == 3
    # It learned: a random order of 80 candidates has 0.25.
    assert lineage.metrics(0)["metrics"]["model"]["recall@20"] > 0.35, lineage.metrics(0)
    artefact = evergram.upgrade(recipe, lineage, readings=False)
    lineage.publish(artefact)

    opened = evergram.Lineage.open(tmp_path / "lineage")
    transform = opened.manifest(1).transform
    assert transform is not None
    assert transform.kind == "diagonal"
    encoder = load_encoder(opened, 1)
    again = encoder.embed_all(load_corpus(recipe))
    assert Recipe.stored(opened.recipe(1)).gramian == ESTIMATORS["window"].model_validate(
        {"batches": 3}
    )
    for side in SIDES:
        assert again[side].shape[1] == 16
        assert torch.isfinite(again[side]).all()


def test_the_loss_of_the_page_trains_and_its_lineage_is_read_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, line = blocks("loss")
    (tmp_path / "quartic.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    own = {k: v for k, v in OURS.items() if k not in ("model", "gramian")}
    own |= {"task": {"loss": "quartic", "penalty": 3.0}, "upgrade": {"alone": False}}
    own |= {"training": {"epochs": 8, "batch_size": 128}}
    with monkeypatch.context() as patched:
        patched.setitem(LOSSES, "quartic", torch.sub)  # taken out again in the end
        exec(compile(line, "loss.md", "exec"), {})
        recipe = Recipe.of(own)
        lineage = evergram.Lineage.create(tmp_path / "lineage")
        lineage.publish(evergram.train(recipe))
        assert lineage.metrics(0)["metrics"]["model"]["recall@20"] > 0.35, lineage.metrics(0)
        lineage.publish(evergram.upgrade(recipe, lineage, readings=False))
    opened = evergram.Lineage.open(tmp_path / "lineage")
    assert opened.recipe(1)["task"]["loss"] == "quartic"
    assert len(opened.view(0).embeddings("candidate")[0]) > 60
    with pytest.raises(RecipeError, match=r"task\.loss is 'quartic'; it must be one of 'squared'"):
        Recipe.stored(opened.recipe(1))


PLAIN = {
    "data": {"kind": "synthetic", "queries": 60, "candidates": 40, "interactions": 900},
    "training": {"epochs": 2, "batch_size": 64},
    "task": {"penalty": 0.1, "l2": 0.1},
}


def test_an_estimator_of_ones_own_is_measured_and_compared_by_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    request.getfixturevalue("kinds")
    recipe = Recipe.of({**PLAIN, "gramian": {"kind": "window", "batches": 3}})
    lineage = evergram.Lineage.create(tmp_path / "lineage")
    lineage.publish(evergram.train(recipe, progress=False))
    few: dict[str, Any] = {"steps": 4, "batch_sizes": [8, 16], "progress": False}
    diagnosis = evergram.diagnose(recipe, lineage, **few)
    assert diagnosis.own == diagnosis.as_json()["this_run"] == "window (this run, |B| = 64)"
    names = {"window, |B| = 8", "window, |B| = 16", "sogram auto, |B| = 8", "this run"}
    assert names < diagnosis.gramian_error.keys() == diagnosis.gradient_error.keys()
    assert diagnosis.gramian_error["window, |B| = 8"] > 0
    show({}, *diagnosis_parts(diagnosis, 4))
    printed = capsys.readouterr().out
    assert diagnosis.own in printed
    before = evergram.evaluate(recipe, lineage)
    del ESTIMATORS["window"]
    # The command, which knows the kinds of the package alone.
    command = Command(capsys)
    assert command.json("evaluate", tmp_path / "lineage")["metrics"] == before
    sentence = command.refused("diagnose", tmp_path / "lineage")
    assert "gramian.kind is 'window'; it must be one of" in sentence


def test_a_loader_from_outside_is_named_by_recipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, line, _ = blocks("loader")
    (tmp_path / code.splitlines()[0].removeprefix("# ")).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    draw = np.random.default_rng(0)
    baskets = [json.dumps(draw.choice(30, 8, replace=False).tolist()) for _ in range(60)]
    (tmp_path / "baskets.jsonl").write_text("\n".join(baskets) + "\n")
    values = {**PLAIN, "data": {"kind": "baskets", "path": str(tmp_path / "baskets.jsonl")}}
    with pytest.raises(RecipeError, match=r"data\.kind is 'baskets'; it must be one of"):
        Recipe.of(values)
    exec(compile(line, "loader.md", "exec"), {})
    try:
        with pytest.raises(RecipeError, match=r"data\.shared_ids is used only with data\.kind"):
            Recipe.of(values, ["data.shared_ids=true"])
        recipe = Recipe.of(values)
        lineage = evergram.Lineage.create(tmp_path / "lineage")
        lineage.publish(evergram.train(recipe, progress=False))
        stored = Recipe.stored(lineage.recipe(0))
        assert (stored.data.kind, len(load_corpus(stored))) == ("baskets", 480)
        lineage.publish(evergram.upgrade(stored, lineage, readings=False, progress=False))
        with pytest.raises(RecipeError, match=r"the key data\.path is missing"):
            Recipe.of({**PLAIN, "data": {"kind": "baskets"}})
    finally:
        del LOADERS["baskets"], sys.modules["baskets"]


@pytest.mark.usefixtures("kinds")
def test_the_estimator_of_the_page_is_a_mean_of_batches_and_resumes() -> None:
    draw = torch.Generator().manual_seed(0)
    settings = ESTIMATORS["window"].model_validate({"batches": 2})
    one, two = (settings.build(3, torch.ones(9) / 9, torch.zeros(9, 0)) for _ in range(2))
    batches = [torch.randn(9, 3, generator=draw) for _ in range(4)]

    def batch(u: torch.Tensor) -> EntityBatch:
        return EntityBatch(torch.arange(9), torch.ones(9), u, u[:, :0])

    for u in batches[:3]:
        one.update(batch(u))
    two.load_state_dict(one.state_dict())
    for estimator in (one, two):
        estimator.update(batch(batches[3]))
        expected = sum(u.T @ u / 9 for u in batches[2:]) / 2
        torch.testing.assert_close(estimator.gramian(), expected)
