"""The one explicit loop that trains every encoder."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch, ExampleSampler
from evergram.data.split import Pairs, Split
from evergram.encoders.encoder import Encoder
from evergram.encoders.factorization import Factorization
from evergram.encoders.features import SIDES, Inputs, Schema
from evergram.encoders.two_tower import TwoTower
from evergram.errors import RecipeError, TrainingError
from evergram.evaluation.ranking import Relevance, popularity_metrics, rank_metrics
from evergram.gramian.estimator import GramianEstimator, Population
from evergram.gramian.exact import ExactGramian
from evergram.gramian.sogram import SOGram
from evergram.tasks.pointwise import Pointwise
from evergram.training.progress import Progress
from evergram.training.recipe import GramianRecipe, Recipe
from evergram.training.resume import Resume, gather, named, run_key, scatter


@dataclass
class Trained:
    """What a run leaves.

    Args:
        encoder: at its best epoch by the selection metric, in evaluation mode, on the CPU.
        query, candidate: [N, D], embeddings of the training corpus's entities.
        metrics: on the test pairs, `model` and `popularity`.
        history: one entry an evaluation: epoch, seconds of training, objective, the metric.
        best_epoch: epochs that the kept encoder has had.
        seconds: of training, evaluation not counted.
    """

    encoder: Encoder
    query: Tensor
    candidate: Tensor
    metrics: dict[str, dict[str, float]]
    history: list[dict[str, float]]
    best_epoch: int
    seconds: float


class Joint(nn.Module, ABC):
    """Something trained together with the encoder: its loss is added to the task's.

    Parameters that it owns are trained by `layer_rate`, or by its own `rate`.
    """

    rate: float | None = None

    @abstractmethod
    def forward(self, query: Tensor, candidate: Tensor, batch: Batch) -> Tensor:
        """Scalar loss of a batch's embeddings, [B, D] each."""


def build_encoder(
    kind: str, options: Mapping[str, Any], schema: Schema, generator: torch.Generator
) -> Encoder:
    """An encoder by its closed `kind`. Raises: RecipeError: there is none of that kind."""
    if kind == "factorization":
        return Factorization(schema, **options, generator=generator)
    if kind == "two_tower":
        return TwoTower(schema, **options, generator=generator)
    raise RecipeError(f"The encoder {kind!r} is neither factorization nor two_tower.")


def encoder_options(recipe: Recipe, version: int) -> dict[str, Any]:
    """What `build_encoder` takes, as JSON."""
    options: dict[str, Any] = {"dim": recipe.model.dim_of(version), "scale": recipe.model.scale}
    if recipe.model.kind == "two_tower":
        options |= {"input_dim": recipe.model.input_dim, "hidden": list(recipe.model.hidden)}
    return options


def build_estimator(recipe: GramianRecipe, dim: int) -> GramianEstimator:
    return ExactGramian(dim) if recipe.kind == "exact" else SOGram(dim, recipe.rate)


def pick_device(name: str) -> torch.device:
    """ "auto" is CUDA where there is one. Raises: RecipeError: CUDA was asked for in vain."""
    if name not in ("auto", "cpu", "cuda"):
        raise RecipeError(f"--device {name} is none of auto, cpu, cuda.")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise RecipeError("--device cuda was asked for and this machine has none; use auto or cpu.")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and available) else "cpu")


def train_encoder(
    recipe: Recipe,
    split: Split,
    version: int,
    device: torch.device,
    progress: Progress,
    *,
    joint: Joint | None = None,
    title: str = "train",
    folder: Path | None = None,
) -> Trained:
    """Train a version's encoder from its start on `split.training`.

    Args:
        joint: what is trained together with it, in place.
        folder: where an interrupted run of the same is gone on with; None keeps nothing.
    Raises: TrainingError: the loss is no longer finite.
    """
    # Adagrad's tiny numbers: denormals made a CPU step 20 times slower.
    torch.set_flush_denormal(True)
    # What torch does anyway, said aloud: else each run prints a warning that it is implied.
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    corpus = split.training
    # Each version has a start and an order of its own: with the last one's it would be nearly
    # compatible by accident, and the next recipe would not be.
    seed = recipe.seed + 1_000_003 * version
    generator = torch.Generator().manual_seed(seed)
    schema = Schema.of(corpus, features=recipe.model.kind != "factorization")
    options = encoder_options(recipe, version)
    encoder = build_encoder(recipe.model.kind, options, schema, generator).to(device)
    learned: dict[str, nn.Module] = {"encoder": encoder}
    resume = Resume(folder, title, run_key(recipe, version, corpus, joint) if folder else "")
    if joint is not None:
        learned["joint"] = joint.to(device)
    inputs = {
        side: schema.read(side, entities).to(device)
        for side, entities in zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
    }
    task = Pointwise(recipe.task.penalty, recipe.task.l2)
    sampler = ExampleSampler(
        corpus,
        batch_size=recipe.training.batch_size,
        seed=seed,
        target=recipe.task.target,
        query_power=recipe.task.query_measure,
        candidate_power=recipe.task.candidate_measure,
    )
    estimators = {side: build_estimator(recipe.gramian, encoder.dim).to(device) for side in SIDES}
    populations = {
        "query": _population(encoder, "query", inputs["query"], sampler.query_measure),
        "candidate": _population(
            encoder, "candidate", inputs["candidate"], sampler.candidate_measure
        ),
    }
    optimizers = _optimizers(recipe, encoder, joint)
    relevance = relevance_of(corpus, split.selection)
    history: list[dict[str, float]] = []
    first, best, best_epoch, seconds = 1, -1.0, 0, 0.0
    kept: dict[str, Tensor] = {}
    everything = {**learned, **estimators}
    saved = resume.load()
    if saved is not None:
        tensors, facts = saved
        scatter(tensors, everything, optimizers)
        kept, history = named(tensors, "kept"), facts["history"]
        first, seconds = facts["epoch"] + 1, facts["seconds"]
        best, best_epoch = facts["best"], facts["best_epoch"]
    epochs, budget = recipe.training.epochs, recipe.training.budget
    over = budget is not None and seconds >= budget
    with progress.task(title, epochs * len(sampler)) as bar:
        bar.advance((first - 1) * len(sampler), 0)
        for epoch in range(first, epochs + 1):
            if over:
                break
            started = time.perf_counter()
            encoder.train()
            total = torch.zeros((), device=device)
            for batch in sampler.epoch(epoch - 1):
                objective = _step(
                    batch.to(device), encoder, inputs, task, estimators, populations,
                    optimizers, joint,
                )  # fmt: skip
                total += objective
                bar.advance(1, sampler.batch_size)
            mean = float(total) / len(sampler)
            seconds += time.perf_counter() - started
            if not math.isfinite(mean):
                raise TrainingError(
                    f"The loss is {mean} in epoch {epoch}; lower training.table_rate "
                    f"({recipe.training.table_rate}) or task.penalty ({recipe.task.penalty})."
                )
            over = budget is not None and seconds >= budget
            last = epoch == epochs or over
            if last or epoch % recipe.training.evaluate_every == 0:
                query, candidate = _embed_all(encoder, inputs)
                name = recipe.training.metric
                found = rank_metrics(query, candidate, relevance, [name])[name]
                history.append({"epoch": epoch, "seconds": seconds, "objective": mean, name: found})
                if found > best:
                    best, best_epoch = found, epoch
                    kept = {k: v.detach().cpu().clone() for k, v in gather(learned, []).items()}
                bar.describe(f"epoch {epoch} loss {mean:.4f} {name} {found:.4f}")
            if resume.due():
                state = gather(everything, optimizers) | {f"kept|{k}": v for k, v in kept.items()}
                facts = {"epoch": epoch, "seconds": seconds, "history": history}
                resume.save(state, facts | {"best": best, "best_epoch": best_epoch})
    scatter(kept, learned, [])
    for module in learned.values():
        module.cpu().eval()
    query = encoder.encode_query(corpus.queries)
    candidate = encoder.encode_candidate(corpus.candidates)
    test = relevance_of(corpus, split.test)
    metrics = {
        "model": rank_metrics(query, candidate, test, recipe.metrics),
        "popularity": popularity_metrics(corpus.counts("candidate"), test, recipe.metrics),
    }
    return Trained(encoder, query, candidate, metrics, history, best_epoch, seconds)


def relevance_of(corpus: Corpus, pairs: Pairs) -> Relevance:
    """Held-out pairs to find, with the training pairs masked."""
    return Relevance.of(
        pairs.query, pairs.candidate, corpus.column("query"), corpus.column("candidate")
    )


def _step(
    batch: Batch,
    encoder: Encoder,
    inputs: Mapping[str, Inputs],
    task: Pointwise,
    estimators: Mapping[str, GramianEstimator],
    populations: Mapping[str, Population],
    optimizers: Iterable[torch.optim.Optimizer],
    joint: Joint | None,
) -> Tensor:
    """One batch, in the order that `GramianEstimator` asks for. Returns: the objective's value."""
    for side in SIDES:
        estimators[side].begin(populations[side])
    query = encoder.embed("query", inputs["query"].take(batch.query))
    candidate = encoder.embed("candidate", inputs["candidate"].take(batch.candidate))
    loss = task(
        query, candidate, batch, estimators["query"].gramian(), estimators["candidate"].gramian()
    )
    total = loss.total if joint is None else loss.total + joint(query, candidate, batch)
    for optimizer in optimizers:
        optimizer.zero_grad()
    total.backward()
    for optimizer in optimizers:
        optimizer.step()
    estimators["query"].update(query.detach(), batch.query_weight)
    estimators["candidate"].update(candidate.detach(), batch.candidate_weight)
    return loss.objective


def _optimizers(
    recipe: Recipe, encoder: Encoder, joint: Joint | None
) -> list[torch.optim.Optimizer]:
    """Adagrad for tables, whose gradients are sparse; Adam for layers and for what joins in."""
    tables: list[nn.Parameter] = []
    for module in encoder.modules():
        if isinstance(module, nn.Embedding):
            tables += module.parameters()
    ids = {id(p) for p in tables}
    layers = [p for p in encoder.parameters() if id(p) not in ids]
    rates = recipe.training
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adagrad(tables, lr=rates.table_rate)]
    groups: list[dict[str, Any]] = []
    if layers:
        groups.append({"params": layers, "lr": rates.layer_rate})
    owned = [] if joint is None else [p for p in joint.parameters() if p.requires_grad]
    if joint is not None and owned:
        groups.append({"params": owned, "lr": joint.rate or rates.layer_rate})
    if groups:
        optimizers.append(torch.optim.Adam(groups))
    return optimizers


def _population(encoder: Encoder, side: str, inputs: Inputs, share: Tensor) -> Population:
    """Every entity's embedding with its share of the measure, computed anew when asked."""

    def blocks() -> Iterable[tuple[Tensor, Tensor]]:
        start = 0
        for block in encoder.blocks(side, inputs):
            yield block, share[start : start + len(block)].to(block.device)
            start += len(block)

    return blocks


def _embed_all(encoder: Encoder, inputs: Mapping[str, Inputs]) -> tuple[Tensor, Tensor]:
    query, candidate = (torch.cat(list(encoder.blocks(s, inputs[s]))) for s in SIDES)
    return query, candidate
