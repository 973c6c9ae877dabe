"""implicit's and irspack's least squares on the public splits, tuned by pairs held out of training.

Optuna proposes the settings of `TRIALS` fits, on the same training and held-out pairs for all; the
best by Recall@20 is fitted to the whole training part, and the test part is ranked once a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.peer_models import Result, implicit_als, irspack_ials
from benchmarks.peers import METRICS, judge
from evergram.data.split import Split

TRIALS = 20
# Returns what a fit of this name measured, measured now if it was not before.
Remember = Callable[[str, Callable[[], dict[str, Any]]], dict[str, Any] | None]


@dataclass(frozen=True)
class Tuned:
    """A peer: how it is fitted, and the range of each setting; None divides a range evenly, "log"
    by factors, and "whole" has whole numbers by factors."""

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
    peer: Tuned, split: Split, factors: int, remember: Remember, trials: int = TRIALS
) -> dict[str, float]:
    """Return the settings with the best Recall@20 on the selection pairs; the same in each call.

    Args:
        remember: keeps each fit by its settings, so that a search which was interrupted goes on:
            proposals are seeded, and come again in their order.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def measured(trial: Any) -> float:
        settings: dict[str, float] = {}
        for name, (least, most, scale) in peer.ranges.items():
            if scale == "whole":
                settings[name] = trial.suggest_int(name, int(least), int(most), log=True)
            else:
                settings[name] = trial.suggest_float(name, least, most, log=scale == "log")

        def fit() -> dict[str, Any]:
            result = peer.fit(split, factors=factors, **settings)
            return {METRICS[0]: judge(result, split, split.selection)[METRICS[0]]}

        kept = remember(f"{trial.number} {settings}", fit)
        assert kept is not None
        return float(kept[METRICS[0]])

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(measured, n_trials=trials)
    return dict(study.best_params)


def final(
    peer: Tuned, split: Split, factors: int, settings: Mapping[str, float], seed: int
) -> dict[str, Any]:
    """Return test metrics and seconds of a fit to `split.training`."""
    result = peer.fit(split, factors=factors, seed=seed, **settings)
    return {"model": judge(result, split, split.test), "seconds": result.seconds}
