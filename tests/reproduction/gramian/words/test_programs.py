"""Programs that make word vectors: on the made-up text, whose answers are known."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reproduction.gramian.words.counts import count_words
from reproduction.gramian.words.pairs import corpus_of
from reproduction.gramian.words.programs import Floor, Objective, PpmiSvd, Program, Text, read

from evergram import Recipe, split_for
from evergram.errors import DataError
from evergram.training import Progress, RunContext, fit_encoder
from reproduction.gramian import methods

TEXT = Text("", vocabulary=200, window=8, threshold=0.0)
QUIET = Progress(quiet=True)
PENALTY = {"penalty": 1.0, "query_measure": 1.0, "candidate_measure": 1.0, "l2": 0.0}


def recipe(penalty: bool = True, **changed: dict[str, Any]) -> Recipe:
    values = tomllib.loads((methods.RECIPES / "words-tiny.toml").read_text())
    if penalty:
        values |= {"task": PENALTY, "gramian": methods.sogram(0.1)}
        values["training"]["precondition"] = 0.0
    else:
        values["task"]["penalty"] = 0.0
    for table, keys in changed.items():
        values[table] = keys if "kind" in keys else {**values[table], **keys}
    return Recipe.of(values)


@cache
def series(program: Program, penalty: bool = True) -> dict[str, Any]:
    return program(recipe(penalty), QUIET, "cpu")


OBJECTIVE = Objective(TEXT, rows=20_000)


@pytest.mark.long
def test_the_objective_learns_the_planted_likeness_and_analogies() -> None:
    reported = series(OBJECTIVE)["reported"]
    assert reported["mean_rho"] > 0.7
    assert reported["accuracy"] > 0.9
    floor = series(Floor(TEXT, 16))["reported"]
    assert abs(floor["mean_rho"]) < 0.2
    assert floor["accuracy"] < 0.2
    assert abs(series(Floor(TEXT, 16))["frequency"]["MEN"]["rho"]) < 0.2


@pytest.mark.long
def test_the_curve_ends_with_what_is_reported() -> None:
    made = series(OBJECTIVE)
    last = made["best_epoch"] - 1
    for name in ("mean_rho", "accuracy"):
        assert made["curve"][name][last] == pytest.approx(made["reported"][name])
    assert made["curve"]["epoch"] == [1, 2]
    assert made["words"] == {"vocabulary": 128, "tokens": 27_000}
    assert made["data"]["training"] + made["data"]["validation"] + made["data"]["test"] > 19_000


@pytest.mark.long
def test_the_penalty_is_what_keeps_words_apart() -> None:
    alone, with_penalty = (series(OBJECTIVE, penalty)["reported"] for penalty in (False, True))
    assert alone["accuracy"] < with_penalty["accuracy"] - 0.3


def test_the_peer_learns_them_too() -> None:
    reported = series(PpmiSvd(TEXT, dim=16, smoothing=1.0, shift=1.0, power=0.5))["reported"]
    assert reported["mean_rho"] > 0.7
    assert reported["accuracy"] > 0.9


def test_a_word_of_both_sides_is_the_sum_of_its_vectors() -> None:
    both, own = (Objective(TEXT, rows=3000, readout=r) for r in ("sum", "query"))
    quick = recipe(training={"epochs": 1, "batch_size": 3000})
    one, two = (p(quick, QUIET, "cpu")["reported"]["mean_rho"] for p in (both, own))
    assert one != two


def test_every_setting_is_in_the_name_that_makes_the_key() -> None:
    assert OBJECTIVE.__name__ == (
        "Objective(text=Text(folder='', vocabulary=200, window=8, threshold=0.0), rows=20000, "
        "readout='query')"
    )
    names = {p.__name__ for p in (OBJECTIVE, Objective(TEXT, 1), Floor(TEXT, 1), Floor(TEXT, 2))}
    assert len(names) == 4


def test_judgements_that_are_not_there_are_named_before_the_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "wikispeedia").mkdir()
    text = Text("wikispeedia", 100, 5, 0.0)
    with pytest.raises(DataError, match=r"words/EN-MEN-TR-3k\.txt: get people's judgements"):
        read(text, str(tmp_path))


@pytest.mark.long
def test_the_best_scores_are_a_logistic_function_of_mutual_information() -> None:
    """docs/method.md, "The best score of a pair": with D = V the rank sets no limit."""
    draw = np.random.default_rng(0)
    chances = 0.6 ** np.arange(8)
    paragraphs = [
        list(draw.choice(list("abcdefgh"), 6, p=chances / chances.sum())) for _ in "ab" * 20
    ]
    counts = count_words(paragraphs, vocabulary=8, window=2)
    corpus = corpus_of(counts, rows=4000, seed=0)
    values = recipe(
        model={"dim": 8},
        gramian={"kind": "exact"},
        training={"epochs": 60, "batch_size": 256, "table_rate": 0.3, "evaluate_every": 60},
        split={"share": 0.1},
    )
    split = split_for(values, corpus, 0)
    trained = fit_encoder(values, split, 0, RunContext(torch.device("cpu"), warns=False))
    scores = trained.query @ trained.candidate.T
    pairs = np.zeros((8, 8))
    np.add.at(pairs, (split.training.column("query"), split.training.column("candidate")), 1)
    joint = pairs / pairs.sum()
    ratio = joint / np.outer(joint.sum(1), joint.sum(0))
    expected = ratio / (ratio + 2 * PENALTY["penalty"])
    assert np.ptp(expected) > 0.3
    assert np.abs(scores.numpy() - expected).max() < 0.03
