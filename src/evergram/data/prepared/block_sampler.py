"""`BlockSampler`: epochs of the pairs of a corpus on disk, read ahead and shuffled by blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergram.data.prepared.mapped_corpus import MappedCorpus, mapped_column
from evergram.data.prepared.prepare import Column, release
from evergram.data.reading.interactions import SIDES
from evergram.data.sampling import Batch, ExampleSampler, PairDraws
from evergram.errors import DataError

Columns = dict[str, Tensor]
Numbers = NDArray[np.int64]
# Blocks that are read before their pages are released.
BLOCKS_AT_ONCE = 1 << 14
# The last part of a seed for draws other than the order.
DRAWN, NEGATIVES = 1 << 30, 1 << 31


@dataclass(frozen=True)
class BlockOrder:
    """An order of all interactions on disk: blocks of consecutive ones are shuffled, as many as fit
    `pairs` are a buffer, and a buffer's interactions are shuffled. An epoch's order is a function
    of (seed, epoch); with n interactions, two of one block are in one batch n / `pairs` times as
    often as any two others."""

    length: int
    block: int
    pairs: int
    seed: int

    def buffers(self, epoch: int, skipped: int = 0) -> Iterator[tuple[int, Numbers, int]]:
        """Yield the number of each buffer of an epoch, its blocks by their numbers, ascending, and
        how many of its interactions to leave out, so that `skipped` of the epoch are."""
        blocks = -(-self.length // self.block)
        # Four bytes a block, the only memory that grows with the corpus.
        shuffled = torch.randperm(
            blocks, dtype=torch.int32, generator=generator(self.seed, epoch, 0)
        ).numpy()
        fit = max(1, self.pairs // self.block)
        for number, start in enumerate(range(0, blocks, fit)):
            chosen = np.sort(shuffled[start : start + fit]).astype(np.int64)
            size = self.size(chosen)
            if skipped < size:
                yield number, chosen, skipped
            skipped = max(0, skipped - size)

    def size(self, blocks: Numbers) -> int:
        return int(np.minimum(self.block, self.length - blocks * self.block).sum())

    def shuffled(self, epoch: int, number: int, blocks: Numbers) -> Tensor:
        """Return the order of the interactions of a buffer, int64."""
        return torch.randperm(self.size(blocks), generator=generator(self.seed, epoch, 1 + number))

    def take(self, column: Column, blocks: Numbers, order: Tensor) -> Tensor:
        """Return the interactions of a buffer in an order such as `shuffled()`, of a column."""
        size, pieces = self.block, list[Tensor]()
        values, count = torch.from_numpy(column), len(column) // size
        whole = values[: count * size].view(-1, size)
        own = torch.from_numpy(blocks[blocks < count])
        for some in torch.split(own, BLOCKS_AT_ONCE):
            pieces.append(whole.index_select(0, some).flatten())
            release([column])
        if len(own) < len(blocks):  # the last block, which is shorter
            pieces.append(values[count * size :])
        return torch.cat(pieces)[order]


def generator(seed: int, *place: int) -> torch.Generator:
    """Return a generator for a place in a run, such as (epoch, buffer), independent of others."""
    state = np.random.SeedSequence([abs(seed), int(seed < 0), *place]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


class BlockSampler(ExampleSampler):
    """Draws epochs of the observed pairs of a corpus on disk, in memory that n does not change: a
    buffer of blocks from all over the files is shuffled, while a thread reads the next one. Each
    epoch is a function of (seed, epoch), and every batch of it can be the first. Arguments are
    those of `ExampleSampler`; `weighted` pairs have the weights of the column `weight`, and a
    corpus of `least` interactions is drawn from in memory. Two buffers of `pairs` are in memory, of
    4 bytes a pair for each column. In a batch of B, a pair has B · block / pairs neighbours at
    most, a thirtieth at B = 4,096, by which the noise of its gradient is larger at most."""

    block = 32
    pairs = 1 << 22
    least = 1 << 20

    def __init__(
        self,
        corpus: MappedCorpus,
        draws: PairDraws | None = None,
        *,
        batch_size: int,
        seed: int,
        measures: Mapping[str, Tensor] | None = None,
        weighted: bool = False,
    ) -> None:
        draws = draws or PairDraws()
        if weighted and "weight" not in corpus.interactions.column_names:
            raise DataError("task.sparse = 'weight' needs a column 'weight'; use 'none' without.")
        self._begin(corpus, draws, batch_size, seed)
        self.corpus = corpus
        self.negatives: bool = draws.negatives
        self.names: list[str] = ["query", "candidate"]
        self.names += ["value"] * (draws.target == "value") + ["weight"] * weighted
        self.degrees: Tensor = self.counts["query"]
        self.met: Tensor = torch.nonzero(self.degrees).flatten()
        rates = {side: count.double() / len(corpus) for side, count in self.counts.items()}
        self._weigh(self._rates_by_query() if self.positives == "queries" else rates, measures)
        self.shuffle: BlockOrder = BlockOrder(len(corpus), self.block, self.pairs, seed)
        # Mappings of their own, which stay even if the files are removed.
        self.files: dict[str, Column] = {
            name: mapped_column(corpus.columns[name], at_random=True) for name in self.names
        }

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from batch `start` on, as if it had begun at the first."""
        made = start
        for columns in self._batches(number, start * self.batch_size):
            yield self._batch(columns, generator(self.seed, number, NEGATIVES + made))
            made += 1

    def _batches(self, epoch: int, skipped: int) -> Iterator[Columns]:
        """Yield the columns of each batch; one may begin in a buffer and end in the next."""
        left, pieces, missing = self.size - skipped, list[Columns](), 0
        for columns in _ahead(self._buffers(epoch, skipped)):
            at, size = 0, len(columns["query"])
            while at < size and left:
                missing = missing or min(self.batch_size, left)
                taken = min(missing, size - at)
                pieces.append({n: c[at : at + taken] for n, c in columns.items()})
                at, missing, left = at + taken, missing - taken, left - taken
                if not missing:
                    yield {n: torch.cat([p[n] for p in pieces]) for n in self.names}
                    pieces = []
            if self.negatives:
                self.corpus.index.release()
            if not left:
                return

    def _buffers(self, epoch: int, skipped: int) -> Iterator[Callable[[], Columns]]:
        """Yield functions that read a buffer's columns in the order of their use."""
        if self.positives == "queries":
            fit = max(1, self.pairs // self.batch_size // 16) * self.batch_size
            for number in range(skipped // fit, -(-self.size // fit)):
                begins = max(0, skipped - number * fit)
                yield partial(self._drawn, epoch, number, fit, begins)
            return
        for buffer in self.shuffle.buffers(epoch, skipped):
            yield partial(self._read, epoch, *buffer)

    def _read(self, epoch: int, number: int, blocks: Numbers, begins: int) -> Columns:
        order = self.shuffle.shuffled(epoch, number, blocks)[begins:]
        columns = {n: self.shuffle.take(self.files[n], blocks, order) for n in self.names}
        for side in SIDES:
            self.corpus.check_rows(columns[side], side)
        return columns

    def _drawn(self, epoch: int, number: int, size: int, begins: int) -> Columns:
        """Return pairs of queries that are drawn uniformly, one pair of each."""
        draw = generator(self.seed, epoch, DRAWN + number)
        query = self.met[torch.randint(len(self.met), (size,), generator=draw)]
        chance = torch.rand(size, generator=draw, dtype=torch.float64)
        index = self.corpus.index
        place = index.offsets[query] + (chance * self.degrees[query]).long()
        columns = {n: torch.from_numpy(c)[place] for n, c in index.columns.items()}
        self.corpus.check_rows(columns["candidate"], "candidate")
        columns["query"] = query
        index.release()
        return {name: columns[name][begins:] for name in self.names}

    def _batch(self, columns: Columns, draw: torch.Generator) -> Batch:
        query, candidate = columns["query"].long(), columns["candidate"].long()
        weight = columns.get("weight")
        if weight is not None and self.positives == "queries":
            # A mean over batches estimates the mean over all pairs, however they are drawn.
            degree = self.degrees[query].double()
            weight = (weight * (len(self.met) * degree / len(self.corpus))).float()
        return Batch(
            query,
            candidate,
            columns["value"] if "value" in columns else torch.ones(len(query)),
            self.query_weights[query],
            self.candidate_weights[candidate],
            self._negative(query, draw) if self.negatives else None,
            weight,
        )

    def _has(self, query: Tensor, candidate: Tensor) -> Tensor:
        return self.corpus.index.has(query, candidate)

    def _rates_by_query(self) -> dict[str, Tensor]:
        """Return the chance of each entity to be in a draw of a query and then of its pair."""
        of_query = (self.degrees > 0).double() / len(self.met)
        chance = of_query / self.degrees.clamp(min=1)
        of_candidate = torch.zeros(self.candidates, dtype=torch.float64)
        for block in self.corpus.blocks():
            of_candidate.index_add_(0, block.candidate, chance[block.query])
        return {"query": of_query, "candidate": of_candidate}


def _ahead(makers: Iterator[Callable[[], Columns]]) -> Iterator[Columns]:
    """Yield what each function returns; a thread calls one while the result before is used."""
    # Torch's own threads for that thread, too, would be more than there are cores: all of a step's
    # would wait for each other in the kernel, and steps take twice their time.
    count = torch.get_num_threads()
    with ThreadPoolExecutor(1, "evergram-buffers", _compute_alone) as thread:
        thread.submit(int).result()
        torch.set_num_threads(count)  # of threads that begin later
        coming: Future[Columns] | None = None
        for make in makers:
            done, coming = coming, thread.submit(make)
            if done is not None:
                yield done.result()
        if coming is not None:
            yield coming.result()


def _compute_alone() -> None:
    torch.get_num_threads()  # a thread's first question sets its number to all threads' default
    torch.set_num_threads(1)
