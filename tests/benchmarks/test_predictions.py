"""Predicting a migration without judgements: what a prediction may see, and when it is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.predictions import (
    KNOWN_ITEMS,
    OTHERS,
    WORDS,
    Cell,
    known_items,
    predicted,
    rank_correlation,
    table,
)
from benchmarks.verdicts import CHOICES

KNOWN = ("known",)


def cells(corpora: int, noise: float = 0.0) -> list[Cell]:
    """Return cells whose gains are half of what known items say, and noise."""
    draw = np.random.default_rng(0)
    made = []
    for corpus in range(corpora):
        for pair in range(6):
            known = {way: float(draw.uniform()) for way in CHOICES}
            ndcg = {
                way: 0.5 + (value - known["reindex"]) / 2 + noise * float(draw.normal())
                for way, value in known.items()
            }
            made.append(Cell(f"c{corpus}", f"p{pair}", ndcg, known, dict.fromkeys(CHOICES, 0.5)))
    return made


def test_known_items_are_words_in_a_row_of_the_text_that_answers_them() -> None:
    texts = {f"t{i}": " ".join(f"w{i}-{j}" for j in range(5 + i % 40)) for i in range(900)}
    words, answers = known_items(texts)
    assert len(words) == KNOWN_ITEMS
    for name, asked in words.items():
        (text,) = answers[name]
        assert asked in texts[text]
        assert len(asked.split()) == WORDS
        assert len(texts[text].split()) >= 2 * WORDS


def test_a_line_is_found_and_its_way_has_no_regret() -> None:
    results = predicted(cells(5), KNOWN)
    assert sum(result.regret for result in results) == pytest.approx(0, abs=1e-9)
    assert rank_correlation(results) == pytest.approx(1)
    for result in results:
        for way in OTHERS:
            assert result.gains[way] == pytest.approx(result.cell.gain(way))


def test_a_corpus_is_predicted_without_its_own_judgements() -> None:
    before = cells(4, noise=0.1)
    upside_down = [
        replace(cell, ndcg={way: 1 - value for way, value in cell.ndcg.items()})
        if cell.corpus == "c2"
        else cell
        for cell in before
    ]
    first, second = (
        [(r.gains, r.widths) for r in predicted(given, KNOWN) if r.cell.corpus == "c2"]
        for given in (before, upside_down)
    )
    assert first == second


def test_intervals_cover_what_they_promise_over_many_corpora() -> None:
    results = predicted(cells(60, noise=0.1), KNOWN)
    covered = [result.covers(way) for result in results for way in OTHERS]
    assert 0.87 <= sum(covered) / len(covered) <= 0.93


def test_intervals_without_an_end_pass_no_bar() -> None:
    few = [cell for cell in cells(3) if cell.pair in ("p0", "p1")]
    assert all(result.widths["stay"] == float("inf") for result in predicted(few, KNOWN))
    assert "| yes |" not in table(few)
    assert "| yes |" in table(cells(5))
