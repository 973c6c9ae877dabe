"""The one explicit loop that trains every encoder."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch, Draw, EntitySampler, ExampleSampler
from evergram.data.split import Pairs, Split
from evergram.encoders.building import build_encoder
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES, Schema
from evergram.errors import TrainingError
from evergram.evaluation.ranking import Relevance, popularity_metrics, rank_metrics
from evergram.tasks.objective import Objective
from evergram.training.build import (
    build_estimator,
    build_independent,
    build_optimizers,
    build_sampler,
    build_task,
    encoder_options,
)
from evergram.training.callbacks import Callback, Point
from evergram.training.memory import refuse_too_large
from evergram.training.priors import build_prior, prior_constant
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.resume import Resume, gather, named, run_key, scatter
from evergram.training.step import Joint, Step
from evergram.training.watch import Watch


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
        watched: what `training.watch_minutes` asked for, one entry a look.
        reached: seconds of training until `training.reach`, None where it was not.
        state_bytes: of the Gramian estimators.
    """

    encoder: Encoder
    query: Tensor
    candidate: Tensor
    metrics: dict[str, dict[str, float]]
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    seconds: float = 0.0
    watched: list[dict[str, float]] = field(default_factory=list)
    reached: float | None = None
    state_bytes: int = 0


def train_encoder(
    recipe: Recipe,
    split: Split,
    version: int,
    device: torch.device,
    progress: Progress,
    *,
    joint: Joint | None = None,
    past: Mapping[str, Tensor] | None = None,
    start: Encoder | None = None,
    title: str = "train",
    folder: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> Trained:
    """Train a version's encoder from its start on `split.training`.

    Args:
        joint: what is trained together with it, in place.
        past: the embeddings of the version before, [N, D′] of each side, for `prior.kind`
            "version".
        start: an encoder of the same architecture to go on from.
        folder: where an interrupted run of the same is gone on with; None keeps nothing.
        callbacks: what looks on.
    Raises: TrainingError: the loss is no longer finite.
    """
    corpus = split.training
    if joint is not None:
        joint.to(device)
    step, sampler, draws = prepare(
        recipe, corpus, version, device, joint=joint, past=past, folder=folder
    )
    encoder = step.encoder
    if start is not None:
        encoder.start_from(start)
    learned: dict[str, nn.Module] = {"encoder": encoder}
    if joint is not None:
        learned["joint"] = joint
    everything = {**learned, "objective": step.objective} | {
        f"{side}{r}": e for side in SIDES for r, e in enumerate(step.estimators[side])
    }
    resume = Resume(folder, title, run_key(recipe, version, corpus, joint, start) if folder else "")
    watch = Watch.of(recipe, split)
    lookers = [*callbacks, *([] if watch is None else [watch])]
    relevance = relevance_of(corpus, split.selection)
    history: list[dict[str, float]] = []
    first, best, best_epoch, seconds = 1, -1.0, 0, 0.0
    kept: dict[str, Tensor] = {}
    saved = resume.load()
    if saved is not None:
        tensors, facts = saved
        scatter(tensors, everything, step.optimizers)
        kept, history = named(tensors, "kept"), facts["history"]
        first, seconds = facts["epoch"] + 1, facts["seconds"]
        best, best_epoch = facts["best"], facts["best_epoch"]
    # A joint run is not yet compatible when it is best at its own task. [BC]'s code.
    select_after = 0 if joint is None else recipe.upgrade.select_after
    epochs, budget = recipe.training.epochs, recipe.training.budget
    over = budget is not None and seconds >= budget
    point = Point((first - 1) * len(sampler), first, seconds, step)
    try:
        with no_denormals(), progress.task(title, epochs * len(sampler)) as bar:
            bar.advance(point.step, 0)
            for epoch in range(first, epochs + 1):
                if over:
                    break
                started = time.perf_counter()
                total = torch.zeros((), device=device)
                for batch, objective in run_epoch(step, sampler, draws, epoch - 1, device):
                    total += objective
                    bar.advance(1, sampler.batch_size)
                    if lookers:
                        elapsed = seconds + time.perf_counter() - started
                        point = Point(point.step + 1, epoch, elapsed, step)
                        for looker in lookers:
                            looker.on_step(point, batch, objective)
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
                    now = encoder.embed_all(step.scene)
                    name = recipe.training.metric
                    found = rank_metrics(now["query"], now["candidate"], relevance, [name])[name]
                    record = {"epoch": epoch, "seconds": seconds, "objective": mean, name: found}
                    history.append(record)
                    # A run that ends early has its last epoch, if no other.
                    if found > best and (epoch > select_after or (last and not kept)):
                        best, best_epoch = found, epoch
                        kept = {k: v.detach().cpu().clone() for k, v in gather(learned, []).items()}
                    bar.describe(f"epoch {epoch} loss {mean:.4f} {name} {found:.4f}")
                    for looker in lookers:
                        looker.on_evaluation(Point(point.step, epoch, seconds, step), record)
                # The last state is kept whenever one may come back to it.
                if last or resume.due():
                    state = gather(everything, step.optimizers)
                    state |= {f"kept|{k}": v for k, v in kept.items()}
                    facts = {"epoch": epoch, "seconds": seconds, "history": history}
                    resume.save(state, facts | {"best": best, "best_epoch": best_epoch})
    finally:
        for looker in lookers:
            looker.on_end(point)
    scatter(kept, learned, [])
    for module in learned.values():
        module.cpu().eval()
    return replace(
        judge(recipe, split, encoder),
        history=history,
        best_epoch=best_epoch,
        seconds=seconds,
        watched=[] if watch is None else watch.found,
        reached=time_to_reach(history, recipe.training.metric, recipe.training.reach),
        state_bytes=sum(e.state_bytes for found in step.estimators.values() for e in found),
    )


def judge(recipe: Recipe, split: Split, encoder: Encoder) -> Trained:
    """What an encoder, trained or not, is worth on a version's data."""
    corpus = split.training
    vectors = encoder.embed_all(corpus)
    query, candidate = vectors["query"], vectors["candidate"]
    test = relevance_of(corpus, split.test)
    metrics = {
        "model": rank_metrics(query, candidate, test, recipe.metrics),
        "popularity": popularity_metrics(corpus.counts("candidate"), test, recipe.metrics),
    }
    return Trained(encoder, query, candidate, metrics)


@contextmanager
def no_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero: Adagrad's tiny ones made a CPU step 20 times slower. The
    process is left as it was."""
    was = float(torch.tensor([1e-310], dtype=torch.float64) * 0.5) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was)


def time_to_reach(
    history: Sequence[Mapping[str, float]], metric: str, value: float | None
) -> float | None:
    """Seconds of training at the first evaluation with at least `value`; None if there is none."""
    if value is None:
        return None
    return next((h["seconds"] for h in history if h[metric] >= value), None)


def relevance_of(corpus: Corpus, pairs: Pairs) -> Relevance:
    """Held-out pairs to find, with the training pairs masked."""
    return Relevance.of(
        pairs.query, pairs.candidate, corpus.column("query"), corpus.column("candidate")
    )


def prepare(
    recipe: Recipe,
    corpus: Corpus,
    version: int,
    device: torch.device,
    *,
    joint: Joint | None = None,
    past: Mapping[str, Tensor] | None = None,
    folder: Path | None = None,
) -> tuple[Step, ExampleSampler, dict[str, EntitySampler] | None]:
    """Everything that a run starts from: what a step works on, and what batches come from.

    Raises: DataError. RecipeError: also if no memory holds it.
    """
    refuse_too_large(recipe, corpus, version)
    # Each version has a start and an order of its own: with the last one's it would be nearly
    # compatible by accident, and the next recipe would not be.
    seed = recipe.seed + 1_000_003 * version
    generator = torch.Generator().manual_seed(seed)
    schema = Schema.of(corpus, features=recipe.model.kind != "factorization")
    options = encoder_options(recipe, version)
    encoder = build_encoder(recipe.model.kind, options, schema, generator).to(device)
    sampler = build_sampler(recipe, corpus, seed)
    task = build_task(recipe.task, corpus)
    prior = build_prior(recipe.prior, corpus, past, recipe.seed)
    objective = Objective(
        task,
        recipe.task.penalty,
        recipe.task.l2,
        {"query": recipe.task.query_orthogonal, "candidate": recipe.task.candidate_orthogonal},
        prior_constant(prior, sampler.measures, recipe.task.penalty),
        recipe.task.l2_measure,
    ).to(device)
    factors = {
        s: torch.cat([f, torch.ones(len(f), 1)], dim=1) if task.wants_means else f
        for s, f in prior.items()
    }
    estimators = {
        side: [
            build_estimator(
                recipe.gramian,
                encoder.dim,
                sampler.measures[side][:, r],
                factors[side],
                None if folder is None else folder / f"cache-{side}-{r}.bin",
            ).to(device)
            for r in range(len(recipe.task.penalty) if objective.wants_moments else 0)
        ]
        for side in SIDES
    }
    owned = [] if joint is None else [p for p in joint.parameters() if p.requires_grad]
    rate = None if joint is None else joint.rate
    independent = recipe.gramian.batch == "independent" and objective.wants_moments
    step = Step(
        encoder,
        encoder.read(corpus).to(device),
        objective,
        estimators,
        sampler.measures,
        {side: found.to(device) for side, found in factors.items()},
        prior["query"].shape[1],
        build_optimizers(recipe, encoder, owned, rate),
        joint,
        independent,
        recipe.training.precondition,
    )
    draws = build_independent(recipe, corpus, sampler, seed) if independent else None
    return step, sampler, draws


def run_epoch(
    step: Step,
    sampler: ExampleSampler,
    draws: Mapping[str, EntitySampler] | None,
    number: int,
    device: torch.device,
) -> Iterator[tuple[Batch, Tensor]]:
    """The steps of one epoch: each batch, and its objective's value."""
    step.encoder.train()
    step.before = {}
    looks_ahead = step.wants_before
    batches = (batch.to(device) for batch in sampler.epoch(number))
    pairs = (
        (
            {s: d.to(device) for s, d in zip(SIDES, pair, strict=True)}
            for pair in zip(*(draws[s].epoch(number, len(sampler)) for s in SIDES), strict=True)
        )
        if draws is not None
        else None
    )
    if not looks_ahead:
        for batch in batches:
            yield batch, step(batch, None if pairs is None else next(pairs))
        return
    for (batch, drawn), following in _with_next(batches, pairs):
        ids: dict[str, Tensor] | None = None
        if following is not None:
            ahead, ahead_drawn = following
            ids = {"query": ahead.query, "candidate": ahead.candidate}
            if ahead_drawn is not None:
                ids = {s: ahead_drawn[s].ids for s in SIDES}
        yield batch, step(batch, drawn, ids)


Ahead = tuple[Batch, "dict[str, Draw] | None"]


def _with_next(
    batches: Iterator[Batch], pairs: Iterator[dict[str, Draw]] | None
) -> Iterator[tuple[Ahead, Ahead | None]]:
    """Each batch with its draws, and the next one, None after the last."""
    current: Ahead | None = None
    for batch in batches:
        following = (batch, None if pairs is None else next(pairs))
        if current is not None:
            yield current, following
        current = following
    if current is not None:
        yield current, None
