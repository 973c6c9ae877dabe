"""Rank correlation and analogies, against other ways to compute them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reproduction.gramian.words.judgements import Judgements
from reproduction.gramian.words.scores import analogies, cosines, judged, similarity, spearman
from scipy.stats import spearmanr

from reproduction.gramian.words import scores as module

NUMBERS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=20)
ROWS = {word: row for row, word in enumerate("abcdefgh")}


@given(NUMBERS)
def test_the_correlation_is_scipys_with_ties(pairs: list[tuple[int, int]]) -> None:
    one, two = zip(*pairs, strict=True)
    if len(set(one)) == 1 or len(set(two)) == 1:
        assert spearman(one, two) == 0
    else:
        assert spearman(one, two) == pytest.approx(spearmanr(one, two).statistic)


def test_similarity_is_over_pairs_in_the_vocabulary() -> None:
    vectors = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0], [-3.0, 0.0]])
    pairs = [("a", "b", 9.0), ("a", "c", 5.0), ("a", "d", 1.0), ("a", "zebra", 10.0)]
    rows = {word: row for row, word in enumerate("abcd")}
    assert similarity(cosines(vectors), rows, pairs) == {"rho": 1.0, "pairs": 3, "of": 4}
    assert similarity(cosines(-vectors), rows, pairs)["rho"] == 1.0
    turned = [(a, b, -score) for a, b, score in pairs]
    assert similarity(cosines(vectors), rows, turned)["rho"] == -1.0
    assert similarity(cosines(vectors), {}, pairs) == {"rho": 0.0, "pairs": 0, "of": 4}


def slow_accuracy(vectors: np.ndarray, questions: list[tuple[str, ...]]) -> float:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    right = 0
    for a, b, c, d in questions:
        best, answer = -np.inf, ""
        for word, row in ROWS.items():
            if word not in (a, b, c):
                target = unit[ROWS[b]] - unit[ROWS[a]] + unit[ROWS[c]]
                cosine = float(target @ unit[row])
                if cosine > best:
                    best, answer = cosine, word
        right += answer == d
    return right / len(questions)


@pytest.mark.parametrize("seed", range(5))
def test_analogies_are_answered_as_by_a_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(seed)
    vectors = draw.standard_normal((8, 3))
    questions = [tuple(draw.choice(list(ROWS), 4, replace=False)) for _ in range(200)]
    expected = slow_accuracy(vectors, questions)
    assert 0.05 < expected < 0.8
    monkeypatch.setattr(module, "BLOCK", 7)
    made = analogies(torch.from_numpy(vectors), ROWS, questions)
    assert made == {"accuracy": pytest.approx(expected), "questions": 200, "of": 200}


def test_vectors_that_are_all_alike_answer_nothing() -> None:
    questions = [("a", "b", "c", "d"), ("a", "b", "c", "zebra")]
    made = analogies(torch.ones(8, 3), ROWS, questions)
    assert made == {"accuracy": 0.0, "questions": 1, "of": 2}


def test_a_question_is_not_answered_by_its_own_words() -> None:
    # d is what is asked for; b is nearer, and left out.
    vectors = torch.zeros(8, 3)
    vectors[:4] = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0.99, 0, 0.1], [0, 0.9, 0.4]])
    assert analogies(vectors, ROWS, [("a", "b", "c", "d")])["accuracy"] == 1
    assert analogies(vectors, ROWS, [("a", "b", "c", "b")])["accuracy"] == 0


def test_the_accuracy_over_all_weighs_kinds_by_their_questions() -> None:
    vectors = torch.zeros(8, 3)
    vectors[:4] = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0.99, 0, 0.1], [0, 0.9, 0.4]])
    right, wrong = ("a", "b", "c", "d"), ("a", "b", "c", "e")
    judgements = Judgements(
        {"one": (("a", "c", 2.0), ("a", "b", 1.0)), "two": (("a", "c", 1.0), ("a", "b", 2.0))},
        {"semantic": (right,), "syntactic": (wrong, wrong, wrong)},
    )
    made = judged(vectors, ROWS, judgements)
    assert made["accuracy"] == 0.25
    assert made["analogies"]["semantic"]["accuracy"] == 1
    assert [one["rho"] for one in made["similarity"].values()] == [1, -1]
    assert made["mean_rho"] == 0
