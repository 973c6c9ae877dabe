"""Runs: results by training and seed."""

from __future__ import annotations

import pytest
from reproduction.claims import Claim
from reproduction.experiment import Experiment, Preset, Runs
from tests.support.reproduction_results import result, runs_of


def test_seeds_are_those_that_every_training_has() -> None:
    runs = runs_of([result("a", 1), result("a", 0), result("b", 0), result("b", 2)])
    assert runs.seeds == [0]
    assert [r.seed for r in runs.of("a")] == [0, 1]
    assert runs.values("a", lambda r: r.seed + 10.0) == [10.0]
    assert len(runs.all) == 4


def test_no_trainings_have_no_seeds() -> None:
    assert Runs([], [result("a")]).seeds == []
    assert Runs([], [result("a")]).all == []


def test_some_of_the_runs_keep_their_results_and_order() -> None:
    runs = runs_of([result("a"), result("b"), result("c"), result("b", 1)])
    chosen = runs.only(["c", "b"])
    assert chosen.labels == ["c", "b"]
    assert [r.seed for r in chosen.of("b")] == [0, 1]
    with pytest.raises(KeyError):
        chosen.of("a")


def test_results_are_kept_under_the_experiment_that_they_are_of() -> None:
    def nothing(runs: Runs) -> list[object]:
        return []

    presets = {"small": Preset((), "")}
    own = Experiment("a/b", {}, "", "", presets, nothing, nothing)  # type: ignore[arg-type]
    assert own.source == "a/b"
    other = Experiment("a/c", {}, "", "", presets, nothing, nothing, runs_of="a/b")  # type: ignore[arg-type]
    assert other.source == "a/b"


def test_a_claim_is_judged_on_each_corpus_with_what_is_remarked_of_it() -> None:
    presets = {
        "tiny": Preset((), ""),
        "small": Preset((), "", corpus="Here"),
        "there": Preset((), "", corpus="There"),
        "paper": Preset((), ""),
    }
    claim = Claim("A is.", "[G1]", "A", lambda runs: [], "few", {"there": "many"})
    experiment = Experiment("a/b", {}, "", "", presets, list, list, (claim,))  # type: ignore[arg-type]
    assert experiment.reported == ["small", "there"]
    shown = {p: [(c.measured, c.remark) for c in experiment.claims_on(p)] for p in presets}
    assert shown["small"] == [("A; Here", "few")]
    assert shown["there"] == [("A; There", "many")]
    assert shown["tiny"] == shown["paper"] == [("A", "few")]
