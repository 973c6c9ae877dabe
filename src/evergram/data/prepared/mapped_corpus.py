"""`MappedCorpus`: a corpus whose interactions stay on disk; `load_prepared` opens one.

Files derived from a prepared corpus (training subsets and an index by query) are in a cache folder,
which may be removed at any time. Each set of files is written atomically.
"""

from __future__ import annotations

import hashlib
import mmap
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
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
    offsets_of,
    take_ragged,
)
from evergram.data.prepared.prepare import NAME, Column, PreparedRecord, release
from evergram.data.reading.interactions import SIDES, SideName
from evergram.data.sorted_pairs import SortedPairs
from evergram.errors import DataError
from evergram.file_content import sha256
from evergram.mapped_tensors import mapped_zeros, zeros_beside

# The cache folder in a prepared folder, and its lock.
CACHE, LOCK = ".splits", ".lock"
INDEXED = ("candidate", "value", "weight")
# In the order of a corpus in memory.
COLUMNS = ("query", "candidate", "value", "time", "weight")
# Process this many interactions at a time.
PAIRS_AT_ONCE = 1 << 20
# Sort about this many pairs at a time; a query's pairs are always sorted together.
BUCKET = 1 << 20
# Release the index's pages from memory after looking up this many pairs or queries.
LOOKUPS_AT_ONCE = 1 << 14
READ_IN_BLOCKS = {"query": np.int64, "candidate": np.int64, "value": np.float32}
# Tables of the entities of more interactions than this are in files, not in memory.
IN_MEMORY = 1 << 20
# The longest column that may be loaded into memory: half a gibibyte of int64.
WHOLE = 1 << 26
# What NumPy raises for a damaged file.
DAMAGE = (OSError, ValueError, EOFError, OverflowError, SyntaxError, TokenError)
Types = Mapping[str, np.dtype[Any]]


def mapped_column(
    path: Path, length: int | None = None, kind: str = "", *, at_random: bool = False
) -> Column:
    """Map a one-dimensional .npy file into memory, copy-on-write. The mapping stays valid if the
    file is removed; `at_random` turns off read-ahead.

    Raises: DataError: the file is damaged, or does not have the given `length` and type.
    """
    try:
        # Copy-on-write because torch warns about read-only arrays.
        mapped: Any = np.lib.format.open_memmap(path, mode="c")
    except DAMAGE as error:
        raise DataError(f"{path} cannot be read: {error}; prepare the data again.") from error
    if mapped.ndim != 1 or length not in (None, len(mapped)) or kind not in ("", mapped.dtype):
        raise DataError(
            f"{path} has the shape {mapped.shape} and type {mapped.dtype}, but should be a column "
            f"of {length or 'any'} numbers{kind and f' of type {kind}'}; the file was changed or "
            "is damaged. Prepare the data again."
        )
    if at_random and hasattr(mmap, "MADV_RANDOM"):
        mapped._mmap.madvise(mmap.MADV_RANDOM)
    column: Column = mapped
    return column


def check_sha256(path: Path, expected: str | None) -> None:
    """Raise a DataError if the file's SHA-256 is not `expected`; None checks nothing."""
    remedy = "Prepare the data again, or restore the file from a backup."
    try:
        digest = expected and sha256(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. {remedy}") from error
    if digest != expected:
        raise DataError(f"{path} has changed since it was written, or it is damaged. {remedy}")


@dataclass(frozen=True, repr=False)
class MappedCorpus(Corpus):
    """A corpus whose memory does not grow with the number of interactions.

    Ids and interactions are columns in files, with row numbers as int32. Features are in memory.

    Args:
        interactions: Arrow table over the mapped columns.
        columns: the file of each column, by name.
        mapped: the mapped columns; reading blocks releases their pages.
        cache: folder of derived files; it may be removed at any time.
        entity_counts: the number of interactions of each entity, int64 [N], by side; mapped.
        sha256: the original SHA-256 of each file, by file name, where known.
    """

    columns: Mapping[str, Path] = field(default_factory=dict, compare=False)
    mapped: Mapping[str, Column] = field(default_factory=dict, compare=False)
    fingerprint: str = ""
    cache: Path = field(default=Path(), compare=False)
    entity_counts: Mapping[str, Column] = field(default_factory=dict, compare=False)
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
                f"This needs the column {name!r} of all {len(self):,} interactions in memory, but "
                f"prepared data load at most {WHOLE:,}. Graph encoders, prior.kind = 'svd', "
                "task.sparse = 'exclude', --tensorboard and consumers need all data in memory; "
                "leave them out, or train on fewer interactions."
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
            # Also release the other columns, which the caller may have read.
            release(self.mapped.values())

    @property
    def _read_in_blocks(self) -> list[str]:
        return [n for n in READ_IN_BLOCKS if n in self.mapped]

    @property
    def repeats(self) -> int:
        return len(self) - self.index.distinct

    def counts(self, side: str) -> Tensor:
        return self._counts[side]

    @cached_property
    def _counts(self) -> dict[str, Tensor]:
        """Copies in memory, or in files; other tables of entities are where these are."""
        counts: dict[str, Tensor] = {}
        for side, column in self.entity_counts.items():
            if len(self) > IN_MEMORY:
                counts[side] = mapped_zeros(column.shape, self.cache, torch.int64)
            else:
                counts[side] = torch.zeros(len(column), dtype=torch.int64)
            np.copyto(counts[side].numpy(), column)
        return counts

    def has_pairs(self, query: Tensor, candidate: Tensor) -> Tensor:
        has = (query >= 0) & (candidate >= 0)
        for chunk in torch.split(torch.nonzero(has).flatten(), LOOKUPS_AT_ONCE):
            has[chunk] = self.index.has(query[chunk], candidate[chunk])
            self.index.release()
        return has

    def pairs_of(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        query, candidate, index = list[Tensor](), list[Tensor](), self.index
        candidates = torch.from_numpy(index.columns["candidate"])
        for chunk in torch.split(torch.unique(queries), LOOKUPS_AT_ONCE):
            rows, offsets = take_ragged(candidates, index.offsets, chunk)
            self.check_rows(rows, "candidate")
            query.append(torch.repeat_interleave(chunk, offsets.diff()))
            candidate.append(rows.long())
            index.release()
        return torch.cat(query), torch.cat(candidate)

    def before(self, time: float) -> int:
        return bisect_left(self.interactions["time"].to_numpy(), time, key=float)

    @cached_property
    def index(self) -> PairIndex:
        """The index of pairs by query, in files that the first use writes."""
        folder, offsets = self._sorted_folder("query"), offsets_of(self.counts("query"))
        columns = {
            name: mapped_column(folder / f"{name}.npy", len(self), at_random=True)
            for name in self.types
            if name in INDEXED
        }
        return PairIndex(offsets, columns, int(np.load(folder / "distinct.npy")))

    def sorted_by(self, side: str, names: Sequence[str] = ()) -> SortedPairs:
        folder, other = self._sorted_folder(side), "candidate" if side == "query" else "query"
        mapped = [mapped_column(folder / f"{name}.npy", len(self)) for name in (other, *names)]
        columns = dict(zip(("partner", *names), map(torch.from_numpy, mapped), strict=True))
        check, freed = partial(self.check_rows, side=other), partial(release, mapped)
        return SortedPairs(self.counts(side), columns, check, freed)

    def _sorted_folder(self, side: str) -> Path:
        """Return the folder of the pairs sorted by a side, which the first use writes."""
        folder = self.cache / f"{self.fingerprint[:32]}-by-{side}"
        _write_once(folder, lambda new: write_index(self, new, side))
        return folder

    def where(self, rule: PairRule) -> Corpus:
        """Return the corpus that a rule selects; the first call caches its columns as files."""
        self.verify(self._read_in_blocks)
        digest = hashlib.sha256(f"{self.fingerprint} {rule.key}".encode()).hexdigest()
        folder = self.cache / digest[:32]
        _write_once(folder, lambda new: write_subset(self, rule, new))
        mapped = {name: mapped_column(folder / f"{name}.npy") for name in self.types}
        if not len(mapped["query"]):
            return self.in_memory().restrict(torch.zeros(0, dtype=torch.int64))
        counts = {str(side): mapped_column(folder / f"{side}-counts.npy") for side in SIDES}
        sides: list[Side] = []
        for side, entities in self.sides.items():
            rows = torch.from_numpy(mapped_column(folder / f"{side}-rows.npy"))
            features = {name: of.take(rows) for name, of in entities.features.items()}
            keys = entities.vocabulary.keys
            if len(rows) < len(keys):
                keys = only_chunk(_mapped_table(folder / f"{side}-ids.arrow")["id"])
            vocabulary = Vocabulary(keys)
            if sides and self.shared_ids:
                vocabulary = sides[0].vocabulary
            sides.append(Side(vocabulary, features))
        return MappedCorpus.of_files(
            (sides[0], sides[1]),
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
        """Load the corpus into memory, see `column`."""
        names = self.interactions.column_names
        table = pa.table({name: pa.array(self.column(name).numpy()) for name in names})
        return Corpus(self.queries, self.candidates, table, self.shared_ids, self.origin)

    def verify(self, names: Iterable[str]) -> None:
        """Check the SHA-256 of columns, each once. Raises: DataError: one has changed."""
        for name in sorted(set(names) - self._verified):
            check_sha256(self.columns[name], self.sha256.get(f"{name}.npy"))
            self._verified.add(name)

    @cached_property
    def _verified(self) -> set[str]:
        return set()

    def check_rows(self, rows: Tensor, side: str) -> None:
        """Raise a DataError if a row number read from a file is out of range."""
        size = len(self.sides[side])
        least, most = (int(end) for end in rows.aminmax()) if rows.numel() else (0, 0)
        if least < 0 or most >= max(1, size):
            raise DataError(
                f"The column {side!r} of prepared data has row numbers from {least} to {most}, but "
                f"there are {size:,} rows; the files are damaged. Remove {self.cache}, which will "
                "be rebuilt, or prepare the data again."
            )


def _write_once(folder: Path, write: Callable[[Path], None]) -> None:
    """Call `write` to fill a folder unless it exists, while other processes wait."""
    if folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(folder.parent / LOCK):
            if not folder.is_dir():  # another process may have written it meanwhile
                with new_folder(folder) as temporary:
                    write(temporary)
    except OSError as error:
        reason = error.strerror or str(error).rstrip(".")
        raise DataError(
            f"Training cannot write its cache of the prepared data in {folder.parent}: {reason}; "
            "free space or allow writing there, or copy the prepared folder elsewhere."
        ) from error


def write_subset(corpus: MappedCorpus, rule: PairRule, folder: Path) -> None:
    """Write the interactions that a rule selects, and their entities' rows and counts."""
    corpus.verify(corpus.interactions.column_names)
    counts: dict[str, Tensor] = {
        side: zeros_beside(corpus.counts(side), len(corpus.sides[side])) for side in SIDES
    }
    for block in corpus.blocks():
        marks = rule(block)
        for side, rows in (("query", block.query[marks]), ("candidate", block.candidate[marks])):
            counts[side].index_add_(0, rows, torch.ones_like(rows))
    new_rows = {side: _write_used(corpus, side, counts, folder) for side in SIDES}
    with _new_columns(folder, corpus.types, int(counts["query"].sum())) as files:
        for block in corpus.blocks():
            selected = rule(block).numpy()
            piece = corpus.interactions.slice(block.start, len(block))
            for name, file in files.items():
                values = piece[name].to_numpy()[selected]
                if name in new_rows:
                    values = new_rows[name][values]
                file.write(values.tobytes())


def _write_used(
    corpus: MappedCorpus, side: str, counts: Mapping[str, Tensor], folder: Path
) -> Column:
    """Write the rows, counts and ids of the entities of a side that `counts` has, [N] by side.
    Return the new row of each entity, int32 [N]."""
    used, keys = counts[side] > 0, corpus.sides[side].vocabulary.keys
    if corpus.shared_ids:
        used = (counts["query"] > 0) | (counts["candidate"] > 0)
    rows = torch.nonzero(used).flatten().to(torch.int32).numpy()
    np.save(folder / f"{side}-rows.npy", rows)
    np.save(folder / f"{side}-counts.npy", counts[side][used].numpy())
    if len(rows) < len(keys):
        table = pa.table({"id": keys.take(pa.array(rows))})
        with pa.ipc.new_file(str(folder / f"{side}-ids.arrow"), table.schema) as writer:
            writer.write_table(table)
    new_rows = zeros_beside(counts[side], len(keys), dtype=torch.int32)
    return torch.cumsum(used, 0, dtype=torch.int32, out=new_rows).sub_(1).numpy()


@contextmanager
def _new_columns(folder: Path, types: Types, size: int) -> Iterator[dict[str, IO[bytes]]]:
    """Yield open .npy files by column name. On a full disk, writing raises; mapping crashes."""
    with ExitStack() as stack:
        files = dict[str, IO[bytes]]()
        for name, dtype in types.items():
            files[name] = stack.enter_context((folder / f"{name}.npy").open("wb"))
            header = {"descr": dtype.str, "fortran_order": False, "shape": (size,)}
            np.lib.format.write_array_header_1_0(files[name], header)
        yield files


@dataclass(frozen=True)
class PairIndex:
    """The interactions of a corpus, sorted by query and then by candidate."""

    offsets: Tensor  # int64 [N + 1]; query a has the interactions `offsets[a]:offsets[a + 1]`
    # `candidate`, and `value` and `weight` if the corpus has them, mapped, [n] each.
    columns: Mapping[str, Column]
    distinct: int  # the number of distinct pairs

    def release(self) -> None:
        """Drop the pages of its files from this process's memory until they are read again."""
        release(self.columns.values())

    def has(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Return bool [m], True for pairs (int64 rows [m] each) that the corpus contains."""
        candidates = torch.from_numpy(self.columns["candidate"])
        low, end = self.offsets[query], self.offsets[query + 1]
        high = end
        last = len(candidates) - 1
        # A vectorized binary search for each candidate among the candidates of its query.
        while bool((low < high).any()):
            middle = (low + high) // 2
            is_less = (low < high) & (candidates[middle.clamp(max=last)] < candidate)
            high = torch.where(is_less, high, torch.minimum(high, middle))
            low = torch.where(is_less, middle + 1, low)
        return (low < end) & (candidates[low.clamp(max=last)] == candidate)


def write_index(corpus: MappedCorpus, folder: Path, side: str = "query") -> None:
    """Write the pairs of a corpus, sorted by a side and then by the other one, with a bucket sort:
    a bucket is a file for pairs that follow each other."""
    other = "candidate" if side == "query" else "query"
    types = {n: dtype for n, dtype in corpus.types.items() if n in (*SIDES, "value", "weight")}
    scratch, size = folder / "scratch", len(corpus.sides[other])
    scratch.mkdir()
    counts = corpus.counts(side)
    starts = offsets_of(counts)
    for block in corpus.blocks():
        rows, partners = getattr(block, side), getattr(block, other)
        # About where the pair will be, which never decreases in the order of pairs.
        positions = starts[rows] + (counts[rows].double() * partners / size).long()
        pair_buckets = (positions // BUCKET).numpy()
        order = np.argsort(pair_buckets, kind="stable")
        numbers, ends = np.unique(pair_buckets[order], return_index=True)
        piece = corpus.interactions.slice(block.start, len(block))
        for name in types:
            parts = np.split(piece[name].to_numpy()[order], ends[1:])
            for number, values in zip(numbers, parts, strict=True):
                with (scratch / f"{number:012d}-{name}").open("ab") as file:
                    file.write(values.tobytes())
    distinct, indexed = 0, {name: dtype for name, dtype in types.items() if name != side}
    with _new_columns(folder, indexed, len(corpus)) as files:
        for bucket in sorted(scratch.glob(f"*-{side}")):
            number = bucket.name.partition("-")[0]
            columns = {n: np.fromfile(scratch / f"{number}-{n}", types[n]) for n in types}
            pair = columns[side].astype(np.int64) * size + columns[other]
            order = np.argsort(pair, kind="stable")
            pair = pair[order]
            distinct += 1 + int((pair[1:] != pair[:-1]).sum())
            for name, column in files.items():
                column.write(columns[name][order].tobytes())
    remove_tree(scratch)
    np.save(folder / "distinct.npy", distinct)


def load_prepared(path: Path) -> MappedCorpus:
    """Open a prepared folder; only entities are loaded into memory.

    Training subsets and an index of pairs are cached in its folder `.splits`, which may be removed.

    Raises: DataError: the folder is not a prepared corpus, or its files do not fit together or have
        changed; columns are checked when they are first read in full.
    """
    record = PreparedRecord.load(path)
    tables = {side: _entities(path, record, side) for side in SIDES}
    vocabularies = {side: Vocabulary(only_chunk(tables[side]["id"])) for side in SIDES}
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
        # Remove the caches of older data. Processes that have mapped these files keep them.
        for old_cache in cache.parent.iterdir():
            remove_tree(old_cache)
    return MappedCorpus.of_files(
        (Side(vocabularies["query"], features[0]), Side(vocabularies["candidate"], features[1])),
        mapped,
        path,
        entity_counts={s: only_chunk(tables[s][f"{s}_count"]).to_numpy() for s in SIDES},
        shared_ids=record.shared_ids,
        fingerprint=record.fingerprint,
        cache=cache,
        sha256=record.sha256,
    )


def _mapped_table(path: Path) -> pa.Table:
    """Map an Arrow file into memory, where it is only read. Raises: DataError: it is damaged."""
    try:
        with pa.memory_map(str(path)) as source:
            return ipc.open_file(source).read_all()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}; prepare the data again.") from error


def only_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, not copied if it is one already, such as a mapped one."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _entities(path: Path, record: PreparedRecord, side: SideName) -> pa.Table:
    """Load the entities of a side: `id`, the number of interactions, and features."""
    file, expected, count = path / f"{side}.arrow", record.sides[side], f"{side}_count"
    table = _mapped_table(file)
    check_sha256(file, record.sha256.get(file.name))
    names = ["id", count, *expected.features]
    missing = [name for name in names if name not in table.column_names]
    counted = 0 if missing else pc.sum(table[count]).as_py() or 0
    if missing or len(table) != expected.entities or counted != record.interactions:
        raise DataError(
            f"{file} has {len(table):,} entities, {counted:,} interactions and the columns "
            f"{', '.join(table.column_names)}, but {path / NAME} says {expected.entities:,} "
            f"entities, {record.interactions:,} interactions and the columns {', '.join(names)}. "
            "Prepare the data again."
        )
    return table.select(names)
