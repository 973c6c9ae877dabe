"""What the alignment loss costs: for more past versions, and in a whole step of training."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from benchmarks.measure import base, base_split
from benchmarks.steps import ENCODERS, Turns, interleaved
from evergram.compatibility.alignment_loss import AlignmentLoss
from evergram.compatibility.chain import Chain
from evergram.compatibility.transforms import LinearTransform
from evergram.encoders.features import SIDES
from evergram.process_settings import while_training
from evergram.training.joint import JointAlignment, JointAlignmentSettings
from evergram.training.recipe import Recipe

HISTORIES = (2, 32)
DIMS = (64, 256)
ROWS = 6144  # a query, a candidate and a negative of each of 2048 pairs


@dataclass(frozen=True)
class AlignmentCost:
    """What the alignment loss costs.

    Args:
        loss: see `loss_ratios`.
        steps: see `step_ratios`.
    """

    loss: dict[int, dict[int, float]]
    steps: dict[str, float]


def measure() -> AlignmentCost:
    return AlignmentCost(loss_ratios(), step_ratios())


def tiny() -> AlignmentCost:
    return AlignmentCost(loss_ratios(rounds=1, rows=64), step_ratios(rounds=1, tiny=True))


def loss_ratios(rounds: int = 60, rows: int = ROWS) -> dict[int, dict[int, float]]:
    """Return how many times as long the multi-step loss and its gradient take as the single-step
    loss's, by dim and by the number of past versions: medians over rounds, the two in turns."""
    ratios_by_dim: dict[int, dict[int, float]] = {}
    for dim in DIMS:
        draw = torch.Generator().manual_seed(0)
        embeddings = torch.randn(rows, dim, generator=draw).requires_grad_()
        past, weight = torch.randn(rows, dim, generator=draw), torch.ones(rows)
        transform = LinearTransform(dim, dim, draw)
        ratios_by_dim[dim] = {}
        for versions in HISTORIES:
            chain = Chain([LinearTransform(dim, dim, draw) for _ in range(versions - 1)], dim)
            single, multi = (
                _once(AlignmentLoss(chain, steps), transform, embeddings, past, weight)
                for steps in ("single", "multi")
            )
            ratios = []
            for number in range(rounds + 5):
                pair = [(single, multi), (multi, single)][number % 2]
                times = {action: _seconds(action) for action in pair}
                if number >= 5:  # the first rounds warm up
                    ratios.append(times[multi] / times[single])
            ratios_by_dim[dim][versions] = median(ratios)
    return ratios_by_dim


def _once(
    loss: AlignmentLoss,
    transform: LinearTransform,
    embeddings: torch.Tensor,
    past: torch.Tensor,
    weight: torch.Tensor,
) -> Callable[[], None]:
    # Past embeddings are lifted once a training, not once a step.
    lifted = loss.lifted(past)

    def action() -> None:
        embeddings.grad = transform.weight.grad = None
        loss(transform, embeddings, lifted, weight).backward()

    return action


def _seconds(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def step_ratios(rounds: int = 25, *, tiny: bool = False) -> dict[str, float]:
    """Return how many times as long a step of joint training takes as one without alignment, by
    encoder."""
    corpus, recipe = base_split(tiny).training, base(tiny)
    ratios = {}
    dim = Recipe.of(recipe).model.dim_of(0)
    draw = torch.Generator().manual_seed(0)
    sizes = {"query": len(corpus.queries), "candidate": len(corpus.candidates)}
    for encoder, settings in ENCODERS.items():
        joint = JointAlignment(
            LinearTransform(dim, dim, draw),
            AlignmentLoss(Chain([LinearTransform(dim, dim, draw)], dim)),
            {s: torch.randn(sizes[s], dim, generator=draw) for s in SIDES},
            {s: torch.ones(sizes[s]) for s in SIDES},
            JointAlignmentSettings(strength=1.0),
        )
        turns = {
            ("alone", ""): Turns(recipe, corpus, settings),
            ("joint", ""): Turns(recipe, corpus, settings, joint),
        }
        with while_training():
            times = interleaved(turns, rounds)
        pairs = zip(times["joint", ""], times["alone", ""], strict=True)
        ratios[encoder] = median(a / b for a, b in pairs)
    return ratios


def table(cost: AlignmentCost) -> str:
    lines = ["| the loss and its gradient, over the single-step loss's | ", "|---|"]
    lines[0] += " | ".join(f"{v} past versions" for v in HISTORIES) + " |"
    lines[1] += "---|" * len(HISTORIES)
    for dim, ratios in cost.loss.items():
        lines.append(f"| {dim} dims | " + " | ".join(f"{r:.2f}" for r in ratios.values()) + " |")
    lines += ["", "| encoder | a joint step over a step alone |", "|---|---|"]
    lines += [f"| {name} | {ratio:.2f} |" for name, ratio in cost.steps.items()]
    return "\n".join(lines)
