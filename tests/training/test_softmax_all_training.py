"""All candidates in a step: the gradients of an epoch are those of the whole loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.fits import CPU, parts_of
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.encoders.candidates_at_hand import CandidatesAtHand
from evergram.encoders.factorization import Factorization
from evergram.encoders.features import SIDES
from evergram.encoders.tables.embedding_tables import ROWS
from evergram.errors import RecipeError
from evergram.releasing.upgrade import train
from evergram.tasks.softmax_all import SoftmaxAll
from evergram.training import memory
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe

PAIRS = [(q, (3 * q + i) % 9) for q in range(11) for i in range(1 + q % 4)]
KINDS = ["factorization", "two_tower", "lightgcn", "graphsage"]


DATA = Corpus.of(PAIRS)


def recipe(*overrides: str, **task: Any) -> Recipe:
    return Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"dim": 3, "normalize": True},
            "task": {"kind": "softmax_all", "temperature": 0.5, **task},
            "training": {"batch_size": 8},
        },
        overrides,
    )


def epoch_gradients(chosen: Recipe, data: Corpus) -> tuple[Any, dict[str, Tensor], int]:
    """Return the step, the sum of an epoch's gradients with parameters held, and its batches."""
    step, sampler, _ = parts_of(chosen, data)
    step.optimizers = []
    total = {n: torch.zeros_like(p) for n, p in step.encoder.named_parameters()}
    for _ in run_epoch(step, sampler, None, 0, CPU):
        for name, parameter in step.encoder.named_parameters():
            assert parameter.grad is not None
            total[name] += parameter.grad.to_dense()
        step.encoder.zero_grad()
    return step, total, sampler.expected  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [4, 65_536])
def test_an_epochs_gradients_are_the_whole_losss(
    kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dense softmax of all pairs at once, by torch; towers embed blocks of `rows` again."""
    defaults = CandidatesAtHand.__init__.__defaults__
    assert defaults == (ROWS,)
    monkeypatch.setattr(CandidatesAtHand.__init__, "__defaults__", (rows,))
    data = DATA
    step, total, expected = epoch_gradients(recipe(f"model.kind={kind}"), data)
    step.encoder.zero_grad()
    embeddings = step.encoder(step.scene)
    users, items = (embeddings.rows(side, torch.arange(len(data.counts(side)))) for side in SIDES)
    scores = users @ items.T / 0.5
    observed = scores[data.column("query"), data.column("candidate")]
    normalizers = scores.logsumexp(1)[data.column("query")]
    ((normalizers - observed).sum() / expected).backward()
    for name, parameter in step.encoder.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(total[name], parameter.grad.to_dense(), rtol=1e-4, atol=1e-5)


def test_an_epoch_begins_with_rows_of_norm_one() -> None:
    data = DATA
    chosen = recipe("training.optimizer=adam", "training.rescale_rows=true")
    step, sampler, _ = parts_of(chosen, data)
    assert isinstance(step.encoder, Factorization)
    tables = step.encoder.query.weight, step.encoder.candidate.weight
    for _ in run_epoch(step, sampler, None, 0, CPU):
        pass

    def embedded() -> list[Tensor]:
        rows = step.encoder(step.scene)
        return [rows.rows(s, torch.arange(len(data.counts(s)))).detach() for s in SIDES]

    before = embedded()
    lengths = [table.norm(dim=1) for table in tables]
    assert not any(torch.allclose(own, torch.ones(())) for own in lengths)
    step.begin_epoch(start=3, number=1)  # goes on with an interrupted epoch
    assert all(torch.equal(t.norm(dim=1), own) for t, own in zip(tables, lengths, strict=True))
    step.begin_epoch(number=1)
    torch.testing.assert_close(embedded(), before)
    for table in tables:
        torch.testing.assert_close(table.norm(dim=1), torch.ones(len(table)))


def test_candidates_that_are_elsewhere_or_beyond_memory_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for tables in ("sharded", "mapped"):
        with pytest.raises(RecipeError, match=f"'{tables}', which needs steps that read a batch's"):
            recipe(f"training.tables={tables}")
    monkeypatch.setattr(memory, "memory_bytes", lambda: 947)
    with pytest.raises(RecipeError, match=r"all 9 candidates .* 948 bytes"):
        parts_of(recipe(), DATA)
    monkeypatch.setattr(memory, "memory_bytes", lambda: 948)
    parts_of(recipe(), DATA)


@pytest.mark.parametrize("kind", ["two_tower", "lightgcn"])
def test_training_learns(small: Recipe, kind: str) -> None:
    """On planted data, each encoder ranks above popularity."""
    rate = {"layer_rate": 0.02} if kind in ("lightgcn", "graphsage") else {"table_rate": 0.05}
    keys = "model.normalize=true", "training.optimizer=adam", "training.decay=0.9"
    values = small.model_dump(include={"name", "data", "split"})
    values |= {"task": {"kind": "softmax_all", "temperature": 0.2}}
    values |= {"training": {"epochs": 6, "patience": 0, **rate}}
    chosen = Recipe.of(values, [f"model.kind={kind}", "model.dim=8", *keys])
    metrics = train(chosen).metrics["metrics"]
    assert metrics["model"]["recall@20"] > metrics["popularity"]["recall@20"]


@pytest.mark.parametrize("kind", ["factorization", "graphsage"])
def test_a_learned_temperature_is_trained_and_reported(kind: str) -> None:
    values: dict[str, dict[str, Any]] = {
        "data": {"kind": "synthetic", "queries": 60, "candidates": 40, "interactions": 600},
        "model": {"kind": kind, "dim": 4, "normalize": True},
        "task": {"kind": "softmax_all", "temperature": "learned"},
        "training": {"epochs": 3, "layer_rate": 0.05},
    }
    made = train(Recipe.of(values), progress=False)
    learned = made.metrics["training"]["temperature"]
    assert 0.01 < learned < 1
    assert abs(learned - 0.1) > 1e-3
    again = train(Recipe.of(values), progress=False).metrics["training"]
    assert again["temperature"] == learned
    values["task"]["temperature"] = 0.1
    del values["training"]["layer_rate"]
    assert "temperature" not in train(Recipe.of(values), progress=False).metrics["training"]


def test_a_learned_temperature_makes_pairs_likelier_and_moves_no_vector() -> None:
    data = DATA
    step, sampler, _ = parts_of(recipe(temperature="learned"), data)
    task = step.objective.task
    assert isinstance(task, SoftmaxAll)
    step.optimizers = [torch.optim.Adam(task.parameters(), 0.02)]
    before = [p.clone() for p in step.encoder.parameters()]
    for epoch in range(20):
        for _ in run_epoch(step, sampler, None, epoch, CPU):
            pass
    assert all(map(torch.equal, before, step.encoder.parameters()))

    def loss(tau: float) -> float:
        fixed = parts_of(recipe(temperature=tau), data)[0]
        fixed.optimizers = []
        return sum(float(value) for _, value in run_epoch(fixed, sampler, None, 0, CPU))

    assert loss(task.temperature) < loss(0.1) - 0.1
