"""Word vectors: text, counts, pairs, PPMI, judgements, scores, programs and claims."""

from __future__ import annotations

import tomllib
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reproduction.gramian import methods
from reproduction.gramian.words import scores
from reproduction.gramian.words.counts import Counts, count_words
from reproduction.gramian.words.made_up import made_up_paragraphs
from reproduction.gramian.words.pairs import corpus_of
from reproduction.gramian.words.ppmi import ppmi, svd_vectors
from reproduction.gramian.words.programs import Floor, Objective, Program, Text
from reproduction.gramian.words.scores import analogies, spearman

from evergram import Corpus, Recipe, split_for
from evergram.errors import DataError
from evergram.training import Progress, RunContext, fit_encoder

PARAGRAPHS = st.lists(st.lists(st.sampled_from("abcdefg"), max_size=12), max_size=6)


def slow_counts(
    paragraphs: list[list[str]], vocabulary: int, window: int
) -> tuple[list[str], dict[tuple[str, str], float]]:
    """The vocabulary, and the count of each pair, window by window."""
    text = [word for paragraph in paragraphs for word in paragraph]
    frequency = Counter(text)
    words = sorted(frequency, key=lambda w: (-frequency[w], text.index(w)))[:vocabulary]
    pairs: dict[tuple[str, str], float] = defaultdict(float)
    for paragraph in paragraphs:
        for i, word in enumerate(paragraph):
            # word2vec's window of every size, each as likely as the others.
            for size in range(1, window + 1):
                around = paragraph[max(0, i - size) : i] + paragraph[i + 1 : i + 1 + size]
                for context in around:
                    if word in words and context in words:
                        pairs[word, context] += 1 / window
    return words, pairs


def as_dict(counts: Counts) -> dict[tuple[str, str], float]:
    keys = zip(counts.query, counts.candidate, strict=True)
    pairs = [(counts.words[a], counts.words[b]) for a, b in keys]
    assert len(set(pairs)) == len(pairs)
    return dict(zip(pairs, counts.count.tolist(), strict=True))


@given(PARAGRAPHS, st.integers(1, 8), st.integers(1, 5))
def test_counts_are_those_of_all_windows(
    paragraphs: list[list[str]], vocabulary: int, window: int
) -> None:
    words, pairs = slow_counts(paragraphs, vocabulary, window)
    if not pairs:
        with pytest.raises(DataError, match=r"no two words|no word"):
            count_words(paragraphs, vocabulary=vocabulary, window=window)
        return
    counts = count_words(paragraphs, vocabulary=vocabulary, window=window)
    assert list(counts.words) == words
    assert as_dict(counts) == pytest.approx(pairs)
    text = [word for paragraph in paragraphs for word in paragraph]
    assert counts.tokens == len(text)
    assert counts.frequency.tolist() == [text.count(word) for word in words]


LETTERS = count_words([list("abacabad"), list("dabbaca")], vocabulary=4, window=3)


def repeats(corpus: Corpus) -> np.ndarray:
    """How often each pair is in a corpus, [V, V]."""
    made = np.zeros((4, 4))
    keys = [side.vocabulary.keys.to_pylist() for side in (corpus.queries, corpus.candidates)]
    pairs = zip(corpus.column("query").tolist(), corpus.column("candidate").tolist(), strict=True)
    for query, candidate in pairs:
        made[keys[0][query], keys[1][candidate]] += 1
    return made


def test_a_pair_is_repeated_in_proportion_to_its_count() -> None:
    expected = np.zeros((4, 4))
    expected[LETTERS.query, LETTERS.candidate] = LETTERS.count / LETTERS.count.sum() * 100
    made = [repeats(corpus_of(LETTERS, rows=100, seed=seed)) for seed in range(100)]
    for one in made:
        assert np.abs(one - expected).max() < 1
    # The mean of 100 such roundings: a standard error of at most 0.5 / 10.
    assert np.abs(np.mean(made, axis=0) - expected).max() < 0.2


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


@pytest.mark.parametrize(("smoothing", "shift"), [(1.0, 1.0), (0.75, 1.5)])
def test_ppmi_is_that_of_the_dense_table(smoothing: float, shift: float) -> None:
    made = ppmi(COUNTS, smoothing=smoothing, shift=shift)
    expected = dense_ppmi(COUNTS, smoothing, shift)
    assert made.is_sparse
    assert 0 < (expected > 0).mean() < 1
    assert np.abs(made.to_dense().numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_vectors_are_singular_vectors_scaled_by_singular_values(power: float) -> None:
    matrix = ppmi(COUNTS, smoothing=1.0, shift=1.0)
    left, singular, _ = np.linalg.svd(dense_ppmi(COUNTS, 1.0, 1.0))
    before = torch.random.get_rng_state()
    vectors = svd_vectors(matrix, dim=6, power=power, seed=0).double().numpy()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert vectors.shape == (40, 6)
    expected = left[:, :6] * singular[:6] ** power
    # Singular vectors are determined up to sign (and rotation where values are equal).
    assert np.abs(vectors @ vectors.T - expected @ expected.T).max() < 1e-3


NUMBERS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=20)


@given(NUMBERS)
def test_the_correlation_is_scipys_with_ties(pairs: list[tuple[int, int]]) -> None:
    from scipy.stats import spearmanr

    one, two = zip(*pairs, strict=True)
    if len(set(one)) == 1 or len(set(two)) == 1:
        assert spearman(one, two) == 0
    else:
        assert spearman(one, two) == pytest.approx(spearmanr(one, two).statistic)


ROWS = {word: row for row, word in enumerate("abcdefgh")}


def slow_accuracy(vectors: np.ndarray, questions: list[tuple[str, ...]]) -> float:
    """3CosAdd word by word; a question's own words are no answer."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    right = 0
    for a, b, c, d in questions:
        cosines = unit @ (unit[ROWS[b]] - unit[ROWS[a]] + unit[ROWS[c]])
        others = [(cosines[row], word) for word, row in ROWS.items() if word not in (a, b, c)]
        right += max(others)[1] == d
    return right / len(questions)


def test_analogies_are_answered_as_by_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((8, 3))
    questions: list[Any] = [tuple(draw.choice(list(ROWS), 4, replace=False)) for _ in range(200)]
    expected = slow_accuracy(vectors, questions)
    assert 0.05 < expected < 0.8
    monkeypatch.setattr(scores, "BLOCK", 7)
    made = analogies(torch.from_numpy(vectors), ROWS, questions)
    assert made == {"accuracy": pytest.approx(expected), "questions": 200, "of": 200}


TEXT = Text("", vocabulary=200, window=8, threshold=0.0)
QUIET = Progress(quiet=True)
PENALTY = {"penalty": 1.0, "query_measure": 1.0, "candidate_measure": 1.0, "l2": 0.0}


def recipe(penalty: bool = True, **changed: dict[str, Any]) -> Recipe:
    values = tomllib.loads((methods.RECIPES / "words-tiny.toml").read_text())
    if penalty:
        values |= {"task": PENALTY, "gramian": methods.sogram(0.1)}
        values["training"]["precondition"] = 0.0
    else:
        values["task"]["penalty"] = 0.0
    for table, keys in changed.items():
        values[table] = keys if "kind" in keys else {**values[table], **keys}
    return Recipe.of(values)


@pytest.mark.long
def test_the_objective_learns_the_planted_likeness_and_analogies() -> None:
    def series(program: Program, penalty: bool = True) -> dict[str, Any]:
        return program(recipe(penalty), QUIET, "cpu")

    objective = Objective(TEXT, rows=20_000)
    made, alone = series(objective), series(objective, penalty=False)
    for name, least in (("mean_rho", 0.7), ("accuracy", 0.9)):
        assert made["reported"][name] > least
        last = made["curve"][name][made["best_epoch"] - 1]
        assert last == pytest.approx(made["reported"][name])
    assert alone["reported"]["accuracy"] < made["reported"]["accuracy"] - 0.3
    assert made["curve"]["epoch"] == [1, 2]
    assert made["words"] == {"vocabulary": 128, "tokens": 27_000}
    floor = series(Floor(TEXT, 16))
    assert abs(floor["reported"]["mean_rho"]) < 0.2
    assert floor["reported"]["accuracy"] < 0.2
    assert abs(floor["frequency"]["MEN"]["rho"]) < 0.2


@pytest.mark.long
def test_the_best_scores_are_a_logistic_function_of_mutual_information() -> None:
    """docs/method.md, "The best score of a pair": with D = V the rank sets no limit."""
    draw = np.random.default_rng(0)
    chances = 0.6 ** np.arange(8)
    paragraphs = [
        list(draw.choice(list("abcdefgh"), 6, p=chances / chances.sum())) for _ in "ab" * 20
    ]
    counts = count_words(paragraphs, vocabulary=8, window=2)
    corpus = corpus_of(counts, rows=4000, seed=0)
    values = recipe(
        model={"dim": 8},
        gramian={"kind": "exact"},
        training={"epochs": 60, "batch_size": 256, "table_rate": 0.3, "evaluate_every": 60},
        split={"share": 0.1},
    )
    split = split_for(values, corpus, 0)
    trained = fit_encoder(values, split, 0, RunContext(torch.device("cpu"), warns=False))
    scores = trained.query @ trained.candidate.T
    pairs = np.zeros((8, 8))
    np.add.at(pairs, (split.training.column("query"), split.training.column("candidate")), 1)
    joint = pairs / pairs.sum()
    ratio = joint / np.outer(joint.sum(1), joint.sum(0))
    expected = ratio / (ratio + 2 * PENALTY["penalty"])
    assert np.ptp(expected) > 0.3
    assert np.abs(scores.numpy() - expected).max() < 0.03
