"""`MappedCorpus`: a corpus whose interactions stay on disk; `load_prepared` opens one."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
import torch
from torch import Tensor

from evergram.atomic_files import remove_tree
from evergram.data.corpus import Corpus, PairBlock, PairRule
from evergram.data.features import Side, features_of_sides
from evergram.data.prepared.column_file import (
    Column,
    ColumnFile,
    check_rows,
    check_sha256,
    release,
)
from evergram.data.prepared.derived import (
    INDEX,
    PairIndex,
    WrittenPart,
    read_derived,
    write_index,
    write_part,
)
from evergram.data.prepared.record import NAME, SIDES, PreparedRecord
from evergram.data.vocabulary import Vocabulary, to_tensor
from evergram.errors import DataError

# The folder, in a prepared one, of what is derived from it.
CACHE = ".splits"
# In the order of a corpus in memory.
COLUMNS = ("query", "candidate", "value", "time", "weight")
# Interactions that are worked on at a time.
PAIRS_AT_ONCE = 1 << 20
# Pairs or queries that are looked up in the index before its pages are released.
ASKED_AT_ONCE = 1 << 14
READ_IN_BLOCKS = {"query": np.int64, "candidate": np.int64, "value": np.float32}
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
        counts: Mapping[str, Tensor],
        *,
        shared_ids: bool,
        fingerprint: str,
        cache: Path,
    ) -> MappedCorpus:
        """Return the corpus of the columns of parts that follow each other in time."""
        mapped = {name: [part[name].mapped() for part in columns] for name in columns[0]}
        table = pa.table(
            {n: pa.chunked_array([pa.array(part) for part in parts]) for n, parts in mapped.items()}
        )
        return cls(
            *sides,
            table,
            shared_ids,
            columns=columns,
            fingerprint=fingerprint,
            cache=cache,
            entity_counts=counts,
            mapped=[part for parts in mapped.values() for part in parts],
        )

    @property
    def types(self) -> dict[str, np.dtype[Any]]:
        """The type of each column on disk."""
        return {name: file.dtype for name, file in self.columns[0].items()}

    def column(self, name: str) -> Tensor:
        """Return one column of the interactions as in memory, [n].

        Raises: DataError: there is no such column; there are too many interactions for one; or a
            row is outside of its side.
        """
        if len(self) > WHOLE:
            raise DataError(
                f"This needs the column {name!r} of all {len(self):,} interactions in memory, and "
                f"prepared data give it up to {WHOLE:,}: graph encoders, prior.kind = 'svd', "
                "task.sparse = 'exclude', --tensorboard and consumers "
                "read data whole. Leave it out, or train on fewer interactions."
            )
        values = super().column(name)
        if name not in SIDES:
            return values
        self.check_rows(values, name)
        rows = values.long()
        release(self.mapped)
        return rows

    def blocks(self) -> Iterator[PairBlock]:
        for start in range(0, len(self), PAIRS_AT_ONCE):
            piece = self.interactions.slice(start, PAIRS_AT_ONCE)
            columns = {
                name: torch.from_numpy(piece[name].to_numpy().astype(READ_IN_BLOCKS[name]))
                for name in self._read_in_blocks
            }
            for side in SIDES:
                self.check_rows(columns[side], side)
            yield PairBlock(start, **columns)
            # Those of the other columns, too, which the reader of the block may have read.
            release(self.mapped)

    @property
    def _read_in_blocks(self) -> list[str]:
        return [n for n in READ_IN_BLOCKS if n in self.interactions.column_names]

    @property
    def repeats(self) -> int:
        return len(self) - self.index.distinct

    def counts(self, side: str) -> Tensor:
        return self.entity_counts[side]

    def has_pairs(self, query: Tensor, candidate: Tensor) -> Tensor:
        has = (query >= 0) & (candidate >= 0)
        for some in torch.split(torch.nonzero(has).flatten(), ASKED_AT_ONCE):
            has[some] = self.index.has(query[some], candidate[some])
            self.index.release()
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
        return read_derived(
            self.cache / f"{self.fingerprint[:32]}-{INDEX}",
            lambda folder: write_index(self, folder),
            lambda folder: PairIndex.open(self, folder),
        )

    def where(self, rule: PairRule) -> Corpus:
        """Return the corpus of the interactions that a rule marks, and of their entities only; its
        columns are in files, too, which are written once.

        Raises: DataError: a file is damaged, see `verify`.
        """
        self.verify(self._read_in_blocks)
        digest = hashlib.sha256(f"{self.fingerprint} {rule.key}".encode()).hexdigest()
        part = read_derived(
            self.cache / digest[:32],
            lambda folder: write_part(self, rule, folder),
            lambda folder: WrittenPart.open(self, folder),
        )
        if not part.files["query"].length:
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
        """Return the corpus of some interactions in memory. Raises: DataError: see `column`."""
        return self.in_memory().restrict(index)

    def in_memory(self) -> Corpus:
        """Return the same corpus in memory. Raises: DataError: see `column`."""
        names = self.interactions.column_names
        table = pa.table({name: pa.array(self.column(name).numpy()) for name in names})
        return Corpus(self.queries, self.candidates, table, self.shared_ids, self.origin)

    def verify(self, names: Iterable[str]) -> None:
        """Read columns through, each once. Raises: DataError: one has another SHA-256 than it was
        written with."""
        for name in sorted(set(names) - self._verified):
            for file in (part[name] for part in self.columns):
                remedy = "Prepare the data again, or bring the file back from a copy."
                check_sha256(file.path, file.sha256, remedy)
            self._verified.add(name)

    @cached_property
    def _verified(self) -> set[str]:
        return set()

    def check_rows(self, rows: Tensor, side: str) -> None:
        """Refuse rows that are read from files. Raises: DataError: one is outside of its side."""
        remedy = "Prepare the data again."
        if self.cache in self.columns[0][side].path.parents:
            remedy = f"Remove {self.cache} and run it again; it is written anew."
        check_rows(rows, side, len(self.queries if side == "query" else self.candidates), remedy)


def load_prepared(path: Path) -> MappedCorpus:
    """Return the corpus of a prepared folder; only entities are read into memory.

    The training part of a split, and an index of its pairs, are written into the folder `.splits`
    of this one, and read from there the next time. It may be removed.

    Raises: DataError: the folder is not prepared, or its files do not fit together, or those of
            entities are not as they were written; columns are checked when they are read through.
        FormatError: a later Evergram prepared it.
    """
    record = PreparedRecord.load(path)
    tables = {side: _entities(path, record, side) for side in SIDES}
    vocabularies = {side: Vocabulary(tables[side]["id"].combine_chunks()) for side in SIDES}
    if record.shared_ids:
        vocabularies["candidate"] = vocabularies["query"]
    described = {s: names for s in SIDES if (names := record.sides[s].features)}
    features = features_of_sides(
        [
            (tables[s].select(["id", *described[s]]) if s in described else None, vocabularies[s])
            for s in SIDES
        ]
    )
    sides = [Side(vocabularies[s], f) for s, f in zip(SIDES, features, strict=True)]
    columns = [
        {
            name: ColumnFile.open(
                path / part.folder / f"{name}.npy", part.interactions, part.sha256.get(name)
            )
            for name in COLUMNS
            if name in record.columns
        }
        for part in record.parts
    ]
    for file in (file for part in columns for file in part.values()):
        if file.dtype.name != record.columns[file.path.stem]:
            raise DataError(
                f"{file.path} holds {file.dtype.name}, and {path / NAME} says "
                f"{record.columns[file.path.stem]}; prepare the data again."
            )
    cache = path / CACHE / record.fingerprint[:32]
    if cache.parent.is_dir() and not cache.is_dir():
        # What is there is of older data. A process that has opened its files keeps them.
        for other in cache.parent.iterdir():
            remove_tree(other)
    return MappedCorpus.of_files(
        (sides[0], sides[1]),
        columns,
        {side: to_tensor(tables[side]["count"]) for side in SIDES},
        shared_ids=record.shared_ids,
        fingerprint=record.fingerprint,
        cache=cache,
    )


def _entities(path: Path, record: PreparedRecord, side: str) -> pa.Table:
    """Return the entities of a side: `id`, `count` and its features.

    Raises: DataError: the file is damaged, or is not what the record says.
    """
    file = path / ("entities.arrow" if record.shared_ids else f"{side}.arrow")
    try:
        with pa.memory_map(str(file)) as source:
            table = ipc.open_file(source).read_all()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file} cannot be read: {error}; prepare the data again.") from error
    check_sha256(file, record.entity_files.get(file.name), "Prepare the data again.")
    expected = record.sides["query" if side == "query" else "candidate"]
    count = f"{side}_count" if record.shared_ids else "count"
    names = ["id", count, *expected.features]
    missing = [name for name in names if name not in table.column_names]
    counted = 0 if missing else pc.sum(table[count]).as_py() or 0
    if missing or len(table) != expected.entities or counted != record.interactions:
        raise DataError(
            f"{file} has {len(table):,} entities of {counted:,} interactions and the columns "
            f"{', '.join(table.column_names)}; {path / NAME} says {expected.entities:,} of "
            f"{record.interactions:,} and {', '.join(missing) or 'these'}. Prepare the data again."
        )
    ids = table["id"].cast(pa.string()) if table["id"].type == pa.large_string() else table["id"]
    if ids.type not in (pa.int64(), pa.string()) or ids.null_count:
        raise DataError(
            f"The ids of a prepared side are {ids.type} with {ids.null_count} missing; they must "
            "be int64 or string, each one there. Prepare the data again."
        )
    columns = {"id": ids, "count": table[count].cast(pa.int64())}
    return pa.table(columns | {name: table[name] for name in expected.features})
