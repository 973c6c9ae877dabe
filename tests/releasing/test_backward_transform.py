"""Which objects a backward transform is fitted to and measured on, and how it is fitted."""

from __future__ import annotations

import pytest
import torch
from tests.support.tiny_training import tiny_lineage, tiny_recipe

from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.compatibility.transforms import LinearTransform
from evergram.data.corpus import Corpus
from evergram.encoders.features import SIDES
from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.releasing.backward_transform import LEAST_COMMON, BackwardTransformFit, Overlap
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus
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


@pytest.mark.parametrize(("method", "keeps"), [("evergram", True), ("post-closed", False)])
def test_a_trained_transform_stays_where_solving_gains_nothing(
    lineage: Lineage, corpus: Corpus, method: str, keeps: bool
) -> None:
    """The ridge gives up to one percent of the error away; a trained map need not pay that. What a
    fit after the model starts from was never trained."""
    back = fit_of(lineage, corpus, f"upgrade.method={method}", "upgrade.transform=linear", dim=4)
    draw = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=draw))[0]
    new = {side: vectors @ turn.T for side, vectors in back.past.items()}
    back.transform = LinearTransform.from_matrix(turn.T)
    trained = back.transform
    back.finish(new)
    assert (back.transform is trained) == keeps
    assert back.error(new).rms < 1e-3
    assert not any(parameter.requires_grad for parameter in back.transform.parameters())


@pytest.mark.parametrize("spoiled", [0.2, float("nan")])
def test_a_trained_transform_goes_where_solving_lowers_the_error(
    lineage: Lineage, corpus: Corpus, spoiled: float
) -> None:
    back = fit_of(lineage, corpus, "upgrade.transform=linear", dim=4)
    back.transform = LinearTransform.from_matrix(torch.eye(4) + spoiled)
    trained = back.transform
    back.finish(back.past)
    assert back.transform is not trained
    assert back.error(back.past).rms < 1e-3


def test_joint_settings_are_those_of_the_recipe(lineage: Lineage, corpus: Corpus) -> None:
    overrides = ("upgrade.rows=7", "upgrade.transform_rate=0.5")
    joint = fit_of(lineage, corpus, *overrides).joint()
    assert joint is not None
    settings = joint.settings
    assert (settings.rows, settings.rate) == (7, 0.5)


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
    for upgrade in (whole.upgrade, tiny_recipe("upgrade.fit=none").upgrade):
        before = load_encoder(lineage, 0)
        back = BackwardTransformFit(upgrade, 1, lineage.active_chain, before, corpus, 5)
        assert torch.equal(back.transform(rows), rows[:, :4])
