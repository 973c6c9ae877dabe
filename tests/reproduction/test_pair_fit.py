"""A transform trained over pairs descends to the least squares of the authors' three means."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from reproduction.pair_fit import fit_over_pairs
from tests.support.tiny_training import tiny_lineage, tiny_recipe
from torch import Tensor

from evergram.compatibility.alignment_loss import AlignmentLoss
from evergram.compatibility.chain import Chain
from evergram.compatibility.transforms import LinearTransform
from evergram.data.corpus import Corpus
from evergram.data.sampling import ExampleSampler, PairDraws
from evergram.encoders.encoder import SIDES
from evergram.releasing.upgrade import upgrade
from evergram.training.joint import JointAlignment
from evergram.training.recipe.tables import TransformTraining

USERS, ITEMS, OLD, NEW = 12, 15, 2, 3
# Candidate 0 is in most pairs, and is longer than others. Repeats make batches large.
PAIRS = [(q, 0) for q in range(USERS)] + [(i % USERS, i) for i in range(1, ITEMS)]
CORPUS = Corpus.of(
    pa.table({"query": [q for q, _ in PAIRS] * 20, "candidate": [c for _, c in PAIRS] * 20})
)


def draw(seed: int) -> dict[str, dict[str, Tensor]]:
    """Old and new vectors of the same objects, with no map between them."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"query": USERS, "candidate": ITEMS}
    return {
        name: {s: torch.randn(n, dim, generator=generator) for s, n in sizes.items()}
        for name, dim in (("old", OLD), ("new", NEW))
    }


def alignment(
    vectors: dict[str, dict[str, Tensor]], rate: float, **settings: Any
) -> JointAlignment:
    transform = LinearTransform(OLD, NEW, torch.Generator().manual_seed(0))
    weight = {side: torch.ones(len(rows)) for side, rows in vectors["old"].items()}
    loss = AlignmentLoss(Chain([], OLD), "single")
    adam = TransformTraining(rate, **settings)
    return JointAlignment(transform, loss, vectors["old"], weight, 1.0, adam)


def matrix(fitted: JointAlignment) -> Tensor:
    """W, in its own memory."""
    affine = fitted.transform.affine()
    assert affine is not None
    return affine[0].detach()


def sampler() -> ExampleSampler:
    draws = PairDraws(positives="queries", negatives=True, short_batch=True)
    return ExampleSampler(CORPUS, draws, batch_size=len(CORPUS), seed=3)


def least_squares(vectors: dict[str, dict[str, Tensor]], weight: dict[str, Tensor]) -> Tensor:
    """W of the smallest Σ w ‖W new − old‖², [OLD, NEW], by the normal equations in float64."""
    new, old = (torch.cat([vectors[n][s] for s in SIDES]).double() for n in ("new", "old"))
    w = torch.cat([weight[s] for s in SIDES]).double()[:, None]
    solved: Tensor = torch.linalg.solve((w * new).T @ new, (w * new).T @ old)
    return solved.T


def test_it_descends_to_the_least_squares_of_the_three_means() -> None:
    """Queries uniformly; candidates of a pair of the query, uniformly; negatives: uniformly among
    those that the query has not met."""
    vectors = draw(0)
    for rows in vectors.values():
        rows["candidate"][0] *= 3
    met = torch.zeros(USERS, ITEMS)
    for q, c in PAIRS:
        met[q, c] = 1
    positive = (met / met.sum(1, keepdim=True)).mean(0)
    negative = ((1 - met) / (1 - met).sum(1, keepdim=True)).mean(0)
    thirds = {"query": torch.full((USERS,), 1 / USERS), "candidate": positive + negative}
    alike = {"query": torch.ones(USERS), "candidate": torch.ones(ITEMS)}
    expected, other = least_squares(vectors, thirds), least_squares(vectors, alike)
    means: list[Tensor] = []
    for rate, epochs in ((0.05, 150), (0.005, 150)):
        fitted = alignment(vectors, rate, objects="paper-code")
        if means:
            matrix(fitted).copy_(means[-1])
        fit_over_pairs(fitted, vectors["new"], sampler(), epochs=epochs, every=epochs + 1)
        means.append(matrix(fitted).clone())
    # What is left is the noise of the draws.
    assert float((means[-1] - expected).norm()) < 0.4 * float((expected - other).norm())


def test_the_transform_with_the_smallest_error_after_an_epoch_is_kept() -> None:
    vectors = draw(1)
    fitted = alignment(vectors, 0.8, objects="paper-code")
    errors = fit_over_pairs(fitted, vectors["new"], sampler(), epochs=40, every=2, after=10)
    assert len(errors) == 20
    assert min(errors[5:]) < errors[-1]
    assert fitted.error(vectors["new"]) == pytest.approx(min(errors[5:]))
    last = alignment(vectors, 0.8, objects="paper-code")
    late = fit_over_pairs(last, vectors["new"], sampler(), epochs=40, every=2, after=40)
    assert late == errors
    assert last.error(vectors["new"]) == pytest.approx(errors[-1])


def test_a_recipe_says_whether_it_is_over_pairs_or_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[dict[str, Any]] = []

    def watched(*given: Any, **options: Any) -> list[float]:
        fits.append(options)
        return fit_over_pairs(*given, **options)

    monkeypatch.setattr("reproduction.pair_fit.fit_over_pairs", watched)
    lineage, weights = tiny_lineage(tmp_path / "lineage"), []
    settings = (
        "upgrade.method=post-lin-sloss",
        "upgrade.fit_epochs=3",
        "training.evaluate_every=1",
    )
    for objects in ("all", "paper-code", "batch"):
        recipe = tiny_recipe(*settings, f"upgrade.objects={objects}")
        transform: Any = upgrade(recipe, lineage, progress=False).transform
        weights.append(transform.affine()[0])
    assert fits == [{"epochs": 3, "every": 1, "after": 0}] * 2
    assert all(not torch.equal(a, b) for a, b in pairwise(weights))
