"""What is counted in a corpus, against counts in plain Python."""

from __future__ import annotations

import random

import pytest

from evergram.data.corpus import Corpus
from evergram.data.rolling_window import RollingWindow
from evergram.data.split import HeldOut, Split, random_split, window_split
from evergram.training.first_recipe.survey import Survey


def rows_of(number: int) -> list[tuple[int, int, float, int]]:
    """Pairs with a weight and a time; new ids appear as time goes on."""
    draw = random.Random(0)
    return [
        (draw.randrange(5 + i // 5), draw.randrange(3 + i // 10), 1.0, 1_700_000_000 + 60 * i)
        for i in range(number)
    ]


def splits(corpus: Corpus) -> list[Split]:
    held_out = HeldOut("s")
    last = RollingWindow.parse("25 %")
    return [
        window_split(corpus, last=last, held_out=held_out),
        random_split(corpus, share=0.4, held_out=held_out),
    ]


@pytest.mark.parametrize("which", [0, 1])
def test_a_survey_has_what_plain_counting_has(which: int) -> None:
    rows = rows_of(400)
    if which == 1:  # pairs whose query is unknown are counted as often as they occur
        rows = list({row[:2]: row for row in rows}.values())
    corpus = Corpus.of(rows)
    split = splits(corpus)[which]
    survey = Survey.of(corpus, split)
    pairs = {row[:2] for row in rows}
    sides = [{pair[side] for pair in pairs} for side in (0, 1)]
    assert (survey.rows, survey.queries, survey.candidates) == (len(rows), *map(len, sides))
    assert survey.repeats == len(rows) - len(pairs)
    assert survey.density == pytest.approx(len(pairs) / (len(sides[0]) * len(sides[1])))
    assert (survey.first_time, survey.last_time) == (
        min(r[3] for r in rows),
        max(r[3] for r in rows),
    )
    trained = trained_pairs(split)
    known = [{pair[side] for pair in trained} for side in (0, 1)]
    held = pairs - trained
    assert survey.held_out == len(held)
    assert survey.unknown_queries == sum(q not in known[0] for q, _ in held)
    expected = sum(q in known[0] and c not in known[1] for q, c in held)
    assert survey.unknown_candidates == expected > 0
    cold = survey.unknown_queries + survey.unknown_candidates
    assert survey.as_json()["cold_share"] == survey.cold_share == cold / survey.held_out


def trained_pairs(split: Split) -> set[tuple[int, int]]:
    training = split.training
    query, candidate = (
        side.vocabulary.keys.to_pylist() for side in (training.queries, training.candidates)
    )
    columns = (training.column(name).tolist() for name in ("query", "candidate"))
    return {(query[q], candidate[c]) for q, c in zip(*columns, strict=True)}


def test_sentences_name_dates_and_what_is_not_there() -> None:
    corpus = Corpus.of(rows_of(100))
    split = window_split(corpus, last=RollingWindow.parse("25 %"), held_out=HeldOut("s"))
    text = " ".join(Survey.of(corpus, split).sentences())
    assert "Times are from 2023-11-14 22:13 to 2023-11-14 23:52." in text
    assert "Values are" not in text
    plain = Corpus.of(
        {"query": [0, 0, 1, 1], "candidate": [5, 6, 5, 6], "value": [1.0, 2.5, 4.0, 3.0]}
    )
    counted = Survey.of(plain, split)
    assert "There are no times. Values are from 1 to 4." in " ".join(counted.sentences())
