"""A training that memory cannot hold is refused before it starts, and no other is."""

from __future__ import annotations

from pathlib import Path

import pytest

from evergram.errors import RecipeError
from evergram.releasing.upgrade import train
from evergram.training import memory
from evergram.training.corpora import load_corpus, split_for
from evergram.training.memory import memory_bytes, needed_bytes, refuse_too_large
from evergram.training.recipe import Recipe


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.dim=16"],
        ["model.kind=two_tower", "model.dim=16", "model.hidden=[32, 8]"],
        ["model.kind=two_tower", "model.hidden=[]", "model.dim=4"],
        ["model.kind=graphsage", "model.layers=2", "model.dim=16"],
        ["model.kind=lightgcn", "model.dim=16"],
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
