"""Interactions and features in columns, under rows that stand for external ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.errors import DataError
from evergram.ids import first_missing, missing_sentence


@dataclass(frozen=True)
class Vocabulary:
    """Distinct keys in a fixed order; a key's place is its row.

    Args:
        keys: Arrow array without nulls or repeats, int64 or string.
    """

    keys: pa.Array

    @classmethod
    def by_first_appearance(cls, values: pa.Array) -> Vocabulary:
        return cls(pc.unique(plain(values)))

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, values: pa.Array) -> Tensor:
        """Rows of `values`, int64 of the same length; -1 for a key that is not here."""
        values = plain(values)
        if values.type != self.keys.type:
            if pa.types.is_string(self.keys.type):
                values = values.cast(pa.string())
            else:  # strings asked of a vocabulary of integers: only those that are integers
                values = pc.if_else(_is_int64(values), values, None).cast(self.keys.type)
        found = pc.fill_null(pc.index_in(values, value_set=self.keys).cast(pa.int64()), -1)
        return to_tensor(found)

    def same_keys(self, other: Vocabulary) -> bool:
        return self is other or bool(self.keys.equals(other.keys))


@dataclass(frozen=True)
class Feature:
    """For each of N entities, a bag of keys (empty, one, or many), stored as ragged rows.

    Args:
        vocabulary: the keys.
        offsets: int64 [N + 1]; entity i owns `indices[offsets[i]:offsets[i + 1]]`.
        indices: int64, rows of the vocabulary.
    """

    vocabulary: Vocabulary
    offsets: Tensor
    indices: Tensor

    def take(self, rows: Tensor) -> Feature:
        """The same feature for the entities `rows`, in that order."""
        indices, offsets = take_ragged(self.indices, self.offsets, rows)
        return Feature(self.vocabulary, offsets, indices)


@dataclass(frozen=True)
class Side:
    """The entities of one side: their external ids in row order, and their features."""

    vocabulary: Vocabulary
    features: Mapping[str, Feature] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.vocabulary)

    def take(self, rows: Tensor) -> Side:
        keys = self.vocabulary.keys.take(pa.array(rows.numpy()))
        return Side(Vocabulary(keys), {n: f.take(rows) for n, f in self.features.items()})


@dataclass(frozen=True)
class Corpus:
    """Who met what, when and how much, over two sides of entities.

    >>> import pyarrow as pa
    >>> from evergram import Corpus
    >>> table = pa.table({"query": [7, 7, 9], "candidate": ["a", "b", "a"]})
    >>> corpus = Corpus.from_tables(table)
    >>> len(corpus), len(corpus.queries), len(corpus.candidates)
    (3, 2, 2)
    >>> corpus.counts("candidate").tolist()
    [2, 1]

    Interactions are in order of time where there is one (ties keep the file's order), else in the
    file's order. A pair that comes twice is kept twice.

    Args:
        queries, candidates: the two sides.
        interactions: Arrow table, n rows: `query` and `candidate` (int64 rows of the sides), and
            where the source has them `value` and `weight` (float32), `time` (int64 or float64).
        shared_ids: both sides are one vocabulary (pages that link to pages).
    """

    queries: Side
    candidates: Side
    interactions: pa.Table
    shared_ids: bool = False

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
        """Map external ids to rows by first appearance and check every column.

        Args:
            interactions: columns `query`, `candidate`, optionally `value`, `time`, `weight`.
            query_features, candidate_features: column `id`, and one column a feature: integers,
                strings or booleans for a single key, lists of them for a bag. Ids without an
                interaction are left out; ids without a row get empty bags. A feature of the same
                name on both sides shares one vocabulary.
            shared_ids: query and candidate ids name the same things.
            source: what to call the table in an error.
        Raises: DataError: a missing column, an empty table, a null id, a value or time that is
            null or not finite, a feature of floats, a repeated id; the row is named.
        """
        interactions = _checked_interactions(interactions, source)
        if "time" in interactions.column_names:
            order = np.argsort(interactions["time"].to_numpy(), kind="stable")
            interactions = interactions.take(pa.array(order))
        query_ids = plain(interactions["query"])
        candidate_ids = plain(interactions["candidate"])
        if shared_ids:
            if query_ids.type != candidate_ids.type:
                query_ids, candidate_ids = query_ids.cast("string"), candidate_ids.cast("string")
            both = Vocabulary.by_first_appearance(pa.concat_arrays([query_ids, candidate_ids]))
            query_vocabulary = candidate_vocabulary = both
        else:
            query_vocabulary = Vocabulary.by_first_appearance(query_ids)
            candidate_vocabulary = Vocabulary.by_first_appearance(candidate_ids)
        columns = {
            "query": pa.array(query_vocabulary.rows(query_ids).numpy()),
            "candidate": pa.array(candidate_vocabulary.rows(candidate_ids).numpy()),
        }
        for name in ("value", "time", "weight"):
            if name in interactions.column_names:
                columns[name] = interactions[name]
        features = _features(
            [(query_features, query_vocabulary), (candidate_features, candidate_vocabulary)]
        )
        return cls(
            Side(query_vocabulary, features[0]),
            Side(candidate_vocabulary, features[1]),
            pa.table(columns).combine_chunks(),
            shared_ids,
        )

    def __len__(self) -> int:
        return int(self.interactions.num_rows)

    def column(self, name: str) -> Tensor:
        """One column of the interactions, [n]. Raises: DataError: there is no such column."""
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
    def repeats(self) -> int:
        """How many interactions repeat an earlier pair."""
        pairs = self.column("query") * len(self.candidates) + self.column("candidate")
        return len(self) - len(torch.unique(pairs))

    def counts(self, side: str) -> Tensor:
        """Interactions of each entity of `side` ("query" or "candidate"), int64 [N]."""
        size = len(self.queries if side == "query" else self.candidates)
        return torch.bincount(self.column(side), minlength=size)

    def restrict(self, index: Tensor) -> Corpus:
        """The corpus of the interactions `index` alone: entities without one are gone."""
        table = self.interactions.take(pa.array(index.numpy()))
        query, candidate = to_tensor(table["query"]), to_tensor(table["candidate"])
        if self.shared_ids:
            seen = torch.unique(torch.cat([query, candidate]))
            sides = seen, seen
        else:
            sides = torch.unique(query), torch.unique(candidate)
        for name, rows, kept in (("query", query, sides[0]), ("candidate", candidate, sides[1])):
            position = table.column_names.index(name)
            compact = pa.array(torch.searchsorted(kept, rows).numpy())
            table = table.set_column(position, name, compact)
        queries = self.queries.take(sides[0])
        candidates = self.candidates.take(sides[1])
        if self.shared_ids:
            candidates = Side(queries.vocabulary, candidates.features)
        return Corpus(queries, candidates, table, self.shared_ids)


def plain(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One contiguous array of int64 or string, whatever width or encoding it came in."""
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
    """A tensor over the same numbers; copied only where Arrow's memory cannot be written."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    array = values.to_numpy(zero_copy_only=False)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _is_int64(texts: pa.Array) -> pa.Array:
    """Whether each text is a whole number of 64 bits."""
    long = pc.match_substring_regex(texts, r"^-?\d{19}$")
    small = pc.less_equal(pc.utf8_ltrim(texts, characters="-"), str(2**63 - 1))
    return pc.or_(pc.match_substring_regex(texts, r"^-?\d{1,18}$"), pc.and_(long, small))


def take_ragged(indices: Tensor, offsets: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of a ragged table: the values of `rows`, one after the other, and their new offsets."""
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    taken = torch.zeros(len(rows) + 1, dtype=torch.int64, device=offsets.device)
    torch.cumsum(lengths, 0, out=taken[1:])
    where = torch.repeat_interleave(starts - taken[:-1], lengths)
    where += torch.arange(len(where), device=offsets.device)
    return indices[where], taken


def _checked_interactions(table: pa.Table, source: str) -> pa.Table:
    for name in ("query", "candidate"):
        if name not in table.column_names:
            has = ", ".join(table.column_names) or "none"
            raise DataError(f"{source} has no column {name!r}; its columns are: {has}.")
    if table.num_rows == 0:
        raise DataError(f"{source} has no rows; at least one interaction is needed.")
    for name in ("query", "candidate"):
        check_ids(table[name], name, source)
    for name in ("value", "time", "weight"):
        if name not in table.column_names:
            continue
        column = table[name]
        kind = column.type
        if name == "time" and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            # Every clock to one integer unit: order and differences are all that is used.
            column = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise DataError(f"{source} column {name!r} is {kind}; it must be a number.")
        elif name != "time":  # unsafe: a float32 rounds a large count, and that is no fault
            column = column.cast(pa.float32(), safe=False)
        else:
            column = column.cast(pa.int64() if pa.types.is_integer(kind) else pa.float64())
        table = table.set_column(table.column_names.index(name), name, column)
        bad = pc.is_null(column, nan_is_null=True)
        if pa.types.is_floating(column.type):
            bad = pc.or_kleene(bad, pc.invert(pc.fill_null(pc.is_finite(column), False)))
        _refuse_first(bad, column, name, source, "a finite number")
        if name == "weight":
            negative = pc.less(column, 0)
            _refuse_first(negative, column, name, source, "a finite number of at least 0")
    return table


def check_ids(column: pa.ChunkedArray, name: str, source: str) -> None:
    """Raises: DataError: a column is not of integers or texts, or a cell is no id."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    allowed = (
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    )
    if not allowed:
        example = f" (the first is {column[0].as_py()})" if len(column) else ""
        raise DataError(
            f"{source} column {name!r} is {kind}{example}; ids must be integers or strings."
        )
    refuse_missing(column, name, source)


def refuse_missing(
    column: pa.ChunkedArray, name: str, source: str, *, text_file: bool = False
) -> None:
    """Raises: DataError: a cell of a column of ids is no id, see `evergram.ids`; it is named."""
    row = first_missing(column, text_file=text_file)
    if row >= 0:
        where, given = f"{source} row {row + 1}", column[row].as_py()
        raise DataError(missing_sentence(where, name, given, text_file=text_file))


def _refuse_first(bad: pa.Array, column: pa.Array, name: str, source: str, wanted: str) -> None:
    row = pc.index(bad, True).as_py()
    if row >= 0:
        given = column[row].as_py()
        raise DataError(f"{source} row {row + 1}: {name} is {given}; it must be {wanted}.")


def _features(
    sides: list[tuple[pa.Table | None, Vocabulary]],
) -> tuple[dict[str, Feature], dict[str, Feature]]:
    """Both sides' features; a name that stands on both sides gets one vocabulary."""
    ragged: list[dict[str, tuple[Tensor, pa.Array]]] = []
    for (table, vocabulary), side in zip(sides, ("query", "candidate"), strict=True):
        ragged.append({} if table is None else _ragged_columns(table, vocabulary, side))
    vocabularies: dict[str, Vocabulary] = {}
    for name in dict.fromkeys([*ragged[0], *ragged[1]]):
        values = [side[name][1] for side in ragged if name in side]
        if len({v.type for v in values}) > 1:
            values = [v.cast(pa.string()) for v in values]
        vocabularies[name] = Vocabulary.by_first_appearance(pa.concat_arrays(values))
    first, second = (
        {
            name: Feature(vocabularies[name], offsets, vocabularies[name].rows(values))
            for name, (offsets, values) in side.items()
        }
        for side in ragged
    )
    return first, second


def _ragged_columns(
    table: pa.Table, vocabulary: Vocabulary, side: str
) -> dict[str, tuple[Tensor, pa.Array]]:
    """Each feature column in the vocabulary's order, as offsets [N + 1] and flat keys."""
    source = f"{side} features"
    if "id" not in table.column_names:
        has = ", ".join(table.column_names) or "none"
        raise DataError(f"{source} have no column 'id'; their columns are: {has}.")
    check_ids(table["id"], "id", source)
    ids = plain(table["id"])
    if len(pc.unique(ids)) < len(ids):
        counts = pc.value_counts(ids).flatten()
        repeated = counts[0][pc.index(pc.greater(counts[1], 1), True).as_py()]
        raise DataError(f"{source} name the id {repeated} twice; each id may have one row.")
    row = Vocabulary(ids).rows(vocabulary.keys)
    if len(ids) and not bool((row >= 0).any()):
        raise DataError(
            f"{source} have none of the ids of the interactions (an id there is {ids[0]}, here "
            f"{vocabulary.keys[0]}); are they of the other side?"
        )
    places = pa.array(row.numpy(), mask=(row < 0).numpy())
    columns: dict[str, tuple[Tensor, pa.Array]] = {}
    for name in table.column_names:
        if name == "id":
            continue
        column = table[name].combine_chunks().take(places)
        kind = column.type
        if pa.types.is_fixed_size_list(kind):
            kind = pa.list_(kind.value_type)
            column = column.cast(kind)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            lengths = to_tensor(pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64()))
            flat = pc.list_flatten(column)
        else:
            lengths = to_tensor(pc.is_valid(column)).to(torch.int64)
            flat = pc.drop_null(column)
        if pa.types.is_floating(flat.type):
            raise DataError(
                f"{source} column {name!r} holds floats; bucket it into integers or strings first."
            )
        if pa.types.is_nested(flat.type) or pa.types.is_binary(flat.type):
            raise DataError(
                f"{source} column {name!r} holds {flat.type}; a feature is of integers, strings or "
                "booleans, or of lists of them."
            )
        if flat.null_count:
            raise DataError(f"{source} column {name!r} has a null inside a list; remove it.")
        offsets = torch.zeros(len(vocabulary) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=offsets[1:])
        columns[name] = (offsets, plain(flat))
    return columns
