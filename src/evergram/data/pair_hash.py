"""`PairHash` decides by ids which pairs are held out; `TrainedPairs` is a set of such hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from evergram.data.corpus import Corpus, PairBlock
from evergram.data.features import Vocabulary, plain

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

    def of_corpus(self, corpus: Corpus) -> Hashes:
        hashes = self.of_blocks(corpus)
        return np.concatenate([hashes(block) for block in corpus.blocks()])


def below(hashes: Hashes, share: float) -> NDArray[np.bool_]:
    return hashes.astype(np.float64) < share * 2.0**64


@dataclass(frozen=True)
class TrainedPairs:
    """Pairs that versions were trained on, as 32 bits of their hash.

    It never forgets a pair, and mistakes any other pair for a trained one with the chance
    len(self) / 2³², so that share of a test is left out at random.

    Args:
        marks: uint32, ascending, each once.
    """

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
