"""Models of other libraries, fitted to our splits; each library is imported when it is needed.

Every fit uses the training pairs only, on as many threads as torch has (`OMP_NUM_THREADS`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evergram.data.split import Split


@dataclass(frozen=True)
class Result:
    """A fitted model, whose scores are `query @ candidate.T`.

    Args:
        query: [N_q, D]; candidate: [N_c, D], float32.
        seconds: of fitting; neither loading nor making the matrix of interactions counts.
    """

    query: Tensor
    candidate: Tensor
    seconds: float


def implicit_als(
    split: Split,
    *,
    factors: int = 64,
    seed: int = 0,
    regularization: float,
    alpha: float,
    iterations: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """Fit weighted least squares: an observed pair weighs `alpha` and any other 1, in implicit
    0.7. `clock` gives the seconds."""
    from implicit.cpu.als import AlternatingLeastSquares
    from threadpoolctl import threadpool_limits

    # Its own threads call BLAS, which would start more of them; implicit warns of that.
    with threadpool_limits(1, user_api="blas"):
        model = AlternatingLeastSquares(
            factors,
            regularization=regularization,
            alpha=alpha,
            iterations=int(iterations),
            num_threads=torch.get_num_threads(),
            random_state=seed,
        )
        seconds = _timed(partial(model.fit, _matrix(split), show_progress=False), clock)
    return Result(_tensor(model.user_factors), _tensor(model.item_factors), seconds)


def irspack_ials(
    split: Split,
    *,
    factors: int = 64,
    seed: int = 0,
    reg: float,
    alpha0: float,
    nu: float,
    epochs: float,
) -> Result:
    """Fit least squares whose regularization grows with an entity's count to the power `nu`. An
    observed pair weighs 1 + alpha0, any other `alpha0`; `nu_star` makes `reg` comparable over
    `nu`."""
    from irspack import IALSRecommender

    model = IALSRecommender(
        _matrix(split),
        n_components=factors,
        alpha0=alpha0,
        reg=reg,
        nu=nu,
        nu_star=1.0,
        random_seed=seed,
        n_threads=torch.get_num_threads(),
    )

    def fit() -> None:
        model.start_learning()  # learn() does the same behind a progress bar
        for _ in range(int(epochs)):
            model.run_epoch()

    seconds = _timed(fit)
    core = model.trainer_as_ials.core_trainer
    return Result(_tensor(core.user), _tensor(core.item), seconds)


def _matrix(split: Split) -> Any:
    """Return ones at the training pairs, as a SciPy matrix [N_q, N_c] in rows."""
    from scipy.sparse import csr_matrix

    corpus = split.training
    place = (corpus.column("query").numpy(), corpus.column("candidate").numpy())
    shape = (len(corpus.queries), len(corpus.candidates))
    return csr_matrix((np.ones(len(corpus), dtype=np.float32), place), shape=shape)


def _tensor(factors: Any) -> Tensor:
    return torch.from_numpy(np.array(factors, dtype=np.float32))


def _timed(fit: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of `fit`, with BLAS on one thread, because the libraries start their
    own."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        started = clock()
        fit()
        return clock() - started
