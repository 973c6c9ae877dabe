"""What a version may learn from, and what it is judged on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.corpus import Corpus, Vocabulary, plain
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
        final: the split of a last training on all that is not test, see `_final`; None where the
            same pairs select and test, so that nothing could be added.
    """

    training: Corpus
    selection: Pairs
    test: Pairs
    unknown_queries: int
    final: Callable[[], Split] | None = field(default=None, repr=False, compare=False)


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


def given_split(corpus: Corpus, test: pa.Table, *, share: float, seed: int) -> Split:
    """A published split: `corpus` is its training part and `test` (columns `query`, `candidate` of
    external ids) its test part; a `share` of the training interactions selects epochs."""
    order = torch.randperm(len(corpus), generator=torch.Generator().manual_seed(seed))
    held = torch.zeros(len(corpus), dtype=torch.bool)
    held[order[: round(share * len(corpus))]] = True
    training = corpus.restrict(torch.nonzero(~held).flatten())
    selection, unknown_selection = _pairs(training, *_ids(corpus, held))
    ids = _outside(corpus, plain(test["query"]), plain(test["candidate"]))
    chosen, unknown_test = _pairs(training, *ids)
    final = partial(_final, corpus, torch.ones(len(corpus), dtype=torch.bool), ids)
    return Split(training, selection, chosen, unknown_selection + unknown_test, final)


def _split(corpus: Corpus, training: Tensor, held: Tensor, seed: int, selection: str) -> Split:
    """`strict` selects on half of the held-out queries and reports the other half; `paper`
    does both on all of them, as [BC] did."""
    compact = corpus.restrict(torch.nonzero(training).flatten())
    pairs, unknown = _pairs(compact, *_ids(corpus, held))
    if selection == "paper":
        return Split(compact, pairs, pairs, unknown)
    queries = torch.unique(pairs.query)
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(seed))
    chosen = torch.zeros(len(compact.queries), dtype=torch.bool)
    chosen[queries[order[: len(queries) // 2]]] = True
    first = chosen[pairs.query]
    rows = compact.queries.vocabulary.rows(corpus.queries.vocabulary.keys)
    selects = held & torch.isin(rows, torch.nonzero(chosen).flatten())[corpus.column("query")]
    final = partial(_final, corpus, training | selects, _ids(corpus, held & ~selects))
    return Split(
        compact,
        Pairs(pairs.query[first], pairs.candidate[first]),
        Pairs(pairs.query[~first], pairs.candidate[~first]),
        unknown,
        final,
    )


def _ids(corpus: Corpus, held: Tensor) -> tuple[pa.Array, pa.Array]:
    """External ids of the interactions that `held` (bool [n]) marks."""
    rows = corpus.interactions.filter(pa.array(held.numpy()))
    return (
        corpus.queries.vocabulary.keys.take(rows["query"].combine_chunks()),
        corpus.candidates.vocabulary.keys.take(rows["candidate"].combine_chunks()),
    )


def _pairs(training: Corpus, query_ids: pa.Array, candidate_ids: pa.Array) -> tuple[Pairs, int]:
    """Held-out pairs of external ids in the training corpus's rows, each pair once, and how many
    have a query that it does not know. A pair that training saw tests nothing and is left out."""
    query = training.queries.vocabulary.rows(query_ids)
    distinct = Vocabulary.by_first_appearance(candidate_ids)
    row_of = training.candidates.vocabulary.rows(distinct.keys)
    known = query >= 0
    pairs = torch.unique(query[known] * len(distinct) + distinct.rows(candidate_ids)[known])
    query, candidate = pairs // max(1, len(distinct)), row_of[pairs % max(1, len(distinct))]
    width = len(training.candidates)
    trained = training.column("query") * width + training.column("candidate")
    seen = torch.isin(query * width + candidate, trained) & (candidate >= 0)
    return Pairs(query[~seen], candidate[~seen]), int((~known).sum())


def _final(corpus: Corpus, used: Tensor, test: tuple[pa.Array, pa.Array]) -> Split:
    """The split of a last training: training's and selection's pairs are trained on, the test
    pairs are the same, and nothing is left to select by.

    Args:
        used: bool [n], the interactions of training and of selection.
        test: external ids of the test pairs.
    """
    rows = torch.nonzero(used).flatten()
    training = corpus if len(rows) == len(corpus) else corpus.restrict(rows)
    pairs, unknown = _pairs(training, *test)
    none = torch.zeros(0, dtype=torch.int64)
    return Split(training, Pairs(none, none), pairs, unknown)


def _outside(
    corpus: Corpus, query_ids: pa.Array, candidate_ids: pa.Array
) -> tuple[pa.Array, pa.Array]:
    """The pairs of external ids that the corpus does not have: what it has is trained on, or has
    chosen the epoch."""
    query = corpus.queries.vocabulary.rows(query_ids)
    candidate = corpus.candidates.vocabulary.rows(candidate_ids)
    width = len(corpus.candidates)
    known = corpus.column("query") * width + corpus.column("candidate")
    inside = torch.isin(query * width + candidate, known) & (query >= 0) & (candidate >= 0)
    kept = pa.array((~inside).numpy())
    return query_ids.filter(kept), candidate_ids.filter(kept)


def known_pairs(split: Split) -> Pairs:
    """The pairs that no test list may hold: those of training, and those that chose the epoch.

    Where the same pairs choose and are reported, as in [BC], they can be masked for neither.
    """
    chose = split.selection
    masked = ~_among(chose, split.test) & (chose.candidate >= 0)
    return Pairs(
        torch.cat([split.training.column("query"), chose.query[masked]]),
        torch.cat([split.training.column("candidate"), chose.candidate[masked]]),
    )


def _among(pairs: Pairs, others: Pairs) -> Tensor:
    """Which pairs are among the others, bool [m]."""
    width = 2 + max(int(p.candidate.max()) if len(p) else 0 for p in (pairs, others))
    first, second = (p.query * width + p.candidate + 1 for p in (pairs, others))
    return torch.isin(first, second)
