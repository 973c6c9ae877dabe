"""`Vocabulary`: distinct ids or keys in a fixed order; `Feature`: for each entity a bag of keys, as
ragged rows; and `Side`, the entities of one side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.data.feature_types import (
    DATE,
    MEASURE,
    is_measure,
    measures_of,
    positions,
    type_name,
    typed,
)
from evergram.data.reading.files import MemoryTable
from evergram.data.reading.keyed_table import keyed_table, rows_by_id
from evergram.errors import DataError
from evergram.ids import refuse_repeats

# A category has nearly as many values as objects from this share of them, if there are so many.
NEARLY_ALL, FEW = 0.9, 20


@dataclass(frozen=True)
class Vocabulary:
    """Distinct keys in a fixed order; the position of a key is its row.

    Keys that are numbers or times ascend, and the row of a value is that of the largest key that is
    no larger; of a smaller value than all, the first.

    Args:
        keys: Arrow array [N] without repeats or nulls, int64 or string; or float64 or timestamps,
            of which the last may be null, the key of missing values.
    """

    keys: pa.Array

    @classmethod
    def by_first_appearance(cls, values: pa.Array) -> Vocabulary:
        """Return the vocabulary of the distinct values, in the order in which they first appear; of
        numbers and times, ascending."""
        if is_measure(values.type):
            return cls(pc.unique(values).sort())
        return cls(pc.unique(plain(values)))

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self):,} keys of {self.keys.type})"

    def rows(self, values: pa.Array) -> Tensor:
        """Return the row of each value, int64 [n]; -1 for a value that is no key."""
        if is_measure(self.keys.type):
            return self._rows_of_measures(values)
        values = plain(values)
        if values.type != self.keys.type:
            if pa.types.is_string(self.keys.type):
                values = values.cast(pa.string())
            else:  # of strings, only those that are integers can be keys
                values = pc.if_else(_is_int64(values), values, None).cast(self.keys.type)
        rows = pc.index_in(values, value_set=self.keys).cast(pa.int64())
        return to_tensor(pc.fill_null(rows, -1))

    def _rows_of_measures(self, values: pa.Array) -> Tensor:
        starts = self.keys.drop_null()
        of_missing = len(starts) if self.keys.null_count else -1
        wanted = positions(measures_of(values, self.keys.type, ""))
        rows = np.searchsorted(positions(starts), wanted, side="right") - 1
        return torch.from_numpy(np.where(np.isnan(wanted), of_missing, rows.clip(min=0)))

    @property
    def row_of_missing(self) -> int | None:
        """The row of missing numbers or times; None if it has none."""
        return len(self.keys) - 1 if self.keys.null_count else None


def plain(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return ids or keys of any width or encoding as one array of int64 or string."""
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
    """Return a tensor of the same numbers; it is a copy only if Arrow's memory is read-only."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    array = values.to_numpy(zero_copy_only=False)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _is_int64(texts: pa.Array) -> pa.Array:
    long = pc.match_substring_regex(texts, r"^-?[1-9]\d{18}$")
    small = pc.less_equal(pc.utf8_ltrim(texts, characters="-"), str(2**63 - 1))
    small = pc.or_(small, pc.equal(texts, str(-(2**63))))
    # 05 is another id than 5.
    short = pc.match_substring_regex(texts, r"^(0|-?[1-9]\d{0,17})$")
    return pc.or_(short, pc.and_(long, small))


@dataclass(frozen=True)
class Feature:
    """A bag of keys (none, one or many) for each of N entities, stored as ragged rows.

    A number or a time (see `feature_types`) is a bag of one value, or of none where it is missing.

    Args:
        vocabulary: the keys, or the distinct values, ascending.
        offsets: int64 [N + 1]; entity i owns `indices[offsets[i]:offsets[i + 1]]`.
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
    """The entities of one side: their external ids in row order, and their features."""

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
    """What a feature of one side is: its type ("number", "time" or "category"), its distinct
    values, the share of the side's objects with a value, the most frequent one as text and its
    share of them, and what a person should know of it."""

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
        counts = torch.bincount(feature.indices, minlength=len(feature.vocabulary))
        objects, values = len(feature.offsets) - 1, int((counts > 0).sum())
        given = int((feature.offsets[1:] > feature.offsets[:-1]).sum())
        kind, most = type_name(feature.vocabulary.keys.type), None
        if values:
            most = feature.vocabulary.keys[int(counts.argmax())].cast(pa.string()).as_py()
            most = most.removesuffix(".000000")  # of a time
        warning = _not_a_measure(side, name, feature)
        alone = values >= NEARLY_ALL * given and len(feature.indices) == given >= FEW
        if kind == "category" and alone and warning is None:
            warning = (
                f"The {side} feature {name!r} has {values:,} values for {given:,} objects, such "
                f"as {most!r}, so it says nothing of a new one; give words or kinds that objects "
                "share, or leave the column out."
            )
        share = int(counts.max()) / given if values else 0.0
        return cls(side, name, kind, values, given / max(1, objects), most, share, warning)

    @property
    def sentence(self) -> str:
        most = "" if self.most_frequent is None else f", most often {self.most_frequent[:40]!r}"
        return (
            f"{self.side.capitalize()} feature {self.name}: {self.type}, {self.values:,} values, "
            f"of {self.coverage:.0%} of {'queries' if self.side == 'query' else 'candidates'}{most}"
            + (f" ({self.share:.0%})." if most else ".")
        )


def _not_a_measure(side: str, name: str, feature: Feature) -> str | None:
    """Return a warning if nearly all texts of a feature are numbers or times."""
    keys = feature.vocabulary.keys
    if not pa.types.is_string(keys.type):
        return None
    dates = keys.filter(pc.match_substring_regex(keys, DATE))
    if len(dates) >= NEARLY_ALL * len(keys) > 0:
        return (
            f"The {side} feature {name!r} is read as categories, as not all of its dates, such as "
            f"{dates[0].as_py()!r}, are days of the calendar that can be read in one way alone; "
            "write each as 2025-05-31, or leave it empty."
        )
    others = keys.filter(pc.invert(pc.match_substring_regex(keys, MEASURE)))
    if not 0 < len(others) <= (1 - NEARLY_ALL) * len(keys):
        return None
    return (
        f"The {side} feature {name!r} is read as categories, as {others[0].as_py()!r} is neither a "
        "number nor a time, and nearly all others are; write each cell as one, or leave it empty."
    )


def summaries(queries: Side, candidates: Side) -> list[FeatureSummary]:
    sides = (("query", queries), ("candidate", candidates))
    return [FeatureSummary.of(s, n, f) for s, side in sides for n, f in side.features.items()]


def take_ragged(indices: Tensor, offsets: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the concatenated values of some rows of a ragged table, and their offsets.

    Args:
        indices: [M], the values of all rows.
        offsets: int64 [N + 1]; row i owns `indices[offsets[i]:offsets[i + 1]]`.
        rows: int64 [n].
    """
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    taken = torch.zeros(len(rows) + 1, dtype=torch.int64, device=offsets.device)
    torch.cumsum(lengths, 0, out=taken[1:])
    where = torch.repeat_interleave(starts - taken[:-1], lengths)
    where += torch.arange(len(where), device=offsets.device)
    return indices[where], taken


def features_of_sides(
    sides: list[tuple[pa.Table | None, Vocabulary]],
) -> tuple[dict[str, Feature], dict[str, Feature]]:
    """Return the features of queries and of candidates by name, of a table (or None) and the ids of
    each side; one name has one vocabulary."""
    ragged: list[dict[str, tuple[Tensor, pa.Array]]] = []
    for (table, vocabulary), side in zip(sides, ("query", "candidate"), strict=True):
        ragged.append({} if table is None else _ragged_columns(table, vocabulary, side))
    vocabularies: dict[str, Vocabulary] = {}
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
    """Return each feature in the vocabulary's order, as offsets [N + 1] and flat values."""
    source = f"{side} features"
    table = keyed_table([MemoryTable(table, source)])
    refuse_repeats(table["id"], source)
    rows = rows_by_id(table["id"], vocabulary.keys, source)
    columns: dict[str, tuple[Tensor, pa.Array]] = {}
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
        offsets = torch.zeros(len(vocabulary) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=offsets[1:])
        columns[name] = (offsets, flat if is_measure(flat.type) else plain(flat))
    return columns
