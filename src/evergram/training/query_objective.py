"""The objective that a version was trained by, as the quadratic form of one query.

It is exact for the squared loss and for the second-order softmax, whatever their penalties. Any
other pointwise loss is taken as squared, and any other task as the softmax over all candidates,
expanded to second order. Where a query is the mean of its candidates, a new one is, too:
docs/method.md, "A new query".
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from evergram.data.corpus import Corpus
from evergram.encoders.mean_of_candidates import MeanOfCandidates
from evergram.gramian.query_form import Length, QueryForm, Rule, Term
from evergram.kinds import Trait
from evergram.tasks.kinds import (
    SecondOrderSettings,
    SoftmaxAllSettings,
    TemperedSettings,
)
from evergram.training.factors import build_measures
from evergram.training.fit import Trained
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import ConstantSettings, ZeroSettings

# Candidates whose outer products are summed at once.
BLOCK = 65_536


def query_form(recipe: Recipe, corpus: Corpus, trained: Trained) -> QueryForm:
    """Return the objective of a query that comes after training, all candidates fixed.

    Args:
        corpus: the one that the model was last trained on.
        trained: the model; one that was not trained by the recipe has no known objective.
    Raises: DataError: a file of weights cannot be used.
    """
    if isinstance(trained.encoder, MeanOfCandidates):
        return QueryForm.mean(trained.encoder.dim, normalize=trained.encoder.normalize)
    task = recipe.task if trained.penalty else None
    normalize = trained.encoder.normalize
    if task is not None and task.needs_penalty:
        terms = list(_terms(recipe, corpus, trained))
        exact = Trait.SQUARED_LOSS in task.traits and _is_quadratic(recipe)
        dim = trained.encoder.dim
        nothing = Term(0.0, 0.0, torch.eye(dim), torch.zeros(dim))
        return QueryForm.of(
            "exact" if exact else "approximate",
            terms or [nothing],
            length="unit" if normalize else "free",
            values=task.pair_target == "value",
        )
    temperature = task.temperature if isinstance(task, TemperedSettings) else 1.0
    push = task.push if isinstance(task, SoftmaxAllSettings) else 1.0
    second = isinstance(task, SecondOrderSettings)
    length: Length = "free" if not normalize else "unit" if second else "scaled"
    strength, power = _per_pair(recipe, corpus, 0) if second else (push, 1.0)
    gramian, mean = _moments(recipe, corpus, trained)
    mean = mean[0]
    matrix = gramian[0] - torch.outer(mean, mean)
    terms = [Term(strength, power, matrix / temperature**2, -mean / temperature)]
    if task is not None:
        terms += _terms(recipe, corpus, trained)
    exact = second and _is_quadratic(recipe)
    rule: Rule = "exact" if exact else "approximate"
    return QueryForm.of(rule, terms, squares=0.0, pull=1 / temperature, length=length)


def _terms(recipe: Recipe, corpus: Corpus, trained: Trained) -> Iterator[Term]:
    """Yield λ p_a Σ_b q_b (⟨u, v_b⟩ − π)² of each measure, for a query without factors of a prior
    (a constant one is the same for every query); and l2 ‖u‖², by examples or under the first
    measure, which a fixed length does not need."""
    if any(trained.penalty):
        gramians, means = _moments(recipe, corpus, trained)
        prior = recipe.prior.value if isinstance(recipe.prior, ConstantSettings) else 0.0
        for r, penalty in enumerate(trained.penalty):
            if penalty:
                strength, power = _per_pair(recipe, corpus, r)
                yield Term(2 * penalty * strength, power, gramians[r], prior * means[r])
    if trained.l2 and not trained.encoder.normalize:
        strength, power = 1.0, 1.0
        # Not the recipe's, of which pilots may have chosen another.
        if trained.l2_measure == "penalty":
            strength, power = _per_pair(recipe, corpus, 0)
        dim = trained.encoder.dim
        yield Term(2 * trained.l2 * strength, power, torch.eye(dim), torch.zeros(dim))


def _per_pair(recipe: Recipe, corpus: Corpus, r: int) -> tuple[float, float]:
    """Return c and γ: relative to m pairs that count 1 each, a query's measure r is c m^γ.

    A file's weights have no new query; they count by their mean.
    """
    chosen = recipe.task.query_measure[r]
    power = 0.0 if isinstance(chosen, str) else chosen
    counts = corpus.counts("query").double()
    met = counts[counts > 0]
    if recipe.task.drawn == "queries":  # a pair of a query of m pairs is drawn with rate ∝ 1/m
        return len(met) / float((met**power).sum()), power + 1
    return len(corpus) / float((met**power).sum()), power


def _moments(recipe: Recipe, corpus: Corpus, trained: Trained) -> tuple[Tensor, Tensor]:
    """Return Σ_b q_b v_b v_bᵀ [R, D, D] and Σ_b q_b v_b [R, D] of the candidates, float64."""
    vectors, unit = trained.candidate, trained.encoder.normalize
    chosen, counts = recipe.task.measures_of("candidate"), corpus.counts("candidate")
    measures = build_measures(chosen, counts, corpus.candidates.vocabulary)
    columns, dim = measures.shape[1], vectors.shape[1]
    gramian = torch.zeros(columns, dim, dim, dtype=torch.float64)
    mean = torch.zeros(columns, dim, dtype=torch.float64)
    for start in range(0, len(vectors), BLOCK):
        rows = vectors[start : start + BLOCK].double()
        if unit:
            rows = functional.normalize(rows)
        for r in range(columns):
            weighted = rows * measures[start : start + BLOCK, r, None]
            gramian[r].addmm_(weighted.T, rows)
            mean[r] += weighted.sum(0)
    return (gramian + gramian.mT) / 2, mean


def _is_quadratic(recipe: Recipe) -> bool:
    """Return whether the form has all terms besides the pairs' loss."""
    return (
        recipe.task.sparse == "none"
        and isinstance(recipe.prior, ZeroSettings | ConstantSettings)
        and not any(isinstance(power, str) for power in recipe.task.query_measure)
    )
