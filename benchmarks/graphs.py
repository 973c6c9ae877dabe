"""Graph encoders: what a step costs, and how well they train without sampled negatives."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from reproduction.recipe import PaperRecipe

from benchmarks import gowalla
from benchmarks.tiny import recipes
from benchmarks.towers import Clock
from evergram.data.corpus import Corpus
from evergram.process_settings import while_training
from evergram.training.build import prepare
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")
RECIPE = gowalla.ROOT / "recipes" / "movielens-graphsage.toml"
DIMS, LAYERS, BATCHES = (32, 64, 128), (2, 3), (2048, 16384)
TINY = ["model.kind=graphsage"]
BPR = ["task.kind=bpr", "task.penalty=0"]
SQUARED = [
    "task.kind=pointwise",
    "task.penalty=60",
    "task.l2=0.02",
    "task.l2_measure=penalty",
    "training.precondition=0",
]


def steps_section() -> str:
    return steps_table(PaperRecipe.load(RECIPE), (0, 4))


def tiny_steps() -> str:
    with recipes() as folder:
        return steps_table(
            PaperRecipe.load(folder / "growing.toml", [*TINY, *BPR]), (0, 1), (8,), (32,)
        )


def steps_table(
    recipe: Recipe,
    versions: Sequence[int],
    dims: Sequence[int] = DIMS,
    batches: Sequence[int] = BATCHES,
) -> str:
    """Return a table of CPU milliseconds of a step with BPR, on one thread: medians of a dozen."""
    corpus = load_corpus(recipe)
    lines = [
        "| pairs in the graph | layers | dim | " + " | ".join(f"batch {b}" for b in batches) + " |",
        "|---|---|---|" + "---|" * len(batches),
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for version in versions:
        training = split_for(recipe, corpus, version).training
        for layers in LAYERS:
            for dim in dims:
                sizes = [f"model.dim={dim}", f"model.layers={layers}"]
                cells = " | ".join(
                    f"{_step(recipe, training, [*sizes, f'training.batch_size={b}']):.0f}"
                    for b in batches
                )
                lines.append(f"| {len(training):,} | {layers} | {dim} | {cells} |")
    torch.set_num_threads(threads)
    return "\n".join(lines)


def _step(recipe: Recipe, training: Corpus, overrides: list[str]) -> float:
    changed = PaperRecipe.of(recipe.model_dump(), overrides)
    step, sampler, draws = prepare(FitSettings.of(changed, training, 0), training, CPU)
    times: list[float] = []
    with while_training():
        batches = run_epoch(step, sampler, draws, 0, CPU)
        for _ in range(14):
            started = time.process_time()
            next(batches)
            times.append(time.process_time() - started)
    return 1000 * median(times[2:])


def quality_section() -> str:
    graph = ["training.epochs=40", "training.patience=0", "training.evaluate_every=4"]
    return quality_table(RECIPE, ["model.dim=64"], graph)


def tiny_quality() -> str:
    with recipes() as folder:
        return quality_table(folder / "growing.toml", [*TINY, *BPR, "model.dim=8"], [])


def quality_table(path: Path, settings: Sequence[str], graph: Sequence[str]) -> str:
    """Return a table of every graph encoder with each way of training, for the same number of
    epochs, and of the factorization of the other documents."""
    common = ["split.selection=paper", 'metrics=["recall@20", "recall@50"]', *settings]
    base = PaperRecipe.load(path, common)
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
        f"training.batch_size={min(2048, int(base.model_dump()['training']['batch_size']))}",
        "training.precondition=0.1",
        "training.evaluate_every=1",
    ]
    split = split_for(base, load_corpus(base), 0)
    lines = [
        "| encoder | trained by | Recall@20 | Recall@50 | CPU seconds |",
        "|---|---|---|---|---|",
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for (model, way), overrides in runs.items():
        clock = Clock()
        recipe = PaperRecipe.of(base.model_dump(), overrides)
        trained = fit_encoder(recipe, split, 0, RunContext(CPU, callbacks=[clock]))
        metrics, seconds = trained.metrics["model"], clock.seconds_by_epoch[trained.best_epoch]
        lines.append(f"| {model} | {way} | {_recalls(metrics)} | {seconds:.0f} |")
    lines.append(f"| popularity | | {_recalls(trained.metrics['popularity'])} | – |")
    torch.set_num_threads(threads)
    return "\n".join(lines)


def _recalls(metrics: dict[str, float]) -> str:
    return " | ".join(f"{metrics[name]:.4f}" for name in ("recall@20", "recall@50"))
