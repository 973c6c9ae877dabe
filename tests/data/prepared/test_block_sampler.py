"""The shuffle in bounded memory, and its batches: each pair once, weighted, from any batch on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support.prepared import SmallBlocks, generated, on_linux, prepared, resident_bytes
from torch import Tensor

from evergram.data import Corpus
from evergram.data.prepared import block_sampler, mapped_corpus
from evergram.data.prepared.block_sampler import BlockOrder, BlockSampler, generator
from evergram.data.prepared.mapped_corpus import MappedCorpus, load_prepared, mapped_column
from evergram.data.sampling import Batch, ExampleSampler, PairDraws
from evergram.errors import DataError
from evergram.mapped_tensors import mapping_folder


def places(order: BlockOrder, epoch: int, skipped: int = 0) -> NDArray[np.int64]:
    """The interactions of an epoch in their order."""
    numbers = np.arange(order.length)
    used = [torch.zeros(0, dtype=torch.int64)]
    for number, blocks, begins in order.buffers(epoch, skipped):
        whole = order.take(numbers, blocks, order.shuffled(epoch, number, blocks))
        assert order.size(blocks) == len(whole) <= max(order.pairs, order.block)
        used.append(whole[begins:])
    return torch.cat(used).numpy()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 200),
    st.integers(1, 20),
    st.integers(1, 70),
    st.integers(-5, 5),
    st.data(),
)
def test_an_epoch_has_each_interaction_once_from_any_place_on(
    length: int, block: int, pairs: int, seed: int, data: st.DataObject
) -> None:
    order = BlockOrder(length, block, pairs, seed)
    whole = places(order, 3)
    assert sorted(whole) == list(range(length))
    skipped = data.draw(st.integers(0, length))
    assert places(order, 3, skipped).tolist() == whole[skipped:].tolist()
    assert places(BlockOrder(length, block, pairs, seed), 3).tolist() == whole.tolist()


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    order, other = BlockOrder(5000, 8, 512, 1), BlockOrder(5000, 8, 512, -1)
    drawn = np.corrcoef([places(order, 0), places(order, 1), places(other, 0)])
    assert np.abs(drawn - np.eye(3)).max() < 4 / (5000 / 8) ** 0.5
    seeds = {generator(s, *p).initial_seed() for s in (0, 1, -1) for p in ((0, 1), (1, 0), (1, 1))}
    assert len(seeds) == 9


def test_every_interaction_is_anywhere_in_an_epoch_alike() -> None:
    """χ² of the eighth of 2048 interactions that one is in against the eighth of the epoch in which
    it is used; an eighth has 32 blocks, and each epoch looks at one interaction of a block."""
    order, table = BlockOrder(2048, 8, 512, 5), np.zeros((8, 8))
    for epoch in range(400):
        position = np.empty(2048, dtype=np.int64)
        position[places(order, epoch)] = np.arange(2048)
        chosen = np.arange(0, 2048, 8) + epoch % 8
        np.add.at(table, (chosen // 256, position[chosen] // 256), 1)
    expected = 400 * 32 / 8
    # The rows' sums are fixed, and the columns' nearly: 49 to 56 degrees of freedom.
    assert 49 - 4 * 98**0.5 < ((table - expected) ** 2 / expected).sum() < 56 + 4 * 112**0.5


@on_linux
def test_a_buffer_leaves_no_page_of_the_files_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 30, 1_000_003).astype("<i4")
    np.save(tmp_path / "a.npy", values)
    column = mapped_column(tmp_path / "a.npy", len(values), at_random=True)
    order = BlockOrder(len(values), 32, 1 << 16, 0)
    (number, blocks, _), *_ = order.buffers(0)
    shuffled = order.shuffled(0, number, blocks)
    whole = order.take(values, blocks, shuffled)
    assert resident_bytes(tmp_path) == 0
    monkeypatch.setattr(block_sampler, "BLOCKS_AT_ONCE", 100)
    taken = order.take(column, blocks, shuffled)
    assert torch.equal(taken, whole)
    assert len(taken) > 60_000
    # The short last block, if it is in this buffer, is read after the others.
    assert resident_bytes(tmp_path) <= 1 << 17


SIZE = 3001
ALL = PairDraws(target="value", short_batch=True)
QUERIES = PairDraws(positives="queries", negatives=True, target="value")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return generated(SIZE, candidates=150)


@pytest.fixture(scope="module")
def mapped(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> MappedCorpus:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped_corpus, "IN_MEMORY", 10)
        loaded = prepared(corpus, tmp_path_factory.mktemp("p") / "p")
        assert mapping_folder(loaded.counts("query")) == loaded.cache
    return loaded


def sampler(mapped: MappedCorpus, draws: PairDraws = ALL, **options: Any) -> SmallBlocks:
    return SmallBlocks(mapped, draws, **{"batch_size": 64, "seed": 7} | options)


def rows(batches: list[Batch]) -> list[tuple[int, int, float]]:
    """The pairs with their targets, sorted."""
    columns = (torch.cat([getattr(b, n) for b in batches]).tolist() for n in NAMES)
    return sorted(zip(*columns, strict=True))


NAMES = ("query", "candidate", "target")


def test_an_epoch_has_every_pair_once(corpus: Corpus, mapped: MappedCorpus) -> None:
    expected = rows(list(ExampleSampler(corpus, ALL, batch_size=64, seed=0).epoch(0)))
    for epoch in range(2):
        batches = list(sampler(mapped).epoch(epoch))
        assert rows(batches) == expected
        assert [len(b.query) for b in batches] == [64] * 46 + [SIZE - 46 * 64]
    whole = list(sampler(mapped, PairDraws(target="value")).epoch(0))
    assert [len(b.query) for b in whole] == [64] * 46
    assert set(rows(whole)) < set(expected)


@pytest.mark.parametrize("draws", [ALL, PairDraws(negatives=True), QUERIES])
def test_an_epoch_goes_on_from_any_batch(draws: PairDraws, mapped: MappedCorpus) -> None:
    whole = list(sampler(mapped, draws).epoch(3))
    assert len(whole) == len(sampler(mapped, draws))
    for start in (9, len(whole) - 1, len(whole)):
        rest = list(sampler(mapped, draws).epoch(3, start))
        for one, other in zip(rest, whole[start:], strict=True):
            for name, value in vars(one).items():
                expected = getattr(other, name)
                assert (value is expected is None) or torch.equal(value, expected)


@pytest.mark.parametrize("positives", ["examples", "queries"])
def test_weights_are_those_of_the_sampler_in_memory(
    positives: str, corpus: Corpus, mapped: MappedCorpus
) -> None:
    draws = PairDraws(positives=positives)
    one = ExampleSampler(corpus, draws, batch_size=64, seed=0)
    other = sampler(mapped, draws)
    for side in ("query", "candidate"):
        torch.testing.assert_close(one.rates[side], other.rates[side], rtol=1e-12, atol=0)
        assert torch.equal(one.measures[side], other.measures[side])
    torch.testing.assert_close(one.query_weights, other.query_weights)
    torch.testing.assert_close(one.candidate_weights, other.candidate_weights)
    batch = next(other.epoch(0))
    assert torch.equal(batch.query_weight, other.query_weights[batch.query])
    assert torch.equal(batch.candidate_weight, other.candidate_weights[batch.candidate])


@pytest.mark.parametrize("positives", ["examples", "queries"])
def test_weights_of_pairs_estimate_their_mean(positives: str, mapped: MappedCorpus) -> None:
    draws = PairDraws(positives=positives, short_batch=True)
    epochs = [list(sampler(mapped, draws, weighted=True).epoch(e)) for e in range(30)]
    drawn = torch.cat(
        [b.pair_weight for batches in epochs for b in batches if b.pair_weight is not None]
    )
    error = 4 * float(drawn.double().std()) / len(drawn) ** 0.5
    mean = float(mapped.column("weight").double().mean())
    assert float(drawn.double().mean()) == pytest.approx(mean, abs=error)
    if positives == "examples":
        assert float(drawn[:SIZE].double().mean()) == pytest.approx(mean, rel=1e-6)


def chi_square_of(drawn: Tensor, expected: Tensor, degrees: int) -> float:
    """Return by how many standard deviations χ² of some counts is off."""
    chi_square = ((drawn - expected) ** 2 / expected).sum()
    return float(abs(chi_square - degrees) / (2 * degrees) ** 0.5)


def test_queries_are_drawn_alike_and_their_pairs_too(corpus: Corpus, mapped: MappedCorpus) -> None:
    other = sampler(mapped, PairDraws(positives="queries"), batch_size=500)
    batches = [b for epoch in range(25) for b in other.epoch(epoch)]
    query, candidate = (torch.cat([getattr(b, n) for b in batches]) for n in NAMES[:2])
    for side, drawn in (("query", query), ("candidate", candidate)):
        expected = other.rates[side] * len(drawn)
        counts = torch.bincount(drawn, minlength=len(expected))
        assert chi_square_of(counts, expected, len(expected) - 1) < 4
    assert bool(corpus.has_pairs(query, candidate).all())


def test_negatives_are_alike_among_those_not_met(tmp_path: Path) -> None:
    corpus = generated(SIZE, candidates=80)
    made = sampler(prepared(corpus, tmp_path / "p"), PairDraws(negatives=True), batch_size=500)
    batches = [b for epoch in range(12) for b in made.epoch(epoch)]
    query = torch.cat([b.query for b in batches])
    negative = torch.cat([b.negative for b in batches if b.negative is not None])
    assert not bool(corpus.has_pairs(query, negative).any())
    # Each candidate that a query has not met, with the same chance.
    grid = torch.cartesian_prod(torch.arange(len(corpus.queries)), torch.arange(80))
    free = ~corpus.has_pairs(grid[:, 0], grid[:, 1]).view(-1, 80)
    drawn = torch.bincount(query * 80 + negative, minlength=free.numel()).view(-1, 80)
    expected = drawn.sum(1, keepdim=True) / free.sum(1, keepdim=True).clamp(min=1)
    enough = expected.flatten() > 5
    degrees = int((free.sum(1)[enough] - 1).sum())
    assert degrees > 100
    cells = free & enough[:, None]
    assert chi_square_of(drawn[cells], expected.expand(-1, 80)[cells], degrees) < 4


def test_the_noise_of_a_batch_is_that_of_a_random_batch(tmp_path: Path) -> None:
    # A corpus in order of time in which each query has its time, so that neighbours are alike. The
    # gradient of a table's rows is the batch's share of each query.
    size, batch = 1 << 16, 64
    draw = torch.Generator().manual_seed(1)
    query = torch.arange(size) * 64 // size
    columns = {"query": query.numpy(), "candidate": torch.arange(size).numpy() % 7}
    corpus = Corpus.of(columns | {"time": torch.arange(size).numpy()})
    mapped = prepared(corpus, tmp_path / "p")
    vectors = torch.randn(64, 8, generator=draw, dtype=torch.float64)
    mean = vectors[corpus.column("query")].mean(0)

    def noise(batches: list[Tensor]) -> float:
        errors = torch.stack([(vectors[b].mean(0) - mean).square().sum() for b in batches])
        return float(errors.mean())

    def of_blocks(block: int, pairs: int) -> float:
        class Streamed(BlockSampler):
            pass

        Streamed.block, Streamed.pairs = block, pairs
        return noise(drawn(Streamed(mapped, batch_size=batch, seed=3)))

    def drawn(made: ExampleSampler) -> list[Tensor]:
        return [b.query for epoch in range(4) for b in made.epoch(epoch)]

    random = noise(drawn(ExampleSampler(corpus, batch_size=batch, seed=3)))
    # The share of a batch's pairs that are of a pair's block, as in training at B = 4,096.
    share = 4096 * BlockSampler.block / BlockSampler.pairs
    assert share < 0.04
    assert abs(of_blocks(8, round(batch * 8 / share)) / random - 1) < 0.05
    # Sixteen times as many neighbours are seen, and so is the order of the file.
    assert of_blocks(128, round(batch * 8 / share)) / random > 1.3
    assert noise(list(torch.split(corpus.column("query"), batch))) > 3 * random


def test_the_buffer_after_is_read_while_one_is_used(
    mapped: MappedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, second = list[str](), threading.Event()
    whole = SmallBlocks._read

    def noted(self: SmallBlocks, *args: Any) -> dict[str, Tensor]:
        read.append(threading.current_thread().name)
        if len(read) == 2:
            second.set()
        return whole(self, *args)

    monkeypatch.setattr(SmallBlocks, "_read", noted)
    batches = sampler(mapped).epoch(0)
    next(batches)
    assert second.wait(60)  # the thread is at the second buffer while the first is used
    assert all(name.startswith("evergram-buffers") for name in read)
    batches.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("evergram-buffers")]


def test_files_may_be_removed_while_they_are_used(tmp_path: Path) -> None:
    made = sampler(prepared(generated(900), tmp_path / "p"))
    before = rows(list(made.epoch(0)))
    for path in (tmp_path / "p").rglob("*.npy"):
        path.unlink()
    assert rows(list(made.epoch(1))) == before


def test_what_cannot_be_drawn_is_named(tmp_path: Path) -> None:
    bare = prepared(Corpus.of([(1, 2), (2, 3)]), tmp_path / "p")
    with pytest.raises(DataError, match=r"task\.target = 'value' needs a column 'value'"):
        sampler(bare)
    with pytest.raises(DataError, match=r"task\.sparse = 'weight' needs a column 'weight'"):
        sampler(bare, PairDraws(), weighted=True)
    path = prepared(generated(500), tmp_path / "q").columns["candidate"]
    values = np.load(path)
    values[7] = 0x7FFFFFFF
    np.save(path, values)
    with pytest.raises(DataError, match=r"'candidate' .* has row numbers .*2147483647"):
        list(sampler(load_prepared(tmp_path / "q")).epoch(0))
