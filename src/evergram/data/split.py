"""What a version may learn from, and what it is judged on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.errors import DataError


@dataclass(frozen=True)
class Pairs:
    """Held-out (query, candidate) pairs, as rows of the training corpus.

    Args:
        query: int64 [m].
        candidate: int64 [m]; -1 where training never saw the candidate: no list can hold it, so
            it counts as a miss.
    """

    query: Tensor
    candidate: Tensor

    def __len__(self) -> int:
        return len(self.query)


@dataclass(frozen=True)
class Split:
    """One version's data.

    Args:
        training: the corpus to learn from; it holds only entities that it has interactions of.
        selection: pairs that choose the best epoch.
        test: pairs that are reported.
        unknown_queries: held-out pairs left out because training never saw their query.
    """

    training: Corpus
    selection: Pairs
    test: Pairs
    unknown_queries: int


def random_split(corpus: Corpus, *, share: float, seed: int, selection: str = "strict") -> Split:
    """Hold out a `share` of the interactions, drawn uniformly with `seed`."""
    if not 0 < share < 1:
        raise DataError(f"A random split was asked to hold out {share}; give a share in (0, 1).")
    order = torch.randperm(len(corpus), generator=torch.Generator().manual_seed(seed))
    held = torch.zeros(len(corpus), dtype=torch.bool)
    held[order[: round(share * len(corpus))]] = True
    return _split(corpus, ~held, held, seed, selection)


def time_split(
    corpus: Corpus, *, share: float, until: float, seed: int, selection: str = "strict"
) -> Split:
    """The growing corpus: a version that has seen a `share` of all interactions in time order.

    Of the interactions after `share` and up to `until`, a new query's only one, or all but its
    last, join training and the last is held out; an existing query's are all held out.
    Source: [BC] §4 and App. A, and its authors' code.

    Raises: DataError: no times, or not 0 < share < until <= 1.
    """
    if not corpus.has_times:
        raise DataError("A split by time needs a column 'time'; use split.kind = 'random' instead.")
    if not 0 < share < until <= 1:
        raise DataError(f"A split by time needs 0 < share < until <= 1, not {share} and {until}.")
    past, future = round(share * len(corpus)), round(until * len(corpus))
    query = corpus.column("query")
    known = torch.zeros(len(corpus.queries), dtype=torch.bool)
    known[query[:past]] = True
    position = torch.arange(past, future)
    arriving = query[past:future]
    new = ~known[arriving]
    last = torch.full((len(corpus.queries),), -1)
    last.scatter_reduce_(0, arriving, position, "amax")
    many = torch.bincount(arriving, minlength=len(known)) > 1
    held = torch.zeros(len(corpus), dtype=torch.bool)
    held[past:future] = ~new | ((last[arriving] == position) & many[arriving])
    training = torch.zeros(len(corpus), dtype=torch.bool)
    training[:future] = True
    return _split(corpus, training & ~held, held, seed, selection)


def given_split(corpus: Corpus, held: Tensor, *, share: float, seed: int) -> Split:
    """A published split: `held` (bool [n]) is the test; a `share` of the rest selects epochs."""
    rest = torch.nonzero(~held).flatten()
    order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed))
    selection = torch.zeros(len(corpus), dtype=torch.bool)
    selection[rest[order[: round(share * len(rest))]]] = True
    training = corpus.restrict(torch.nonzero(~held & ~selection).flatten())
    chosen, unknown_selection = _pairs(corpus, training, selection)
    test, unknown_test = _pairs(corpus, training, held)
    return Split(training, chosen, test, unknown_selection + unknown_test)


def _split(corpus: Corpus, training: Tensor, held: Tensor, seed: int, selection: str) -> Split:
    """`strict` selects on half of the held-out queries and reports the other half; `paper`
    does both on all of them, as [BC] did."""
    compact = corpus.restrict(torch.nonzero(training).flatten())
    pairs, unknown = _pairs(corpus, compact, held)
    if selection == "paper":
        return Split(compact, pairs, pairs, unknown)
    queries = torch.unique(pairs.query)
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(seed))
    chosen = torch.zeros(len(compact.queries), dtype=torch.bool)
    chosen[queries[order[: len(queries) // 2]]] = True
    first = chosen[pairs.query]
    return Split(
        compact,
        Pairs(pairs.query[first], pairs.candidate[first]),
        Pairs(pairs.query[~first], pairs.candidate[~first]),
        unknown,
    )


def _pairs(corpus: Corpus, training: Corpus, held: Tensor) -> tuple[Pairs, int]:
    """The held-out pairs in the training corpus's rows, each pair once, and how many it cannot
    know the query of. A pair that training saw is no test of anything and is left out."""
    to_query = training.queries.vocabulary.rows(corpus.queries.vocabulary.keys)
    to_candidate = training.candidates.vocabulary.rows(corpus.candidates.vocabulary.keys)
    query = to_query[corpus.column("query")[held]]
    original = corpus.column("candidate")[held]
    known = query >= 0
    unknown = int((~known).sum())
    width = len(corpus.candidates)
    pairs = torch.unique(query[known] * width + original[known])
    query, candidate = pairs // width, to_candidate[pairs % width]
    trained = training.column("query") * len(training.candidates) + training.column("candidate")
    seen = torch.isin(query * len(training.candidates) + candidate, trained) & (candidate >= 0)
    return Pairs(query[~seen], candidate[~seen]), unknown
