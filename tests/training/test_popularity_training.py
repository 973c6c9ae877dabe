"""Candidates published times a power of their counts: measured so, kept so, and not trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.errors import DataError
from evergram.evaluation import relevance
from evergram.evaluation.ranking import rank_metrics
from evergram.lineage.artefact import Artefact
from evergram.releasing.upgrade import train
from evergram.training import fit
from evergram.training.build import prepare
from evergram.training.checkpoints.settings import CheckpointSettings
from evergram.training.corpora import final_split, load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.loop import run_epoch
from evergram.training.monitors.popularity_choice import EXPONENTS
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")
DATA = {"kind": "synthetic", "queries": 120, "candidates": 80, "interactions": 2500}
METRIC = "recall@20"


def recipe(*overrides: str) -> Recipe:
    return Recipe.of(
        {
            "data": DATA,
            "model": {"dim": 6, "normalize": True},
            "task": {"kind": "softmax_all", "temperature": 0.2},
            "training": {"epochs": 4, "patience": 0},
        },
        overrides,
    )


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus(recipe())


def trained_by(chosen: Recipe, corpus: Corpus) -> dict[str, Tensor]:
    """Return the parameters after two epochs."""
    step, sampler, draws = prepare(FitSettings.of(chosen, corpus, 0), corpus, CPU)
    for epoch in range(2):
        for _ in run_epoch(step, sampler, draws, epoch, CPU):
            pass
    return {name: value.detach() for name, value in step.encoder.named_parameters()}


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model.kind=two_tower"],
        ["model.kind=lightgcn"],
        # Estimators that pass over all entities, and a pool that is embedded in evaluation mode.
        ["task.kind=pointwise", "gramian.kind=exact"],
        ["task.kind=pointwise", "gramian.kind=sagram", "model.kind=two_tower"],
        ["task.kind=pointwise", "gramian.batch=independent", "gramian.sampler=adaptive"],
    ],
    ids=" ".join,
)
def test_the_objective_does_not_see_the_factor(corpus: Corpus, overrides: list[str]) -> None:
    values = recipe().model_dump()
    if "task.kind=pointwise" in overrides:
        values["task"] = {"penalty": 5.0}
    plain = Recipe.of(values, overrides)
    scaled = Recipe.of(values, [*overrides, "model.popularity=1.0"])
    expected = trained_by(plain, corpus)
    for name, value in trained_by(scaled, corpus).items():
        assert torch.equal(value, expected[name])


@pytest.mark.parametrize("way", ["", "mapped", "refit"])
def test_what_is_measured_and_published_has_the_factor(corpus: Corpus, way: str) -> None:
    chosen = recipe("model.popularity=0.5", *(["training.refit=true"] if way == "refit" else []))
    if way == "mapped":
        values = {**chosen.model_dump(), "task": {"penalty": 5.0}}
        chosen = Recipe.of(values, ["training.tables=mapped"])
    split = split_for(chosen, corpus, 0)
    refit = None
    final = final_split(split, refits=chosen.refits)
    if final is not split:
        refit = fit.Refit(final)
    trained = fit_encoder(chosen, split, 0, RunContext(CPU), None, refit)
    counts = final.training.counts("candidate").double()
    norms = trained.candidate.double().norm(dim=1)
    torch.testing.assert_close(norms, counts.clamp(min=1).sqrt(), rtol=1e-5, atol=0)
    again = rank_metrics(
        trained.query, trained.candidate, relevance.test_relevance(final), [METRIC]
    )
    assert trained.metrics["model"][METRIC] == pytest.approx(again[METRIC])
    assert trained.popularity is not None
    assert trained.popularity.as_json() == {"exponent": 0.5, "reason": "model.popularity"}
    if refit is None:  # its vectors are those of the best epoch
        held = relevance.relevance_of(split.training, split.selection)
        best = rank_metrics(trained.query, trained.candidate, held, [METRIC])[METRIC]
        assert max(record[METRIC] for record in trained.history) == pytest.approx(best)


def test_without_a_factor_nothing_is_said_of_one(corpus: Corpus) -> None:
    artefact = train(recipe(), corpus, progress=False)
    assert "popularity" not in artefact.metrics["training"]
    assert artefact.encoder is not None
    assert "popularity" not in artefact.encoder.options


@pytest.mark.parametrize("refit", [False, True])
def test_an_automatic_power_is_chosen_at_the_best_epoch(corpus: Corpus, refit: bool) -> None:
    flag = f"training.refit={str(refit).lower()}"
    artefact = train(
        recipe("model.popularity='auto'", flag, "training.epochs=2"), corpus, progress=False
    )
    record = artefact.metrics["training"]["popularity"]
    assert [entry["exponent"] for entry in record["tried"]] == list(EXPONENTS)
    values = [entry[METRIC] for entry in record["tried"]]
    assert record["exponent"] == EXPONENTS[values.index(max(values))]
    assert record["exponent"] > 0
    # The epoch was selected without a factor, and is where powers are tried.
    best = max(entry[METRIC] for entry in artefact.metrics["training"]["history"])
    assert values[0] == pytest.approx(best)
    assert artefact.recipe["model"]["popularity"] == "auto"
    assert artefact.encoder is not None
    assert artefact.encoder.options["popularity"] == record["exponent"]
    split = split_for(recipe(), corpus, 0)
    counts = final_split(split, refits=refit).training.counts("candidate").double()
    norms = torch.as_tensor(artefact.block("candidate")[1]).double().norm(dim=1)
    expected = counts.clamp(min=1) ** record["exponent"]
    torch.testing.assert_close(norms, expected, rtol=1e-5, atol=0)
    kept = artefact.encoder.state["popularity.counts"]
    assert torch.equal(kept, counts.float())


class KilledError(Exception):
    """Stands for a signal that no code can answer."""


def same(one: Artefact, other: Artefact) -> bool:
    assert one.encoder is not None
    assert other.encoder is not None
    states = one.encoder.state, other.encoder.state
    return (
        all(torch.equal(states[0][name], states[1][name]) for name in states[1])
        and one.encoder.options == other.encoder.options
        and torch.equal(*(torch.as_tensor(a.block("candidate")[1]) for a in (one, other)))
        and one.metrics["training"]["popularity"] == other.metrics["training"]["popularity"]
    )


def test_a_run_that_is_killed_while_it_chooses_ends_as_if_it_had_not(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = recipe("model.popularity='auto'")
    undisturbed = train(chosen, corpus, progress=False)

    def kill(*_: object) -> None:
        raise KilledError

    often = CheckpointSettings(steps=2)
    with monkeypatch.context() as patched:
        patched.setattr(fit, "settle_popularity", kill)
        with pytest.raises(KilledError):
            train(chosen, corpus, progress=False, folder=tmp_path, checkpoints=often)
    assert list(tmp_path.iterdir())
    resumed = train(chosen, corpus, progress=False, folder=tmp_path, checkpoints=often)
    assert same(resumed, undisturbed)


def test_an_automatic_power_without_selection_pairs_is_refused_before_training(
    corpus: Corpus,
) -> None:
    split = split_for(recipe(), corpus, 0)
    split = replace(split, selection=split.selection.where(split.selection.query < 0))
    with pytest.raises(DataError, match=r"model\.popularity = 'auto' is chosen by the pairs held"):
        fit_encoder(recipe("model.popularity='auto'"), split, 0, RunContext(CPU))
