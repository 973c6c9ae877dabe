"""PPMI and its singular vectors, against dense matrices in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reproduction.gramian.words.counts import Counts, count_words
from reproduction.gramian.words.made_up import made_up_paragraphs
from reproduction.gramian.words.ppmi import ppmi, svd_vectors

COUNTS = count_words(made_up_paragraphs(), vocabulary=40, window=5)


def dense_ppmi(counts: Counts, smoothing: float, shift: float) -> np.ndarray:
    table = np.zeros((len(counts.words),) * 2)
    table[counts.query, counts.candidate] = counts.count
    joint = table / table.sum()
    context = table.sum(0) ** smoothing
    context /= context.sum()
    with np.errstate(divide="ignore"):
        information = np.log(joint / np.outer(joint.sum(1), context)) - np.log(shift)
    return np.where(information > 0, information, 0.0)


@pytest.mark.parametrize(("smoothing", "shift"), [(1.0, 1.0), (0.75, 1.0), (1.0, 1.5)])
def test_ppmi_is_that_of_the_dense_table(smoothing: float, shift: float) -> None:
    made = ppmi(COUNTS, smoothing=smoothing, shift=shift)
    expected = dense_ppmi(COUNTS, smoothing, shift)
    assert made.is_sparse
    assert 0 < (expected > 0).mean() < 1
    assert np.abs(made.to_dense().numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_vectors_are_singular_vectors_scaled_by_singular_values(power: float) -> None:
    matrix = ppmi(COUNTS, smoothing=1.0, shift=1.0)
    left, singular, _ = np.linalg.svd(dense_ppmi(COUNTS, 1.0, 1.0))
    vectors = svd_vectors(matrix, dim=6, power=power, seed=0).double().numpy()
    assert vectors.shape == (40, 6)
    expected = left[:, :6] * singular[:6] ** power
    # Singular vectors are determined up to sign (and rotation where values are equal).
    assert np.abs(vectors @ vectors.T - expected @ expected.T).max() < 1e-3


def test_the_seed_leaves_the_global_generator_alone() -> None:
    matrix = ppmi(COUNTS, smoothing=1.0, shift=1.0)
    before = torch.random.get_rng_state()
    svd_vectors(matrix, dim=4, power=0.5, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
