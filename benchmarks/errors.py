"""How far each estimator is from the exact Gramian, along one training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.measure import base, base_split
from evergram.encoders.features import SIDES
from evergram.gramian.kinds import ESTIMATORS, EstimatorSettings
from evergram.process_settings import while_training
from evergram.training.build import prepare
from evergram.training.callbacks import Point
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.tracking import Tracking

ENCODERS = ("factorization", "two_tower")
BATCHES = (128, 1024)
SOGRAM_RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
STORM_RATES = (0.01, 0.02, 0.05, 0.1, 0.2)
STEPS, EVERY = 300, 10
# The run that all look on at, with steps as long as training's own.
RUN = {"training": {"batch_size": 1024}}


@dataclass(frozen=True)
class Errors:
    """Errors with one encoder and one batch size.

    Args:
        steps: the steps at which errors were measured.
        gramian, gradient: by estimator, the error at each of these.
        gramian_mean, gradient_mean: over the second half.
    """

    encoder: str
    batch: int
    steps: list[int]
    gramian: dict[str, list[float]]
    gradient: dict[str, list[float]]
    gramian_mean: dict[str, float]
    gradient_mean: dict[str, float]


def contestants(batch: int) -> dict[str, EstimatorSettings]:
    """Return every estimator, each learning from so many uniformly drawn entities a step."""
    settings: dict[str, dict[str, Any]] = {
        "sampled, uniform": {"kind": "sampled"},
        "sampled, sqrt": {"kind": "sampled", "sampler": "sqrt"},
        "sampled, linear": {"kind": "sampled", "sampler": "linear"},
        **{f"SOGram {rate}": {"rate": rate} for rate in (*SOGRAM_RATES, "auto")},
        **{f"storm {rate}": {"kind": "storm", "rate": rate} for rate in (*STORM_RATES, "auto")},
        "SAGram 1/n": {"kind": "sagram", "beta": "1/n"},
        "SAGram 1": {"kind": "sagram", "beta": "1"},
    }
    return {
        name: ESTIMATORS.of({"sampler": "uniform", "batch_size": batch} | chosen)
        for name, chosen in settings.items()
    }


def tracking_errors(
    encoder: str,
    batches: tuple[int, ...] = BATCHES,
    steps: int = STEPS,
    every: int = EVERY,
    *,
    tiny: bool = False,
) -> list[Errors]:
    """Return the errors of every estimator for each batch size, along the same steps of one run.

    The run trains with SOGram on the synthetic corpus, with batches that are small parts of it. The
    other estimators do not influence it.
    """
    recipe = Recipe.of({**base(tiny), **RUN}, [f"model.kind={encoder}", "model.dim=64"])
    corpus = base_split(tiny).training
    device = torch.device("cpu")
    step, sampler, draws = prepare(FitSettings.of(recipe, corpus, 0), corpus, device)
    rivals = {f"{b}/{n}": s for b in batches for n, s in contestants(b).items()}
    counts = {side: corpus.counts(side) for side in SIDES}
    tracking = Tracking(rivals, counts, every=every)
    done = epoch = 0
    with while_training():
        while done < steps:
            for batch, objective in run_epoch(step, sampler, draws, epoch, device):
                done += 1
                tracking.on_step(Point(done, epoch + 1, 0.0, step), batch, objective)
                if done == steps:
                    break
            epoch += 1
    return [_errors(encoder, size, tracking) for size in batches]


def errors() -> list[Errors]:
    return [measured for encoder in ENCODERS for measured in tracking_errors(encoder)]


def tiny() -> list[Errors]:
    return [
        measured
        for encoder in ENCODERS
        for measured in tracking_errors(encoder, steps=4, every=1, tiny=True)
    ]


def table(measured: list[Errors]) -> str:
    """Return a table of Gramian error / gradient error of each estimator, means over the second
    half."""
    heads = (f"{e.encoder}, \\|B\\| = {e.batch}" for e in measured)
    lines = ["| estimator | " + " | ".join(heads) + " |", "|---" * (len(measured) + 1) + "|"]
    for name in measured[0].gramian_mean:
        cells = (f"{e.gramian_mean[name]:.4f} / {e.gradient_mean[name]:.4f}" for e in measured)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _errors(encoder: str, batch: int, tracking: Tracking) -> Errors:
    def own(errors: Mapping[str, Any]) -> dict[str, Any]:
        start = f"{batch}/"
        return {n.removeprefix(start): e for n, e in errors.items() if n.startswith(start)}

    gramian, gradient = own(tracking.gramian_errors), own(tracking.gradient_errors)
    means = tracking.mean(own(tracking.gramian)), tracking.mean(own(tracking.gradient))
    values = ({name: each.value for name, each in mean.items()} for mean in means)
    return Errors(encoder, batch, tracking.steps, gramian, gradient, *values)
