"""implicit's rows minimise the recipe's own objective, and leave everything else as it was."""

from __future__ import annotations

import sys
import warnings
from math import sqrt

import pytest
import torch
from tests.support.tiny_training import tiny_recipe
from threadpoolctl import threadpool_info

from evergram.data.corpus import Corpus
from evergram.encoders.features import SIDES
from evergram.errors import RecipeError
from evergram.releasing.upgrade import train
from evergram.training.build import prepare
from evergram.training.recipe.automatic import Strengths
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.solvers.sweep_step import SweepStep, squares_of
from evergram.training.starts.als_start import AlsSettings, als_start

CPU = torch.device("cpu")
STRENGTHS = Strengths([0.8], 0.06, "penalty")


def corpus_of(seed: int = 0) -> Corpus:
    """100 distinct pairs of 25 queries with 12 candidates."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randperm(300, generator=generator)[:100]
    return Corpus.of([(int(c) // 12, int(c) % 12) for c in cells])


@pytest.mark.parametrize("penalty", [0.1, 0.8, 20.0])
def test_the_settings_make_implicits_loss_a_multiple_of_ours(penalty: float) -> None:
    """For any rows: Σ_obs α(1 − s)² + Σ_rest s² + ρ(‖X‖² + ‖Y‖²) = c F(U, V) + constant."""
    made = torch.Generator().manual_seed(1)
    wanted = torch.rand(25, 12, generator=made, dtype=torch.float64) < 0.3
    n, l2 = int(wanted.sum()), 0.06
    settings = AlsSettings.of(Strengths([penalty], l2, "penalty"), n, 25, 12)
    ours, theirs = [], []
    for _ in range(4):
        query = torch.randn(25, 3, generator=made, dtype=torch.float64)
        candidate = torch.randn(12, 3, generator=made, dtype=torch.float64)
        scores = query @ candidate.T
        weight = 1 + (settings.alpha - 1) * wanted.double()
        loss = (weight * (wanted.double() - scores) ** 2).sum()
        loss = loss + settings.regularization * (query.square().sum() + candidate.square().sum())
        theirs.append(float(loss))
        query, candidate = query * settings.query_scale, candidate * settings.candidate_scale
        scores = query @ candidate.T
        own = 0.5 * (scores[wanted] - 1).square().mean() + penalty * scores.square().mean()
        own = own + l2 * (query.square().sum(1).mean() + candidate.square().sum(1).mean())
        ours.append(float(own))
    slopes = [(b - theirs[0]) / (a - ours[0]) for a, b in zip(ours[1:], theirs[1:], strict=True)]
    assert slopes == pytest.approx([slopes[0]] * 3, rel=1e-9)


def test_without_a_penalty_or_l2_those_of_auto_stand_in() -> None:
    bare = AlsSettings.of(Strengths([0.0], 0.0, "examples"), 100, 25, 12)
    auto = AlsSettings.of(
        Strengths([66 * (100 / 300) ** 0.25], 0.5 * sqrt(300) / 100, "penalty"), 100, 25, 12
    )
    assert bare == pytest.approx(auto)


def test_iterated_to_its_end_it_is_a_minimum_of_the_runs_own_objective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evergram.training.starts.als_start.ITERATIONS", 300)
    corpus = corpus_of()
    recipe = tiny_recipe(
        *("task.l2_measure=penalty", "training.optimizer=als"), "model.dim=4", "model.start=als"
    )
    step, sampler, _ = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)
    assert isinstance(step, SweepStep)
    start = float(squares_of(step, sampler).value(step.tables))
    (batch,) = sampler.epoch(0)
    values = [float(step(batch)) for _ in range(30)]
    assert values[-1] == pytest.approx(start, rel=1e-5)
    random = tiny_recipe("task.l2_measure=penalty", "training.optimizer=als", "model.dim=4")
    begun, sampler, _ = prepare(FitSettings.of(random, corpus, 0), corpus, CPU)
    assert float(begun(batch)) > 1.01 * start


def test_the_seed_decides_and_repeats_count_once() -> None:
    corpus = corpus_of()
    first = als_start(corpus, STRENGTHS, 4, seed=3)
    twice = corpus.restrict(torch.arange(200) % 100)
    for again in (als_start(corpus, STRENGTHS, 4, seed=3), als_start(twice, STRENGTHS, 4, seed=3)):
        for side in SIDES:
            assert torch.equal(first[side], again[side])
    assert not torch.equal(first["query"], als_start(corpus, STRENGTHS, 4, seed=4)["query"])


def test_threads_stay_as_they_were_and_nothing_warns() -> None:
    before = torch.get_num_threads(), threadpool_info()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        als_start(corpus_of(), STRENGTHS, 4, seed=0)
    after = {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}
    assert torch.get_num_threads() == before[0]
    assert {p["filepath"]: after[p["filepath"]] for p in before[1]} == {
        p["filepath"]: p["num_threads"] for p in before[1]
    }


def test_without_an_epoch_it_is_the_model_and_entities_without_a_pair_stay_as_drawn() -> None:
    recipe = tiny_recipe("model.start=als", "training.epochs=0", "model.dim=4", "upgrade.fit=none")
    artefact = train(recipe, progress=False)
    assert artefact.metrics["training"]["best_epoch"] == 0
    recall = {name: m["recall@20"] for name, m in artefact.metrics["metrics"].items()}
    assert recall["model"] > 0
    corpus = Corpus.of([(f"a{i % 9}", f"b{i * i % 7}") for i in range(60)], shared_ids=True)
    settings = FitSettings.of(recipe, corpus, 0)
    tables = {}
    for start in ("random", "als"):
        chosen = FitSettings.of(tiny_recipe(f"model.start={start}", "model.dim=4"), corpus, 0)
        encoder = prepare(chosen, corpus, CPU)[0].encoder
        tables[start] = {side: getattr(encoder, side).weight.detach() for side in SIDES}
    rows = als_start(corpus, settings.strengths, 4, 0)
    for side in SIDES:
        met = corpus.counts(side) > 0
        assert torch.equal(tables["als"][side][met], rows[side][met])
        assert torch.equal(tables["als"][side][~met], tables["random"][side][~met])
        assert not bool(met.all())


def test_without_the_library_it_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "implicit.cpu.als", None)
    with pytest.raises(RecipeError, match=r"pip install 'evergram\[als\]'; or set training\."):
        als_start(corpus_of(), STRENGTHS, 4, seed=0)
