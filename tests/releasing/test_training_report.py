"""A version's training and data as JSON."""

from __future__ import annotations

import json

import torch
from tests.support.tiny_training import tiny_recipe
from torch import nn

from evergram.releasing.training_report import board_callbacks, training_report, version_report
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import Trained
from evergram.training.recipe.training import TrainingRecipe


def trained(**facts: object) -> Trained:
    history = [{"epoch": 3, "seconds": 1.0, "objective": 0.5, "recall@20": 0.1}]
    encoder = nn.Identity()
    values = {"history": history, "best_epoch": 3, "seconds": 1.23456, "penalty": (2.0,), **facts}
    return Trained(encoder, torch.ones(2, 7), torch.ones(3, 7), {"model": {}}, **values)  # type: ignore[arg-type]


def test_measures_that_were_not_asked_for_are_left_out() -> None:
    split = split_for(tiny_recipe(), load_corpus(tiny_recipe()), 0)
    settings = TrainingRecipe()
    report = version_report(4, split, trained(), settings)
    assert (report["version"], report["dim"]) == (4, 7)
    assert report["training"]["seconds"] == 1.235
    assert report["training"]["epochs"] == 3
    assert not {"watched", "seconds_to_reach", "pilots"} & set(report["training"])
    assert "untested" not in report
    json.dumps(report)


def test_a_metric_that_was_not_reached_is_reported_as_none() -> None:
    split = split_for(tiny_recipe(), load_corpus(tiny_recipe()), 0)
    asked = TrainingRecipe(watch_minutes=1.0, reach=0.5)
    report = version_report(0, split.without_test("No test figure: why."), trained(), asked)
    assert report["training"]["watched"] == []
    assert report["training"]["seconds_to_reach"] is None
    assert report["untested"] == "No test figure: why."
    assert report["data"]["test_pairs"] == report["data"]["test_queries"] == 0
    assert report["data"]["interactions"] == len(split.training)


def test_a_model_that_was_not_trained_has_no_epochs() -> None:
    report = training_report(trained(history=[], best_epoch=0, pilots=[{"l2": 1.0}]))
    assert (report["epochs"], report["best_epoch"]) == (0, 0)
    assert report["pilots"] == [{"l2": 1.0}]


def test_without_a_folder_nothing_is_written_for_tensorboard() -> None:
    split = split_for(tiny_recipe(), load_corpus(tiny_recipe()), 0)
    assert board_callbacks(None, 0, split) == []
