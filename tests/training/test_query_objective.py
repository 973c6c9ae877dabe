"""The form of one query against the objective that training really descends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.support.fits import parts_of
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.gramian.query_form import Interactions, QueryForm
from evergram.tasks.kinds import LOSSES, PointwiseSettings
from evergram.training.fit import Trained
from evergram.training.query_objective import query_form
from evergram.training.recipe import Recipe
from evergram.training.step import Step

QUERIES, CANDIDATES, DIM = 12, 9, 4
SQUARED = {"penalty": 3.0, "l2": 0.3}
EXACT: dict[str, dict[str, Any]] = {
    "squared": {"task": SQUARED},
    "l2 under the measure": {"task": {**SQUARED, "l2_measure": "penalty"}},
    "measures": {"task": {**SQUARED, "query_measure": 0.7, "candidate_measure": 0.5}},
    "two measures": {
        "task": {
            "penalty": [2.0, 5.0],
            "l2": 0.1,
            "l2_measure": "penalty",
            "query_measure": [1.0, 0.0],
            "candidate_measure": [0.0, 1.0],
        }
    },
    "constant prior": {"task": SQUARED, "prior": {"kind": "constant", "value": -0.4}},
    "values": {"task": {**SQUARED, "target": "value"}},
    "of length 1": {"task": {"penalty": 3.0}, "model": {"normalize": True}},
}
CLOSE_TO_IT: dict[str, dict[str, Any]] = {
    "another loss": {"task": {**SQUARED, "loss": "quartic"}},
    "excluded": {"task": {**SQUARED, "sparse": "exclude"}},
    "softmax": {"task": {"kind": "softmax_all", "temperature": 0.5, "push": 1.2}},
    "bpr": {"task": {"kind": "bpr"}},
}


def corpus_of(seed: int = 0) -> Corpus:
    draw = torch.Generator().manual_seed(seed)
    query = torch.cat([torch.arange(QUERIES), torch.randint(QUERIES, (50,), generator=draw)])
    candidate = torch.randint(CANDIDATES, (len(query),), generator=draw)
    candidate[:CANDIDATES] = torch.arange(CANDIDATES)
    value = torch.rand(len(query), generator=draw) * 4 + 1
    columns = {"query": query.numpy(), "candidate": candidate.numpy(), "value": value.numpy()}
    return Corpus.of(columns)


def recipe_of(tables: Mapping[str, Mapping[str, Any]], corpus: Corpus) -> Recipe:
    model = {"dim": DIM, **tables.get("model", {})}
    task = tables["task"]
    values: dict[str, Any] = {
        "data": {"kind": "python"},
        "training": {"batch_size": len(corpus)},
        **tables,
        "model": model,
    }
    if task.get("kind", "pointwise") == "pointwise":
        values["gramian"] = {"kind": "exact"}
        # On rows of length 1 the preconditioner moves the place where training comes to rest.
        values["training"]["precondition"] = 0.0
    return Recipe.of(values)


def prepared(recipe: Recipe, corpus: Corpus) -> tuple[Step, Trained, Any]:
    """Return a step over all pairs at once, its untrained model, and its sampler."""
    step, sampler, _ = parts_of(recipe, corpus)
    with torch.no_grad():
        draw = torch.Generator().manual_seed(5)
        for table in step.encoder.parameters():
            table.normal_(generator=draw)
    vectors = step.encoder.embed_all(corpus)
    objective = step.objective
    trained = Trained(step.encoder, vectors["query"], vectors["candidate"], {})
    trained.penalty, trained.l2 = objective.penalty, objective.l2
    trained.l2_measure = objective.l2_measure
    return step, trained, sampler


def interactions_of(corpus: Corpus, candidate: Tensor, *, values: bool) -> Interactions:
    order = torch.argsort(corpus.column("query"), stable=True)
    count = len(order)
    target = corpus.column("value")[order] if values else torch.ones(count)
    rows = candidate[corpus.column("candidate")[order]]
    return Interactions(corpus.column("query")[order], rows, torch.ones(count), target)


def form_of(recipe: Recipe, corpus: Corpus, trained: Trained, rule: str) -> QueryForm:
    form = query_form(recipe, corpus, trained)
    assert form is not None
    assert form.rule == rule
    return form


def slope(step: Step, sampler: Any) -> Tensor:
    """Return the gradient of the objective of one epoch by the query table."""
    table = step.encoder.get_parameter("query.weight")
    step.optimizers = [torch.optim.SGD(step.encoder.parameters(), lr=0.0)]
    (batch,) = sampler.epoch(0)
    step.begin_epoch()
    step(batch)
    assert table.grad is not None
    return table.grad.to_dense() if table.grad.is_sparse else table.grad


@pytest.mark.parametrize("name", [*EXACT, *CLOSE_TO_IT])
def test_training_would_not_move_a_folded_in_query_but_by_an_approximation(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOSSES, "quartic", lambda score, target: (score - target) ** 4)
    corpus = corpus_of()
    recipe = recipe_of({**EXACT, **CLOSE_TO_IT}[name], corpus)
    step, trained, sampler = prepared(recipe, corpus)
    form = form_of(recipe, corpus, trained, "exact" if name in EXACT else "approximate")
    met = interactions_of(corpus, trained.candidate, values=form.values)
    folded = form.minimise(met)
    if name in CLOSE_TO_IT:
        assert folded.shape == (QUERIES, DIM)
        return
    before = slope(step, sampler).norm(dim=1)
    if recipe.model.normalize:
        assert float((folded.norm(dim=1) - 1).abs().max()) < 1e-12
    with torch.no_grad():
        step.encoder.get_parameter("query.weight").copy_(folded)
    # Training is in float32.
    assert float((slope(step, sampler).norm(dim=1) / before).max()) < 1e-4


def test_a_softmax_is_expanded_to_second_order() -> None:
    # At a high temperature nothing of third order is left: the gradient of the softmax itself, over
    # all candidates, vanishes where the form says.
    corpus = corpus_of()
    task = {"kind": "softmax_all", "temperature": 40.0, "push": 1.2, "l2": 0.0}
    recipe = recipe_of({"task": task}, corpus)
    step, trained, sampler = prepared(recipe, corpus)
    form = form_of(recipe, corpus, trained, "approximate")
    met = interactions_of(corpus, trained.candidate, values=False)
    shrunk = [torch.zeros(QUERIES, DIM, dtype=torch.float64), 0.01 * form.minimise(met)]
    # In the direction of its minimum the softmax falls as its expansion does, from zero.
    slopes = []
    for rows in shrunk:
        with torch.no_grad():
            step.encoder.get_parameter("query.weight").copy_(rows)
        slopes.append(slope(step, sampler).clone())
    fallen = slopes[1] / slopes[0]
    assert torch.allclose(fallen, torch.full_like(fallen, 0.99), atol=2e-3)


def test_a_pair_that_is_drawn_by_its_query_weighs_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PointwiseSettings, "drawn", "queries")
    corpus = corpus_of()
    task = {**SQUARED, "query_measure": 0.5, "l2_measure": "penalty"}
    recipe = recipe_of({"task": task}, corpus)
    _, trained, _ = prepared(recipe, corpus)
    form = form_of(recipe, corpus, trained, "exact")
    folded = form.minimise(interactions_of(corpus, trained.candidate, values=False))
    # By the definition: a query drawn uniformly, then one of its pairs; all candidates in a sum.
    counts = corpus.counts("query").double()
    measure = counts.sqrt() / counts.sqrt().sum()
    v = trained.candidate.double()
    u = folded.clone().requires_grad_()
    a, b = (corpus.column(side) for side in ("query", "candidate"))
    own = (u[a] * v[b]).sum(1)
    rates = 1 / (QUERIES * counts[a])
    loss = (0.5 * rates * (own - 1).square()).sum()
    loss = loss + 3.0 * (measure[:, None] / CANDIDATES * (u @ v.T).square()).sum()
    loss = loss + 0.3 * (measure * u.square().sum(1)).sum()
    (slope_of_u,) = torch.autograd.grad(loss, u)
    assert float(slope_of_u.abs().max()) < 1e-6


def test_a_model_of_another_loop_has_no_known_objective() -> None:
    corpus = corpus_of()
    recipe = recipe_of({"task": SQUARED}, corpus)
    _, trained, _ = prepared(recipe, corpus)
    trained.penalty = ()
    form = form_of(recipe, corpus, trained, "approximate")
    assert not form.squares
