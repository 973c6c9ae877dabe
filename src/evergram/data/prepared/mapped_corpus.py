"""`MappedCorpus`: a corpus whose interactions stay on disk; `load_prepared` opens one.

What is derived from prepared columns, the part that a rule marks and an index by query, lies in a
folder of its own, which may be removed at any time. Each set of files is written whole or not at
all.
"""

from __future__ import annotations

import hashlib
import mmap
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
import torch
from torch import Tensor

from evergram.atomic_files import file_lock, new_folder, remove_tree
from evergram.data.corpus import (
    Corpus,
    PairBlock,
    PairRule,
    Side,
    Vocabulary,
    features_of_sides,
    take_ragged,
    to_tensor,
)
from evergram.data.prepared.prepare import NAME, Column, PreparedRecord, release, sha256_of
from evergram.data.reading.interactions import SIDES, SideName
from evergram.errors import DataError

# The folder, in a prepared one, of what is derived from it.
CACHE, LOCK = ".splits", ".lock"
INDEXED = ("candidate", "value", "weight")
# In the order of a corpus in memory.
COLUMNS = ("query", "candidate", "value", "time", "weight")
# Interactions that are worked on at a time.
PAIRS_AT_ONCE = 1 << 20
# Pairs that are sorted at a time; the pairs of one query are always sorted together.
BUCKET = 1 << 20
# Pairs or queries that are looked up in the index before its pages are released.
ASKED_AT_ONCE = 1 << 14
READ_IN_BLOCKS = {"query": np.int64, "candidate": np.int64, "value": np.float32}
# Interactions up to which a column may be read whole, half a gibibyte of int64.
WHOLE = 1 << 26
# What NumPy raises for a file that is damaged.
DAMAGE = (OSError, ValueError, EOFError, OverflowError, SyntaxError, TokenError)
Types = Mapping[str, np.dtype[Any]]


def mapped_column(
    path: Path, length: int | None = None, kind: str = "", *, at_random: bool = False
) -> Column:
    """Return the numbers of a .npy file of one dimension, mapped into memory, also once the file
    was removed; nothing written there is kept, and `at_random` nothing is read ahead.

    Raises: DataError: it is damaged, or has not `length` numbers of a kind where these are given.
    """
    try:
        # Copy on write, since torch warns of arrays that cannot be written.
        mapped: Any = np.lib.format.open_memmap(path, mode="c")
    except DAMAGE as error:
        raise DataError(f"{path} cannot be read: {error}; prepare the data again.") from error
    if mapped.ndim != 1 or length not in (None, len(mapped)) or kind not in ("", mapped.dtype):
        raise DataError(
            f"{path} has the shape {mapped.shape} of {mapped.dtype}, and a column of "
            f"{length or 'any'} numbers{kind and f' of {kind}'} is expected; the file was "
            "changed or is damaged. Prepare the data again."
        )
    if at_random and hasattr(mmap, "MADV_RANDOM"):
        mapped._mmap.madvise(mmap.MADV_RANDOM)
    column: Column = mapped
    return column


def check_sha256(path: Path, expected: str | None) -> None:
    """Raise a DataError if the file cannot be read, or has another SHA-256 than the expected one,
    if that is known."""
    remedy = "Prepare the data again, or bring the file back from a copy."
    try:
        digest = expected and sha256_of(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. {remedy}") from error
    if digest != expected:
        raise DataError(
            f"{path} is not as it was written; the file was changed or is damaged. {remedy}"
        )


@dataclass(frozen=True, repr=False)
class MappedCorpus(Corpus):
    """A corpus of any number of interactions, in memory that their number does not change.

    Entities are in memory: their ids, counts and features. Interactions are columns in files, rows
    as int32.

    Args:
        interactions: Arrow table over the mapped columns.
        columns: the files by the name of the column.
        mapped: the columns, whose pages are released as blocks are read.
        cache: folder of what is derived; it may be removed at any time.
        entity_counts: interactions of each entity of a side, int64 [N].
        sha256: of each file as it was written, by its name, if it is known.
    """

    columns: Mapping[str, Path] = field(default_factory=dict, compare=False)
    mapped: Mapping[str, Column] = field(default_factory=dict, compare=False)
    fingerprint: str = ""
    cache: Path = field(default=Path(), compare=False)
    entity_counts: Mapping[str, Tensor] = field(default_factory=dict, compare=False)
    sha256: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def of_files(
        cls, sides: tuple[Side, Side], mapped: Mapping[str, Column], folder: Path, **rest: Any
    ) -> MappedCorpus:
        """Return the corpus of the mapped columns of a folder."""
        table = pa.table({name: pa.array(np.asarray(column)) for name, column in mapped.items()})
        columns = {name: folder / f"{name}.npy" for name in mapped}
        return cls(*sides, table, columns=columns, mapped=mapped, **rest)

    @property
    def types(self) -> dict[str, np.dtype[Any]]:
        """The type of each column on disk."""
        return {name: column.dtype for name, column in self.mapped.items()}

    def column(self, name: str) -> Tensor:
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
        release(self.mapped.values())
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
            release(self.mapped.values())

    @property
    def _read_in_blocks(self) -> list[str]:
        return [n for n in READ_IN_BLOCKS if n in self.mapped]

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
        query, candidate, index = list[Tensor](), list[Tensor](), self.index
        candidates = torch.from_numpy(index.columns["candidate"])
        for some in torch.split(torch.unique(queries), ASKED_AT_ONCE):
            taken, offsets = take_ragged(candidates, index.offsets, some)
            self.check_rows(taken, "candidate")
            query.append(torch.repeat_interleave(some, offsets.diff()))
            candidate.append(taken.long())
            index.release()
        return torch.cat(query), torch.cat(candidate)

    def before(self, time: float) -> int:
        return bisect_left(self.interactions["time"].to_numpy(), time, key=float)

    @cached_property
    def index(self) -> PairIndex:
        """Its pairs by query, in files; written at the first use."""
        folder = self.cache / f"{self.fingerprint[:32]}-by-query"
        _write_once(folder, lambda new: write_index(self, new))
        counts = self.counts("query")
        offsets = torch.zeros(len(counts) + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=offsets[1:])
        columns = {
            name: mapped_column(folder / f"{name}.npy", int(offsets[-1]), at_random=True)
            for name in self.types
            if name in INDEXED
        }
        return PairIndex(offsets, columns, int(np.load(folder / "distinct.npy")))

    def where(self, rule: PairRule) -> Corpus:
        """Return the corpus of the interactions that a rule marks, and of their entities only; its
        columns are in files, too, which are written once."""
        self.verify(self._read_in_blocks)
        digest = hashlib.sha256(f"{self.fingerprint} {rule.key}".encode()).hexdigest()
        folder = self.cache / digest[:32]
        _write_once(folder, lambda new: write_part(self, rule, new))
        mapped = {name: mapped_column(folder / f"{name}.npy") for name in self.types}
        if not len(mapped["query"]):
            return self.in_memory().restrict(torch.zeros(0, dtype=torch.int64))
        rows, counts = (
            {str(s): torch.from_numpy(np.load(folder / f"{s}-{name}.npy")) for s in SIDES}
            for name in ("rows", "counts")
        )
        queries = self.queries.take(rows["query"])
        candidates = self.candidates.take(rows["candidate"])
        if self.shared_ids:
            candidates = Side(queries.vocabulary, candidates.features)
        return MappedCorpus.of_files(
            (queries, candidates),
            mapped,
            folder,
            entity_counts=counts,
            shared_ids=self.shared_ids,
            fingerprint=digest,
            cache=self.cache,
        )

    def restrict(self, index: Tensor) -> Corpus:
        return self.in_memory().restrict(index)

    def in_memory(self) -> Corpus:
        """Return the same corpus in memory, see `column`."""
        names = self.interactions.column_names
        table = pa.table({name: pa.array(self.column(name).numpy()) for name in names})
        return Corpus(self.queries, self.candidates, table, self.shared_ids, self.origin)

    def verify(self, names: Iterable[str]) -> None:
        """Read columns through, each once. Raises: DataError: one has another SHA-256 than it was
        written with."""
        for name in sorted(set(names) - self._verified):
            check_sha256(self.columns[name], self.sha256.get(f"{name}.npy"))
            self._verified.add(name)

    @cached_property
    def _verified(self) -> set[str]:
        return set()

    def check_rows(self, rows: Tensor, side: str) -> None:
        """Raise a DataError if one of the rows that are read from files is outside of its side."""
        size = len(self.queries if side == "query" else self.candidates)
        least, most = (int(end) for end in rows.aminmax()) if rows.numel() else (0, 0)
        if least < 0 or most >= max(1, size):
            raise DataError(
                f"The column {side!r} of prepared data names the rows {least} to {most} and there "
                f"are {size:,}; the files are damaged. Remove {self.cache}, which is written anew, "
                "or prepare the data again."
            )


def _write_once(folder: Path, write: Callable[[Path], None]) -> None:
    """Fill a folder of derived files by `write`, unless it is there; another process that needs the
    same folder waits."""
    if folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(folder.parent / LOCK):
            if not folder.is_dir():  # another process may have written it meanwhile
                with new_folder(folder) as part:
                    write(part)
    except OSError as error:
        why = error.strerror or str(error).rstrip(".")
        raise DataError(
            f"What training needs beside the prepared data cannot be written in {folder.parent}: "
            f"{why}; make room or permit writing there, or copy the prepared folder to a place "
            "that has both."
        ) from error


def write_part(corpus: MappedCorpus, rule: PairRule, folder: Path) -> None:
    """Write the interactions that a rule marks, and the rows and counts of their entities, int64
    [N], in two passes over the corpus; entities are those of `Corpus.restrict`."""
    corpus.verify(corpus.interactions.column_names)
    counts: dict[str, Tensor] = {side: torch.zeros_like(corpus.counts(side)) for side in SIDES}
    for block in corpus.blocks():
        marks = rule(block)
        for side, rows in (("query", block.query), ("candidate", block.candidate)):
            counts[side] += torch.bincount(rows[marks], minlength=len(counts[side]))
    kept = {side: counts[side] > 0 for side in SIDES}
    if corpus.shared_ids:
        kept = dict.fromkeys(SIDES, kept["query"] | kept["candidate"])
    for side in SIDES:
        np.save(folder / f"{side}-rows.npy", torch.nonzero(kept[side]).flatten().numpy())
        np.save(folder / f"{side}-counts.npy", counts[side][kept[side]].numpy())
    new_rows = {side: (kept[side].cumsum(0) - 1).numpy() for side in SIDES}
    with _new_columns(folder, corpus.types, int(counts["query"].sum())) as files:
        for block in corpus.blocks():
            marked = rule(block).numpy()
            piece = corpus.interactions.slice(block.start, len(block))
            for name, file in files.items():
                values = piece[name].to_numpy()[marked]
                if name in new_rows:
                    values = new_rows[name][values].astype(values.dtype)
                file.write(values.tobytes())


@contextmanager
def _new_columns(folder: Path, types: Types, size: int) -> Iterator[dict[str, IO[bytes]]]:
    """Yield files open for writing, each after the header of a column of `size` numbers. They are
    written by system calls, so that a full disk is an OSError and no signal."""
    with ExitStack() as stack:
        files = dict[str, IO[bytes]]()
        for name, dtype in types.items():
            files[name] = stack.enter_context((folder / f"{name}.npy").open("wb"))
            header = {"descr": dtype.str, "fortran_order": False, "shape": (size,)}
            np.lib.format.write_array_header_1_0(files[name], header)
        yield files


@dataclass(frozen=True)
class PairIndex:
    """The interactions of a corpus, sorted by query and then by candidate.

    Args:
        offsets: int64 [N + 1]; query a owns the interactions `offsets[a]` to `offsets[a + 1]`.
        columns: `candidate`, and `value` and `weight` if the corpus has them, [n] each, mapped.
        distinct: the number of distinct pairs.
    """

    offsets: Tensor
    columns: Mapping[str, Column]
    distinct: int

    def release(self) -> None:
        """Take the pages of its files out of this process's memory until they are read again."""
        release(self.columns.values())

    def has(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Return bool [m], True for pairs of rows (int64 [m] each) that are in the corpus."""
        candidates = torch.from_numpy(self.columns["candidate"])
        low, end = self.offsets[query], self.offsets[query + 1]
        high = end
        last = len(candidates) - 1
        # A binary search of every pair at once, among the candidates of its query.
        while bool((low < high).any()):
            middle = (low + high) // 2
            less = (low < high) & (candidates[middle.clamp(max=last)] < candidate)
            high = torch.where(less, high, torch.minimum(high, middle))
            low = torch.where(less, middle + 1, low)
        return (low < end) & (candidates[low.clamp(max=last)] == candidate)


def write_index(corpus: MappedCorpus, folder: Path) -> None:
    """Write the index of a corpus in memory of some buckets: one pass puts each interaction into
    the files of a range of queries, a second one sorts each range by itself."""
    types = {n: dtype for n, dtype in corpus.types.items() if n in ("query", *INDEXED)}
    scratch, counts = folder / "scratch", corpus.counts("query").numpy()
    scratch.mkdir()
    bucket = ((np.cumsum(counts) - counts) // BUCKET).astype(np.int32)  # of each query
    for block in corpus.blocks():
        of_pair = bucket[block.query.numpy()]
        order = np.argsort(of_pair, kind="stable")
        numbers, starts = np.unique(of_pair[order], return_index=True)
        piece = corpus.interactions.slice(block.start, len(block))
        for name in types:
            parts = np.split(piece[name].to_numpy()[order], starts[1:])
            for number, values in zip(numbers, parts, strict=True):
                with (scratch / f"{number}-{name}").open("ab") as file:
                    file.write(values.tobytes())
    distinct, kept = 0, {name: dtype for name, dtype in types.items() if name in INDEXED}
    with _new_columns(folder, kept, len(corpus)) as files:
        for number in np.unique(bucket[counts > 0]):
            rows = {n: np.fromfile(scratch / f"{number}-{n}", types[n]) for n in types}
            pair = rows["query"].astype(np.int64) * len(corpus.candidates) + rows["candidate"]
            order = np.argsort(pair, kind="stable")
            pair = pair[order]
            distinct += 1 + int((pair[1:] != pair[:-1]).sum())
            for name, column in files.items():
                column.write(rows[name][order].tobytes())
    remove_tree(scratch)
    np.save(folder / "distinct.npy", distinct)


def load_prepared(path: Path) -> MappedCorpus:
    """Return the corpus of a prepared folder; only entities are read into memory.

    The training part of a split, and an index of its pairs, are written into the folder `.splits`
    of this one, and read from there the next time. It may be removed.

    Raises: DataError: the folder is not prepared, or its files do not fit together, or those of
            entities are not as they were written; columns are checked when they are read through.
    """
    record = PreparedRecord.load(path)
    tables = {side: _entities(path, record, side) for side in SIDES}
    vocabularies = {side: Vocabulary(tables[side]["id"].combine_chunks()) for side in SIDES}
    if record.shared_ids:
        vocabularies["candidate"] = vocabularies["query"]
    described = {
        side: table.select(["id", *record.sides[side].features])
        for side, table in tables.items()
        if record.sides[side].features
    }
    features = features_of_sides(described, list(vocabularies.values()))
    mapped = {
        name: mapped_column(path / f"{name}.npy", record.interactions, record.columns[name])
        for name in COLUMNS
        if name in record.columns
    }
    cache = path / CACHE / record.fingerprint[:32]
    if cache.parent.is_dir() and not cache.is_dir():
        # What is there is of older data. A process that has opened its files keeps them.
        for other in cache.parent.iterdir():
            remove_tree(other)
    return MappedCorpus.of_files(
        (Side(vocabularies["query"], features[0]), Side(vocabularies["candidate"], features[1])),
        mapped,
        path,
        entity_counts={side: to_tensor(tables[side][f"{side}_count"]) for side in SIDES},
        shared_ids=record.shared_ids,
        fingerprint=record.fingerprint,
        cache=cache,
        sha256=record.sha256,
    )


def _entities(path: Path, record: PreparedRecord, side: SideName) -> pa.Table:
    """Return the entities of a side: `id`, the count of interactions, and its features."""
    file, expected, count = path / f"{side}.arrow", record.sides[side], f"{side}_count"
    try:
        with pa.memory_map(str(file)) as source:
            table = ipc.open_file(source).read_all()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file} cannot be read: {error}; prepare the data again.") from error
    check_sha256(file, record.sha256.get(file.name))
    names = ["id", count, *expected.features]
    missing = [name for name in names if name not in table.column_names]
    counted = 0 if missing else pc.sum(table[count]).as_py() or 0
    if missing or len(table) != expected.entities or counted != record.interactions:
        raise DataError(
            f"{file} has {len(table):,} entities of {counted:,} interactions and the columns "
            f"{', '.join(table.column_names)}; {path / NAME} says {expected.entities:,} of "
            f"{record.interactions:,} and {', '.join(missing) or 'these'}. Prepare the data again."
        )
    return table.select(names)
