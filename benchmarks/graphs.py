"""Graph encoders: what a step costs, and what training without sampled negatives does to them."""

from __future__ import annotations

import time
from statistics import median

import torch

from benchmarks import gowalla
from evergram.data.corpus import Corpus
from evergram.training.corpora import load_corpus, split_for
from evergram.training.loop import no_denormals, prepare, run_epoch
from evergram.training.recipe import Recipe

CPU = torch.device("cpu")
RECIPE = gowalla.ROOT / "recipes" / "movielens-graphsage.toml"
DIMS, LAYERS, BATCHES = (32, 64, 128), (2, 3), (2048, 16384)
SQUARED = ["task.kind=pointwise", "task.l2_measure=penalty", "training.precondition=0"]
SAMPLED = ["gramian.kind=sogram", "training.evaluate_every=5"]
WHOLE = ["gramian.kind=exact", "training.batch_size=100000000", "training.evaluate_every=25"]
MOVIELENS = [*SQUARED, "task.penalty=60", "task.l2=0.02"]


def steps_section() -> str:
    """Milliseconds of a step with BPR, on one thread: the median of a dozen."""
    recipe = Recipe.load(RECIPE)
    corpus = load_corpus(recipe)
    lines = [
        "| pairs in the graph | layers | dim | " + " | ".join(f"batch {b}" for b in BATCHES) + " |",
        "|---|---|---|" + "---|" * len(BATCHES),
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for version in (0, 4):
        training = split_for(recipe, corpus, version).training
        for layers in LAYERS:
            for dim in DIMS:
                sizes = [f"model.dim={dim}", f"model.layers={layers}"]
                cells = " | ".join(
                    f"{_step(recipe, training, [*sizes, f'training.batch_size={b}']):.0f}"
                    for b in BATCHES
                )
                lines.append(f"| {len(training):,} | {layers} | {dim} | {cells} |")
    torch.set_num_threads(threads)
    return "\n".join(lines)


def _step(recipe: Recipe, training: Corpus, overrides: list[str]) -> float:
    step, sampler, draws = prepare(Recipe.of(recipe.model_dump(), overrides), training, 0, CPU)
    times: list[float] = []
    with no_denormals():
        batches = run_epoch(step, sampler, draws, 0, CPU)
        for _ in range(14):
            started = time.perf_counter()
            next(batches)
            times.append(time.perf_counter() - started)
    return 1000 * median(times[2:])
