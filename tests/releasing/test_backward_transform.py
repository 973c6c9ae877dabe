"""Which objects a backward transform is fitted to and measured on, and how it is fitted."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.tiny_training import tiny_lineage, tiny_recipe
from torch import Tensor

from evergram.compatibility.alignment_loss import AlignmentLoss
from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.compatibility.chain import Chain
from evergram.compatibility.transforms import LinearTransform
from evergram.data.corpus import Corpus
from evergram.data.sampling import ExampleSampler, PairDraws
from evergram.encoders.features import SIDES
from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.releasing.backward_transform import LEAST_COMMON, BackwardTransformFit, Overlap
from evergram.releasing.posthoc_fit import PairFit, fit_over_pairs
from evergram.releasing.upgrade import upgrade
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus
from evergram.training.joint import JointAlignment, JointAlignmentSettings
from evergram.training.recipe import Recipe


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    return tiny_lineage(tmp_path_factory.mktemp("backward") / "lineage")


def fit_of(lineage: Lineage, corpus: Corpus, *overrides: str, dim: int = 5) -> BackwardTransformFit:
    recipe = tiny_recipe(*overrides)
    return BackwardTransformFit(
        recipe.upgrade, 1, lineage.active_chain, load_encoder(lineage, 0), corpus, dim
    )


@pytest.fixture
def corpus() -> Corpus:
    return load_corpus(tiny_recipe())


@pytest.mark.parametrize(("fit", "share"), [("joint", 0.05), ("joint", 0.5), ("none", 0.05)])
def test_as_many_objects_are_held_out_as_a_measure_needs(
    lineage: Lineage, corpus: Corpus, fit: str, share: float
) -> None:
    """A share of a small corpus would be fewer; where nothing is fitted, all were never seen."""
    back = fit_of(lineage, corpus, f"upgrade.fit={fit}", f"upgrade.held_out={share}")
    overlap = back.overlap
    assert overlap.common == sum(int(back.known[s].sum()) for s in SIDES) >= LEAST_COMMON
    if fit == "none":
        assert (overlap.fitted, overlap.held_out) == (0, overlap.common)
    else:
        assert overlap.fitted + overlap.held_out == overlap.common
        assert overlap.held_out in (LEAST_OBJECTS, LEAST_OBJECTS + 1) or share == 0.5
        assert overlap.held_out >= LEAST_OBJECTS
    assert not overlap.small


@pytest.mark.parametrize("fit", ["joint", "none"])
def test_of_too_few_objects_to_halve_no_more_are_held_out_than_the_share(
    lineage: Lineage, corpus: Corpus, fit: str
) -> None:
    overrides = (f"upgrade.fit={fit}", "upgrade.held_out=0.5")
    overlap = fit_of(lineage, corpus.restrict(torch.arange(9)), *overrides).overlap
    assert overlap.small
    assert overlap.held_out_share == (1.0 if fit == "none" else 0.5)
    with pytest.raises(DataError, match="--allow-small-overlap"):
        overlap.refuse_small(1, 0, allow_small=False)
    overlap.refuse_small(1, 0, allow_small=True)


def test_an_overlap_that_nothing_can_be_fitted_to_is_refused_in_any_case() -> None:
    with pytest.raises(DataError, match="of which 1 are not held out"):
        Overlap(9, 1, 8, 0.9).refuse_small(1, 0, allow_small=True)
    with pytest.raises(DataError, match="no objects in common"):
        Overlap(0, 0, 0, 1.0).refuse_small(1, 0, allow_small=True)


def test_w_starts_orthonormal_or_as_a_layer_of_torch(lineage: Lineage, corpus: Corpus) -> None:
    wide = 400
    ours = fit_of(lineage, corpus, dim=wide).transform.affine()
    theirs = fit_of(lineage, corpus, "upgrade.transform_start=uniform", dim=wide).transform.affine()
    layer = torch.nn.Linear(wide, 4, bias=False).weight
    assert ours is not None
    assert theirs is not None
    torch.testing.assert_close(ours[0] @ ours[0].T, torch.eye(4))
    for weight in (theirs[0].detach(), layer.detach()):
        assert 0.97 / 20 < float(weight.abs().max()) <= 1 / 20
        assert float(weight.std()) == pytest.approx(1 / 20 / 3**0.5, rel=0.05)


@pytest.mark.parametrize("transform", ["linear", "affine", "orthogonal"])
def test_a_closed_form_recovers_an_exact_map_without_the_held_out_objects(
    lineage: Lineage, corpus: Corpus, transform: str
) -> None:
    """New vectors are the old ones turned; those of held-out objects are made nonsense."""
    back = fit_of(
        lineage,
        corpus,
        "upgrade.method=post-closed",
        f"upgrade.transform={transform}",
        "upgrade.held_out=0.3",
        dim=4,
    )
    assert back.joint() is None
    draw = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=draw))[0]
    turned = {side: vectors @ turn.T for side, vectors in back.past.items()}
    poisoned = {side: torch.where(back.aside[side][:, None], 100.0, turned[side]) for side in SIDES}
    back.finish(poisoned)
    affine = back.transform.affine()
    assert affine is not None
    torch.testing.assert_close(affine[0], turn.T, rtol=1e-3, atol=1e-3)
    assert not any(parameter.requires_grad for parameter in back.transform.parameters())
    assert back.error(turned).rms < 1e-3
    assert back.error(poisoned).rms > 10


@pytest.mark.parametrize(
    ("method", "start", "stays"),
    [
        ("evergram", 0.0, True),
        ("post-closed", 0.0, False),
        ("evergram", 0.2, False),
        ("evergram", float("nan"), False),
    ],
)
def test_a_trained_transform_stays_where_solving_gains_nothing(
    lineage: Lineage, corpus: Corpus, method: str, start: float, stays: bool
) -> None:
    """The ridge gives up to one percent of the error away; a trained map need not pay that. What a
    fit after the model starts from was never trained."""
    back = fit_of(lineage, corpus, f"upgrade.method={method}", "upgrade.transform=linear", dim=4)
    draw = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=draw))[0]
    new = {side: vectors @ turn.T for side, vectors in back.past.items()}
    back.transform = LinearTransform.from_matrix(turn.T + start)
    trained = back.transform
    back.finish(new)
    assert (back.transform is trained) == stays
    assert back.error(new).rms < 1e-3
    assert not any(parameter.requires_grad for parameter in back.transform.parameters())


def test_without_a_fit_the_transform_is_the_first_coordinates(
    lineage: Lineage, corpus: Corpus
) -> None:
    """Also where a whole recipe names the default that is learned: nothing would learn it."""
    whole = Recipe.of(tiny_recipe().model_dump(), ["upgrade.fit=none"])
    assert (whole.upgrade.transform, tiny_recipe("upgrade.fit=none").upgrade.transform) == (
        "linear",
        "truncate",
    )
    rows = torch.arange(10.0).reshape(2, 5)
    for settings in (whole.upgrade, tiny_recipe("upgrade.fit=none").upgrade):
        before = load_encoder(lineage, 0)
        back = BackwardTransformFit(settings, 1, lineage.active_chain, before, corpus, 5)
        assert torch.equal(back.transform(rows), rows[:, :4])


QUERIES, CANDIDATES, OLD, NEW = 12, 15, 2, 3
# Candidate 0 is in most pairs, and is longer than others. Repeats make batches large.
PAIRS = [(q, 0) for q in range(QUERIES)] + [(i % QUERIES, i) for i in range(1, CANDIDATES)]
CORPUS = Corpus.from_tables(
    pa.table({"query": [q for q, _ in PAIRS] * 20, "candidate": [c for _, c in PAIRS] * 20})
)


def draw(seed: int) -> dict[str, dict[str, Tensor]]:
    """Old and new vectors of the same objects, with no map between them."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"query": QUERIES, "candidate": CANDIDATES}
    return {
        name: {s: torch.randn(n, dim, generator=generator) for s, n in sizes.items()}
        for name, dim in (("old", OLD), ("new", NEW))
    }


def alignment(
    vectors: dict[str, dict[str, Tensor]], rate: float, **settings: Any
) -> JointAlignment:
    transform = LinearTransform(OLD, NEW, torch.Generator().manual_seed(0))
    weight = {side: torch.ones(len(rows)) for side, rows in vectors["old"].items()}
    chosen = JointAlignmentSettings(1.0, rate, **settings)
    loss = AlignmentLoss(Chain([], OLD), "single")
    return JointAlignment(transform, loss, vectors["old"], weight, chosen)


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
    met = torch.zeros(QUERIES, CANDIDATES)
    for q, c in PAIRS:
        met[q, c] = 1
    positive = (met / met.sum(1, keepdim=True)).mean(0)
    negative = ((1 - met) / (1 - met).sum(1, keepdim=True)).mean(0)
    thirds = {"query": torch.full((QUERIES,), 1 / QUERIES), "candidate": positive + negative}
    alike = {"query": torch.ones(QUERIES), "candidate": torch.ones(CANDIDATES)}
    expected, other = least_squares(vectors, thirds), least_squares(vectors, alike)
    means: list[Tensor] = []
    for rate, epochs in ((0.05, 150), (0.005, 150)):
        fitted = alignment(vectors, rate, objects="paper-code")
        if means:
            matrix(fitted).copy_(means[-1])
        fit_over_pairs(fitted, vectors["new"], PairFit(sampler(), epochs, every=epochs + 1))
        means.append(matrix(fitted).clone())
    # What is left is the noise of the draws.
    assert float((means[-1] - expected).norm()) < 0.4 * float((expected - other).norm())


def test_the_transform_with_the_smallest_error_after_an_epoch_is_kept() -> None:
    vectors = draw(1)
    fitted = alignment(vectors, 0.8, objects="paper-code")
    fit = PairFit(sampler(), epochs=40, every=2, after=10)
    errors = fit_over_pairs(fitted, vectors["new"], fit)
    assert len(errors) == 20
    assert min(errors[5:]) < errors[-1]
    assert fitted.error(vectors["new"]) == pytest.approx(min(errors[5:]))
    last = alignment(vectors, 0.8, objects="paper-code")
    late = PairFit(sampler(), epochs=40, every=2, after=40)
    assert fit_over_pairs(last, vectors["new"], late) == errors
    assert last.error(vectors["new"]) == pytest.approx(errors[-1])


def test_the_error_weighs_both_sides_alike() -> None:
    vectors = draw(2)
    fitted = alignment(vectors, 0.1)
    by_side = [
        (vectors["new"][s] @ matrix(fitted).T - vectors["old"][s]).square().sum(1).mean()
        for s in SIDES
    ]
    assert fitted.error(vectors["new"]) == pytest.approx(float(sum(by_side) / 2))


def test_a_recipe_says_whether_it_is_over_pairs_or_objects(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[PairFit | None] = []
    finish = BackwardTransformFit.finish

    def watched(self: Any, new: Any, pairs: PairFit | None = None, *more: Any) -> None:
        fits.append(pairs)
        finish(self, new, pairs, *more)

    monkeypatch.setattr(BackwardTransformFit, "finish", watched)
    matrices = {}
    for objects in ("all", "paper-code", "batch"):
        recipe = tiny_recipe(
            "upgrade.method=post-lin-sloss",
            f"upgrade.objects={objects}",
            "upgrade.fit_epochs=3",
            "training.evaluate_every=1",
        )
        transform = upgrade(recipe, lineage, progress=False).transform
        assert transform is not None
        matrices[objects] = transform.affine()
    assert [fit is None for fit in fits] == [True, False, False]
    assert all(fit.epochs == 3 and fit.every == 1 for fit in fits if fit is not None)
    weights = [affine[0] for affine in matrices.values() if affine is not None]
    assert all(not torch.equal(a, b) for a, b in pairwise(weights))
