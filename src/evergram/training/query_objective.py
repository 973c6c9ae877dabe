"""A version's training objective as a quadratic form of one query's vector.

It is exact for the squared loss with any penalty. Other pointwise losses are replaced by the
squared loss, and other tasks by the softmax over all candidates, expanded to second order. For an
encoder whose queries are means of their candidates, a new query is such a mean too. See
docs/method.md, "A new query".
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from evergram.data.corpus import Corpus
from evergram.encoders.mean_of_candidates import MeanOfCandidates
from evergram.gramian.query_form import Length, QueryForm, Term
from evergram.kinds import Trait
from evergram.tasks.kinds import SoftmaxAllSettings, TemperedSettings
from evergram.training.factors import build_measures
from evergram.training.fit import Trained
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import ConstantSettings, ZeroSettings

# Candidates per block of a sum of outer products.
BLOCK = 65_536


def query_form(recipe: Recipe, corpus: Corpus, trained: Trained) -> QueryForm:
    """Return the objective of a query added after training, with all candidates fixed.

    Args:
        corpus: the corpus that the model was last trained on.
        trained: the model; without a `penalty` its objective is unknown, as for given modules.
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
        zero = Term(0.0, 0.0, torch.eye(dim), torch.zeros(dim))
        return QueryForm.of(
            "exact" if exact else "approximate",
            terms or [zero],
            length="unit" if normalize else "free",
            values=task.pair_target == "value",
        )
    temperature = task.temperature if isinstance(task, TemperedSettings) else 1.0
    push = task.push if isinstance(task, SoftmaxAllSettings) else 1.0
    gramian, mean = _moments(recipe, corpus, trained)
    mean = mean[0]
    matrix = gramian[0] - torch.outer(mean, mean)
    terms = [Term(push, 1.0, matrix / temperature**2, -mean / temperature)]
    if task is not None:
        terms += _terms(recipe, corpus, trained)
    length: Length = "scaled" if normalize else "free"
    return QueryForm.of("approximate", terms, squares=0.0, pull=1 / temperature, length=length)


def _terms(recipe: Recipe, corpus: Corpus, trained: Trained) -> Iterator[Term]:
    """Yield λ p_a Σ_b q_b (⟨u, v_b⟩ − π)² for each measure, and l2 ‖u‖² unless the length is fixed.

    π is a constant prior or 0, because a new query has no prior factors."""
    if any(trained.penalty):
        gramians, means = _moments(recipe, corpus, trained)
        prior = recipe.prior.value if isinstance(recipe.prior, ConstantSettings) else 0.0
        for r, penalty in enumerate(trained.penalty):
            if penalty:
                strength, power = _per_pair(recipe, corpus, r)
                yield Term(2 * penalty * strength, power, gramians[r], prior * means[r])
    if trained.l2 and not trained.encoder.normalize:
        strength, power = 1.0, 1.0
        # Pilots may have chosen another measure than the recipe's.
        if trained.l2_measure == "penalty":
            strength, power = _per_pair(recipe, corpus, 0)
        dim = trained.encoder.dim
        yield Term(2 * trained.l2 * strength, power, torch.eye(dim), torch.zeros(dim))


def _per_pair(recipe: Recipe, corpus: Corpus, r: int) -> tuple[float, float]:
    """Return c and γ such that measure r weighs a query with m pairs by c m^γ, where each pair
    weighs 1. For weights from a file a new query gets the mean weight."""
    measure = recipe.task.query_measure[r]
    power = 0.0 if isinstance(measure, str) else measure
    counts = corpus.counts("query").double()
    positive = counts[counts > 0]
    if recipe.task.drawn == "queries":  # each pair of a query with m pairs has a rate ∝ 1/m
        return len(positive) / float((positive**power).sum()), power + 1
    return len(corpus) / float((positive**power).sum()), power


def _moments(recipe: Recipe, corpus: Corpus, trained: Trained) -> tuple[Tensor, Tensor]:
    """Return Σ_b q_b v_b v_bᵀ [R, D, D] and Σ_b q_b v_b [R, D] of the candidates, float64."""
    vectors, unit = trained.candidate, trained.encoder.normalize
    settings, counts = recipe.task.measures_of("candidate"), corpus.counts("candidate")
    measures = build_measures(settings, counts, corpus.candidates.vocabulary)
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
    """Return whether the form contains all terms of the objective besides the pairs' loss."""
    return (
        recipe.task.sparse == "none"
        and isinstance(recipe.prior, ZeroSettings | ConstantSettings)
        and not any(isinstance(power, str) for power in recipe.task.query_measure)
    )
