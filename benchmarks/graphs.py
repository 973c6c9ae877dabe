"""Graph encoders: what a step costs, and what training without sampled negatives does to them."""

from __future__ import annotations

import time
from statistics import median

import torch

from benchmarks import gowalla
from benchmarks.towers import Clock
from evergram.data.corpus import Corpus
from evergram.training.corpora import load_corpus, split_for
from evergram.training.loop import no_denormals, prepare, run_epoch
from evergram.training.recipe import Recipe

CPU = torch.device("cpu")
RECIPE = gowalla.ROOT / "recipes" / "movielens-graphsage.toml"
DIMS, LAYERS, BATCHES = (32, 64, 128), (2, 3), (2048, 16384)
SQUARED = [
    "task.kind=pointwise",
    "task.penalty=60",
    "task.l2=0.02",
    "task.l2_measure=penalty",
    "training.precondition=0",
]


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


def quality_section(epochs: int = 40) -> str:
    """Every encoder under each way of training, the same number of epochs for all."""
    graphs: dict[str, list[str]] = {
        "GraphSAGE, 2 layers": [],
        "LightGCN, 3 layers": ["model.kind=lightgcn", "model.layers=3"],
    }
    ways: dict[str, list[str]] = {
        "BPR": [],
        "penalty, SOGram": [*SQUARED, "gramian.kind=sogram"],
        "penalty, exact in the step's pass": [*SQUARED, "gramian.kind=exact"],
    }
    common = [
        "split.selection=paper",
        "model.dim=64",
        f"training.epochs={epochs}",
        "training.evaluate_every=4",
        'metrics=["recall@20", "recall@50"]',
    ]
    base = Recipe.load(RECIPE, common)
    split = split_for(base, load_corpus(base), 0)
    lines = [
        "| encoder | trained by | Recall@20 | Recall@50 | CPU seconds |",
        "|---|---|---|---|---|",
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for encoder, model in graphs.items():
        for way, overrides in ways.items():
            clock = Clock()
            recipe = Recipe.of(base.model_dump(), [*model, *overrides])
            trained = train_encoder(recipe, split, 0, CPU, Progress(quiet=True), callbacks=[clock])
            found = trained.metrics["model"]
            lines.append(
                f"| {encoder} | {way} | {found['recall@20']:.4f} | {found['recall@50']:.4f} "
                f"| {clock.found[trained.best_epoch]:.0f} |"
            )
    popularity = trained.metrics["popularity"]
    lines.append(
        f"| popularity | | {popularity['recall@20']:.4f} | {popularity['recall@50']:.4f} | – |"
    )
    torch.set_num_threads(threads)
    return "\n".join(lines)
