"""The split of a last training, and the pairs that no test list may hold."""

from __future__ import annotations

import random

import pyarrow as pa

from evergram.data.corpus import Corpus
from evergram.data.row_pairs import RowPairs
from evergram.data.split import (
    HeldOut,
    Split,
    given_split,
    known_pairs,
    random_split,
    time_split,
)

Named = set[tuple[str, str]]


def corpus(pairs: list[tuple[str, str]]) -> Corpus:
    query, candidate = zip(*pairs, strict=True)
    return Corpus.from_tables(
        pa.table({"query": query, "candidate": candidate, "time": range(len(pairs))})
    )


def drawn(count: int = 600) -> list[tuple[str, str]]:
    draw = random.Random(1)
    return [(f"q{draw.randrange(30)}", f"c{draw.randrange(90)}") for _ in range(count)]


def named(split: Split, pairs: RowPairs) -> Named:
    """By external ids; what training does not know is left out."""
    queries = split.training.queries.vocabulary.keys.to_pylist()
    candidates = split.training.candidates.vocabulary.keys.to_pylist()
    both = zip(pairs.query.tolist(), pairs.candidate.tolist(), strict=True)
    return {(queries[q], candidates[c]) for q, c in both if c >= 0}


def trained(split: Split) -> Named:
    return named(split, RowPairs(*(split.training.column(s) for s in ("query", "candidate"))))


def last(split: Split) -> Split:
    assert split.final is not None
    return split.final()


def test_a_last_training_takes_all_that_is_not_test() -> None:
    pairs = drawn()
    data = corpus(pairs)
    for split, seen in (
        (random_split(data, share=0.3, held_out=HeldOut("salt")), len(pairs)),
        (time_split(data, share=0.5, until=0.8, held_out=HeldOut("salt")), round(0.8 * len(pairs))),
    ):
        final = last(split)
        test = named(final, final.test)
        assert named(split, split.test) <= test
        assert trained(final) >= trained(split) | named(split, split.selection)
        assert not trained(final) & test
        # Nothing from after the interval.
        assert trained(final) <= set(pairs[:seen])
        assert len(final.training) > len(split.training)
        assert not len(final.selection)
        # What selection alone knew can be listed now: no more misses than before.
        assert (final.test.candidate < 0).sum() <= (split.test.candidate < 0).sum()


def test_where_the_same_pairs_choose_and_are_reported_nothing_can_be_added() -> None:
    data = corpus(drawn())
    split = random_split(data, share=0.3, held_out=HeldOut("salt", selection="paper"))
    assert split.final is None
    known = known_pairs(split)
    assert len(known) == len(split.training)


def test_a_published_test_file_is_tested_and_nothing_else() -> None:
    pairs = drawn()
    outside = [(f"q{i % 30}", f"c{i % 90}") for i in range(300)]
    new = sorted(set(outside) - set(pairs))
    # Pairs of the training part that the test file repeats test nothing, whoever saw them.
    query, candidate = zip(*(new + pairs[:200] + [("nobody", "c1"), ("q1", "new")]), strict=True)
    split = given_split(
        corpus(pairs),
        pa.table({"query": query, "candidate": candidate}),
        share=0.4,
        held_out=HeldOut("salt"),
    )
    final = last(split)
    assert named(split, split.test) <= named(final, final.test) == set(new)
    assert trained(final) == set(pairs)
    assert len(final.training) == len(pairs)
    assert (int((final.test.candidate < 0).sum()), final.unknown_queries) == (1, 1)


def test_no_test_list_holds_what_chose_the_epoch() -> None:
    pairs = drawn()
    new = [("q1", "c1"), ("q2", "c2"), ("q3", "c3")]
    test = pa.table({"query": [q for q, _ in new], "candidate": [c for _, c in new]})
    split = given_split(corpus(pairs), test, share=0.4, held_out=HeldOut("salt"))
    known = named(split, known_pairs(split))
    assert known == trained(split) | named(split, split.selection)
    assert named(last(split), known_pairs(last(split))) == set(pairs)
