"""The rules by which pairs are held out, against loops over single interactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.columnar.pair_blocks import PairBlock, PairRule
from evergram.data.corpus import Corpus
from evergram.data.holdout import rules
from evergram.data.pair_hash import PairHash
from evergram.errors import DataError

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=40)


def marked(corpus: Corpus, rule: PairRule, size: int) -> list[bool]:
    """What a rule marks, in blocks of `size`."""
    (whole,) = corpus.blocks()
    marks: list[bool] = []
    for start in range(0, len(corpus), size):
        piece = slice(start, start + size)
        value = None if whole.value is None else whole.value[piece]
        marks += rule(PairBlock(start, whole.query[piece], whole.candidate[piece], value)).tolist()
    return marks


@settings(max_examples=60, deadline=None)
@given(PAIRS, st.data(), st.integers(1, 9))
def test_what_arrives_is_held_out_as_a_loop_says(
    pairs: list[tuple[int, int]], data: st.DataObject, size: int
) -> None:
    past = data.draw(st.integers(0, len(pairs)))
    future = data.draw(st.integers(past, len(pairs)))
    known = {query for query, _ in pairs[:past]}
    times = Counter(query for query, _ in pairs[past:future])
    last = {query: place for place, (query, _) in enumerate(pairs[:future]) if place >= past}
    expected = [
        past <= place < future and (query in known or (last[query] == place and times[query] > 1))
        for place, (query, _) in enumerate(pairs)
    ]
    corpus = Corpus.of(pairs)
    assert marked(corpus, rules.arriving(corpus, past, future, PairHash("salt")), size) == expected
    assert marked(corpus, rules.first(past), size) == [p < past for p in range(len(pairs))]
    assert all(marked(corpus, rules.everything(), size))


@settings(max_examples=20, deadline=None)
@given(PAIRS, st.integers(1, 9))
def test_a_hash_marks_a_pair_alike_wherever_it_stands(
    pairs: list[tuple[int, int]], size: int
) -> None:
    corpus, other = Corpus.of(pairs), Corpus.of(pairs[::-1])
    salted = PairHash("salt")
    makers: list[Callable[[Corpus], PairRule]] = [
        lambda c: rules.hashed_below(c, salted, 0.4),
        lambda c: rules.of_half_the_queries(c, salted),
    ]
    for make in makers:
        one = marked(corpus, make(corpus), size)
        assert one == marked(other, make(other), 1)[::-1]
        assert len(set(zip(pairs, one, strict=True))) == len(set(pairs))


def test_a_hash_marks_about_its_share() -> None:
    corpus = Corpus.of([(q, c) for q in range(100) for c in range(50)])
    marks = marked(corpus, rules.hashed_below(corpus, PairHash("s"), 0.2), 999)
    assert sum(marks) / 5000 == pytest.approx(0.2, abs=0.02)
    queries = torch.tensor(marked(corpus, rules.of_half_the_queries(corpus, PairHash("s")), 999))
    by_query = queries.view(100, 50)
    assert bool((by_query.all(1) == by_query.any(1)).all())
    assert 30 < int(by_query.any(1).sum()) < 70


def test_a_smallest_value_needs_values() -> None:
    rule = rules.of_at_least(3)
    assert marked(Corpus.of({"query": [1, 1], "candidate": [1, 2], "value": [2, 3]}), rule, 1) == [
        False,
        True,
    ]
    with pytest.raises(DataError, match="needs a column 'value'"):
        marked(Corpus.of([(1, 2)]), rule, 1)


def test_the_keys_of_other_rules_differ() -> None:
    corpus = Corpus.of([(1, 2), (2, 2)])
    made = [
        rules.everything(),
        rules.first(1),
        rules.arriving(corpus, 0, 1, PairHash("a")),
        rules.arriving(corpus, 0, 2, PairHash("a")),
        rules.of_at_least(1.0),
        *(rules.hashed_below(corpus, PairHash(salt), 0.5) for salt in "ab"),
        rules.hashed_below(corpus, PairHash("a"), 0.25),
        *(rules.of_half_the_queries(corpus, PairHash(salt)) for salt in "ab"),
    ]
    assert len({rule.key for rule in made}) == len(made)
