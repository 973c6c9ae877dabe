"""`Corpus`: interactions of two sides of entities in columns; rows stand for external ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.features import (
    Feature,
    Side,
    Vocabulary,
    features_of_sides,
    plain,
    take_ragged,
    to_tensor,
)
from evergram.data.reading.files import MemoryTable
from evergram.data.reading.interactions import (
    InteractionSources,
    interactions_of,
    names_of_ids,
    source_of,
    table_of,
)
from evergram.data.reading.keyed_table import keyed_table
from evergram.data.reading.rules import BadRows, BadRowsChoice
from evergram.did_you_mean import Guided
from evergram.errors import DataError


@dataclass(frozen=True)
class PairBlock:
    """m consecutive interactions of a corpus, as rows of its sides.

    Args:
        start: the number of interactions before the first one.
        query, candidate: int64 [m].
        value: float32 [m]; None if the corpus has no values.
    """

    start: int
    query: Tensor
    candidate: Tensor
    value: Tensor | None = None

    def __len__(self) -> int:
        return len(self.query)

    @property
    def places(self) -> Tensor:
        return torch.arange(self.start, self.start + len(self))


@dataclass(frozen=True)
class PairRule:
    """Marks interactions of a corpus, bool [m] for each block of m, so that a corpus of any size
    needs no memory for the marks. Two rules of one corpus that share the `key` mark the same."""

    key: str
    marks: Callable[[PairBlock], Tensor]

    def __call__(self, block: PairBlock) -> Tensor:
        return self.marks(block)

    def __invert__(self) -> PairRule:
        return PairRule(f"not({self.key})", lambda block: ~self.marks(block))

    def __and__(self, other: PairRule) -> PairRule:
        key = f"and({self.key},{other.key})"
        return PairRule(key, lambda block: self.marks(block) & other.marks(block))

    def __or__(self, other: PairRule) -> PairRule:
        key = f"or({self.key},{other.key})"
        return PairRule(key, lambda block: self.marks(block) | other.marks(block))


__all__ = ["Corpus", "Feature", "Side", "Vocabulary", "plain", "take_ragged", "to_tensor"]


@dataclass(frozen=True, repr=False)
class Corpus(Guided):
    """Interactions between two sides of entities, with times, values and weights.

    >>> import pyarrow as pa
    >>> from evergram import Corpus
    >>> table = pa.table({"query": [7, 7, 9], "candidate": ["a", "b", "a"]})
    >>> corpus = Corpus.from_tables(table)
    >>> len(corpus), len(corpus.queries), len(corpus.candidates)
    (3, 2, 2)
    >>> corpus.counts("candidate").tolist()
    [2, 1]

    Interactions are in order of time if they have one (ties keep the source's order), else in the
    source's order. A pair that occurs twice is kept twice.

    Args:
        queries, candidates: the two sides.
        interactions: Arrow table, n rows: `query` and `candidate` (int64 rows of the sides), and
            if the source has them `value` and `weight` (float32), `time` (int64 or float64).
        shared_ids: True if both sides have one vocabulary, as pages that link to pages.
        origin: the [data] of the recipe that it was loaded by; "" if it was made in Python.
    """

    guesses: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("from_parquet", "from_csv", "from_file*", "from_path", "read*", "load*", "open"),
            "evergram.load_corpus(recipe) for files, or Corpus.of(frame) once they are read",
        ),
        "from_*": "Corpus.of(data): a frame of pandas or Polars, an Arrow table, a mapping of "
        "columns, a list or a SciPy sparse matrix",
    }

    queries: Side
    candidates: Side
    interactions: pa.Table
    shared_ids: bool = False
    origin: str = field(default="", compare=False)

    @classmethod
    def of(
        cls,
        interactions: Any,
        *,
        query: str = "query",
        candidate: str = "candidate",
        value: str | None = None,
        time: str | None = None,
        weight: str | None = None,
        query_features: Any = None,
        candidate_features: Any = None,
        query_id: str | None = None,
        candidate_id: str | None = None,
        query_ids: Sequence[int | str] | None = None,
        candidate_ids: Sequence[int | str] | None = None,
        shared_ids: bool = False,
        weights: Mapping[str, float] | None = None,
        bad_rows: BadRowsChoice = "refuse",
    ) -> Corpus:
        """Return the corpus of a table, a sparse matrix or a list in memory.

        Ids stay integers or strings. Neither pandas nor Polars needs to be installed for the other
        kinds.

        >>> from evergram import Corpus
        >>> Corpus.of([("ann", 7), ("ben", 7), ("ann", 8)])
        Corpus(3 interactions of 2 queries with 2 candidates)
        >>> Corpus.of({"user": ["ann", "ben"], "item": [7, 7]}, query="user", candidate="item")
        Corpus(2 interactions of 2 queries with 1 candidates)

        Args:
            interactions: one of
                - a DataFrame of pandas or Polars, an Arrow table, or anything else that exports
                  Arrow's C stream: a row an interaction;
                - a mapping of names to columns, or a list of mappings of names to values;
                - a list of tuples (query, candidate), (query, candidate, weight) or (query,
                  candidate, weight, time), all of one length;
                - a SciPy sparse matrix [queries, candidates]: each stored entry other than zero is
                  an interaction, and its number the weight. If all are 1 there is no weight.
            query, candidate: names of the columns of ids.
            value, time, weight: names of these columns; None reads the columns `value`, `time` and
                `weight` if they exist.
            query_features, candidate_features: tables of the same kinds with a column `id`, and one
                column a feature: numbers, times, strings or booleans, or lists of keys for a bag.
                Ids without an interaction are left out; ids without a row get empty bags. A feature
                of the same name on both sides shares one vocabulary.
            query_id, candidate_id: names of their columns of ids; None reads `id` or, where there
                is none, the column that is called as in the interactions.
            query_ids, candidate_ids: ids of a matrix's rows [queries] and of its columns
                [candidates]; None takes the row and column numbers.
            shared_ids: True if query and candidate ids name the same things.
            weights: by name of an event its weight, {"view": 1, "cart": 3}, where the column of
                weights holds such names.
            bad_rows: "drop" leaves out rows without an id, or with a value, weight or time that is
                no number or date, and warns of them; "refuse" raises an error that counts them.
        Raises: DataError: `interactions` is of another kind, has no rows or lacks a column; or an
            id, a value or a time cannot be used, and the row is named.
        """
        names = {"query": query, "candidate": candidate}
        optional = {"value": value, "time": time, "weight": weight}
        source = interactions_of(
            interactions,
            names | {role: name for role, name in optional.items() if name is not None},
            {"query": query_ids, "candidate": candidate_ids},
        )
        ids = {"query_id": query_id, "candidate_id": candidate_id}
        columns = names | {role: name for role, name in ids.items() if name is not None}
        given = {"query": query_features, "candidate": candidate_features}
        features: list[pa.Table | None] = [None, None]
        for place, (side, one) in enumerate(given.items()):
            if one is not None:
                name = f"The table of {side} features"
                table = MemoryTable(table_of(one, name), name)
                own_ids = names_of_ids(columns, side)
                features[place] = keyed_table([table], bad_rows=BadRows(bad_rows), ids=own_ids)
        them = InteractionSources(
            [source], shared_ids=shared_ids, bad_rows=BadRows(bad_rows), weights=weights or {}
        )
        return cls.from_interactions(them, *features)

    @classmethod
    def from_tables(
        cls,
        interactions: pa.Table,
        query_features: pa.Table | None = None,
        candidate_features: pa.Table | None = None,
        *,
        shared_ids: bool = False,
        source: str = "interactions",
    ) -> Corpus:
        """Return the corpus of Arrow tables whose columns are named by role, see `of`; errors call
        that of interactions `source`."""
        them = InteractionSources(
            [source_of(MemoryTable(interactions, source), {})], shared_ids=shared_ids
        )
        return cls.from_interactions(them, query_features, candidate_features)

    @classmethod
    def from_interactions(
        cls,
        them: InteractionSources,
        query_features: pa.Table | None = None,
        candidate_features: pa.Table | None = None,
    ) -> Corpus:
        """Return the corpus of all interactions that are read together."""
        interactions = them.table()
        if "time" in interactions.column_names:
            order = np.argsort(interactions["time"].to_numpy(), kind="stable")
            interactions = interactions.take(pa.array(order))
        ids = [plain(interactions[side]) for side in ("query", "candidate")]
        if them.shared_ids:
            vocabularies = [Vocabulary.by_first_appearance(pa.concat_arrays(ids))] * 2
        else:
            vocabularies = [Vocabulary.by_first_appearance(some) for some in ids]
        rows = (
            pa.array(vocabulary.rows(some).numpy())
            for vocabulary, some in zip(vocabularies, ids, strict=True)
        )
        columns: dict[str, Any] = dict(zip(("query", "candidate"), rows, strict=True))
        for name in ("value", "time", "weight"):
            if name in interactions.column_names:
                columns[name] = interactions[name]
        tables = (query_features, candidate_features)
        features = features_of_sides(list(zip(tables, vocabularies, strict=True)))
        queries, candidates = map(Side, vocabularies, features)
        return cls(queries, candidates, pa.table(columns).combine_chunks(), them.shared_ids)

    def __len__(self) -> int:
        return int(self.interactions.num_rows)

    def __repr__(self) -> str:
        more = [n for n in self.interactions.column_names if n not in ("query", "candidate")]
        return (
            f"Corpus({len(self):,} interactions of {len(self.queries):,} queries with "
            f"{len(self.candidates):,} candidates{''.join(f', {name}' for name in more)})"
        )

    def column(self, name: str) -> Tensor:
        """Return one column of the interactions, [n]."""
        if name not in self.interactions.column_names:
            has = ", ".join(self.interactions.column_names)
            raise DataError(f"The corpus has no column {name!r}; it has {has}.")
        return to_tensor(self.interactions[name])

    @property
    def has_values(self) -> bool:
        return "value" in self.interactions.column_names

    @property
    def has_times(self) -> bool:
        return "time" in self.interactions.column_names

    @property
    def time_span(self) -> tuple[float, float]:
        """The earliest and the latest time."""
        time = self.interactions["time"]
        return time[0].as_py(), time[-1].as_py()

    @property
    def repeats(self) -> int:
        """The number of interactions that repeat an earlier pair."""
        pairs = self.column("query") * len(self.candidates) + self.column("candidate")
        return len(self) - len(torch.unique(pairs))

    def counts(self, side: str) -> Tensor:
        """Return the interactions of each entity of `side` ("query" or "candidate"), int64 [N]."""
        size = len(self.queries if side == "query" else self.candidates)
        return torch.bincount(self.column(side), minlength=size)

    def blocks(self) -> Iterator[PairBlock]:
        """Yield all interactions in order, as blocks; a corpus in memory is one block."""
        value = self.column("value") if self.has_values else None
        yield PairBlock(0, self.column("query"), self.column("candidate"), value)

    def has_pairs(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Return bool [m], True for pairs of rows (int64 [m] each) that it has; rows of -1, which
        stand for an unknown entity, have none."""
        width = len(self.candidates)
        pairs = self.column("query") * width + self.column("candidate")
        return torch.isin(query * width + candidate, pairs) & (query >= 0) & (candidate >= 0)

    def pairs_of(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the query and the candidate, int64 [m] each, of interactions: at least of all
        those of `queries` (int64 rows); others may be among them."""
        return self.column("query"), self.column("candidate")

    def before(self, time: float) -> int:
        """Return the number of interactions that are earlier than `time`."""
        return int(torch.searchsorted(self.column("time").double(), time))

    def where(self, rule: PairRule) -> Corpus:
        """Return the corpus of the interactions that a rule marks, and of their entities only."""
        return self.restrict(torch.cat([torch.nonzero(rule(b)).flatten() for b in self.blocks()]))

    def restrict(self, index: Tensor) -> Corpus:
        """Return the corpus of the interactions `index` (int64 [m]) and of their entities only."""
        table = self.interactions.take(pa.array(index.numpy()))
        query, candidate = to_tensor(table["query"]), to_tensor(table["candidate"])
        kept = torch.unique(query), torch.unique(candidate)
        if self.shared_ids:
            both = torch.unique(torch.cat(kept))
            kept = both, both
        for name, rows, own in (("query", query, kept[0]), ("candidate", candidate, kept[1])):
            compact = pa.array(torch.searchsorted(own, rows).numpy())
            table = table.set_column(table.column_names.index(name), name, compact)
        queries, candidates = self.queries.take(kept[0]), self.candidates.take(kept[1])
        if self.shared_ids:
            candidates = Side(queries.vocabulary, candidates.features)
        return Corpus(queries, candidates, table, self.shared_ids)
