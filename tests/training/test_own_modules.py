"""Modules of one's own through training, upgrades and lineages."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.fits import assert_same, changed, killed_and_resumed, split_of
from torch import Tensor, nn

from evergram import PretrainedEncoder, load_encoder
from evergram.data.corpus import Corpus
from evergram.encoders.module_encoder import EncoderModules
from evergram.errors import DataError, LineageError, RecipeError, ShapeError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training import build
from evergram.training.build import load_corpus
from evergram.training.callbacks import Callback
from evergram.training.loop import Trainer
from evergram.training.recipe import Recipe
from evergram.training.resuming import CheckpointSettings


class Tower(nn.Module):
    """A table of ids, dropout and a layer."""

    def __init__(self, size: int, dim: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.table = nn.Embedding(size, dim, sparse=True)
            self.layer = nn.Linear(dim, dim)
        nn.init.normal_(self.table.weight, std=0.1, generator=torch.Generator().manual_seed(seed))
        self.dropout = nn.Dropout(0.1)

    def forward(self, rows: Tensor) -> Tensor:
        inputs: Tensor = self.dropout(self.table(rows))
        layered: Tensor = self.layer(inputs)
        return inputs + 0.1 * layered


RECIPE = Recipe.of(
    {
        "data": {"kind": "synthetic", "queries": 300, "candidates": 200, "interactions": 8000},
        "split": {"kind": "time", "versions": [0.6, 0.7, 0.8, 0.9]},
        "model": {"kind": "module"},
        "task": {"penalty": 5.0, "l2": 0.1},
        "training": {"epochs": 4, "batch_size": 256, "layer_rate": 0.001},
        "upgrade": {"alone": False},
    }
)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus(RECIPE)


def modules(corpus: Corpus, dim: int = 8, seed: int = 0, offset: int = 0) -> EncoderModules:
    def rows(keys: list[Any]) -> Any:
        place = {key: i for i, key in enumerate(keys)}
        return lambda ids: torch.tensor([(place[i] + offset) % len(place) for i in ids])

    keys = [side.vocabulary.keys.to_pylist() for side in (corpus.queries, corpus.candidates)]
    towers: Any = [Tower(len(ids), dim, seed + i) for i, ids in enumerate(keys)]
    return EncoderModules(*towers, *map(rows, keys))


def test_modules_whose_candidates_are_beyond_memory_are_refused(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = changed(RECIPE, "task={kind='softmax_all'}", "training.epochs=1")
    # All candidates' vectors of 8 numbers, their gradient, and that of a table.
    needed = 3 * 4 * 8 * len(split_of(recipe).training.candidates)
    monkeypatch.setattr(build, "machine_memory", lambda: needed - 1)
    with pytest.raises(RecipeError, match=f"vectors of 8 numbers .* at least {needed:,} bytes"):
        train(recipe, corpus, encoder=modules(corpus), progress=False)


def test_who_looks_at_rows_changes_neither_statistics_nor_draws(corpus: Corpus) -> None:
    class Looks(Callback):
        def on_step(self, run: Trainer, batch: Any, objective: Tensor) -> None:
            with run.step.look() as now:
                for side in ("query", "candidate"):
                    now.rows(side, torch.arange(20))

    recipe = changed(RECIPE, "training.epochs=1")
    blocks = []
    watchers: list[list[Callback]] = [[], [Looks()]]
    for callbacks in watchers:
        own = modules(corpus)  # with dropout
        query, candidate = (nn.Sequential(m, nn.BatchNorm1d(8)) for m in (own.query, own.candidate))
        towers = EncoderModules(query, candidate, own.query_inputs, own.candidate_inputs)
        made = train(recipe, corpus, encoder=towers, progress=False, callbacks=callbacks)
        blocks.append(made.block("query")[1])
    assert np.array_equal(blocks[0], blocks[1])


def test_versions_of_own_and_built_in_encoders_follow_each_other(
    corpus: Corpus, tmp_path: Path
) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    first, second = modules(corpus), modules(corpus, 12, seed=5)
    before = deepcopy(first.query.state_dict())
    lineage.publish(train(RECIPE, corpus, encoder=first, progress=False))
    for name, value in first.query.state_dict().items():
        assert torch.equal(value, before[name]), "the given modules were changed"
    # Jointly, on the stored embeddings of version 0 alone.
    artefact = upgrade(RECIPE, lineage, corpus, encoder=second, progress=False)
    lineage.publish(artefact)
    ranking = artefact.metrics["compatibility"]["0"]["ranking"]
    past, chain, raw = (ranking[k]["recall@20"] for k in ("past", "chain", "raw_candidates"))
    assert chain > 0.7 * past
    assert raw < 0.6 * past
    manifest = (tmp_path / "lineage" / "versions" / "1" / "manifest.json").read_text()
    assert '"module"' in manifest
    assert "Tower" not in manifest
    assert __name__ not in manifest
    for version, own in ((0, first), (1, second)):
        encoder = load_encoder(lineage, version, own)
        ids, vectors = artefact.block("candidate")
        if version == 1:
            assert np.allclose(encoder.encode(ids, "candidate"), vectors, atol=1e-6)
    # A built-in one after them, aligned to what is stored; version 0 is no longer stored.
    plain = Recipe.of(RECIPE.model_dump(exclude={"model"}, exclude_unset=True), ["model.dim=10"])
    built_in = upgrade(plain, lineage, corpus, progress=False)
    assert set(built_in.metrics["compatibility"]) == {"1"}
    read_twice = upgrade(plain, lineage, corpus, past_encoders={0: first}, progress=False)
    assert set(read_twice.metrics["compatibility"]) == {"0", "1"}
    lineage.publish(read_twice)
    assert PretrainedEncoder.of_version(lineage).kind == "factorization"
    with pytest.raises(LineageError, match="version 2 is a built-in factorization"):
        load_encoder(lineage, 2, first)


def test_modules_that_cannot_be_trained_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="give them as encoder=EncoderModules"):
        train(RECIPE, corpus, progress=False)
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(RECIPE, corpus, encoder=modules(corpus), progress=False))
    with pytest.raises(LineageError, match="modules that the lineage does not contain"):
        PretrainedEncoder.of_version(lineage, 0)
    with pytest.raises(ShapeError, match="not the modules of version 0"):
        load_encoder(lineage, 0, modules(corpus, 9))
    with pytest.raises(DataError, match="differ by"):
        load_encoder(lineage, 0, modules(corpus, offset=1))
    left_out: Any = {"model": True, "training": {"layer_rate"}}
    kept_keys = RECIPE.model_dump(exclude=left_out, exclude_unset=True)
    frozen = Recipe.of({**kept_keys, "upgrade": {"method": "fix-m0", "alone": False}})
    with pytest.raises(RecipeError, match=r"upgrade\.start = 'frozen' needs version 0's modules"):
        upgrade(frozen, lineage, corpus, progress=False)
    kept = upgrade(frozen, lineage, corpus, encoder=modules(corpus), progress=False)
    assert torch.equal(
        kept.encoder.state["query.table.weight"],  # type: ignore[union-attr]
        lineage.reader(0).encoder()[1]["query.table.weight"],
    )


def test_modules_that_another_loop_has_trained(corpus: Corpus, tmp_path: Path) -> None:
    posthoc = Recipe.of({**RECIPE.model_dump(), "upgrade": {"method": "post-closed"}})
    lineage = Lineage.create(tmp_path / "lineage")
    own = modules(corpus)
    artefact = train(posthoc, corpus, trained=own, progress=False)
    lineage.publish(artefact)
    table = own.query.state_dict()["table.weight"]
    assert artefact.encoder is not None
    assert torch.equal(artefact.encoder.state["query.table.weight"], table)
    later = upgrade(posthoc, lineage, corpus, trained=modules(corpus, 12), progress=False)
    assert later.dim == 12
    lineage.publish(later)
    with pytest.raises(RecipeError, match="trained= needs"):
        upgrade(RECIPE, lineage, corpus, trained=own, progress=False)


def test_a_killed_run_with_dropout_resumes_bit_for_bit(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**kept: Any) -> Artefact:
        return train(RECIPE, corpus, encoder=modules(corpus), progress=False, **kept)

    again, _ = killed_and_resumed(monkeypatch, run, (2, 3), tmp_path, CheckpointSettings(every=1))
    assert_same(again, run())
