"""An encoder whose tables are divided: in one process it is a factorization, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.sharded_training import whole_state
from tests.support.shared_training import CPU, shared_corpus
from tests.support.tiny_training import tiny_recipe

import evergram
from evergram.collectives import Collectives
from evergram.encoders.features import SIDES, Schema
from evergram.errors import TrainingError
from evergram.training.build import prepare
from evergram.training.loop import run_epoch
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.sharding.sharded_factorization import KEPT, ShardedFactorization
from evergram.training.step import Step

CORPUS = shared_corpus()
DIVIDED = "training.tables=sharded"


def trained(*overrides: str) -> Step:
    recipe = tiny_recipe("training.batch_size=25", *overrides)
    step, sampler, draws = prepare(FitSettings.of(recipe, CORPUS, 0), CORPUS, CPU)
    for _ in run_epoch(step, sampler, draws, 0, CPU):
        pass
    return step


def divided() -> ShardedFactorization:
    encoder = trained(DIVIDED).encoder
    assert isinstance(encoder, ShardedFactorization)
    return encoder


def test_one_process_trains_what_a_factorization_is() -> None:
    whole, parts = trained(), trained(DIVIDED)
    assert isinstance(parts.encoder, ShardedFactorization)
    vectors = whole.encoder.eval().embed_all(CORPUS)
    for side, rows in parts.encoder.eval().embed_all(CORPUS).items():
        assert rows.equal(vectors[side])
    state = whole_state(parts.encoder)
    for side in SIDES:
        weight = getattr(whole.encoder, side).weight
        assert state[f"{side}.weight"].equal(weight)
        assert state[f"{side}.sum"].equal(whole.optimizers[0].state[weight]["sum"])


def test_its_states_and_its_optimisers_have_no_rows() -> None:
    step = trained(DIVIDED)
    assert isinstance(step.encoder, ShardedFactorization)
    assert not step.encoder.state_dict()
    before = whole_state(step.encoder)
    for optimizer in step.optimizers:
        assert not optimizer.state_dict()["state"]
        optimizer.load_state_dict(optimizer.state_dict())
    after = whole_state(step.encoder)
    assert before.keys() == after.keys()
    assert all(after[name].equal(value) for name, value in before.items())


def test_the_best_rows_are_gathered(tmp_path: Path) -> None:
    encoder = divided()
    best = encoder.query.weight.detach().clone()
    assert set(encoder.keep()) == {KEPT}
    with torch.no_grad():
        encoder.query.weight += 1.0
    now = encoder.query.weight.detach().clone()
    assert encoder.gathered(best=False).query.weight.equal(now)
    assert encoder.gathered(best=True).query.weight.equal(best)


def test_saved_rows_are_read_with_their_best_epoch(tmp_path: Path) -> None:
    encoder = divided()
    encoder.keep()
    with torch.no_grad():
        encoder.query.weight += 1.0
    before = whole_state(encoder)
    names = encoder.save(tmp_path)
    assert {"query.weight", "query.best", "query.sum"} <= set(names)
    other = divided()
    other.load(tmp_path, names)
    after = whole_state(other)
    assert after.keys() == before.keys() == set(names)
    assert all(after[name].equal(value) for name, value in before.items())


class Second(Collectives):
    """One of two processes, which nobody waits for."""

    rank, size = 1, 2


def test_embeddings_are_read_while_others_wait() -> None:
    schema = Schema.of(CORPUS, features=False)
    encoder = ShardedFactorization(schema, {"dim": 4}, torch.Generator(), Second())
    sizes = len(CORPUS.queries), len(CORPUS.candidates)
    assert [len(table.weight) for table in encoder.tables.values()] == [n // 2 for n in sizes]
    with pytest.raises(TrainingError, match="read in the first one, while the others wait"):
        encoder.embed_all(CORPUS)


@pytest.mark.parametrize("setting", ["training.refit=true", "model.normalize=true"])
def test_one_process_publishes_what_a_factorization_is(tmp_path: Path, setting: str) -> None:
    blocks = []
    for tables in ("training.tables=memory", DIVIDED):
        recipe = tiny_recipe("training.epochs=2", setting, tables)
        artefact = evergram.train(recipe, progress=False)
        lineage = evergram.Lineage.create(tmp_path / tables, "x")
        evergram.publish(lineage, artefact)
        blocks.append({side: lineage.embeddings(side) for side in SIDES})
        assert lineage.encoder(0).kind == "factorization"
    for side in SIDES:
        (ids, vectors), (other_ids, others) = (each[side] for each in blocks)
        assert ids.equals(other_ids)
        assert torch.equal(vectors, others)
