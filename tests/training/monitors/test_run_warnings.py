"""What a person is warned of."""

from __future__ import annotations

import pyarrow as pa

from evergram.data.corpus import Vocabulary
from evergram.encoders.features import Schema
from evergram.encoders.hashed_rows import HashedRows
from evergram.training.monitors.early_stopping import EarlyStopping
from evergram.training.monitors.run_warnings import warned
from evergram.training.recipe.training import TrainingRecipe


def stopping(values: list[float], objectives: list[float]) -> EarlyStopping:
    made = EarlyStopping("recall@20")
    for epoch, (value, objective) in enumerate(zip(values, objectives, strict=True), 1):
        record = {"epoch": epoch, "recall@20": value, "objective": objective}
        made.add(record, last=epoch == len(values))
    return made


def test_a_best_that_is_the_last_names_the_limit_that_ended_it() -> None:
    settings = TrainingRecipe(epochs=2, budget=7.5)
    (sentence,) = warned(settings, stopping([0.1, 0.2], [1, 1]), "epochs", "version 3", logs=False)
    assert sentence.startswith("version 3: the best of 2 evaluations is the last (epoch 2, ")
    assert "raise training.epochs (2)" in sentence
    (sentence,) = warned(settings, stopping([0.1, 0.2], [1, 1]), "budget", "version 3", logs=False)
    assert "raise training.budget (7.5)" in sentence
    assert warned(settings, stopping([0.2, 0.1], [1, 1]), "epochs", "version 3", logs=False) == []


def test_a_recipe_that_keeps_its_last_epoch_is_not_told_to_train_for_more() -> None:
    once = EarlyStopping("recall@20")
    once.add({"epoch": 6, "recall@20": 0.1, "objective": 1}, last=True)
    settings = TrainingRecipe(epochs=6, evaluate_every=6, budget=7.5)
    assert warned(settings, once, "epochs", "x", logs=False) == []
    (sentence,) = warned(settings, once, "budget", "x", logs=False)
    assert "raise training.budget (7.5)" in sentence


def test_an_objective_that_rises_by_more_than_noise() -> None:
    settings = TrainingRecipe()
    assert warned(settings, stopping([0.2, 0.1], [1.0, 1.05]), "patience", "x", logs=False) == []
    (sentence,) = warned(settings, stopping([0.2, 0.1], [1.0, 1.2]), "patience", "x", logs=False)
    assert "rose from 1 to 1.2" in sentence


def test_a_hash_that_gives_many_ids_one_row_is_said_for_each_table() -> None:
    ids = {side: Vocabulary(pa.array(range(1000))) for side in ("query.id", "candidate.id")}
    inputs = {"query": {"id": "query.id"}, "candidate": {"id": "candidate.id"}}
    schema = Schema(ids, inputs)
    quiet = (TrainingRecipe(), stopping([0.2, 0.1], [1, 1]), "epochs", "version 3")
    assert warned(*quiet, schema, logs=False) == []
    assert warned(*quiet, schema.with_hashed_rows(100_000), logs=False) == []
    sentences = warned(*quiet, schema.with_hashed_rows(1500), logs=False)
    shared = HashedRows(1500).shared(ids["query.id"].keys, "query.id")
    assert len(sentences) == 2
    assert f"1,000 ids in query.id, {100 * shared:.0f} % share one of 1,500 rows" in sentences[1]
