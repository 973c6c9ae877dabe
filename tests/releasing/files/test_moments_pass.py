"""One pass over two files gives the moments of each group, and the vectors that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.embedding_files import file_of, id_names, randn
from tests.support.thread_processes import in_threads
from torch import Tensor

from evergram.compatibility.row_groups import Groups
from evergram.releasing.files.moments_pass import read_pairs
from evergram.training.progress import Progress
from evergram.vector_files.pairing import Pairing


def test_moments_are_those_of_the_pairs_of_a_group(tmp_path: Path) -> None:
    """By sums over the vectors in float64, for pairs in another order and with gaps."""
    old, new = randn(0, 60, 3), randn(1, 60, 5)
    new[7] = 0
    order = torch.randperm(60, generator=torch.Generator().manual_seed(2))[:50]
    files = (
        file_of(tmp_path / "old.parquet", old),
        file_of(tmp_path / "new.npy", new[order], id_names(60).take(pa.array(order.numpy()))),
    )
    pairing = Pairing(*files)
    rows = torch.tensor([int(name[2:]) for name in pairing.ids.to_pylist()])
    place = torch.arange(len(rows)) % 3
    kept = torch.tensor([4, 9, 33])
    groups = Groups(place == 0, place == 1, place == 2)
    reading = read_pairs(pairing, (3, 5), groups, kept, Progress(quiet=True))
    for moments, mask in zip(
        (reading.seen, reading.chosen, reading.held, reading.whole),
        (groups.seen, groups.chosen, groups.held, place >= 0),
        strict=True,
    ):
        a, b = old[rows[mask]].double(), new[rows[mask]].double()
        assert moments.count == len(a)
        for second, direct in zip(moments.second(), (b.T @ b, a.T @ b, a.T @ a), strict=True):
            torch.testing.assert_close(second, direct / len(a))
    assert torch.equal(reading.sample.rows, kept)
    pair = reading.sample.take(torch.tensor([33, 4]))
    assert torch.equal(pair.old, old[rows[[33, 4]]])
    assert torch.equal(pair.new, new[rows[[33, 4]]])
    assert reading.zeros == (0, int((rows == 7).sum()))


def test_progress_counts_every_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [file_of(tmp_path / f"{i}.parquet", randn(i, 20, 2)) for i in (0, 1)]
    pairing = Pairing(*files)
    every = torch.ones(len(pairing), dtype=torch.bool)
    groups = Groups(every, ~every, ~every)
    reading = read_pairs(pairing, (2, 2), groups, torch.tensor([0]), Progress(quiet=True))
    assert reading.seen.count == reading.whole.count == 20
    assert capsys.readouterr().err == ""


class SmallBlocks(Pairing):
    """A pairing that is read seven rows at a time."""

    def blocks(self, size: int = 7) -> Iterator[tuple[Tensor, Tensor]]:
        return super().blocks(7)


@pytest.mark.parametrize("size", [2, 3])
def test_processes_have_the_moments_and_the_sample_of_one(tmp_path: Path, size: int) -> None:
    files = [file_of(tmp_path / f"{i}.parquet", randn(i, 60, 3 + i)) for i in (0, 1)]
    place = torch.arange(60) % 3
    groups = Groups(place == 0, place == 1, place == 2)
    kept, quiet = torch.tensor([4, 9, 33]), Progress(quiet=True)
    alone = read_pairs(SmallBlocks(*files), (3, 4), groups, kept, quiet)
    results, processes = in_threads(
        size, lambda p: read_pairs(SmallBlocks(*files), (3, 4), groups, kept, quiet, p)
    )
    assert processes[0].kinds == ["moments"] * 3
    for reading in results:
        for mine, yours in zip(reading.whole.second(), alone.whole.second(), strict=True):
            torch.testing.assert_close(mine, yours, rtol=1e-12, atol=1e-14)
        assert reading.held.count == 20
        assert torch.equal(reading.sample.new, alone.sample.new)
        assert reading.zeros == alone.zeros
