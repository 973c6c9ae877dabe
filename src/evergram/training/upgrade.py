"""Train a version, and the next one together with its way back. The two papers meet here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evergram.compatibility.alignment import alignment_loss, alignment_weight, history_metric
from evergram.compatibility.chain import Chain
from evergram.compatibility.transforms import LinearTransform
from evergram.data.corpus import Corpus, Vocabulary
from evergram.data.sampling import Batch
from evergram.data.split import Pairs, Split
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES
from evergram.evaluation.compatibility import as_dim, drift, overlap
from evergram.evaluation.ranking import Relevance, popularity_metrics, rank_metrics
from evergram.lineage.lineage import Artefact, Lineage
from evergram.training.build import pick_device
from evergram.training.callbacks import Callback
from evergram.training.checkpoint import held_out, load_encoder, make_artefact
from evergram.training.corpora import load_corpus, split_for
from evergram.training.loop import Trained, relevance_of, train_encoder
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.step import Joint

QUIET = Progress(quiet=True)


class Alignment(Joint):
    """λ times the multi-step loss of B_k, over the objects of a batch that version k-1 knows.

    Args:
        transform: B_k, trained here.
        past: for each side, z_{k-1} [N, D_{k-1}] of the training corpus's entities, computed once:
            M_{k-1} is frozen.
        weight: for each side, float [N], 1 for an object that takes part.
        metric: S_{k-1}.
        versions: k.
        strength: λ on mean ‖δ‖².
    """

    def __init__(
        self,
        transform: LinearTransform,
        past: dict[str, Tensor],
        weight: dict[str, Tensor],
        metric: Tensor,
        versions: int,
        strength: float,
        rate: float,
    ) -> None:
        super().__init__()
        self.transform = transform
        self.versions = versions
        self.strength = strength
        self.rate = rate
        self.metric: Tensor
        self.register_buffer("metric", metric.float(), persistent=False)
        for side in SIDES:
            self.register_buffer(f"past_{side}", past[side], persistent=False)
            self.register_buffer(f"weight_{side}", weight[side], persistent=False)

    def forward(self, query: Tensor, candidate: Tensor, batch: Batch) -> Tensor:
        rows = {"query": batch.query, "candidate": batch.candidate}
        past = torch.cat([self.get_buffer(f"past_{s}")[rows[s]] for s in SIDES])
        weight = torch.cat([self.get_buffer(f"weight_{s}")[rows[s]] for s in SIDES])
        transformed = self.transform(torch.cat([query, candidate]))
        loss = alignment_loss(transformed, past, weight, self.metric, self.versions)
        return self.strength * loss


def train(
    recipe: Recipe,
    corpus: Corpus | None = None,
    *,
    device: str = "auto",
    progress: Progress = QUIET,
    folder: Path | None = None,
    callbacks: Sequence[Callback] = (),
    board: Path | None = None,
) -> Artefact:
    """Version 0, ready for `Lineage.publish`.

    Args:
        corpus: what `load_corpus(recipe)` gives; loaded where it is absent.
        device: "auto", "cpu" or "cuda".
        folder: where an interrupted run is gone on with, such as `lineage.work`; None keeps
            nothing.
        callbacks: what looks on while it trains.
        board: a folder for TensorBoard's files.
    Raises: DataError, RecipeError, TrainingError.
    """
    corpus = load_corpus(recipe) if corpus is None else corpus
    split = split_for(recipe, corpus, 0)
    trained = train_encoder(
        recipe,
        split,
        0,
        pick_device(device),
        progress,
        title="version 0",
        folder=folder,
        callbacks=[*callbacks, *_board(board, 0, split)],
    )
    return make_artefact(recipe, 0, split, trained, _report(recipe, 0, split, trained), None)


def upgrade(
    recipe: Recipe,
    lineage: Lineage,
    corpus: Corpus | None = None,
    *,
    device: str = "auto",
    progress: Progress = QUIET,
    folder: Path | None = None,
    callbacks: Sequence[Callback] = (),
    board: Path | None = None,
) -> Artefact:
    """The version after the newest, trained with its backward transform (BC-Aligner).

    The metrics hold, beside the model's own, those of the same model trained alone, and for every
    past version what reading it through the chain keeps.

    Raises: UnknownVersionError: the lineage has no version to start from. DataError, RecipeError,
        TrainingError.
    Source: [BC] Eq. (3), (10).
    """
    past_version = lineage.newest
    version = past_version + 1
    corpus = load_corpus(recipe) if corpus is None else corpus
    split = split_for(recipe, corpus, version)
    chosen = pick_device(device)
    settings = recipe.upgrade
    encoder = load_encoder(lineage, past_version)
    chain = lineage.chain
    steps = [chain.matrix(n, n - 1) for n in range(1, version)]
    multi = settings.steps == "multi"
    metric = history_metric(steps, chain.dim(0)) if multi else torch.eye(encoder.dim)
    past, known = _past(encoder, split.training)
    aside = _aside(split.training, settings.held_out)
    generator = torch.Generator().manual_seed(recipe.seed + version)
    joint = Alignment(
        LinearTransform(encoder.dim, recipe.model.dim_of(version), generator),
        past,
        {side: (known[side] & ~aside[side]).float() for side in SIDES},
        metric,
        version if multi else 1,
        alignment_weight(settings.weight, settings.unit, encoder.dim),
        settings.transform_rate,
    )
    title = f"version {version}"
    trained = train_encoder(
        recipe,
        split,
        version,
        chosen,
        progress,
        joint=joint,
        past=past,
        title=title,
        folder=folder,
        callbacks=[*callbacks, *_board(board, version, split)],
    )
    report = _report(recipe, version, split, trained)
    if settings.alone:
        alone = train_encoder(
            recipe,
            split,
            version,
            chosen,
            progress,
            past=past,
            title=f"{title} alone",
            folder=folder,
        )
        report["metrics"]["alone"] = alone.metrics["model"]
    weight = joint.transform.weight.detach()
    longer = Chain([*steps, weight], chain.dim(0))
    report["compatibility"] = {
        str(j): _compatibility(
            recipe, split, trained, longer, j, load_encoder(lineage, j), settings.held_out
        )
        for j in range(version)
    }
    return make_artefact(recipe, version, split, trained, report, weight)


def evaluate(
    recipe: Recipe,
    lineage: Lineage,
    version: int | None = None,
    corpus: Corpus | None = None,
    *,
    device: str = "auto",
) -> dict[str, dict[str, float]]:
    """Metrics of the stored embeddings, read as `version`, on the newest version's test pairs.

    Returns: {"model": {name: value}, "popularity": {name: value}}.
    """
    corpus = load_corpus(recipe) if corpus is None else corpus
    split = split_for(recipe, corpus, lineage.newest)
    view = lineage.view(version)
    vectors: dict[str, Tensor] = {}
    for side, entities in zip(
        SIDES, (split.training.queries, split.training.candidates), strict=True
    ):
        ids, stored = view.embeddings(side)
        rows = Vocabulary(ids).rows(entities.vocabulary.keys)
        # An object without a stored vector cannot be told from the others: it scores zero.
        vectors[side] = stored[rows.clamp(min=0)] * (rows >= 0)[:, None]
    relevance = relevance_of(split.training, split.test)
    counts = split.training.counts("candidate")
    return {
        "model": rank_metrics(
            vectors["query"],
            vectors["candidate"],
            relevance,
            recipe.metrics,
            device=pick_device(device),
        ),
        "popularity": popularity_metrics(counts, relevance, recipe.metrics),
    }


def _board(folder: Path | None, version: int, split: Split) -> list[Callback]:
    """What writes a version's training, with its Gramians' errors, for TensorBoard."""
    if folder is None:
        return []
    from evergram.training.tensorboard import TensorBoard
    from evergram.training.tracking import Tracking

    corpus = split.training
    tracking = Tracking({}, {s: corpus.counts(s) for s in SIDES}, every=100)
    pairs = (corpus.column("query"), corpus.column("candidate"))
    return [tracking, TensorBoard(folder / f"version-{version}", pairs, tracking)]


def _report(recipe: Recipe, version: int, split: Split, trained: Trained) -> dict[str, Any]:
    training = split.training
    return {
        "version": version,
        "dim": trained.query.shape[1],
        "metrics": dict(trained.metrics),
        "training": {
            "seconds": round(trained.seconds, 3),
            "best_epoch": trained.best_epoch,
            "history": trained.history,
            "gramian_bytes": trained.state_bytes,
            **({"watched": trained.watched} if recipe.training.watch_minutes else {}),
            **({"seconds_to_reach": trained.reached} if recipe.training.reach else {}),
        },
        "data": {
            "queries": len(training.queries),
            "candidates": len(training.candidates),
            "interactions": len(training),
            "repeats": training.repeats,
            "test_pairs": len(split.test),
            "test_queries": len(torch.unique(split.test.query)),
            "unknown_test_candidates": int((split.test.candidate < 0).sum()),
            "unknown_queries": split.unknown_queries,
        },
    }


def _compatibility(
    recipe: Recipe,
    split: Split,
    trained: Trained,
    chain: Chain,
    target: int,
    encoder: Encoder,
    held_share: float,
) -> dict[str, Any]:
    """The new version read as `target`, against what `target` was, over what `target` knew."""
    past, known = _past(encoder, split.training)
    aside = _aside(split.training, held_share)
    new = {"query": trained.query, "candidate": trained.candidate}
    back = {side: chain.apply(new[side], chain.newest, target) for side in SIDES}
    raw = {side: as_dim(new[side], encoder.dim) for side in SIDES}
    held = {side: known[side] & aside[side] for side in SIDES}
    distance: dict[str, Any] = {}
    for name, chosen in (("held_out", held), ("known", known)):
        objects = [torch.cat([vectors[s][chosen[s]] for s in SIDES]) for vectors in (back, past)]
        distance[name] = {**drift(objects[0], objects[1]), "objects": len(objects[0])}
    catalogue = known["candidate"]
    relevance = _known_relevance(split.training, split.test, known)
    readings = {
        # The past version itself, and the new one in its place on both sides.
        "past": (past, past),
        "chain": (back, back),
        "raw": (raw, raw),
        # A consumer who kept its own query vectors and reads the new candidates.
        "chain_candidates": (past, back),
        "raw_candidates": (past, raw),
    }
    return {
        "drift": distance,
        "overlap@10": overlap(
            back["query"][held["query"]],
            back["candidate"][catalogue],
            past["query"][held["query"]],
            past["candidate"][catalogue],
        ),
        "queries": len(relevance),
        "ranking": {
            name: rank_metrics(q["query"], c["candidate"][catalogue], relevance, recipe.metrics)
            for name, (q, c) in readings.items()
        },
    }


def _past(encoder: Encoder, corpus: Corpus) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """z_j [N, D_j] of a corpus's entities, and which of them version j knows, bool [N]."""
    reading = encoder.read(corpus)
    return encoder.embed_all(reading), {side: encoder.known(side, reading) for side in SIDES}


def _aside(corpus: Corpus, share: float) -> dict[str, Tensor]:
    sides = zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
    return {side: held_out(entities, share) for side, entities in sides}


def _known_relevance(corpus: Corpus, pairs: Pairs, known: dict[str, Tensor]) -> Relevance:
    """The test of a past version: queries it knew, over the catalogue it knew.

    Pairs of another candidate are left out: no reading of that version could rank them.
    """
    place = torch.where(known["candidate"], known["candidate"].cumsum(0) - 1, -1)
    candidate = torch.where(pairs.candidate >= 0, place[pairs.candidate], -1)
    kept = known["query"][pairs.query] & (candidate >= 0)
    seen = place[corpus.column("candidate")]
    rankable = seen >= 0
    return Relevance.of(
        pairs.query[kept], candidate[kept], corpus.column("query")[rankable], seen[rankable]
    )
