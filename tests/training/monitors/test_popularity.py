"""Candidates published times a power of their counts: chosen, measured and kept so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.split import Split
from evergram.encoders.encoder import Encoder
from evergram.encoders.factory import build_encoder, publish_by_popularity
from evergram.encoders.features import Schema
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
from evergram.training.monitors.early_stopping import SelectionMetric
from evergram.training.monitors.popularity_choice import (
    EXPONENTS,
    choose_popularity,
)
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

AT_5 = "recall@5"


@pytest.fixture(scope="module")
def split() -> Split:
    data = {"kind": "synthetic", "queries": 80, "candidates": 50, "interactions": 1500}
    recipe = Recipe.of({"data": data})
    return split_for(recipe, load_corpus(recipe), 0)


def unit_rows(corpus: Corpus, seed: int) -> Encoder:
    """Untrained vectors: some seeds want popularity more than others."""
    options = {"dim": 3, "normalize": True}
    schema, draw = Schema.of(corpus, features=False), torch.Generator().manual_seed(seed)
    encoder = build_encoder("factorization", options, schema, draw).eval()
    publish_by_popularity(encoder, 0.0, corpus)
    return encoder


def slow_recall(encoder: Encoder, split: Split, exponent: float, k: int) -> float:
    """Score one pair at a time in float64, sort, and count; a tie is lost."""
    corpus = split.training
    vectors = {s: v.double() for s, v in encoder.embed_all(corpus).items()}
    counts = corpus.counts("candidate").tolist()
    seen, held = (
        {(int(q), int(c)) for q, c in zip(query, candidate, strict=True)}
        for query, candidate in (
            (corpus.column("query"), corpus.column("candidate")),
            (split.selection.query, split.selection.candidate),
        )
    )
    recalls = []
    for query in sorted({q for q, _ in held}):
        targets = [c for q, c in held if q == query]
        scores = {
            c: float(vectors["query"][query] @ vectors["candidate"][c]) * max(n, 1) ** exponent
            for c, n in enumerate(counts)
            if (query, c) not in seen
        }
        listed = sorted(scores, key=lambda c: (-scores[c], c in targets))[:k]
        recalls.append(len(set(listed) & set(targets)) / len(targets))
    return sum(recalls) / len(recalls)


@pytest.mark.parametrize("seed", range(2))
def test_it_is_what_a_slow_loop_picks(split: Split, seed: int) -> None:
    encoder = unit_rows(split.training, seed)
    slow = [slow_recall(encoder, split, exponent, 5) for exponent in EXPONENTS]
    metric = SelectionMetric(AT_5, split)
    choice = choose_popularity(encoder, split.training, metric)
    assert [record["exponent"] for record in choice.tried] == list(EXPONENTS)
    assert [record[AT_5] for record in choice.tried] == pytest.approx(slow, abs=1e-9)
    assert choice.exponent == EXPONENTS[slow.index(max(slow))]
    assert encoder.popularity_option == {"popularity": choice.exponent}
    held_out = f"best {AT_5} of {len(metric.relevance)} queries held out for selection"
    at_the_end = choice.exponent == EXPONENTS[-1]
    assert (
        choice.reason
        == held_out + "; it is the largest that was tried, and more may be better" * (at_the_end)
    )
    assert choice.as_json()["tried"] == list(choice.tried)


CPU = torch.device("cpu")


DATA = {"kind": "synthetic", "queries": 120, "candidates": 80, "interactions": 2500}


METRIC = "recall@20"


def unit_recipe(*overrides: str) -> Recipe:
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
def popular() -> Corpus:
    return load_corpus(unit_recipe())


def trained_by(chosen: Recipe, popular: Corpus) -> dict[str, Tensor]:
    """Return the parameters after two epochs."""
    step, sampler, draws = prepare(FitSettings.of(chosen, popular, 0), popular, CPU)
    for epoch in range(2):
        for _ in run_epoch(step, sampler, draws, epoch, CPU):
            pass
    return {name: value.detach() for name, value in step.encoder.named_parameters()}


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model.kind=lightgcn"],
        # Estimators that pass over all entities, and a pool that is embedded in evaluation mode.
        ["task.kind=pointwise", "gramian.kind=sagram", "model.kind=two_tower"],
        ["task.kind=pointwise", "gramian.batch=independent", "gramian.sampler=adaptive"],
    ],
    ids=" ".join,
)
def test_the_objective_does_not_see_the_factor(popular: Corpus, overrides: list[str]) -> None:
    values = unit_recipe().model_dump()
    if "task.kind=pointwise" in overrides:
        values["task"] = {"penalty": 5.0}
    plain = Recipe.of(values, overrides)
    scaled = Recipe.of(values, [*overrides, "model.popularity=1.0"])
    expected = trained_by(plain, popular)
    for name, value in trained_by(scaled, popular).items():
        assert torch.equal(value, expected[name])


@pytest.mark.parametrize("way", ["", "mapped", "refit"])
def test_what_is_measured_and_published_has_the_factor(popular: Corpus, way: str) -> None:
    chosen = unit_recipe(
        "model.popularity=0.5", *(["training.refit=true"] if way == "refit" else [])
    )
    if way == "mapped":
        values = {**chosen.model_dump(), "task": {"penalty": 5.0}}
        chosen = Recipe.of(values, ["training.tables=mapped"])
    split = split_for(chosen, popular, 0)
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


@pytest.mark.parametrize("refit", [False, True])
def test_an_automatic_power_is_chosen_at_the_best_epoch(popular: Corpus, refit: bool) -> None:
    flag = f"training.refit={str(refit).lower()}"
    artefact = train(
        unit_recipe("model.popularity='auto'", flag, "training.epochs=2"), popular, progress=False
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
    split = split_for(unit_recipe(), popular, 0)
    counts = final_split(split, refits=refit).training.counts("candidate").double()
    norms = torch.as_tensor(artefact.block("candidate")[1]).double().norm(dim=1)
    expected = counts.clamp(min=1) ** record["exponent"]
    torch.testing.assert_close(norms, expected, rtol=1e-5, atol=0)
    kept = artefact.encoder.state["popularity.counts"]
    assert torch.equal(kept, counts.float())


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
    popular: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = unit_recipe("model.popularity='auto'")
    undisturbed = train(chosen, popular, progress=False)

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    often = CheckpointSettings(steps=2)
    with monkeypatch.context() as patched:
        patched.setattr(fit, "settle_popularity", kill)
        with pytest.raises(KeyboardInterrupt):
            train(chosen, popular, progress=False, folder=tmp_path, checkpoints=often)
    assert list(tmp_path.iterdir())
    resumed = train(chosen, popular, progress=False, folder=tmp_path, checkpoints=often)
    assert same(resumed, undisturbed)
