"""Rules that hold interactions out of training: by a hash of their ids, or by their time.

Source: docs/method.md, "Held out stays held out"; [BC] §4 and App. A.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

from evergram.data.corpus import Corpus, PairBlock, PairRule, to_tensor
from evergram.data.pair_hash import PairHash, below
from evergram.errors import DataError


def everything() -> PairRule:
    """Return the rule that marks every interaction."""
    return PairRule("everything", lambda block: torch.ones(len(block), dtype=torch.bool))


def of_at_least(minimum: float) -> PairRule:
    """Return the rule that marks interactions whose value is at least `minimum`."""

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
    """Return the rule that marks the first `number` interactions."""
    return PairRule(f"first({number})", lambda block: block.places < number)


def arriving(corpus: Corpus, past: int, future: int, pair_hash: PairHash) -> PairRule:
    """Return the rule that marks what is held out of the interactions `past` to `future`.

    Of a query that the past does not have, its last interaction if there are several; of any other
    query, all.

    Args:
        past, future: numbers of interactions, past <= future.
        pair_hash: decides which of several interactions of one time is the last.
    """
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
