"""Starting vectors by the library implicit: alternating least squares on the recipe's objective."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Self

import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.encoders.features import SIDES
from evergram.errors import RecipeError
from evergram.training.recipe.automatic import Strengths, pointwise_strengths

# Its recall rises steeply for so many; more are worse on Gowalla, and training goes on elsewhere.
ITERATIONS = 4


@dataclass(frozen=True)
class AlsSettings:
    """The settings with which implicit minimises a recipe's objective, and the scales of its rows.

    Args:
        alpha: weight of an observed pair, where any other weighs 1.
        regularization: of squared norms.
        query_scale, candidate_scale: rows of implicit times these are those of the objective.
    """

    alpha: float
    regularization: float
    query_scale: float
    candidate_scale: float

    @classmethod
    def of(cls, strengths: Strengths, pairs: int, queries: int, candidates: int) -> Self:
        """Return the settings of an objective over n distinct pairs of |A| queries and |B|
        candidates.

        With κ = |A||B|/(2nλ), α = 1 + κ and t = κ/α, the squared loss with target 1, one uniform
        measure and norms under it are implicit's loss of rows scaled by √t, but for a factor; for
        other objectives they are near it. λ or l2 that are 0 are replaced by those that "auto" has
        for the squared loss.

        Source: docs/method.md, "Implicit ALS as a start".
        """
        own = pointwise_strengths(pairs, queries, candidates)
        penalty = sum(strengths.penalty) or own.penalty[0]
        l2 = strengths.l2 or own.l2
        kappa = queries * candidates / (2 * pairs * penalty)
        scaled = kappa / (1 + kappa)
        # implicit has one weight for both sides; only the product of the two matters to scores.
        balance = (queries / candidates) ** 0.25
        return cls(
            1 + kappa,
            l2 * sqrt(queries * candidates) / (penalty * scaled),
            sqrt(scaled) * balance,
            sqrt(scaled) / balance,
        )


def als_start(corpus: Corpus, strengths: Strengths, dim: int, seed: int) -> dict[str, Tensor]:
    """Return the rows of implicit's alternating least squares, float32 [N, dim] of each side.

    A pair counts once, however often it was observed. The number of threads is torch's, and is the
    only one that changes nothing afterwards.

    Raises: RecipeError: implicit is not installed.
    """
    try:
        import numpy as np
        from implicit.cpu.als import AlternatingLeastSquares
        from scipy.sparse import csr_matrix
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise RecipeError(
            "model.start = 'als' needs the library implicit, which is not installed: pip install "
            "'evergram[als]'; or set training.optimizer = 'als', which needs no other library."
        ) from error
    size = len(corpus.candidates)
    keys = torch.unique(corpus.column("query") * size + corpus.column("candidate"))
    pairs = {"query": keys // size, "candidate": keys % size}
    met = [len(torch.unique(rows)) for rows in pairs.values()]
    settings = AlsSettings.of(strengths, len(keys), *met)
    ones = np.ones(len(keys), dtype=np.float32)
    places = tuple(rows.numpy() for rows in pairs.values())
    matrix = csr_matrix((ones, places), shape=(len(corpus.queries), size))
    # Its own threads and those of BLAS would wait for each other, of which it warns.
    with threadpool_limits(1, user_api="blas"):
        model = AlternatingLeastSquares(
            dim,
            regularization=settings.regularization,
            alpha=settings.alpha,
            iterations=ITERATIONS,
            num_threads=torch.get_num_threads(),
            random_state=seed % 2**32,
        )
        model.fit(matrix, show_progress=False)
    scales = settings.query_scale, settings.candidate_scale
    rows = model.user_factors, model.item_factors
    return {
        side: torch.from_numpy(np.array(each, dtype=np.float32)) * scale
        for side, each, scale in zip(SIDES, rows, scales, strict=True)
    }
