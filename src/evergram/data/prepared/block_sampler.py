"""`BlockSampler`: draws epochs of pairs from a corpus on disk; shuffles blocks and prefetches."""

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
from evergram.data.sampling import Batch, ExampleSampler, PairDraws, raised

Columns = dict[str, Tensor]
Numbers = NDArray[np.int64]
# Release the files' pages from memory after reading this many blocks.
BLOCKS_AT_ONCE = 1 << 14
# Offsets that separate the seeds of drawn pairs and of negatives from those of orders.
DRAWN, NEGATIVES = 1 << 30, 1 << 31


@dataclass(frozen=True)
class BlockOrder:
    """A random order of all interactions on disk: shuffle blocks of `block` consecutive
    interactions, read them into buffers of up to `pairs` interactions, and shuffle each buffer.
    (seed, epoch) determines an epoch's order. Of n interactions, two from the same block share a
    batch n / `pairs` times as often as two others."""

    length: int
    block: int
    pairs: int
    seed: int

    def buffers(self, epoch: int, skipped: int = 0) -> Iterator[tuple[int, Numbers, int]]:
        """Yield for each buffer of an epoch its number, its block numbers, ascending, and how many
        of its interactions to skip. The first `skipped` interactions of the epoch are skipped."""
        blocks = -(-self.length // self.block)
        # Four bytes per block; no other memory grows with the corpus.
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
        """Return the random order of a buffer's interactions, int64."""
        return torch.randperm(self.size(blocks), generator=generator(self.seed, epoch, 1 + number))

    def take(self, column: Column, blocks: Numbers, order: Tensor) -> Tensor:
        """Read a buffer's values of a column, in an order such as `shuffled()`."""
        size, pieces = self.block, list[Tensor]()
        values, count = torch.from_numpy(column), len(column) // size
        full_blocks = values[: count * size].view(-1, size)
        numbers = torch.from_numpy(blocks[blocks < count])
        for piece in torch.split(numbers, BLOCKS_AT_ONCE):
            pieces.append(full_blocks.index_select(0, piece).flatten())
            release([column])
        if len(numbers) < len(blocks):  # the last, shorter block
            pieces.append(values[count * size :])
        return torch.cat(pieces)[order]


def generator(seed: int, *position: int) -> torch.Generator:
    """Return an independent generator for each position, such as (epoch, buffer), in a run."""
    entropy = [abs(seed), int(seed < 0), *position]
    state = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


class BlockSampler(ExampleSampler):
    """Draws epochs of the observed pairs of a corpus on disk, in constant memory: shuffles buffers
    of blocks from all over the files, while a thread reads the next buffer.

    (seed, epoch) determines an epoch, which can start at any batch. Arguments are those of
    `ExampleSampler`, but `weighted` takes pair weights from the column `weight`. Two buffers of
    `pairs` pairs are in memory, 4 bytes per pair and column. In a batch of B, a pair has at most
    B · block / pairs neighbours from its block (a thirtieth at B = 4,096), so the gradient's
    variance grows by at most that share. Smaller corpora than `least` are sampled in memory."""

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
        self._begin(corpus, draws, batch_size, seed, weighted=weighted)
        self.corpus = corpus
        self.negatives: bool = draws.negatives
        self.names: list[str] = ["query", "candidate"]
        self.names += ["value"] * (draws.target == "value") + ["weight"] * weighted
        self.degrees: Tensor = self.counts["query"]
        if self.positives == "queries":
            self.active: Tensor = torch.nonzero(self.degrees).flatten()
            rates = self._rates_by_query()
        else:
            rates = {s: raised(count, 1.0).div_(len(corpus)) for s, count in self.counts.items()}
        self._weigh(rates, measures)
        self.shuffle: BlockOrder = BlockOrder(len(corpus), self.block, self.pairs, seed)
        # Map the files again here; these mappings stay valid if the files are removed.
        self.files: dict[str, Column] = {
            name: mapped_column(corpus.columns[name], at_random=True) for name in self.names
        }

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from batch `start` on, the same as in the whole epoch."""
        batches = self._batches(number, start * self.batch_size)
        for index, columns in enumerate(batches, start):
            yield self._batch(columns, generator(self.seed, number, NEGATIVES + index))

    def _batches(self, epoch: int, skipped: int) -> Iterator[Columns]:
        """Yield the columns of each batch, which may span two buffers."""
        left, pieces, missing = self.size - skipped, list[Columns](), 0
        for columns in _prefetched(self._buffers(epoch, skipped)):
            position, size = 0, len(columns["query"])
            while position < size and left:
                missing = missing or min(self.batch_size, left)
                end = min(position + missing, size)
                pieces.append({n: c[position:end] for n, c in columns.items()})
                missing, left = missing - (end - position), left - (end - position)
                position = end
                if not missing:
                    yield {n: torch.cat([p[n] for p in pieces]) for n in self.names}
                    pieces = []
            if self.negatives:
                self.corpus.index.release()
            if not left:
                return

    def _buffers(self, epoch: int, skipped: int) -> Iterator[Callable[[], Columns]]:
        """Yield a function for each buffer, in order, that reads its columns."""
        if self.positives == "queries":
            size = max(1, self.pairs // self.batch_size // 16) * self.batch_size
            for number in range(skipped // size, -(-self.size // size)):
                start = max(0, skipped - number * size)
                yield partial(self._drawn, epoch, number, size, start)
            return
        for buffer in self.shuffle.buffers(epoch, skipped):
            yield partial(self._read, epoch, *buffer)

    def _read(self, epoch: int, number: int, blocks: Numbers, start: int) -> Columns:
        order = self.shuffle.shuffled(epoch, number, blocks)[start:]
        columns = {n: self.shuffle.take(self.files[n], blocks, order) for n in self.names}
        for side in SIDES:
            self.corpus.check_rows(columns[side], side)
        return columns

    def _drawn(self, epoch: int, number: int, size: int, start: int) -> Columns:
        """Draw queries uniformly, and one pair of each."""
        draw = generator(self.seed, epoch, DRAWN + number)
        query = self.active[torch.randint(len(self.active), (size,), generator=draw)]
        chance = torch.rand(size, generator=draw, dtype=torch.float64)
        index = self.corpus.index
        positions = index.offsets[query] + (chance * self.degrees[query]).long()
        columns = {n: torch.from_numpy(c)[positions] for n, c in index.columns.items()}
        self.corpus.check_rows(columns["candidate"], "candidate")
        columns["query"] = query
        index.release()
        return {name: columns[name][start:] for name in self.names}

    def _batch(self, columns: Columns, draw: torch.Generator) -> Batch:
        query, candidate = columns["query"].long(), columns["candidate"].long()
        weight = columns.get("weight")
        if weight is not None and self.positives == "queries":
            # Dividing by the sampling rate makes the batch mean an unbiased estimate of the mean.
            degree = self.degrees[query].double()
            weight = (weight * (len(self.active) * degree / len(self.corpus))).float()
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
        """Return the sampling rates of entities if a query and then one of its pairs is drawn."""
        query_rates = (self.degrees > 0).double() / len(self.active)
        pair_rates = query_rates / self.degrees.clamp(min=1)
        candidate_rates = torch.zeros(self.candidates, dtype=torch.float64)
        for block in self.corpus.blocks():
            candidate_rates.index_add_(0, block.candidate, pair_rates[block.query])
        return {"query": query_rates, "candidate": candidate_rates}


def _prefetched(readers: Iterator[Callable[[], Columns]]) -> Iterator[Columns]:
    """Yield the result of each function; a thread computes the next one meanwhile."""
    # The thread computes without torch's thread pool. A second pool would exceed the number of
    # cores, and training steps would take twice as long.
    count = torch.get_num_threads()
    with ThreadPoolExecutor(1, "evergram-buffers", _use_one_torch_thread) as thread:
        thread.submit(int).result()
        torch.set_num_threads(count)  # for threads that start later
        pending: Future[Columns] | None = None
        for read in readers:
            done, pending = pending, thread.submit(read)
            if done is not None:
                yield done.result()
        if pending is not None:
            yield pending.result()


def _use_one_torch_thread() -> None:
    torch.get_num_threads()  # the first call in a thread resets its number to the global default
    torch.set_num_threads(1)
