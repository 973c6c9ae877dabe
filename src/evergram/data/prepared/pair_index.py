"""`PairIndex`: the pairs of a mapped corpus by query, sorted on disk by a bucket sort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergram.data.columnar.features import take_ragged
from evergram.data.prepared.column_file import Column, ColumnFile, check_rows, new_column, release
from evergram.data.prepared.part_writer import read_summary, verify_files, write_summary
from evergram.errors import DataError

if TYPE_CHECKING:
    from evergram.data.prepared.mapped_corpus import MappedCorpus

INDEX = "by-query"
SUMMARY = "index.json"
# Pairs that are sorted at a time; the pairs of one query are always sorted together.
BUCKET = 1 << 20
# Columns that are sorted with the candidates.
CARRIED = ("value", "weight")


@dataclass(frozen=True)
class PairIndex:
    """The interactions of a corpus, sorted by query and then by candidate.

    Args:
        offsets: int64 [N + 1]; query a owns the interactions `offsets[a]` to `offsets[a + 1]`.
        columns: `candidate` (rows of that side), and `value` and `weight` if the corpus has them,
            [n] each, mapped from files.
        distinct: the number of distinct pairs.
        candidates: the number of rows of that side.
        folder: where its files are.
        mapped: the files that the columns are views of.
    """

    offsets: Tensor
    columns: Mapping[str, Tensor]
    distinct: int
    candidates: int
    folder: Path
    mapped: Sequence[Column]

    @classmethod
    def open(cls, corpus: MappedCorpus, folder: Path) -> PairIndex:
        """Return the index of a corpus that `write_index` wrote. Raises: DataError: its files are
        damaged."""
        verify_files(folder / SUMMARY)
        distinct = read_summary(folder / SUMMARY, "distinct")
        counts = corpus.counts("query")
        offsets = torch.zeros(len(counts) + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=offsets[1:])
        size = int(offsets[-1])
        if not min(size, 1) <= distinct <= size:
            raise DataError(f"{folder / SUMMARY} is damaged: {distinct:,} pairs of {size:,}.")
        names = ["candidate", *_carried(corpus)]
        types = {name: corpus.columns[0][name].dtype for name in names}
        files = {n: ColumnFile.open(folder / f"{n}.npy", size, types[n]) for n in names}
        mapped = {n: file.mapped(at_random=True) for n, file in files.items()}
        columns = {n: torch.from_numpy(column) for n, column in mapped.items()}
        candidates = len(corpus.candidates)
        return cls(offsets, columns, distinct, candidates, folder, list(mapped.values()))

    def release(self) -> None:
        """Take the pages of its files out of this process's memory until they are read again."""
        release(self.mapped)

    def at(self, name: str, places: Tensor) -> Tensor:
        """Return a column at places of the index, int64 [m]. Raises: DataError: a row is outside
        of its side."""
        values = self.columns[name][places]
        if name == "candidate":
            self._check(values)
        return values

    def has(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Return bool [m], True for pairs of rows (int64 [m] each) that are in the corpus."""
        candidates = self.columns["candidate"]
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

    def pairs_of(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the query and the candidate, int64 [m] each, of all interactions of queries.

        Args:
            queries: int64 rows, each once.
        Raises: DataError: a row is outside of its side.
        """
        candidate, offsets = take_ragged(self.columns["candidate"], self.offsets, queries)
        self._check(candidate)
        return torch.repeat_interleave(queries, offsets.diff()), candidate.long()

    def _check(self, candidate: Tensor) -> None:
        remedy = f"Remove {self.folder} and run it again; it is written anew."
        check_rows(candidate, "candidate", self.candidates, remedy)


def _carried(corpus: MappedCorpus) -> list[str]:
    return [name for name in CARRIED if name in corpus.interactions.column_names]


def write_index(corpus: MappedCorpus, folder: Path) -> None:
    """Write the index of a corpus into an empty folder, in memory of some buckets.

    One pass puts each interaction into the file of a range of queries, a second one sorts each
    range by itself.
    """
    carried = _carried(corpus)
    types = {name: corpus.columns[0][name].dtype for name in ("query", "candidate", *carried)}
    scratch = folder / "scratch"
    scratch.mkdir()
    bounds = _partition(corpus, scratch, types)
    distinct = 0
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(new_column(folder / f"{name}.npy", dtype, len(corpus)))
            for name, dtype in types.items()
            if name != "query"
        }
        sources = {name: stack.enter_context((scratch / name).open("rb")) for name in types}
        for start, end in pairwise(bounds):
            bucket = {n: np.fromfile(sources[n], types[n], end - start) for n in types}
            pair = bucket["query"].astype(np.int64) * len(corpus.candidates) + bucket["candidate"]
            order = np.argsort(pair, kind="stable")
            pair = pair[order]
            distinct += int(end > start) + int((pair[1:] != pair[:-1]).sum())
            for name, file in files.items():
                file.write(bucket[name][order].tobytes())
    for path in scratch.iterdir():
        path.unlink()
    scratch.rmdir()
    columns = ["candidate", *carried]
    write_summary(folder / SUMMARY, {"columns": columns, "distinct": distinct})


def _partition(
    corpus: MappedCorpus, scratch: Path, types: Mapping[str, np.dtype[Any]]
) -> list[int]:
    """Write each column ordered by ranges of queries, in the corpus's order within a range.

    Returns: the bounds of the ranges, as numbers of interactions.
    """
    counts = corpus.counts("query").numpy()
    begins = np.cumsum(counts) - counts
    bucket = (begins // BUCKET).astype(np.int32)  # of each query
    sizes = np.bincount(bucket, weights=counts).astype(np.int64)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    place: NDArray[np.int64] = bounds[:-1].copy()
    with ExitStack() as stack:
        files: dict[str, IO[bytes]] = {
            name: stack.enter_context((scratch / name).open("wb")) for name in types
        }
        for block in corpus.blocks():
            of_pair = bucket[block.query.numpy()]
            order = np.argsort(of_pair, kind="stable")
            ends = np.cumsum(np.bincount(of_pair, minlength=len(sizes)))
            piece = corpus.interactions.slice(block.start, len(block))
            for name, file in files.items():
                values = piece[name].to_numpy()[order]
                for number in np.unique(of_pair):
                    start = 0 if number == 0 else ends[number - 1]
                    file.seek(int(place[number]) * types[name].itemsize)
                    file.write(values[start : ends[number]].tobytes())
            place += np.diff(ends, prepend=0)
    return [int(bound) for bound in bounds]
