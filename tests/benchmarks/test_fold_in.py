"""The protocol of new users: what is hidden stays hidden; EASE is its closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.fold_in import Users, ease, elsa, most_popular
from scipy.sparse import csr_matrix


def drawn(users: int, candidates: int, seed: int) -> Any:
    draw = np.random.default_rng(seed)
    pairs = (draw.random((users, candidates)) < 0.3).astype(np.float32)
    pairs[:, 0] = 1  # no row is empty
    return csr_matrix(pairs)


@pytest.mark.parametrize("seed", range(5))
def test_hidden_pairs_of_new_users_are_in_no_training_pair(seed: int) -> None:
    pairs, new = drawn(30, 12, seed), np.array([3, 7, 20, 29])
    users = Users.of(pairs, new, seed)
    dense = pairs.toarray()
    others = np.delete(dense, new, axis=0)
    trained = others.any(axis=0)
    np.testing.assert_array_equal(users.training.toarray(), others[:, trained])
    assert not users.known.multiply(users.hidden).nnz
    both = (users.known + users.hidden).toarray()
    rows = [row for row in dense[new][:, trained] if any((row == b).all() for b in both)]
    assert len(both) == len(rows)
    assert users.known.getnnz(1).min() > 0
    assert users.hidden.getnnz(1).min() > 0


@pytest.mark.parametrize("l2", [0.5, 30.0, 1000.0])
def test_ease_scores_unmet_candidates_as_its_item_item_matrix(l2: float) -> None:
    """Oracle: B = I − P diag(P)⁻¹ with P = (XᵀX + l2 I)⁻¹, equation (8) of Steck 2019."""
    pairs, known = drawn(40, 15, 0), drawn(9, 15, 1)
    inverse = np.linalg.inv(pairs.T.toarray() @ pairs.toarray() + l2 * np.eye(15))
    weights = np.eye(15) - inverse / np.diag(inverse)
    expected = known.toarray() @ weights
    model = ease(pairs, {"l2": l2}, factors=0)
    assert model.fold is not None
    scores = (model.fold(known) @ model.candidate.T).numpy()
    unmet = known.toarray() == 0
    np.testing.assert_allclose(scores[unmet], expected[unmet], rtol=2e-4, atol=2e-6)


def test_elsa_with_as_many_dims_as_groups_ranks_the_own_group_first() -> None:
    groups = np.kron(np.eye(4), np.ones((10, 6)))
    pairs = csr_matrix(groups * (np.random.default_rng(0).random(groups.shape) < 0.7))
    model = elsa(pairs.astype(np.float32), {"rate": 0.05, "epochs": 60, "batch": 8}, factors=4)
    known = csr_matrix(np.kron(np.eye(4), [[1, 1, 0, 0, 0, 0]]).astype(np.float32))
    assert model.fold is not None
    scores = (model.fold(known) @ model.candidate.T).view(4, 4, 6)
    assert (scores.mean(2).argmax(1) == torch.arange(4)).all()


def test_a_perfect_and_a_useless_ranking_are_judged_as_such() -> None:
    users = Users.of(drawn(60, 150, 0), np.arange(10), 0)
    hidden = torch.from_numpy(users.hidden.toarray())
    size = hidden.shape[1]
    found = users.judge(hidden * torch.linspace(1, 2, size), torch.eye(size))  # no ties
    assert found["ndcg@100"] == pytest.approx(1)
    popular = users.folded(most_popular(users.training, {}, factors=0))
    assert 0 < popular["recall@20"] < popular["recall@50"] < 1
