"""Starting vectors against dense algebra in float64, and tables that start from them."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch
from tests.support.tiny_training import tiny_recipe
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.factorization import Factorization
from evergram.encoders.features import SIDES
from evergram.errors import RecipeError
from evergram.lineage.lineage import Lineage
from evergram.releasing.publish import publish
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import Companions, prepare
from evergram.training.corpora import load_corpus, split_for
from evergram.training.recipe import ModelRecipe, Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.starts.normalised_matrix import NormalisedMatrix
from evergram.training.starts.starting_vectors import STARTS, smooth_start, svd_start

CPU = torch.device("cpu")
KINDS = ["smooth", "svd"]


def corpus_of(seed: int = 0) -> Corpus:
    """150 pairs of 29 queries with 17 candidates."""
    generator = torch.Generator().manual_seed(seed)
    sides = [torch.randint(0, size, (150,), generator=generator).tolist() for size in (30, 17)]
    return Corpus.of(list(zip(*sides, strict=True)))


def matrix_of(seed: int = 0) -> NormalisedMatrix:
    return NormalisedMatrix.of(corpus_of(seed), torch.float64)


def encoder_of(corpus: Corpus, *overrides: str, companions: Companions | None = None) -> Encoder:
    settings = FitSettings.of(tiny_recipe(*overrides), corpus, 0)
    return prepare(settings, corpus, CPU, companions)[0].encoder


def tables(encoder: Encoder) -> dict[str, Tensor]:
    assert isinstance(encoder, Factorization)
    return {"query": encoder.query.weight.detach(), "candidate": encoder.candidate.weight.detach()}


def test_the_recipe_has_these_kinds_and_random() -> None:
    assert set(get_args(ModelRecipe.model_fields["start"].annotation)) == {
        *("random", "als"),
        *STARTS,
    }


def test_svd_is_the_best_approximation_of_its_rank() -> None:
    """Eckart and Young: the error is the root of the sum of the squares of what is left out."""
    matrix = matrix_of()
    dense = matrix.matrix.to_dense()
    values = torch.linalg.eigvalsh(dense.T @ dense).flip(0).clamp(min=0)
    for dim in (1, 4, 17):
        vectors = svd_start(matrix, dim, seed=2)
        error = torch.linalg.norm(dense - vectors["query"] @ vectors["candidate"].T)
        torch.testing.assert_close(error, values[dim:].sum().sqrt(), rtol=1e-3, atol=1e-6)
        grams = [v.T @ v for v in vectors.values()]  # √Σ on both sides
        torch.testing.assert_close(grams[0], grams[1], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(grams[0].diag()[0], values[0].sqrt(), rtol=1e-4, atol=0)


def test_svd_of_more_dims_than_candidates_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"it is 18 of 29 queries and 17 candidates; lower"):
        svd_start(matrix_of(), 18, 0)


def test_smooth_rows_are_those_of_the_spectrum_without_its_first_pair() -> None:
    """Over many Gaussian columns, inner products tend to Σ_{k>0} σ_k⁴ v_k v_kᵀ, in cosines."""
    matrix = matrix_of()
    left, values, right = torch.linalg.svd(matrix.matrix.to_dense(), full_matrices=False)
    vectors = smooth_start(matrix, 200_000, seed=1)
    for side, singular, power in (("query", left, 6), ("candidate", right.T, 4)):
        kernel = (singular[:, 1:] * values[1:] ** power) @ singular[:, 1:].T
        lengths = kernel.diag().sqrt()
        cosines = vectors[side] @ vectors[side].T
        expected = kernel / torch.outer(lengths, lengths)
        torch.testing.assert_close(cosines, expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("start", KINDS)
def test_tables_start_from_the_vectors_and_rows_without_pairs_stay_as_drawn(start: str) -> None:
    # Both sides have all ids, whether or not they are met as a query, or as a candidate.
    corpus = Corpus.of([(f"a{i % 9}", f"b{i * i % 11 % 7}") for i in range(40)], shared_ids=True)
    random, started = encoder_of(corpus), encoder_of(corpus, f"model.start={start}")
    matrix = NormalisedMatrix.of(corpus)
    expected = STARTS[start](matrix, 4, 0)
    for side in SIDES:
        known = matrix.degrees[side] > 0
        rows = expected[side] * (0.1 * 4**0.5 if start == "smooth" else 1.0)
        torch.testing.assert_close(tables(started)[side][known], rows[known])
        assert torch.equal(tables(started)[side][~known], tables(random)[side][~known])
    assert not bool((matrix.degrees["candidate"] > 0).all())
    again = encoder_of(corpus, f"model.start={start}")
    other = encoder_of(corpus, f"model.start={start}", "seed=1")
    assert torch.equal(tables(again)["query"], tables(started)["query"])
    assert not torch.equal(tables(other)["query"], tables(started)["query"])


def test_rows_of_which_nothing_is_left_stay_as_drawn() -> None:
    """Where all queries met all candidates nothing is left without popularity, but rounding."""
    corpus = Corpus.of([(q, c) for q in range(6) for c in range(5)])
    vectors = smooth_start(NormalisedMatrix.of(corpus), 4, 0)
    assert all(not rows.any() for rows in vectors.values())
    drawn = tables(encoder_of(corpus, "model.normalize=true"))
    started = tables(encoder_of(corpus, "model.normalize=true", "model.start=smooth"))
    assert all(torch.equal(started[side], drawn[side]) for side in SIDES)


def test_normalised_rows_have_length_1() -> None:
    encoder = encoder_of(corpus_of(), "model.start=smooth", "model.normalize=true")
    lengths = tables(encoder)["query"].norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(len(lengths)))


def test_a_version_before_wins() -> None:
    corpus = corpus_of()
    before = encoder_of(corpus, "seed=7")
    after = encoder_of(corpus, "model.start=smooth", companions=Companions(start=before))
    for side in SIDES:
        assert torch.equal(tables(after)[side], tables(before)[side])


@pytest.mark.parametrize("start", KINDS)
def test_it_is_published_read_back_and_upgraded(tmp_path: Path, start: str) -> None:
    recipe = tiny_recipe(f"model.start={start}")
    lineage = Lineage.create(tmp_path / "line", "line")
    publish(lineage, train(recipe, progress=False))
    assert Recipe.stored(lineage.manifest(0).recipe).model.start == start
    publish(lineage, upgrade(recipe, lineage, progress=False))
    assert lineage.newest == 1


def test_without_an_epoch_the_decomposition_is_the_model(tmp_path: Path) -> None:
    recipe = tiny_recipe(
        "model.start=svd",
        "training.epochs=0",
        "upgrade.fit=posthoc",
        "upgrade.solver=closed",
    )
    lineage = Lineage.create(tmp_path / "line", "line")
    artefact = train(recipe, progress=False)
    assert artefact.metrics["training"]["epochs"] == 0
    corpus = split_for(recipe, load_corpus(recipe), 0).training
    expected = svd_start(NormalisedMatrix.of(corpus), 4, 0)
    for side in SIDES:
        torch.testing.assert_close(artefact.block(side)[1], expected[side])
    publish(lineage, artefact)
    again = upgrade(recipe, lineage, progress=False)
    # The first four of version 1's five dims are those of version 0, up to signs.
    assert again.transform is not None
    mapped = again.transform(again.block("candidate")[1])
    torch.testing.assert_close(mapped, artefact.block("candidate")[1], rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.epochs=0"], r"with model\.start = 'random' they say nothing; set model\.start"),
        (["training.epochs=0", "model.start=svd"], r"trains none; set upgrade\.fit = 'posthoc'"),
        (
            ["training.epochs=0", "model.start=svd", "upgrade.start=previous"],
            r"leaves rows of new ids to be trained",
        ),
        (["training.epochs=-1"], r"training\.epochs"),
        (["model.kind=two_tower", "model.start=smooth"], r"model\.start is used with model\.kind"),
        (["model.hash_rows=9", "model.start=svd"], r"model\.start is used with a row for each id"),
        (["model.start=pca"], r"model\.start"),
    ],
)
def test_recipes_that_cannot_start_so(overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        tiny_recipe(*overrides)


def test_tables_in_files_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"tables are mapped from files.*set model\.start"):
        encoder_of(corpus_of(), "model.start=smooth", "training.tables=mapped")
