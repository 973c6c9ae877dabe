"""Split a corpus into training pairs and held-out pairs of a version.

Ids, times and the lineage's salt decide which pairs are held out, never a seed or the number of
rows: `PairHash` hashes ids, and `TrainedPairs` is a set of such hashes. A pair that an earlier
version was trained on is not tested, because alignment carries over what that version learned.

Source: docs/method.md, "Held out stays held out"; [BC] §4 and App. A.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergram.data.corpus import Corpus, PairBlock, PairRule, Vocabulary, plain, to_tensor
from evergram.data.rolling_window import RollingWindow
from evergram.errors import DataError
from evergram.ids import refuse_other_form
from evergram.mapped_tensors import zeros_beside

Hashes = NDArray[np.uint64]
# Convert this many ids to Python strings at once.
IDS_AT_ONCE = 1 << 16
# Compare this many hashes of pairs at once.
MARKS_AT_ONCE = 1 << 22
# Odd constants of splitmix64's finaliser (Steele, Lea & Flood 2014).
_STEP, _FIRST, _SECOND = (
    np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


@dataclass(frozen=True)
class PairHash:
    """Uniform 64-bit hashes of ids and pairs, the same on every machine; they depend on the ids and
    the salt only. Ids are hashed as text: 5 and "5" are the same id, "05" is another."""

    salt: str

    def of_ids(
        self, ids: pa.Array | pa.ChunkedArray, side: str, out: Hashes | None = None
    ) -> Hashes:
        """Return a hash for each id, uint64 [n], in `out` if given; the same id hashes differently
        on each side."""
        key = hashlib.blake2b(f"{side}\0{self.salt}".encode()).digest()
        ids = plain(ids)
        hashes = np.empty(len(ids), dtype=np.uint64) if out is None else out
        for start in range(0, len(ids), IDS_AT_ONCE):
            text = ids.slice(start, IDS_AT_ONCE).cast(pa.string()).to_pylist()
            digests = b"".join(
                hashlib.blake2b(str(i).encode(), digest_size=8, key=key).digest() for i in text
            )
            hashes[start : start + len(text)] = np.frombuffer(digests, dtype="<u8")
        return hashes

    def of_pairs(
        self, queries: pa.Array | pa.ChunkedArray, candidates: pa.Array | pa.ChunkedArray
    ) -> Hashes:
        """Return a hash for each pair of external ids, uint64 [n]."""
        hashes = []
        for side, ids in (("query", queries), ("candidate", candidates)):
            distinct = Vocabulary.by_first_appearance(ids)
            hashes.append(self.of_ids(distinct.keys, side)[distinct.rows(plain(ids)).numpy()])
        return _combined(*hashes)

    def of_blocks(self, corpus: Corpus) -> Callable[[PairBlock], Hashes]:
        """Return a function from a block of the corpus to the hashes of its pairs."""
        query, candidate = (self.of_side(corpus, side) for side in ("query", "candidate"))
        return lambda block: _combined(
            query[block.query.numpy()], candidate[block.candidate.numpy()]
        )

    def of_side(self, corpus: Corpus, side: str) -> Hashes:
        """Return a hash for each id of a side of a corpus, uint64 [N]."""
        counts = corpus.counts(side)
        out = zeros_beside(counts, len(counts), dtype=torch.int64).numpy().view(np.uint64)
        return self.of_ids(corpus.sides[side].vocabulary.keys, side, out)


def below(hashes: Hashes, share: float) -> NDArray[np.bool_]:
    return hashes.astype(np.float64) < share * 2.0**64


@dataclass(frozen=True)
class TrainedPairs:
    """A set of trained pairs, as the low 32 bits of their hashes: `marks`, uint32, ascending,
    distinct. There are no false negatives; a pair is a false positive with probability
    len(self) / 2³², so this share of the test pairs is left out at random."""

    marks: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))

    @classmethod
    def of(cls, hashes: Hashes) -> TrainedPairs:
        return cls(_distinct(_mark(hashes)))

    @classmethod
    def of_corpus(cls, corpus: Corpus, salt: str) -> TrainedPairs:
        """Return the set of a corpus's pairs, hashed with this salt, in 4 to 9 bytes per pair."""
        hashes, counts = PairHash(salt).of_blocks(corpus), corpus.counts("query")
        marks = zeros_beside(counts, len(corpus), dtype=torch.int32).numpy().view(np.uint32)
        for block in corpus.blocks():
            marks[block.start : block.start + len(block)] = _mark(hashes(block))
        return cls(_distinct(marks))

    def __len__(self) -> int:
        return len(self.marks)

    def has(self, hashes: Hashes) -> NDArray[np.bool_]:
        if not len(self.marks):
            return np.zeros(len(hashes), dtype=np.bool_)
        marks = _mark(hashes)
        positions = np.minimum(np.searchsorted(self.marks, marks), len(self.marks) - 1)
        trained: NDArray[np.bool_] = self.marks[positions] == marks
        return trained

    def union(self, others: Iterable[TrainedPairs]) -> TrainedPairs:
        return TrainedPairs(_distinct(np.concatenate([self.marks, *(o.marks for o in others)])))

    def without(self, other: TrainedPairs) -> TrainedPairs:
        if not len(other):
            return self
        return TrainedPairs(np.setdiff1d(self.marks, other.marks, assume_unique=True))


def _mark(hashes: Hashes) -> NDArray[np.uint32]:
    """Return the low 32 bits; `below` selects by the high bits, so the low ones stay uniform."""
    return (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _distinct(marks: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Sort marks in place and return the distinct ones, 100 times as fast as `np.unique`; they
    overwrite the first of `marks`."""
    marks.sort()
    size = min(1, len(marks))
    for start in range(1, len(marks), MARKS_AT_ONCE):
        block = marks[start - 1 : start + MARKS_AT_ONCE]
        distinct = block[1:][block[1:] != block[:-1]]
        marks[size : size + len(distinct)] = distinct
        size += len(distinct)
    return marks[:size]


def _combined(query: Hashes, candidate: Hashes) -> Hashes:
    with np.errstate(over="ignore"):  # arithmetic modulo 2⁶⁴
        x = query + _STEP * candidate
        x = (x ^ (x >> np.uint64(30))) * _FIRST
        x = (x ^ (x >> np.uint64(27))) * _SECOND
        mixed: Hashes = x ^ (x >> np.uint64(31))
    return mixed


# External ids of queries and of candidates, [m] each.
Ids: TypeAlias = tuple[pa.Array, pa.Array]


def of_at_least(minimum: float) -> PairRule:

    def marks(block: PairBlock) -> Tensor:
        if block.value is None:
            raise DataError("minimum_value needs a column 'value', but the data has none.")
        return block.value >= minimum

    return PairRule(f"value({minimum!r})", marks)


def hashed_below(corpus: Corpus, pair_hash: PairHash, share: float) -> PairRule:
    """Return the rule that selects the `share` of pairs with the lowest hashes."""
    hashes = pair_hash.of_blocks(corpus)
    key = f"hash({_digest(pair_hash.salt)},{share!r})"
    return PairRule(key, lambda block: torch.from_numpy(below(hashes(block), share)))


def half_of_queries(corpus: Corpus, pair_hash: PairHash) -> PairRule:
    """Return the rule that selects all pairs of half of the queries, by a hash of their ids."""
    hashes = pair_hash.of_side(corpus, "query")
    key = f"half({_digest(pair_hash.salt)})"
    return PairRule(key, lambda b: torch.from_numpy(below(hashes[b.query.numpy()], 0.5)))


def first(number: int) -> PairRule:
    return PairRule(f"first({number})", lambda block: block.positions < number)


def arriving(corpus: Corpus, past: int, future: int, pair_hash: PairHash) -> PairRule:
    """Return the rule that holds out interactions with positions `past` to `future`: all of a query
    that has earlier interactions; of a new query only the last one, if it has several (the largest
    hash decides between equal times)."""
    size = len(corpus.queries)
    is_old = torch.zeros(size, dtype=torch.bool)
    # For each query, the last time and the largest hash at that time.
    last = torch.full((size,), -math.inf, dtype=torch.float64)
    greatest = torch.full((size,), -math.inf, dtype=torch.float64)
    count = torch.zeros(size, dtype=torch.int64)
    hashes = pair_hash.of_blocks(corpus)

    def times(block: PairBlock) -> Tensor:
        if not corpus.has_times:
            return block.positions.double()
        return to_tensor(corpus.interactions["time"].slice(block.start, len(block))).double()

    def ranks(block: PairBlock) -> Tensor:
        return torch.from_numpy(hashes(block).astype(np.float64))

    for block in corpus.blocks():
        inside = _slice(block, past, future)
        is_old[block.query[: max(0, past - block.start)]] = True
        query = block.query[inside]
        last.scatter_reduce_(0, query, times(block)[inside], "amax")
        count += torch.bincount(query, minlength=size)
    for block in corpus.blocks():
        inside = _slice(block, past, future)
        query = block.query[inside]
        tied = times(block)[inside] == last[query]
        greatest.scatter_reduce_(0, query[tied], ranks(block)[inside][tied], "amax")
    has_several = count > 1

    def held(block: PairBlock) -> Tensor:
        marks = torch.zeros(len(block), dtype=torch.bool)
        inside = _slice(block, past, future)
        query = block.query[inside]
        is_last = (times(block)[inside] == last[query]) & (ranks(block)[inside] == greatest[query])
        marks[inside] = is_old[query] | (is_last & has_several[query])
        return marks

    return PairRule(f"arriving({past},{future},{_digest(pair_hash.salt)})", held)


def _slice(block: PairBlock, past: int, future: int) -> slice:
    """Return the interactions of a block whose positions are in [past, future)."""
    start = min(max(past - block.start, 0), len(block))
    return slice(start, min(max(future - block.start, start), len(block)))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class RowPairs:
    """Pairs as query and candidate rows of the training corpus, int64 [m]. A candidate unknown to
    training has row -1 and counts as a miss."""

    query: Tensor
    candidate: Tensor

    def __len__(self) -> int:
        return len(self.query)

    @classmethod
    def none(cls) -> RowPairs:
        empty = torch.zeros(0, dtype=torch.int64)
        return cls(empty, empty)

    def where(self, mask: Tensor) -> RowPairs:
        """Return the pairs selected by a mask, bool [m]."""
        return RowPairs(self.query[mask], self.candidate[mask])


def among(pairs: RowPairs, others: RowPairs) -> Tensor:
    """Return bool [m], True for pairs that `others` contains."""
    width = 2 + max(int(p.candidate.max()) if len(p) else 0 for p in (pairs, others))
    first, second = (p.query * width + p.candidate + 1 for p in (pairs, others))
    return torch.isin(first, second)


def pairs_outside(corpus: Corpus, query_ids: pa.Array, candidate_ids: pa.Array) -> Ids:
    """Return the pairs that are not in the corpus; those in it cannot be tested."""
    for ids, entities in ((query_ids, corpus.queries), (candidate_ids, corpus.candidates)):
        refuse_other_form(ids, entities.vocabulary.keys, "the test pairs", "the training pairs")
    query = corpus.queries.vocabulary.rows(query_ids)
    candidate = corpus.candidates.vocabulary.rows(candidate_ids)
    outside = pa.array((~corpus.has_pairs(query, candidate)).numpy())
    return query_ids.filter(outside), candidate_ids.filter(outside)


@dataclass(frozen=True)
class Split:
    """The training, selection and test pairs of one version.

    Args:
        training: the training corpus, with only the entities that have interactions in it.
        selection: pairs that select the best epoch.
        test: pairs for the reported metrics.
        unknown_queries: held-out pairs left out because training never saw their query.
        trained_before: test pairs left out because an earlier version was trained on them.
        in_training: test pairs left out because they are also in the training data.
        untested: the reason why there are no test pairs, in one sentence; else None.
        final: returns the split for a final training on all pairs except the test pairs, without
            selection pairs; None if the test pairs also select, so there is nothing to add.
    """

    training: Corpus
    selection: RowPairs
    test: RowPairs
    unknown_queries: int
    trained_before: int = 0
    untested: str | None = None
    final: Callable[[], Split] | None = field(default=None, repr=False, compare=False)
    in_training: int = 0

    def candidates_left(self) -> Tensor:
        """Return how many candidates each query with selection pairs has not met, int64 [Q]."""
        queries, size = torch.unique(self.selection.query), len(self.training.candidates)
        query, candidate = self.training.pairs_of(queries)
        met = torch.bincount(
            torch.unique(query * size + candidate) // size, minlength=len(self.training.queries)
        )
        return size - met[queries]

    def without_test(self, why: str) -> Split:
        """Return the split without test pairs; `why` is the reason, in one sentence."""
        final = self.final
        return replace(
            self,
            test=RowPairs.none(),
            untested=why,
            final=None if final is None else lambda: final().without_test(why),
        )


@dataclass(frozen=True)
class HeldOut:
    """Decides which held-out pairs select the epoch and which are reported."""

    salt: str  # the lineage's salt for all hashes
    # Pairs that earlier versions of the lineage were trained on.
    trained: TrainedPairs = field(default_factory=TrainedPairs)
    # "strict" selects the epoch on half of the queries, by a hash of their ids, and reports the
    # other half; "paper" does both on all queries, as in [BC].
    selection: str = "strict"

    @property
    def hash(self) -> PairHash:
        return PairHash(self.salt)


def random_split(corpus: Corpus, *, share: float, held_out: HeldOut) -> Split:
    """Hold out about the given share, in (0, 1), of the interactions, by hashes of their pairs."""
    if not 0 < share < 1:
        raise DataError(f"A random split cannot hold out the share {share}; give one in (0, 1).")
    held = hashed_below(corpus, held_out.hash, share)
    return _held_out(corpus, ~held, held, held_out)


def time_split(corpus: Corpus, *, share: float, until: float, held_out: HeldOut) -> Split:
    """Return the split of a version that trains on the earliest `share` of all interactions. Cuts
    move to the nearest change of time.

    Of the interactions from `share` to `until`, all of an existing query are held out. A new query
    with several has its last one held out and the others join training; a single one joins, too.
    Source: [BC] §4 and App. A, and its authors' code.

    Raises: DataError: no times, or not 0 < share < until <= 1.
    """
    if not 0 < share < until <= 1:
        raise DataError(f"A split by time needs 0 < share < until <= 1, not {share} and {until}.")
    size = len(corpus)
    past = _between_times(corpus, lambda: round(share * size))
    future = _between_times(corpus, lambda: round(until * size))
    held = arriving(corpus, past, future, held_out.hash)
    return _held_out(corpus, first(future) & ~held, held, held_out)


def _between_times(corpus: Corpus, position: Callable[[], int]) -> int:
    """Return the change of time nearest to a position: equal times have no order to cut at."""
    if not corpus.has_times:
        raise DataError("A split by time needs a column 'time'; use split.kind = 'random' instead.")
    number = position()
    if number in (0, len(corpus)):
        return number
    time = corpus.interactions["time"][number].as_py()
    ends = [corpus.before(time), corpus.before(math.nextafter(float(time), math.inf))]
    inside = [end for end in ends if 0 < end < len(corpus)]
    if not inside:
        raise DataError("All interactions have the same time; use split.kind = 'random' instead.")
    return min(inside, key=lambda end: abs(end - number))


def window_split(corpus: Corpus, *, last: RollingWindow, held_out: HeldOut) -> Split:
    """Return the split of a version that trains on all interactions before the window `last`; those
    in the window join training or are held out as in `time_split`. Raises: DataError: there are no
    times, they are not dates though `last` is a length of time, or the window has none or all."""
    past = _between_times(corpus, lambda: last.begins(corpus))
    if not 0 < past < len(corpus):
        earliest, latest = corpus.time_span
        what = "no interaction" if past else "all interactions"
        raise DataError(
            f"The window split.last = {last.text!r} has {what} (there are {len(corpus)}, with "
            f"times from {earliest} to {latest}); give a {'longer' if past else 'shorter'} one."
        )
    held = arriving(corpus, past, len(corpus), held_out.hash)
    return _held_out(corpus, ~held, held, held_out)


def given_split(corpus: Corpus, test: pa.Table, *, share: float, held_out: HeldOut) -> Split:
    """Return a published split; a `share` of its training pairs, by hash, selects the epoch.

    Args:
        corpus: the published training pairs.
        test: the published test pairs, columns `query` and `candidate` of external ids.
    """
    held = hashed_below(corpus, held_out.hash, share)
    selects = _ids(corpus, held)
    tests = pairs_outside(corpus, plain(test["query"]), plain(test["candidate"]))
    repeated = len(test) - len(tests[0])

    def split(training: PairRule | None, selects: Ids | None) -> Split:
        part = corpus if training is None else corpus.where(training)
        result = _split(part, tests, selects, held_out)
        return replace(result, in_training=repeated + result.in_training)

    return replace(split(~held, selects), final=lambda: split(None, None))


def _held_out(corpus: Corpus, training: PairRule, held: PairRule, held_out: HeldOut) -> Split:
    """Return the split into the pairs of the rules `training` and `held`."""
    if held_out.selection == "paper":
        both = _split(corpus.where(training), _ids(corpus, held), None, held_out)
        return replace(both, selection=both.test)
    selects = held & half_of_queries(corpus, held_out.hash)
    tests, in_final = _ids(corpus, held & ~selects), training | selects

    def final() -> Split:
        is_all = all(bool(in_final(block).all()) for block in corpus.blocks())
        return _split(corpus if is_all else corpus.where(in_final), tests, None, held_out)

    split = _split(corpus.where(training), tests, _ids(corpus, selects), held_out)
    return replace(split, final=final)


def _ids(corpus: Corpus, held: PairRule) -> Ids:
    """Return the external ids of the interactions that a rule selects."""
    blocks = ((block, held(block)) for block in corpus.blocks())
    rows = ((block.query[marks], block.candidate[marks]) for block, marks in blocks)
    query, candidate = map(torch.cat, zip(*rows, strict=True))
    return (
        corpus.queries.vocabulary.keys.take(pa.array(query.numpy())),
        corpus.candidates.vocabulary.keys.take(pa.array(candidate.numpy())),
    )


def _split(training: Corpus, tests: Ids, selects: Ids | None, held_out: HeldOut) -> Split:
    """Return the split of a training corpus and held-out pairs, given as external ids."""
    before = held_out.trained.has(held_out.hash.of_pairs(*tests)) if held_out.trained else None
    if before is not None:
        tests = tests[0].filter(pa.array(~before)), tests[1].filter(pa.array(~before))
    selection, unknown, _ = (
        (RowPairs.none(), 0, 0) if selects is None else _pairs(training, selects)
    )
    test, unknown_in_test, repeated = _pairs(training, tests)
    unknown += unknown_in_test
    trained = 0 if before is None else int(before.sum())
    return Split(training, selection, test, unknown, trained, in_training=repeated)


def _pairs(training: Corpus, ids: Ids) -> tuple[RowPairs, int, int]:
    """Return held-out pairs as distinct rows of the training corpus, without training pairs; the
    number of pairs with an unknown query; and the number of distinct training pairs left out."""
    query = training.queries.vocabulary.rows(ids[0])
    distinct = Vocabulary.by_first_appearance(ids[1])
    row_of = training.candidates.vocabulary.rows(distinct.keys)
    is_known = query >= 0
    pairs = torch.unique(query[is_known] * len(distinct) + distinct.rows(ids[1])[is_known])
    query, candidate = pairs // max(1, len(distinct)), row_of[pairs % max(1, len(distinct))]
    trained = training.has_pairs(query, candidate)
    return RowPairs(query, candidate).where(~trained), int((~is_known).sum()), int(trained.sum())


def known_pairs(split: Split) -> RowPairs:
    """Return the pairs to mask in the rankings of a test: training pairs and selection pairs.

    Never reported pairs; in a mapped corpus, training pairs of tested queries only."""
    selects = split.selection
    masked = ~among(selects, split.test) & (selects.candidate >= 0)
    query, candidate = split.training.pairs_of(split.test.query)
    return RowPairs(
        torch.cat([query, selects.query[masked]]), torch.cat([candidate, selects.candidate[masked]])
    )
