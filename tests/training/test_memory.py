"""A training that memory cannot hold is refused before it starts, and no other is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from evergram.data.corpus import Corpus
from evergram.errors import RecipeError, TrainingError
from evergram.releasing.upgrade import train
from evergram.training import memory
from evergram.training.corpora import load_corpus, split_for
from evergram.training.memory import (
    memory_bytes,
    needed_bytes,
    place_tables,
    refuse_too_large,
)
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.kind=two_tower", "model.dim=16", "model.hidden=[32, 8]"],
        ["model.kind=graphsage", "model.layers=2", "model.dim=16"],
    ],
)
def test_the_least_memory_is_less_than_a_run_holds(small: Recipe, overrides: list[str]) -> None:
    """Counted from what was trained: tables and layers, and both sides' vectors and moments."""
    recipe = Recipe.of(small.model_dump(), [*overrides, "training.epochs=1"])
    artefact = train(recipe)
    assert artefact.encoder is not None
    states = [t.numel() * t.element_size() for t in artefact.encoder.state.values()]
    vectors = sum(artefact.block(side)[1].numel() * 4 for side in ("query", "candidate"))
    moments = 2 * 8 * artefact.dim**2
    corpus = split_for(recipe, load_corpus(recipe), 0).training
    # A layer has its gradient and Adam's two means beside it.
    assert 0 < needed_bytes(recipe.model, corpus, 0) <= 4 * sum(states) + 2 * vectors + moments


def test_the_dim_of_the_version_counts(small: Recipe) -> None:
    corpus = load_corpus(small)
    wide = Recipe.of(small.model_dump(), ["model.dim=[8, 10_000_000]"])
    refuse_too_large(wide.model, corpus, 0)
    with pytest.raises(RecipeError, match=r"model\.dim = 10000000 needs at least [\d,]{15,} bytes"):
        refuse_too_large(wide.model, corpus, 1)


def test_a_container_may_have_less_than_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = memory_bytes()
    assert whole > 2**20
    monkeypatch.setattr(memory, "CGROUPS", (tmp_path / "max", tmp_path / "none"))
    (tmp_path / "max").write_text("max\n")
    machine = memory_bytes()
    assert machine >= whole
    (tmp_path / "max").write_text("1000000\n")
    assert memory_bytes() == 1_000_000


def fit_settings(recipe: Recipe, *overrides: str) -> tuple[FitSettings, Corpus]:
    changed = Recipe.of(recipe.model_dump(), overrides)
    corpus = split_for(changed, load_corpus(changed), 0).training
    return FitSettings.of(changed, corpus, 0), corpus


def test_auto_maps_what_memory_cannot_hold_and_says_so(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings, corpus = fit_settings(small)
    needed = needed_bytes(settings.model, corpus, 0)
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed)
    assert place_tables(settings, corpus, CPU, tmp_path) is None
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed - 1)
    assert place_tables(settings, corpus, CPU, tmp_path) == tmp_path
    assert f"they are mapped from files in {tmp_path}, at the speed" in caplog.text
    in_memory, _ = fit_settings(small, "training.tables=memory")
    with pytest.raises(RecipeError, match=r"needs at least [\d,]+ bytes of memory.*lower model"):
        place_tables(in_memory, corpus, CPU, tmp_path)
    # What is no row of a table must fit into memory in any case.
    monkeypatch.setattr(memory, "memory_bytes", lambda: 100)
    with pytest.raises(RecipeError, match="bytes of memory"):
        place_tables(settings, corpus, CPU, tmp_path)


def test_a_disk_without_room_is_said_before_training(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, corpus = fit_settings(small, "training.tables=mapped")
    rows = 4 * 8 * (len(corpus.queries) + len(corpus.candidates))
    usage = shutil.disk_usage(tmp_path)
    for free, folder in ((5 * rows, tmp_path), (3 * rows, None)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, f=free: usage._replace(free=f))
        place_tables(settings, corpus, CPU, folder)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, f=free: usage._replace(free=f - 1))
        with pytest.raises(TrainingError, match=rf"at least {free:,} bytes of disk, .* make room"):
            place_tables(settings, corpus, CPU, folder)


def test_tables_that_cannot_be_mapped_are_refused_with_the_reason(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, corpus = fit_settings(small, "training.tables=mapped")
    with pytest.raises(RecipeError, match=r"'mapped', and tables on cuda are in the device's mem"):
        place_tables(settings, corpus, torch.device("cuda"), tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RecipeError, match=r"2 processes share each batch.*tables = 'memory'"):
        place_tables(settings, corpus, CPU, tmp_path)
    # "auto" keeps them in memory then, and refuses what is too large.
    settings, corpus = fit_settings(small)
    assert place_tables(settings, corpus, CPU, tmp_path) is None
    monkeypatch.setattr(memory, "memory_bytes", lambda: 1)
    with pytest.raises(RecipeError, match="bytes of memory"):
        place_tables(settings, corpus, CPU, tmp_path)
