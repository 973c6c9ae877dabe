"""The least-squares models of implicit and irspack on our splits, tuned on held-out pairs.

The extra `peers` installs both libraries; each is imported when needed. Every fit uses the training
pairs only, on as many threads as torch (`OMP_NUM_THREADS`). Optuna proposes the settings of
`TRIALS` fits, all with the same training and held-out pairs. The best by Recall@20 is refitted to
all training pairs, and the test pairs are used once per seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import gowalla
from evergram.data.corpus import Corpus
from evergram.data.split import RowPairs, Split
from evergram.evaluation.ranking import rank_metrics, relevance_of
from evergram.training.build import load_corpus, split_for
from evergram.training.recipe import Recipe

METRICS = ("recall@20", "ndcg@20")
TRIALS = 20
# Settings of implicit_als: the best of about sixty on a grid, by Recall@20 on the selection pairs.
SETTINGS: dict[str, dict[str, float]] = {
    "gowalla": {"alpha": 50, "regularization": 3, "iterations": 4},
    "movielens": {"alpha": 2, "regularization": 3, "iterations": 32},
}


@dataclass(frozen=True)
class Result:
    """A fitted model, whose scores are `query @ candidate.T`."""

    query: Tensor  # float32 [N_q, D]
    candidate: Tensor  # float32 [N_c, D]
    seconds: float  # fitting time, without loading data and building the matrix of interactions
    # Returns the vectors [Q, D] of new queries' rows of pairs, a CSR matrix [Q, N_c].
    fold: Callable[[Any], Tensor] | None = None


def wanting() -> str:
    """Return why the peers cannot run, or "" if they can."""
    absent = [name for name in ("implicit", "irspack") if find_spec(name) is None]
    if not absent:
        return ""
    return f"{' and '.join(absent)} not installed; run `pip install '.[peers]'`."


def load(name: str) -> tuple[Recipe, Split]:
    """Return `recipes/<name>.toml` and the split of its version 0."""
    if name == "gowalla":
        gowalla.convert()
    recipe = Recipe.load(gowalla.ROOT / "recipes" / f"{name}.toml")
    return recipe, split_for(recipe, load_corpus(recipe), 0)


def judge(result: Result, split: Split, pairs: RowPairs) -> dict[str, float]:
    """Return the `METRICS` of a fitted model on held-out pairs."""
    relevance = relevance_of(split.training, pairs)
    return rank_metrics(result.query, result.candidate, relevance, METRICS)


def selected(split: Split, result: Result) -> float:
    return judge(result, split, split.selection)[METRICS[0]]


def implicit_als(
    pairs: Any,
    settings: Mapping[str, float],
    *,
    factors: int = 64,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """Fit weighted least squares to a CSR matrix of pairs. In implicit 0.7, observed pairs have
    weight `alpha` and all others 1. `clock` returns seconds."""
    from implicit.cpu.als import AlternatingLeastSquares
    from threadpoolctl import threadpool_limits

    # implicit's threads call BLAS, which must not start more threads; implicit warns about that.
    with threadpool_limits(1, user_api="blas"):
        model = AlternatingLeastSquares(
            factors,
            regularization=settings["regularization"],
            alpha=settings["alpha"],
            iterations=int(settings["iterations"]),
            num_threads=torch.get_num_threads(),
            random_state=seed,
        )
        seconds = _timed(partial(model.fit, pairs, show_progress=False), clock)
    query, candidate = _tensor(model.user_factors), _tensor(model.item_factors)
    fold = lambda x: _tensor(model.recalculate_user(np.arange(x.shape[0]), x))  # noqa: E731
    return Result(query, candidate, seconds, fold)


def irspack_ials(
    pairs: Any, settings: Mapping[str, float], *, factors: int = 64, seed: int = 0
) -> Result:
    """Fit least squares whose regularization grows with an entity's count to the power `nu`.
    Observed pairs have weight 1 + alpha0, all others `alpha0`; `nu_star` makes `reg` comparable for
    different `nu`."""
    from irspack import IALSRecommender

    model = IALSRecommender(
        pairs,
        n_components=factors,
        alpha0=settings["alpha0"],
        reg=settings["reg"],
        nu=settings["nu"],
        nu_star=1.0,
        random_seed=seed,
        n_threads=torch.get_num_threads(),
    )

    def fit() -> None:
        model.start_learning()  # learn() does the same behind a progress bar
        for _ in range(int(settings["epochs"])):
            model.run_epoch()

    seconds = _timed(fit)
    core = model.trainer_as_ials.core_trainer
    fold = model.compute_user_embedding
    return Result(_tensor(core.user), _tensor(core.item), seconds, lambda x: _tensor(fold(x)))


@dataclass(frozen=True)
class Tuned:
    """A peer: its fit function and the range of each setting, on a linear (None) or logarithmic
    ("log") scale; "whole" is for integers on a logarithmic scale."""

    fit: Callable[..., Result]
    ranges: Mapping[str, tuple[float, float, str | None]]


PEERS = {
    "implicit, ALS": Tuned(
        implicit_als,
        {
            "alpha": (1, 200, "log"),
            "regularization": (0.1, 300, "log"),
            "iterations": (2, 32, "whole"),
        },
    ),
    "irspack, iALS": Tuned(
        irspack_ials,
        {
            "alpha0": (0.003, 2, "log"),
            "reg": (1e-5, 1e-2, "log"),
            "nu": (0, 1, None),
            "epochs": (2, 64, "whole"),
        },
    ),
}


def tune(
    peer: Tuned, pairs: Any, judged: Callable[[Result], float], factors: int, trials: int = TRIALS
) -> dict[str, float]:
    """Return the settings whose model of a CSR matrix of pairs is judged best; deterministic."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def measured(trial: Any) -> float:
        settings: dict[str, float] = {}
        for name, (least, most, scale) in peer.ranges.items():
            if scale == "whole":
                settings[name] = trial.suggest_int(name, int(least), int(most), log=True)
            else:
                settings[name] = trial.suggest_float(name, least, most, log=scale == "log")
        return judged(peer.fit(pairs, settings, factors=factors))

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(measured, n_trials=trials)
    return dict(study.best_params)


def matrix_of(corpus: Corpus) -> Any:
    """Return a SciPy CSR matrix [N_q, N_c] with 1 at the pairs."""
    from scipy.sparse import csr_matrix

    place = (corpus.column("query").numpy(), corpus.column("candidate").numpy())
    shape = (len(corpus.queries), len(corpus.candidates))
    return csr_matrix((np.ones(len(corpus), dtype=np.float32), place), shape=shape)


def _tensor(factors: Any) -> Tensor:
    return torch.from_numpy(np.array(factors, dtype=np.float32))


def _timed(fit: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of `fit`. BLAS gets one thread, because the libraries start their own."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        started = clock()
        fit()
        return clock() - started
