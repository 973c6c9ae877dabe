"""`Corpus`: interactions between two sides of entities, in columns of row numbers.

A `Vocabulary` maps ids or keys to rows, a `Feature` holds a bag of keys for each entity, and a
`Side` holds the ids and features of the queries or of the candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.data.feature_types import (
    DATE,
    is_measure,
    parse_times,
    positions,
    to_measures,
    type_name,
    typed,
)
from evergram.data.reading.files import MemoryTable
from evergram.data.reading.interactions import (
    FLOAT_CELL,
    SIDES,
    BadRows,
    BadRowsChoice,
    InteractionSources,
    SideName,
    interactions_of,
    keyed_table,
    names_of_ids,
    rows_by_id,
    table_of,
)
from evergram.data.sorted_pairs import SortedPairs
from evergram.errors import DataError
from evergram.ids import refuse_repeats
from evergram.mapped_tensors import zeros_beside

# Look up this many keys at once.
KEYS_AT_ONCE = 1 << 20
# Warn of a category with at least this many values per object, and at least this many objects.
NEARLY_ALL, FEW = 0.9, 20
# Numbers and dates in formats that are not parsed: 1.234,50 € or 31.12.2025.
_SIGN = "[$€£¥%]|EUR|USD|GBP|CHF"
_SPACE = "[ \u00a0\u202f]"
_DIGITS = rf"(\d+|\d{{1,3}}(([.,'’]|{_SPACE})\d{{3}})+)([.,]\d+)?"
_AMOUNT = rf"^{_SPACE}*({_SIGN})?{_SPACE}*[+-]?{_DIGITS}{_SPACE}*({_SIGN})?{_SPACE}*$"
_LOCAL_FORMAT = rf"{_AMOUNT}|^ *\d\d?[./]\d\d?[./]\d{{4}}( |$)"


@dataclass(frozen=True)
class Vocabulary:
    """Distinct keys in a fixed order; the position of a key is its row.

    Numeric and time keys ascend and are the lower bounds of buckets: a value gets the row of the
    largest key ≤ value, or the first row if it is below all keys.

    Args:
        keys: Arrow array [N] without repeats or nulls, int64 or string; or float64 or timestamps,
            where the last may be null, for missing values.
    """

    keys: pa.Array

    @classmethod
    def by_first_appearance(cls, values: pa.Array) -> Vocabulary:
        """Return the vocabulary of the distinct values; numbers and times ascend."""
        if is_measure(values.type):
            return cls(pc.unique(values).sort())
        return cls(pc.unique(plain(values)))

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self):,} keys of {self.keys.type})"

    def rows(self, values: pa.Array) -> Tensor:
        """Return the row of each value, int64 [n]; -1 for a value that is not a key."""
        if is_measure(self.keys.type):
            starts = positions(self.keys.drop_null())
            numbers = positions(to_measures(values, self.keys.type, ""))
            rows = np.searchsorted(starts, numbers, side="right") - 1
            missing_row = len(starts) if self.keys.null_count else -1
            return torch.from_numpy(np.where(np.isnan(numbers), missing_row, rows.clip(min=0)))
        values = plain(values)
        if values.type != self.keys.type:
            if pa.types.is_string(self.keys.type):
                values = values.cast(pa.string())
            else:  # only strings that are integers can match an integer key
                values = pc.if_else(_is_int64(values), values, None).cast(self.keys.type)
        if len(values) >= len(self.keys):
            return _rows_among(values, self.keys)
        # A hash table of the values is smaller than one of the keys.
        distinct = pc.unique(values)
        row_of = torch.full((len(distinct),), -1)
        for start in range(0, len(self.keys), KEYS_AT_ONCE):
            found = _rows_among(self.keys.slice(start, KEYS_AT_ONCE), distinct)
            known = torch.nonzero(found >= 0).flatten()
            row_of[found[known]] = known + start
        return row_of[_rows_among(values, distinct)]

    @property
    def row_of_missing(self) -> int | None:
        """The row for missing numbers or times; None without one."""
        return len(self.keys) - 1 if self.keys.null_count else None


def plain(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return ids or keys of any integer width or encoding as one int64 or string array."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_integer(values.type):
        largest = pc.max(values).as_py() if pa.types.is_uint64(values.type) else None
        if largest is None or largest < 2**63:
            return values.cast(pa.int64())
    return values.cast(pa.string())


def to_tensor(values: pa.Array | pa.ChunkedArray) -> Tensor:
    """Return the values as a tensor; copies only if Arrow's memory is read-only."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    array = values.to_numpy(zero_copy_only=False)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _rows_among(values: pa.Array, keys: pa.Array) -> Tensor:
    """Return the position of each value among distinct keys, int64 [n]; -1 without one."""
    return to_tensor(pc.fill_null(pc.index_in(values, value_set=keys).cast(pa.int64()), -1))


def _is_int64(texts: pa.Array) -> pa.Array:
    long = pc.match_substring_regex(texts, r"^-?[1-9]\d{18}$")
    small = pc.less_equal(pc.utf8_ltrim(texts, characters="-"), str(2**63 - 1))
    small = pc.or_(small, pc.equal(texts, str(-(2**63))))
    # 05 and 5 are different ids.
    short = pc.match_substring_regex(texts, r"^(0|-?[1-9]\d{0,17})$")
    return pc.or_(short, pc.and_(long, small))


@dataclass(frozen=True)
class Feature:
    """A bag of keys (none, one or many) for each of N entities, stored as ragged rows.

    A number or a time (see `feature_types`) is a bag of one value; a missing one is an empty bag.

    Args:
        vocabulary: the keys; for numbers and times, the distinct values, ascending.
        offsets: int64 [N + 1]; entity i has `indices[offsets[i]:offsets[i + 1]]`.
        indices: int64, rows of the vocabulary.
    """

    vocabulary: Vocabulary
    offsets: Tensor
    indices: Tensor

    def take(self, rows: Tensor) -> Feature:
        indices, offsets = take_ragged(self.indices, self.offsets, rows)
        return Feature(self.vocabulary, offsets, indices)


@dataclass(frozen=True)
class Side:
    """The queries or the candidates: external ids in row order, and features."""

    vocabulary: Vocabulary
    features: Mapping[str, Feature] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __repr__(self) -> str:
        features = f", features {', '.join(self.features)}" if self.features else ""
        return f"Side({len(self):,} entities{features})"

    def take(self, rows: Tensor) -> Side:
        keys = self.vocabulary.keys.take(pa.array(rows.numpy()))
        return Side(Vocabulary(keys), {n: f.take(rows) for n, f in self.features.items()})


@dataclass(frozen=True)
class FeatureSummary:
    """A feature of one side: its type ("number", "time" or "category"), its number of distinct
    values, the share of entities that have a value, the most frequent value as text and its share
    among these, and a warning about likely mistakes in the data."""

    side: str
    name: str
    type: str
    values: int
    coverage: float
    most_frequent: str | None
    share: float
    warning: str | None

    @classmethod
    def of(cls, side: str, name: str, feature: Feature) -> FeatureSummary:
        keys = feature.vocabulary.keys
        counts = torch.bincount(feature.indices, minlength=len(keys))
        entities, values = len(feature.offsets) - 1, int((counts > 0).sum())
        with_value = int((feature.offsets[1:] > feature.offsets[:-1]).sum())
        kind, most, warning = type_name(keys.type), None, None
        if values:
            most = keys[int(counts.argmax())].cast(pa.string()).as_py()
            most = most.removesuffix(".000000")  # a time's microseconds
        is_single = len(feature.indices) == with_value >= FEW
        if kind == "category" and is_single and values >= NEARLY_ALL * with_value:
            warning = (
                f"The {side} feature {name!r} has {values:,} values for {with_value:,} objects, "
                f"such as {most!r}, so it cannot describe new objects; give categories that "
                "several objects share, or leave the column out."
            )
        if pa.types.is_string(keys.type):
            parsed = pc.match_substring_regex(keys, FLOAT_CELL)
            parsed = pc.or_(parsed, pc.is_valid(parse_times(keys)))
            others = keys.filter(pc.invert(parsed))
            in_local_format = pc.match_substring_regex(keys, rf"{DATE}|{_LOCAL_FORMAT}")
            likely = pc.or_(parsed, in_local_format).true_count
            if len(others) and likely >= NEARLY_ALL * len(keys):
                warning = (
                    f"The {side} feature {name!r} is read as categories: {others[0].as_py()!r} "
                    "is neither a number such as 1234.5 nor a time such as 2025-05-31, although "
                    "nearly all values look like numbers or times; write every cell in one of "
                    "these formats, or leave it empty."
                )
        share = int(counts.max()) / with_value if values else 0.0
        return cls(side, name, kind, values, with_value / max(1, entities), most, share, warning)

    @property
    def sentence(self) -> str:
        most = "" if self.most_frequent is None else f", most often {self.most_frequent[:40]!r}"
        entities = "queries" if self.side == "query" else "candidates"
        return (
            f"{self.side.capitalize()} feature {self.name}: {self.type}, {self.values:,} values, "
            f"for {self.coverage:.0%} of {entities}{most}"
            + (f" ({self.share:.0%})." if most else ".")
        )


def summaries(queries: Side, candidates: Side) -> list[FeatureSummary]:
    sides = (("query", queries), ("candidate", candidates))
    return [FeatureSummary.of(s, n, f) for s, side in sides for n, f in side.features.items()]


def offsets_of(counts: Tensor) -> Tensor:
    """Return where each row of a ragged table starts and the last one ends, int64 [N + 1], for rows
    of `counts` [N] values."""
    offsets = zeros_beside(counts, len(counts) + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=offsets[1:])
    return offsets


def take_ragged(indices: Tensor, offsets: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values and offsets of some `rows` (int64 [n]) of a ragged table, in which row i
    has `indices[offsets[i]:offsets[i + 1]]`."""
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    new_offsets = offsets_of(lengths)
    positions = torch.repeat_interleave(starts - new_offsets[:-1], lengths)
    positions += torch.arange(len(positions), device=offsets.device)
    return indices[positions], new_offsets


def features_of_sides(
    tables: Mapping[SideName, pa.Table], vocabularies: Sequence[Vocabulary]
) -> tuple[dict[str, Feature], dict[str, Feature]]:
    """Return query and candidate features by name; equal names share one vocabulary.

    Args:
        tables: features by side, with a column `id`; a side may be missing.
        vocabularies: the ids of the queries and of the candidates.
    """
    ragged = [
        _ragged_columns(tables[side], vocabulary, side) if side in tables else {}
        for side, vocabulary in zip(SIDES, vocabularies, strict=True)
    ]
    features: tuple[dict[str, Feature], dict[str, Feature]] = ({}, {})
    for name in dict.fromkeys([*ragged[0], *ragged[1]]):
        values = [side[name][1] for side in ragged if name in side]
        if len({v.type for v in values}) > 1:
            if any(is_measure(v.type) for v in values):
                of_query, of_candidate = (type_name(v.type) for v in values)
                raise DataError(
                    f"The feature {name!r} is a {of_query} of queries and a {of_candidate} of "
                    "candidates; rename one."
                )
            values = [v.cast(pa.string()) for v in values]
        vocabulary = Vocabulary.by_first_appearance(pa.concat_arrays(values))
        for by_name, side in zip(features, ragged, strict=True):
            if name in side:
                offsets, flat = side[name]
                by_name[name] = Feature(vocabulary, offsets, vocabulary.rows(flat))
    return features


def _ragged_columns(
    table: pa.Table, vocabulary: Vocabulary, side: str
) -> dict[str, tuple[Tensor, pa.Array]]:
    """Return each feature as offsets [N + 1] and flat values, in the vocabulary's order."""
    columns: dict[str, tuple[Tensor, pa.Array]] = {}
    source = f"{side} features"
    table = keyed_table([MemoryTable(table, source)])
    refuse_repeats(table["id"], source)
    rows = rows_by_id(table["id"], vocabulary.keys, source)
    for name in table.column_names:
        if name == "id":
            continue
        column = typed(table[name], name, source).combine_chunks().take(rows)
        if pa.types.is_list(column.type):
            lengths = to_tensor(pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64()))
            flat = pc.list_flatten(column)
        else:
            lengths = to_tensor(pc.is_valid(column)).to(torch.int64)
            flat = pc.drop_null(column)
        columns[name] = (offsets_of(lengths), flat if is_measure(flat.type) else plain(flat))
    return columns


@dataclass(frozen=True)
class PairBlock:
    """m consecutive interactions of a corpus, as row numbers."""

    start: int  # the position of the first interaction
    # int64 [m]
    query: Tensor
    candidate: Tensor
    value: Tensor | None = None  # float32 [m]; None if the corpus has no values

    def __len__(self) -> int:
        return len(self.query)

    @property
    def positions(self) -> Tensor:
        return torch.arange(self.start, self.start + len(self))


@dataclass(frozen=True)
class PairRule:
    """Selects interactions block by block, as a mask bool [m]; `key` identifies the selection."""

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


@dataclass(frozen=True, repr=False)
class Corpus:
    """Interactions between queries and candidates, with times, values and weights.

    >>> import pyarrow as pa
    >>> from evergram import Corpus
    >>> table = pa.table({"query": [7, 7, 9], "candidate": ["a", "b", "a"]})
    >>> corpus = Corpus.of(table)
    >>> len(corpus), len(corpus.queries), len(corpus.candidates)
    (3, 2, 2)
    >>> corpus.counts("candidate").tolist()
    [2, 1]

    Interactions are sorted by time (ties keep the source's order), or keep the source's order if
    there are no times. Repeated pairs are kept.

    Args:
        interactions: Arrow table, n rows: `query` and `candidate` (int64 row numbers), and if the
            source has them `value` and `weight` (float32) and `time` (int64 or float64).
        shared_ids: True if both sides share one vocabulary, such as pages that link to pages.
        origin: the [data] table of the recipe that loaded it; "" for a corpus built in Python.
    """

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
        shared_ids: bool = False,
        bad_rows: BadRowsChoice = "refuse",
    ) -> Corpus:
        """Return the corpus of a table, a sparse matrix or a list in memory.

        Ids stay integers or strings. pandas and Polars are only needed for their own frames.

        >>> from evergram import Corpus
        >>> Corpus.of([("ann", 7), ("ben", 7), ("ann", 8)])
        Corpus(3 interactions of 2 queries with 2 candidates)
        >>> Corpus.of({"user": ["ann", "ben"], "item": [7, 7]}, query="user", candidate="item")
        Corpus(2 interactions of 2 queries with 1 candidates)

        Args:
            interactions: one of
                - a pandas or Polars DataFrame, an Arrow table, or anything else that exports
                  Arrow's C stream, with one interaction per row;
                - a mapping of names to columns, or a list of mappings of names to values;
                - a list of tuples (query, candidate), (query, candidate, weight) or (query,
                  candidate, weight, time), all of the same length;
                - a SciPy sparse matrix [queries, candidates]: each nonzero entry is an interaction;
                  its row and column numbers are the ids, its value the weight. A matrix of ones
                  gives no weights.
            query, candidate: names of the id columns.
            value, time, weight: names of these columns; None reads the columns `value`, `time` and
                `weight` if they exist.
            query_features, candidate_features: tables of the same kinds, with ids in a column `id`
                or one named as in the interactions, and one column for each feature: numbers,
                times, strings, booleans, or lists of keys for a bag. Ids without an interaction are
                left out; ids without a row get empty bags. A feature of the same name on both sides
                shares one vocabulary.
            shared_ids: True if query and candidate ids name the same things.
            bad_rows: "drop" leaves out rows without an id, or whose value, weight or time is not a
                number or date, and logs a warning; "refuse" raises an error that counts them.
        Raises: DataError: `interactions` has an unknown type, no rows or lacks a column; or an id,
            value or time is invalid (the error names the row).
        """
        roles = ("query", "candidate", "value", "time", "weight")
        names = zip(roles, (query, candidate, value, time, weight), strict=True)
        columns = {role: name for role, name in names if name is not None}
        source = interactions_of(interactions, columns)
        features: dict[SideName, pa.Table] = {}
        for side, data in zip(SIDES, (query_features, candidate_features), strict=True):
            if data is not None:
                name, ids = f"The table of {side} features", names_of_ids(columns, side)
                table = MemoryTable(table_of(data, name), name)
                features[side] = keyed_table([table], bad_rows=BadRows(bad_rows), ids=ids)
        sources = InteractionSources([source], shared_ids=shared_ids, bad_rows=BadRows(bad_rows))
        return cls.from_interactions(sources, features)

    @classmethod
    def from_interactions(
        cls, sources: InteractionSources, features: Mapping[SideName, pa.Table]
    ) -> Corpus:
        """Return the corpus of all sources, with tables of features."""
        interactions = sources.table()
        if "time" in interactions.column_names:
            order = np.argsort(interactions["time"].to_numpy(), kind="stable")
            interactions = interactions.take(pa.array(order))
        ids = [plain(interactions[side]) for side in SIDES]
        id_sets = [pa.concat_arrays(ids)] if sources.shared_ids else ids
        vocabularies = [Vocabulary.by_first_appearance(values) for values in id_sets]
        vocabularies = [vocabularies[0], vocabularies[-1]]
        columns: dict[str, Any] = {
            side: pa.array(vocabulary.rows(values).numpy())
            for side, vocabulary, values in zip(SIDES, vocabularies, ids, strict=True)
        }
        for name in ("value", "time", "weight"):
            if name in interactions.column_names:
                columns[name] = interactions[name]
        queries, candidates = map(Side, vocabularies, features_of_sides(features, vocabularies))
        return cls(queries, candidates, pa.table(columns).combine_chunks(), sources.shared_ids)

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
            names = ", ".join(self.interactions.column_names)
            raise DataError(f"The corpus has no column {name!r}; it has {names}.")
        return to_tensor(self.interactions[name])

    @property
    def sides(self) -> dict[str, Side]:
        """The queries and the candidates, by side ("query" or "candidate")."""
        return {"query": self.queries, "candidate": self.candidates}

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
        """Count the interactions of each entity of `side` ("query" or "candidate"), int64 [N]."""
        return torch.bincount(self.column(side), minlength=len(self.sides[side]))

    def blocks(self) -> Iterator[PairBlock]:
        """Yield all interactions in order, in blocks; a corpus in memory is one block."""
        value = self.column("value") if self.has_values else None
        yield PairBlock(0, self.column("query"), self.column("candidate"), value)

    def sorted_by(self, side: str, names: Sequence[str] = ()) -> SortedPairs:
        """Return all pairs in the order of one side's rows, with the columns `names`."""
        other = "candidate" if side == "query" else "query"
        sizes = len(self.sides[side]), len(self.sides[other])
        columns = {name: self.column(name) for name in names}
        return SortedPairs.of(self.column(side), self.column(other), sizes, columns)

    def has_pairs(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Return bool [m]: True for pairs (rows, int64 [m]) in the corpus; row -1 is unknown."""
        width = len(self.candidates)
        pairs = self.column("query") * width + self.column("candidate")
        return torch.isin(query * width + candidate, pairs) & (query >= 0) & (candidate >= 0)

    def pairs_of(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the query and candidate rows, int64 [m] each, of the interactions of `queries`
        (int64 rows); interactions of other queries may be included."""
        return self.column("query"), self.column("candidate")

    def before(self, time: float) -> int:
        """Return the number of interactions earlier than `time`."""
        return int(torch.searchsorted(self.column("time").double(), time))

    def where(self, rule: PairRule) -> Corpus:
        """Return the corpus of the interactions that a rule selects, with their entities only."""
        return self.restrict(torch.cat([torch.nonzero(rule(b)).flatten() for b in self.blocks()]))

    def restrict(self, index: Tensor) -> Corpus:
        """Return the corpus of the interactions `index` (int64 [m]), with their entities only."""
        table = self.interactions.take(pa.array(index.numpy()))
        query, candidate = to_tensor(table["query"]), to_tensor(table["candidate"])
        entities = torch.unique(query), torch.unique(candidate)
        if self.shared_ids:
            both = torch.unique(torch.cat(entities))
            entities = both, both
        for name, rows, old_rows in zip(SIDES, (query, candidate), entities, strict=True):
            compact = pa.array(torch.searchsorted(old_rows, rows).numpy())
            table = table.set_column(table.column_names.index(name), name, compact)
        queries, candidates = self.queries.take(entities[0]), self.candidates.take(entities[1])
        if self.shared_ids:
            candidates = Side(queries.vocabulary, candidates.features)
        return Corpus(queries, candidates, table, self.shared_ids)
