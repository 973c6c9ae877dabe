"""Split a corpus into pairs that a version is trained on and pairs that it is tested on.

Ids, times and the lineage's salt decide which pairs are held out, never a seed or the number of
rows: `PairHash` decides by ids, and `TrainedPairs` is a set of such hashes. A pair that an earlier
version was trained on is not tested, since alignment carries over what that version has learned.

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

Hashes = NDArray[np.uint64]
# Ids that are texts of Python at a time.
IDS_AT_ONCE = 1 << 16
# Odd constants of splitmix64's finaliser (Steele, Lea & Flood 2014).
_STEP, _FIRST, _SECOND = (
    np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


@dataclass(frozen=True)
class PairHash:
    """Uniform 64-bit numbers of ids and of pairs of ids, the same on every machine, which depend on
    the ids and the salt alone. An id counts as its text: 5 and "5" are one id, "05" is another."""

    salt: str

    def of_ids(self, ids: pa.Array | pa.ChunkedArray, side: str) -> Hashes:
        """Return one number for each id, uint64 [n]; the two sides have different numbers."""
        key = hashlib.blake2b(f"{side}\0{self.salt}".encode()).digest()
        ids = plain(ids)
        hashes = np.empty(len(ids), dtype=np.uint64)
        for start in range(0, len(ids), IDS_AT_ONCE):
            text = ids.slice(start, IDS_AT_ONCE).cast(pa.string()).to_pylist()
            digests = b"".join(
                hashlib.blake2b(str(one).encode(), digest_size=8, key=key).digest() for one in text
            )
            hashes[start : start + len(text)] = np.frombuffer(digests, dtype="<u8")
        return hashes

    def of_pairs(
        self, queries: pa.Array | pa.ChunkedArray, candidates: pa.Array | pa.ChunkedArray
    ) -> Hashes:
        """Return one number for each pair of external ids, uint64 [n]."""
        parts = []
        for side, ids in (("query", queries), ("candidate", candidates)):
            distinct = Vocabulary.by_first_appearance(ids)
            parts.append(self.of_ids(distinct.keys, side)[distinct.rows(plain(ids)).numpy()])
        return _combined(*parts)

    def of_blocks(self, corpus: Corpus) -> Callable[[PairBlock], Hashes]:
        """Return the function from a block of the corpus's interactions to their numbers."""
        query, candidate = (
            self.of_ids(entities.vocabulary.keys, side)
            for side, entities in (("query", corpus.queries), ("candidate", corpus.candidates))
        )
        return lambda block: _combined(
            query[block.query.numpy()], candidate[block.candidate.numpy()]
        )


def below(hashes: Hashes, share: float) -> NDArray[np.bool_]:
    return hashes.astype(np.float64) < share * 2.0**64


@dataclass(frozen=True)
class TrainedPairs:
    """Pairs that versions were trained on, as 32 bits of their hash: `marks`, uint32, ascending,
    each once. It never forgets a pair, and mistakes any other pair for a trained one with the
    chance len(self) / 2³², so that share of a test is left out at random."""

    marks: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))

    @classmethod
    def of(cls, hashes: Hashes) -> TrainedPairs:
        return cls(_distinct(_mark(hashes)))

    @classmethod
    def of_corpus(cls, corpus: Corpus, salt: str) -> TrainedPairs:
        """Return the pairs of a corpus, by the hashes of this salt; it takes 4 to 9 bytes a pair
        while it is made, and 4 a distinct pair afterwards."""
        hashes, marks = PairHash(salt).of_blocks(corpus), np.empty(len(corpus), dtype=np.uint32)
        for block in corpus.blocks():
            marks[block.start : block.start + len(block)] = _mark(hashes(block))
        return cls(_distinct(marks))

    def __len__(self) -> int:
        return len(self.marks)

    def has(self, hashes: Hashes) -> NDArray[np.bool_]:
        if not len(self.marks):
            return np.zeros(len(hashes), dtype=np.bool_)
        marks = _mark(hashes)
        place = np.minimum(np.searchsorted(self.marks, marks), len(self.marks) - 1)
        trained: NDArray[np.bool_] = self.marks[place] == marks
        return trained

    def union(self, others: Iterable[TrainedPairs]) -> TrainedPairs:
        return TrainedPairs(_distinct(np.concatenate([self.marks, *(o.marks for o in others)])))

    def without(self, other: TrainedPairs) -> TrainedPairs:
        return TrainedPairs(np.setdiff1d(self.marks, other.marks, assume_unique=True))


def _mark(hashes: Hashes) -> NDArray[np.uint32]:
    """Return the low bits; `below` compares the high ones, so these stay uniform."""
    return (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _distinct(marks: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the distinct marks, ascending, and sort those that are given; NumPy's own `unique`
    hashes them, a hundred times as long as sorting takes."""
    marks.sort()
    first = np.ones(len(marks), dtype=np.bool_)
    np.not_equal(marks[1:], marks[:-1], out=first[1:])
    return marks[first]


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
            raise DataError("A smallest value needs a column 'value', and there is none.")
        return block.value >= minimum

    return PairRule(f"value({minimum!r})", marks)


def hashed_below(corpus: Corpus, pair_hash: PairHash, share: float) -> PairRule:
    """Return the rule that marks pairs whose hash is among the lowest `share` of all hashes."""
    hashes = pair_hash.of_blocks(corpus)
    key = f"hash({_digest(pair_hash.salt)},{share!r})"
    return PairRule(key, lambda block: torch.from_numpy(below(hashes(block), share)))


def of_half_the_queries(corpus: Corpus, pair_hash: PairHash) -> PairRule:
    """Return the rule that marks all pairs of half of the queries, chosen by a hash of ids."""
    hashes = pair_hash.of_ids(corpus.queries.vocabulary.keys, "query")
    half = torch.from_numpy(below(hashes, 0.5))
    return PairRule(f"half({_digest(pair_hash.salt)})", lambda block: half[block.query])


def first(number: int) -> PairRule:
    return PairRule(f"first({number})", lambda block: block.places < number)


def arriving(corpus: Corpus, past: int, future: int, pair_hash: PairHash) -> PairRule:
    """Return the rule that marks what is held out of the interactions `past` to `future`: of a
    query that the past does not have, its last interaction if there are several (of one time the
    hash decides); of any other query, all."""
    size = len(corpus.queries)
    known = torch.zeros(size, dtype=torch.bool)
    # By query: its last time, and of that time the greatest hash.
    last = torch.full((size,), -math.inf, dtype=torch.float64)
    greatest = torch.full((size,), -math.inf, dtype=torch.float64)
    count = torch.zeros(size, dtype=torch.int64)
    hashes = pair_hash.of_blocks(corpus)

    def times(block: PairBlock) -> Tensor:
        if not corpus.has_times:
            return block.places.double()
        return to_tensor(corpus.interactions["time"].slice(block.start, len(block))).double()

    def ranks(block: PairBlock) -> Tensor:
        return torch.from_numpy(hashes(block).astype(np.float64))

    for block in corpus.blocks():
        inside = _slice(block, past, future)
        known[block.query[: max(0, past - block.start)]] = True
        query = block.query[inside]
        last.scatter_reduce_(0, query, times(block)[inside], "amax")
        count += torch.bincount(query, minlength=size)
    for block in corpus.blocks():
        inside = _slice(block, past, future)
        query = block.query[inside]
        tied = times(block)[inside] == last[query]
        greatest.scatter_reduce_(0, query[tied], ranks(block)[inside][tied], "amax")
    many = count > 1

    def held(block: PairBlock) -> Tensor:
        marks = torch.zeros(len(block), dtype=torch.bool)
        inside = _slice(block, past, future)
        query = block.query[inside]
        is_last = (times(block)[inside] == last[query]) & (ranks(block)[inside] == greatest[query])
        marks[inside] = known[query] | (is_last & many[query])
        return marks

    return PairRule(f"arriving({past},{future},{_digest(pair_hash.salt)})", held)


def _slice(block: PairBlock, past: int, future: int) -> slice:
    """Return which interactions of a block are among `past` to `future`."""
    start = min(max(past - block.start, 0), len(block))
    return slice(start, min(max(future - block.start, start), len(block)))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class RowPairs:
    """Pairs (query, candidate) as rows of the training corpus, int64 [m]; the candidate is -1 if
    training never saw it, and counts as a miss."""

    query: Tensor
    candidate: Tensor

    def __len__(self) -> int:
        return len(self.query)

    @classmethod
    def none(cls) -> RowPairs:
        empty = torch.zeros(0, dtype=torch.int64)
        return cls(empty, empty)

    def where(self, kept: Tensor) -> RowPairs:
        """Return the pairs that `kept`, bool [m], marks."""
        return RowPairs(self.query[kept], self.candidate[kept])


def among(pairs: RowPairs, others: RowPairs) -> Tensor:
    """Return bool [m], True for pairs that are among the others."""
    width = 2 + max(int(p.candidate.max()) if len(p) else 0 for p in (pairs, others))
    first, second = (p.query * width + p.candidate + 1 for p in (pairs, others))
    return torch.isin(first, second)


def pairs_outside(corpus: Corpus, query_ids: pa.Array, candidate_ids: pa.Array) -> Ids:
    """Return the pairs of external ids that the corpus does not have: its own are trained on or
    select the epoch, so they cannot be tested."""
    for ids, entities in ((query_ids, corpus.queries), (candidate_ids, corpus.candidates)):
        refuse_other_form(ids, entities.vocabulary.keys, "the test pairs", "the training pairs")
    query = corpus.queries.vocabulary.rows(query_ids)
    candidate = corpus.candidates.vocabulary.rows(candidate_ids)
    kept = pa.array((~corpus.has_pairs(query, candidate)).numpy())
    return query_ids.filter(kept), candidate_ids.filter(kept)


@dataclass(frozen=True)
class Split:
    """The training, selection and test pairs of one version.

    Args:
        training: the corpus to learn from, with only those entities that have interactions in it.
        selection: pairs that choose the best epoch.
        test: pairs that are reported.
        unknown_queries: held-out pairs left out because training never saw their query.
        trained_before: test pairs left out because an earlier version was trained on them.
        in_training: test pairs left out because the training data has them, too.
        untested: the reason why nothing is tested, in one sentence; None if something is.
        final: makes the split of a last training on all pairs but the test pairs, where none
            select; None if the same pairs select and test, so that nothing could be added.
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
        """Return how many candidates each query that selects has not met in training, int64 [Q],
        in the order of the queries' rows."""
        queries, size = torch.unique(self.selection.query), len(self.training.candidates)
        query, candidate = self.training.pairs_of(queries)
        met = torch.bincount(
            torch.unique(query * size + candidate) // size, minlength=len(self.training.queries)
        )
        return size - met[queries]

    def without_test(self, why: str) -> Split:
        """Return the split without test pairs, for the reason `why`, one sentence."""
        final = self.final
        return replace(
            self,
            test=RowPairs.none(),
            untested=why,
            final=None if final is None else lambda: final().without_test(why),
        )


@dataclass(frozen=True)
class HeldOut:
    """Decides which held-out pairs select an epoch, which are reported, and which are neither.

    Args:
        salt: of the lineage: it decides what a random split holds out and who selects.
        trained: pairs that earlier versions of the lineage were trained on.
        selection: "strict" selects on half of the queries, by a hash of their ids, and reports the
            other half; "paper" does both on all of them, as [BC] did.
    """

    salt: str
    trained: TrainedPairs = field(default_factory=TrainedPairs)
    selection: str = "strict"

    @property
    def hash(self) -> PairHash:
        return PairHash(self.salt)


def random_split(corpus: Corpus, *, share: float, held_out: HeldOut) -> Split:
    """Hold out the pairs whose hash is below `share`, in (0, 1): about that share of the
    interactions. Repeated interactions of a pair are held out together."""
    if not 0 < share < 1:
        raise DataError(f"A random split cannot hold out the share {share}; give one in (0, 1).")
    held = hashed_below(corpus, held_out.hash, share)
    return _held_out(corpus, ~held, held, held_out)


def time_split(corpus: Corpus, *, share: float, until: float, held_out: HeldOut) -> Split:
    """Return the split of a version that has seen the first `share` of all interactions in time,
    up to the nearest change of time.

    Of the interactions after `share` and up to `until`, a new query's only one, or all but its
    last, join training and the last is held out; an existing query's are all held out.
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


def _between_times(corpus: Corpus, wanted: Callable[[], int]) -> int:
    """Return the number of interactions before the change of time that is nearest to a number: a
    cut through interactions of one time, as of one day, would divide them by the file's order."""
    if not corpus.has_times:
        raise DataError("A split by time needs a column 'time'; use split.kind = 'random' instead.")
    number = wanted()
    if number in (0, len(corpus)):
        return number
    time = corpus.interactions["time"][number].as_py()
    ends = [corpus.before(time), corpus.before(math.nextafter(float(time), math.inf))]
    inside = [end for end in ends if 0 < end < len(corpus)]
    if not inside:
        raise DataError("All interactions have one time; use split.kind = 'random' instead.")
    return min(inside, key=lambda end: abs(end - number))


def window_split(corpus: Corpus, *, last: RollingWindow, held_out: HeldOut) -> Split:
    """Return the split of a version that has seen all interactions before the window `last`, of
    which each joins training or is held out as in `time_split`. Raises: DataError: no times; or a
    window of time over times that are no dates, or one that holds nothing, or everything."""
    past = _between_times(corpus, lambda: last.begins(corpus))
    if not 0 < past < len(corpus):
        earliest, latest = corpus.time_span
        what = "holds no interaction" if past else "holds all interactions"
        raise DataError(
            f"The window split.last = {last.text!r} {what} (there are {len(corpus)}, with times "
            f"from {earliest} to {latest}); give a {'longer' if past else 'shorter'} one."
        )
    held = arriving(corpus, past, len(corpus), held_out.hash)
    return _held_out(corpus, ~held, held, held_out)


def given_split(corpus: Corpus, test: pa.Table, *, share: float, held_out: HeldOut) -> Split:
    """Return a published split; a `share` of its training pairs, by their hash, selects epochs.

    Args:
        corpus: the published training part.
        test: the published test part, columns `query` and `candidate` of external ids.
    """
    held = hashed_below(corpus, held_out.hash, share)
    selects = _ids(corpus, held)
    tests = pairs_outside(corpus, plain(test["query"]), plain(test["candidate"]))
    repeated = len(test) - len(tests[0])

    def split(used: PairRule | None, selects: Ids | None) -> Split:
        made = _split(corpus if used is None else corpus.where(used), tests, selects, held_out)
        return replace(made, in_training=repeated + made.in_training)

    return replace(split(~held, selects), final=lambda: split(None, None))


def _held_out(corpus: Corpus, training: PairRule, held: PairRule, held_out: HeldOut) -> Split:
    """Return the split of what is marked for training, and what is held out."""
    if held_out.selection == "paper":
        both = _split(corpus.where(training), _ids(corpus, held), None, held_out)
        return replace(both, selection=both.test)
    selects = held & of_half_the_queries(corpus, held_out.hash)
    tests, used = _ids(corpus, held & ~selects), training | selects

    def final() -> Split:
        is_all = all(bool(used(block).all()) for block in corpus.blocks())
        return _split(corpus if is_all else corpus.where(used), tests, None, held_out)

    first = _split(corpus.where(training), tests, _ids(corpus, selects), held_out)
    return replace(first, final=final)


def _ids(corpus: Corpus, held: PairRule) -> Ids:
    """Return the external ids of the interactions that a rule marks."""
    blocks = ((block, held(block)) for block in corpus.blocks())
    rows = ((block.query[marks], block.candidate[marks]) for block, marks in blocks)
    query, candidate = map(torch.cat, zip(*rows, strict=True))
    return (
        corpus.queries.vocabulary.keys.take(pa.array(query.numpy())),
        corpus.candidates.vocabulary.keys.take(pa.array(candidate.numpy())),
    )


def _split(training: Corpus, tests: Ids, selects: Ids | None, held_out: HeldOut) -> Split:
    """Return the split of a corpus and of held-out pairs by their external ids, without tests that
    an earlier version was trained on; `selects` None selects nothing."""
    before = held_out.trained.has(held_out.hash.of_pairs(*tests)) if held_out.trained else None
    if before is not None:
        tests = tests[0].filter(pa.array(~before)), tests[1].filter(pa.array(~before))
    selection, unknown, _ = (
        (RowPairs.none(), 0, 0) if selects is None else _pairs(training, selects)
    )
    test, untold, repeated = _pairs(training, tests)
    trained = 0 if before is None else int(before.sum())
    return Split(training, selection, test, unknown + untold, trained, in_training=repeated)


def _pairs(training: Corpus, ids: Ids) -> tuple[RowPairs, int, int]:
    """Return held-out pairs as distinct rows of the training corpus without those of training; the
    number of unknown queries; and that of distinct pairs of training."""
    query = training.queries.vocabulary.rows(ids[0])
    distinct = Vocabulary.by_first_appearance(ids[1])
    row_of = training.candidates.vocabulary.rows(distinct.keys)
    known = query >= 0
    pairs = torch.unique(query[known] * len(distinct) + distinct.rows(ids[1])[known])
    query, candidate = pairs // max(1, len(distinct)), row_of[pairs % max(1, len(distinct))]
    seen = training.has_pairs(query, candidate)
    return RowPairs(query, candidate).where(~seen), int((~known).sum()), int(seen.sum())


def known_pairs(split: Split) -> RowPairs:
    """Return the pairs that no test list may hold: those of training and those that select.

    Of a corpus in memory all; of a mapped one those of training of the queries that are tested.
    Pairs that both select and are reported, as in [BC], are not among them.
    """
    selects = split.selection
    masked = ~among(selects, split.test) & (selects.candidate >= 0)
    query, candidate = split.training.pairs_of(split.test.query)
    return RowPairs(
        torch.cat([query, selects.query[masked]]), torch.cat([candidate, selects.candidate[masked]])
    )
