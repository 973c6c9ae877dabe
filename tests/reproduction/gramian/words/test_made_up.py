"""The made-up text and its judgements."""

from __future__ import annotations

from reproduction.gramian.words.made_up import (
    PARAGRAPHS,
    ROLES,
    TOPICS,
    made_up_judgements,
    made_up_paragraphs,
    word,
)
from reproduction.gramian.words.text import words_of


def test_a_paragraph_has_one_word_among_those_of_its_topic_and_its_role() -> None:
    paragraphs = list(made_up_paragraphs())
    assert len(paragraphs) == PARAGRAPHS
    for paragraph in paragraphs[:50]:
        (one,) = [w for w in paragraph if w[0] == "w"]
        assert {w[1] for w in paragraph if w[0] == "t"} == {one[1]}
        assert {w[1] for w in paragraph if w[0] == "r"} == {one[2]}
        assert words_of(" ".join(paragraph)) == paragraph
    assert list(made_up_paragraphs()) == paragraphs
    assert list(made_up_paragraphs(seed=1)) != paragraphs


def test_the_judgements_are_of_words_of_the_text() -> None:
    text = {w for paragraph in made_up_paragraphs() for w in paragraph}
    judgements = made_up_judgements()
    for pairs in judgements.pairs.values():
        assert len(pairs) == TOPICS * ROLES * (TOPICS * ROLES - 1) / 2
        assert {w for a, b, _ in pairs for w in (a, b)} <= text
        assert {score for *_, score in pairs} == {9.0, 5.0, 1.0}
    for questions in judgements.questions.values():
        for a, b, c, d in questions:
            assert (a[1], c[1]) == (b[1], d[1])
            assert (a[2], b[2]) == (c[2], d[2])
    assert (word(0, 1), word(0, 0), 9.0) not in judgements.pairs["MEN"]
    assert (word(0, 0), word(0, 1), 9.0) in judgements.pairs["MEN"]
