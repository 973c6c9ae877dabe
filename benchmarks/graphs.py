"""Graph encoders: what a step costs, and what training without sampled negatives does to them."""

from __future__ import annotations

import time
from statistics import median

import torch

from benchmarks import gowalla
from benchmarks.towers import Clock
from evergram.data.corpus import Corpus
from evergram.training.build import prepare
from evergram.training.corpora import load_corpus, split_for
from evergram.training.loop import train_encoder
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.run import no_denormals, run_epoch

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
    """CPU milliseconds of a step with BPR, on one thread: the median of a dozen."""
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
            started = time.process_time()
            next(batches)
            times.append(time.process_time() - started)
    return 1000 * median(times[2:])


def quality_section() -> str:
    """Every graph encoder under each way of training, the same number of epochs for all, and the
    factorization of the other documents."""
    common = ["split.selection=paper", "model.dim=64", 'metrics=["recall@20", "recall@50"]']
    graph = ["training.epochs=40", "training.evaluate_every=4"]
    models = {
        "GraphSAGE, 2 layers": graph,
        "LightGCN, 3 layers": [*graph, "model.kind=lightgcn", "model.layers=3"],
    }
    ways = {
        "BPR": [],
        "penalty, SOGram": [*SQUARED, "gramian.kind=sogram"],
        "penalty, exact in the step's pass": [*SQUARED, "gramian.kind=exact"],
    }
    runs = {(m, w): [*models[m], *ways[w]] for m in models for w in ways}
    runs["factorization", "penalty, SOGram"] = [
        *SQUARED,
        "model.kind=factorization",
        "training.batch_size=2048",
        "training.precondition=0.1",
        "training.evaluate_every=1",
    ]
    base = Recipe.load(RECIPE, common)
    split = split_for(base, load_corpus(base), 0)
    lines = [
        "| encoder | trained by | Recall@20 | Recall@50 | CPU seconds |",
        "|---|---|---|---|---|",
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for (model, way), overrides in runs.items():
        clock = Clock()
        recipe = Recipe.of(base.model_dump(), overrides)
        trained = train_encoder(recipe, split, 0, CPU, Progress(quiet=True), callbacks=[clock])
        found, seconds = trained.metrics["model"], clock.found[trained.best_epoch]
        lines.append(f"| {model} | {way} | {_recalls(found)} | {seconds:.0f} |")
    lines.append(f"| popularity | | {_recalls(trained.metrics['popularity'])} | – |")
    torch.set_num_threads(threads)
    return "\n".join(lines)


def _recalls(found: dict[str, float]) -> str:
    return " | ".join(f"{found[name]:.4f}" for name in ("recall@20", "recall@50"))
