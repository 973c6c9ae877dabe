"""`MappedCorpus`: a corpus whose interactions stay on disk, mapped into memory."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.columnar.pair_blocks import PairBlock, PairRule
from evergram.data.corpus import Corpus, Side
from evergram.data.prepared.cache_folder import read_derived
from evergram.data.prepared.column_file import Column, ColumnFile, check_rows, release
from evergram.data.prepared.pair_index import INDEX, PairIndex, write_index
from evergram.data.prepared.part_writer import WrittenPart, write_part
from evergram.errors import DataError

# Interactions that are worked on at a time.
PAIRS_AT_ONCE = 1 << 20
# Pairs or queries that are looked up in the index before its pages are released.
ASKED_AT_ONCE = 1 << 14
READ_IN_BLOCKS = ("query", "candidate", "value")
# Interactions up to which a column may be read whole, half a gibibyte of int64.
WHOLE = 1 << 26


@dataclass(frozen=True, repr=False)
class MappedCorpus(Corpus):
    """A corpus of any number of interactions, in memory that their number does not change.

    Entities are in memory: their ids, counts and features. Interactions are columns in files, rows
    as int32. What is derived of them, such as the training part of a split and an index by query,
    is written into a folder of its own, and read from there the next time.

    Args:
        interactions: Arrow table over the mapped columns, one chunk a part.
        columns: the files of each part by the name of the column.
        fingerprint: of the content.
        cache: folder of what is derived; it may be removed at any time.
        entity_counts: interactions of each entity of a side, int64 [N].
        mapped: the columns of `interactions`, whose pages are released as blocks are read.
    """

    columns: Sequence[Mapping[str, ColumnFile]] = field(default=(), compare=False)
    fingerprint: str = ""
    cache: Path = field(default=Path(), compare=False)
    entity_counts: Mapping[str, Tensor] = field(default_factory=dict, compare=False)
    mapped: Sequence[Column] = field(default=(), compare=False)

    @classmethod
    def of_files(
        cls,
        sides: tuple[Side, Side],
        columns: Sequence[Mapping[str, ColumnFile]],
        counts: Mapping[str, Tensor] | None,
        *,
        shared_ids: bool,
        fingerprint: str,
        cache: Path,
    ) -> MappedCorpus:
        """Return the corpus of columns in files.

        Args:
            columns: of each part, in order of time.
            counts: of each side, int64 [N]; None counts them.
        """
        mapped = {name: [part[name].mapped() for part in columns] for name in columns[0]}
        table = pa.table(
            {n: pa.chunked_array([pa.array(part) for part in parts]) for n, parts in mapped.items()}
        )
        corpus = cls(
            *sides,
            table,
            shared_ids,
            columns=columns,
            fingerprint=fingerprint,
            cache=cache,
            entity_counts=counts or {},
            mapped=[part for parts in mapped.values() for part in parts],
        )
        return corpus if counts is not None else corpus._counted()

    def column(self, name: str) -> Tensor:
        """Return one column of the interactions as in memory, [n].

        Raises: DataError: there is no such column; there are too many interactions for one; or a
            row is outside of its side.
        """
        if len(self) > WHOLE:
            raise DataError(
                f"This needs the column {name!r} of all {len(self):,} interactions in memory, and "
                f"prepared data give it up to {WHOLE:,}: graph encoders, prior.kind = 'svd', "
                "task.sparse = 'exclude', training.watch_minutes, --tensorboard and consumers "
                "read data whole. Leave it out, or train on fewer interactions."
            )
        values = super().column(name)
        if name not in ("query", "candidate"):
            return values
        self.check_rows(values, name)
        rows = values.long()
        release(self.mapped)
        return rows

    def blocks(self) -> Iterator[PairBlock]:
        names = [n for n in READ_IN_BLOCKS if n in self.interactions.column_names]
        table = self.interactions.select(names)
        for start in range(0, len(self), PAIRS_AT_ONCE):
            piece = table.slice(start, PAIRS_AT_ONCE)
            value = _copied(piece["value"], np.float32) if "value" in names else None
            query, candidate = (self._rows(piece[side], side) for side in ("query", "candidate"))
            yield PairBlock(start, query, candidate, value)
            # Those of the other columns, too, which the reader of the block may have read.
            release(self.mapped)

    @property
    def repeats(self) -> int:
        return len(self) - self.index.distinct

    def counts(self, side: str) -> Tensor:
        return self.entity_counts[side]

    def has_pairs(self, query: Tensor, candidate: Tensor) -> Tensor:
        known = (query >= 0) & (candidate >= 0)
        has = torch.zeros(len(query), dtype=torch.bool)
        asked = zip(
            *(torch.split(rows[known], ASKED_AT_ONCE) for rows in (query, candidate)), strict=True
        )
        pieces = [torch.zeros(0, dtype=torch.bool)]
        for some in asked:
            pieces.append(self.index.has(*some))
            self.index.release()
        has[known] = torch.cat(pieces)
        return has

    def pairs_of(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        pieces = []
        for some in torch.split(torch.unique(queries), ASKED_AT_ONCE):
            pieces.append(self.index.pairs_of(some))
            self.index.release()
        query, candidate = zip(*pieces, strict=True)
        return torch.cat(query), torch.cat(candidate)

    def before(self, time: float) -> int:
        # Parts follow each other in time.
        chunks = self.interactions["time"].chunks
        return sum(bisect_left(chunk.to_numpy(), time, key=float) for chunk in chunks)

    @cached_property
    def index(self) -> PairIndex:
        """Its pairs by query, in a file; written at the first use."""
        folder = self.cache / f"{self.fingerprint[:32]}-{INDEX}"
        return read_derived(
            folder, lambda part: write_index(self, part), lambda there: PairIndex.open(self, there)
        )

    def where(self, rule: PairRule) -> Corpus:
        """Return the corpus of the interactions that a rule marks, and of their entities only; its
        columns are in files, too, which are written once.

        Raises: DataError: a file is damaged, see `verify`.
        """
        self.verify(set(READ_IN_BLOCKS) & set(self.interactions.column_names))
        digest = hashlib.sha256(f"{self.fingerprint} {rule.key}".encode()).hexdigest()
        part = read_derived(
            self.cache / digest[:32],
            lambda folder: write_part(self, rule, folder),
            lambda folder: WrittenPart.open(self, folder),
        )
        if part.size == 0:
            return self.in_memory().restrict(torch.zeros(0, dtype=torch.int64))
        queries = self.queries.take(part.rows["query"])
        candidates = self.candidates.take(part.rows["candidate"])
        if self.shared_ids:
            candidates = Side(queries.vocabulary, candidates.features)
        return MappedCorpus.of_files(
            (queries, candidates),
            [part.files],
            part.counts,
            shared_ids=self.shared_ids,
            fingerprint=digest,
            cache=self.cache,
        )

    def restrict(self, index: Tensor) -> Corpus:
        """Return the corpus of some interactions in memory. Raises: DataError: as of `column`."""
        return self.in_memory().restrict(index)

    def in_memory(self) -> Corpus:
        """Return the same corpus in memory. Raises: DataError: as of `column`."""
        names = self.interactions.column_names
        table = pa.table({name: pa.array(self.column(name).numpy()) for name in names})
        return Corpus(self.queries, self.candidates, table, self.shared_ids, self.origin)

    def verify(self, names: Iterable[str]) -> None:
        """Read columns through, and refuse those that are not as they were written; each once.

        Raises: DataError: a file of them has another SHA-256 than it was written with.
        """
        for name in names:
            if name in self._verified:
                continue
            for part in self.columns:
                part[name].verify("Prepare the data again, or bring the file back from a copy.")
            self._verified.add(name)

    @cached_property
    def _verified(self) -> set[str]:
        return set()

    def _rows(self, column: pa.ChunkedArray, side: str) -> Tensor:
        """Return rows of a side, int64. Raises: DataError: one is outside of it."""
        rows = _copied(column, np.int64)
        self.check_rows(rows, side)
        return rows

    def check_rows(self, rows: Tensor, side: str) -> None:
        """Refuse rows of a side that are read from files. Raises: DataError: one is outside of
        it."""
        remedy = "Prepare the data again."
        if self.cache in self.columns[0][side].path.parents:
            remedy = f"Remove {self.cache} and run it again; it is written anew."
        check_rows(rows, side, len(self.queries if side == "query" else self.candidates), remedy)

    def _counted(self) -> MappedCorpus:
        """Return the corpus with its entities' interactions counted."""
        counts = {
            "query": torch.zeros(len(self.queries), dtype=torch.int64),
            "candidate": torch.zeros(len(self.candidates), dtype=torch.int64),
        }
        for block in self.blocks():
            for side, rows in (("query", block.query), ("candidate", block.candidate)):
                counts[side] += torch.bincount(rows, minlength=len(counts[side]))
        return replace(self, entity_counts=counts)


def _copied(column: pa.ChunkedArray, dtype: type) -> Tensor:
    return torch.from_numpy(column.to_numpy().astype(dtype))
