"""One process against two that share every batch and the queries of an evaluation: equality, bytes
exchanged a step, and rates."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.process_runs import run_processes
from evergram.collectives import Collectives
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.evaluation.ranking import Relevance, rank_metrics
from evergram.process_settings import while_training
from evergram.training.build import prepare
from evergram.training.corpora import load_corpus
from evergram.training.distributed import ProcessCollectives, embed_together, join_processes
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")
ENCODERS = {
    "factorization": [],
    "two_tower, hidden 512": ["model.kind=two_tower", "model.hidden=[512]"],
}
KINDS = ("Gramians", "tables", "layers", "counts")
WARM = 5  # steps before the clock starts


@dataclass(frozen=True)
class Size:
    """The corpus and the model that are trained.

    Args:
        steps: that are measured, after `WARM` others.
        batches: B of each training.
        ranked: queries that are ranked at the end against all candidates.
    """

    queries: int = 60_000
    candidates: int = 20_000
    interactions: int = 1_000_000
    dim: int = 64
    steps: int = 40
    batches: tuple[int, ...] = (1024, 4096)
    ranked: int = 10_000


@dataclass(frozen=True)
class Shared:
    """A training by one process and by two.

    Args:
        difference: ‖x₂ − x₁‖ / ‖x₁ − x₀‖ over all parameters after the last step, x₀ at the start.
        received: bytes that a process receives a step, by kind, by a ring's count.
        rates: pairs a second of all processes together, by their number.
        ranking: queries a second of all processes together, embedding all entities included.
    """

    encoder: str
    batch: int
    difference: float
    received: dict[str, float]
    rates: dict[int, float]
    ranking: dict[int, float]


def measure(size: Size | None = None, encoders: tuple[str, ...] = tuple(ENCODERS)) -> list[Shared]:
    """Return what sharing batches between two processes of this machine costs and gains.

    Each process has one thread, so that two use two cores and one uses one.
    """
    size = Size() if size is None else size
    results = []
    for encoder in encoders:
        for batch in size.batches:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder)
                reports = {n: _run(n, out, encoder, batch, size) for n in (1, 2)}
                start, one, two = (load_file(out / f"{n}.safetensors") for n in ("start", 1, 2))
            moved = sum(float((one[k] - start[k]).double().square().sum()) for k in one)
            apart = sum(float((two[k] - one[k]).double().square().sum()) for k in one)
            results.append(
                Shared(
                    encoder,
                    batch,
                    (apart / moved) ** 0.5,
                    reports[2]["received"],
                    {n: report["rate"] for n, report in reports.items()},
                    {n: report["ranking"] for n, report in reports.items()},
                )
            )
    return results


def tiny() -> list[Shared]:
    return measure(Size(300, 200, 5000, 8, 3, (64,), 100), ("factorization",))


def table(results: list[Shared]) -> str:
    lines = [
        "| encoder | batch | difference | " + " | ".join(f"{k}, bytes" for k in KINDS) + " | 1 "
        "process, pairs/s | 2 processes | ratio | 1 process, queries/s | 2 processes | ratio |",
        "|---" * (len(KINDS) + 9) + "|",
    ]
    for shared in results:
        kinds = " | ".join(f"{shared.received.get(kind, 0.0):,.0f}" for kind in KINDS)
        one, two = shared.rates[1], shared.rates[2]
        few, many = shared.ranking[1], shared.ranking[2]
        lines.append(
            f"| {shared.encoder} | {shared.batch:,} | {shared.difference:.1e} | {kinds} | "
            f"{one:,.0f} | {two:,.0f} | {two / one:.2f} | "
            f"{few:,.0f} | {many:,.0f} | {many / few:.2f} |"
        )
    return "\n".join(lines)


def _run(count: int, out: Path, encoder: str, batch: int, size: Size) -> dict[str, Any]:
    """Train in so many processes and return the first one's report."""
    recipe = json.dumps([_recipe(batch, size), ENCODERS[encoder]])
    counts = str(size.steps), str(size.ranked)
    run_processes(count, "benchmarks.processes", str(out), *counts, recipe)
    report: dict[str, Any] = json.loads((out / f"{count}.json").read_text())
    return report


def _recipe(batch: int, size: Size) -> dict[str, Any]:
    return {
        "data": {
            "kind": "synthetic",
            "queries": size.queries,
            "candidates": size.candidates,
            "interactions": size.interactions,
        },
        "model": {"dim": size.dim},
        "task": {"penalty": 5.0, "l2": 0.1},
        "training": {"batch_size": batch},
    }


def _ranking(encoder: Encoder, corpus: Corpus, ranked: int, together: Collectives) -> float:
    """Return the queries a second that the processes rank together, for the second time."""
    query, candidate = corpus.column("query"), corpus.column("candidate")
    own = query < ranked
    nothing = torch.zeros(0, dtype=torch.int64)
    relevance = Relevance.of(query[own], candidate[own], nothing, nothing)
    scene, seconds = encoder.read(corpus), 0.0
    for _ in range(2):
        together.sum(torch.zeros(()), "start")
        began = time.perf_counter()
        vectors = embed_together(encoder, scene, together)
        rank_metrics(vectors["query"], vectors["candidate"], relevance, together=together)
        seconds = time.perf_counter() - began
    return len(relevance) / seconds


def main() -> None:
    """Train as one of the processes; the first writes its report and the parameters."""
    out, steps, ranked = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    recipe = Recipe.of(*json.loads(sys.argv[4]))
    torch.set_num_threads(1)
    together = join_processes(CPU)
    corpus = load_corpus(recipe)
    step, sampler, draws = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)
    step.collectives = together
    if together.is_first:
        save_file(step.encoder.state_dict(), out / "start.safetensors")
    seconds, taken, epoch = 0.0, 0, 0
    with while_training():
        while taken < WARM + steps:
            began = time.perf_counter()
            for _ in run_epoch(step, sampler, draws, epoch, CPU):
                taken += 1
                if taken == WARM:
                    began = time.perf_counter()
                    if isinstance(together, ProcessCollectives):
                        together.received.clear()
                if taken == WARM + steps:
                    break
            seconds += time.perf_counter() - began if taken > WARM else 0.0
            epoch += 1
    received = dict(together.received) if isinstance(together, ProcessCollectives) else {}
    ranking = _ranking(step.encoder, corpus, ranked, together)
    if together.is_first:
        report = {
            "rate": steps * sampler.batch_size / seconds,
            "ranking": ranking,
            "received": {kind: count / steps for kind, count in received.items()},
        }
        save_file(step.encoder.state_dict(), out / f"{together.size}.safetensors")
        (out / f"{together.size}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
