"""Run the demo: version 0, upgrades, and a consumer that never changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.corpus import Corpus, Vocabulary
from evergram.errors import DataError
from evergram.evaluation.probes import roc_auc
from evergram.evaluation.version_distance import as_dim
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import load_corpus, split_for
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import TimeSplit


def demo_recipe(data: Path | None, overrides: list[str]) -> Recipe:
    """Return the recipe of the synthetic demo, or of MovieLens at `data`."""
    values: dict[str, Any] = {
        "name": "demo",
        "data": {"kind": "synthetic"},
        "split": {"kind": "time", "versions": [0.5, 0.6, 0.7, 0.8]},
        "model": {"kind": "factorization", "dim": [32, 40, 48, 56]},
        "task": {"penalty": 10.0, "l2": 0.1},
        "training": {"batch_size": 1024, "table_rate": 0.05},
    }
    if data is not None:
        values["data"] = {"kind": "movielens", "path": str(data.resolve())}
        values["split"]["versions"] = [0.6, 0.7, 0.8, 0.9]
        # Rank all queries: the demo's tables have no column for standard errors.
        values["task"], values["training"] = {}, {"evaluate_share": "full"}
    return Recipe.of(values, overrides)


def run_demo(
    recipe: Recipe, lineage: Lineage, *, device: str = "auto", progress: Progress
) -> list[dict[str, Any]]:
    """Train, publish and upgrade through all of `split.versions`.

    The consumer classifies candidates by whether their mean rating is above the median. It is
    trained on version 0's embeddings of half of them, and tested on the other half.

    Returns: for each version its metrics, the consumer's AUC on transformed and on raw embeddings,
        and the drift mean ‖z̃_0 − z_0‖₂ / mean ‖z_0‖₂ on held-out objects.
    """
    corpus = load_corpus(recipe)
    ids, label = rated_above_median(split_for(recipe, corpus, 0).training)
    versions: list[dict[str, Any]] = []
    classifier: Tensor | None = None
    half = torch.randperm(len(ids), generator=torch.Generator().manual_seed(recipe.seed))
    learn, test = half[: len(ids) // 2], half[len(ids) // 2 :]
    assert isinstance(recipe.split, TimeSplit)
    count = len(recipe.split.versions)
    # Without a terminal, print one line per version, not per epoch.
    progress = progress.without_epochs()
    for version in range(count):
        if version == 0:
            progress.say(f"Training version 0 of {count} versions, then another team's classifier.")
            artefact = train(recipe, corpus, device=device, progress=progress)
        else:
            progress.say(
                f"Training version {version}, with its backward transform to version {version - 1}."
            )
            artefact = upgrade(recipe, lineage, corpus, device=device, progress=progress)
        lineage.publish(artefact)
        known, every = artefact.block("candidate")
        vectors = every[Vocabulary(known).rows(ids)]
        if classifier is None:
            classifier = _discriminant(vectors[learn], label[learn])
        view = lineage.view(0)
        chain, raw = (
            roc_auc((read[test].double() @ classifier).numpy(), label[test].numpy())
            for read in (view.transform(vectors), as_dim(vectors, view.dim))
        )
        report = artefact.metrics
        drift = report["compatibility"]["0"]["drift"]["held_out"]["relative"] if version else 0.0
        consumer = {"auc_chain": chain, "auc_raw": raw}
        metrics = {"metrics": report["metrics"], "consumer": consumer, "drift_relative": drift}
        versions.append({"version": version, "dim": artefact.dim, **metrics})
    return versions


def rated_above_median(corpus: Corpus, minimum: int = 5) -> tuple[pa.Array, Tensor]:
    """Return ids [N] of candidates with at least `minimum` ratings, and a mask [N] of those whose
    mean rating is above the median. Source: [BC] §5, task 3."""
    count = corpus.counts("candidate")
    total = torch.zeros(len(count)).index_add_(
        0, corpus.column("candidate"), corpus.column("value")
    )
    rows = torch.nonzero(count >= minimum).flatten()
    if len(rows) < 20:
        raise DataError(f"Only {len(rows)} candidates have {minimum} ratings, and 20 are needed.")
    mean = total[rows] / count[rows]
    return corpus.candidates.vocabulary.keys.take(pa.array(rows.numpy())), mean > mean.median()


def _discriminant(vectors: Tensor, label: Tensor) -> Tensor:
    """Return Fisher's linear discriminant [D] of two classes, (Σ + εI)⁻¹ (μ₁ − μ₀)."""
    first, second = vectors[label].double(), vectors[~label].double()
    centred = torch.cat([first - first.mean(0), second - second.mean(0)])
    within = centred.T @ centred / len(centred)
    within += within.diagonal().mean() * torch.eye(len(within), dtype=within.dtype)
    direction: Tensor = torch.linalg.solve(within, first.mean(0) - second.mean(0))
    return direction
