"""The shuffle in bounded memory: each once, uniform, and neighbours apart."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support.resident import on_linux, resident_bytes

from evergram.data.prepared import block_order
from evergram.data.prepared.block_order import BlockOrder, generator
from evergram.data.prepared.column_file import ColumnFile

BATCH = 64


def places(order: BlockOrder, epoch: int, skipped: int = 0) -> NDArray[np.int64]:
    """The interactions of an epoch in their order, numbered over all parts."""
    numbers = np.split(np.arange(sum(order.lengths)), np.cumsum(order.lengths)[:-1])
    used = [torch.zeros(0, dtype=torch.int64)]
    for buffer, begins in order.buffers(epoch, skipped):
        whole = buffer.take(numbers, buffer.shuffled())
        assert len(buffer) == len(whole) <= max(order.pairs, order.block)
        used.append(whole[begins:])
    return torch.cat(used).numpy()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=4),
    st.integers(1, 20),
    st.integers(1, 70),
    st.integers(-5, 5),
    st.data(),
)
def test_an_epoch_has_each_interaction_once_from_any_place_on(
    lengths: list[int], block: int, pairs: int, seed: int, data: st.DataObject
) -> None:
    order = BlockOrder(lengths, block, pairs, seed)
    whole = places(order, 3)
    assert sorted(whole) == list(range(sum(lengths)))
    skipped = data.draw(st.integers(0, sum(lengths)))
    assert places(order, 3, skipped).tolist() == whole[skipped:].tolist()
    assert places(BlockOrder(lengths, block, pairs, seed), 3).tolist() == whole.tolist()


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    order, other = BlockOrder([5000], 8, 512, 1), BlockOrder([5000], 8, 512, -1)
    drawn = [places(order, 0), places(order, 1), places(other, 0)]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        correlation = np.corrcoef(drawn[first], drawn[second])[0, 1]
        assert abs(correlation) < 4 / sqrt(5000 / 8)
    seeds = {generator(s, *p).initial_seed() for s in (0, 1, -1) for p in ((0, 1), (1, 0), (1, 1))}
    assert len(seeds) == 9


def chi_square(order_of: Callable[[int], NDArray[np.int64]], epochs: int = 400) -> float:
    """Of the eighth of 2048 interactions that one is in against the eighth of the epoch in which it
    is used; an eighth has 32 blocks, and each epoch looks at one interaction of a block."""
    table = np.zeros((8, 8))
    for epoch in range(epochs):
        position = np.empty(2048, dtype=np.int64)
        position[order_of(epoch)] = np.arange(2048)
        chosen = np.arange(0, 2048, 8) + epoch % 8
        np.add.at(table, (chosen // 256, position[chosen] // 256), 1)
    expected = epochs * 32 / 8
    return float(((table - expected) ** 2 / expected).sum())


def test_every_interaction_is_anywhere_in_an_epoch_alike() -> None:
    # The rows' sums are fixed, and the columns' nearly: 49 to 56 degrees of freedom.
    order = BlockOrder([2048], 8, 512, 5)
    assert 49 - 4 * sqrt(98) < chi_square(lambda epoch: places(order, epoch)) < 56 + 4 * sqrt(112)


def test_orders_that_favour_a_place_are_seen() -> None:
    def within_buffers(epoch: int) -> NDArray[np.int64]:
        """Buffers of neighbouring blocks, in the order of the file, each shuffled."""
        draw = np.random.default_rng(epoch)
        return np.concatenate([512 * i + draw.permutation(512) for i in range(4)])

    def slightly(epoch: int) -> NDArray[np.int64]:
        """One epoch in twenty as the file is."""
        whole = np.random.default_rng(epoch).permutation(2048)
        return np.arange(2048) if epoch % 20 == 0 else whole

    assert chi_square(within_buffers) > 56 + 4 * sqrt(112)
    assert chi_square(slightly) > 56 + 4 * sqrt(112)


def test_neighbours_are_in_one_batch_no_more_often_than_stated() -> None:
    size, block, pairs = 1 << 15, 8, 4096
    order, together, apart = BlockOrder([size], block, pairs, 2), 0, 0
    for epoch in range(20):
        batch = np.empty(size, dtype=np.int64)
        batch[places(order, epoch)] = np.arange(size) // BATCH
        within = np.arange(size - 1) % block != block - 1
        same = batch[1:] == batch[:-1]
        together += int(same[within].sum())
        apart += int(same[~within].sum())
    chance = (BATCH - 1) / (size - 1)
    inside, outside = 20 * size * (block - 1) // block, 20 * size // block
    # Of one block: n / pairs times as often as by chance, here 8.
    rate = together / inside / chance
    assert abs(rate - size / pairs) < 4 * (size / pairs) / sqrt(together)
    # Of neighbouring blocks: as often as any two.
    assert abs(apart / outside / chance - 1) < 4 / sqrt(outside * chance)


def test_the_memory_of_an_order_is_that_of_its_blocks() -> None:
    # 2 · 10⁸ interactions: no buffer is made to pass over the others.
    order = BlockOrder([10**8, 10**8], 256, 1 << 21, 0)
    buffer, begins = next(order.buffers(0, 150_000_001))
    assert len(buffer) == 1 << 21
    assert (buffer.number, begins) == divmod(150_000_001, 1 << 21)
    assert torch.equal(buffer.shuffled().sort().values, torch.arange(1 << 21))


@on_linux
def test_a_buffer_leaves_no_page_of_the_files_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 30, 1_000_003).astype("<i4")
    np.save(tmp_path / "a.npy", values)
    column = ColumnFile.open(tmp_path / "a.npy", len(values)).mapped(at_random=True)
    order = BlockOrder([len(values)], 32, 1 << 16, 0)
    (buffer, _), *_ = order.buffers(0)
    whole = buffer.take([values], buffer.shuffled())
    assert resident_bytes(tmp_path) == 0
    monkeypatch.setattr(block_order, "BLOCKS_AT_ONCE", 100)
    taken = buffer.take([column], buffer.shuffled())
    assert torch.equal(taken, whole)
    assert len(taken) > 60_000
    # The short last block, if it is in this buffer, is read after the others.
    assert resident_bytes(tmp_path) <= 1 << 17
