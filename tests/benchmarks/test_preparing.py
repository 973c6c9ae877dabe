"""Preparing: the measure itself, and its table."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from benchmarks.preparing import Run, run, table, watched, write_interactions


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells anonymous memory on Linux only")
def test_the_peak_is_seen_while_it_lasts() -> None:
    def work() -> None:
        block = np.ones(64 << 20, np.uint8)
        watched_for = np.sum(block.reshape(64, -1) @ np.ones((block.size // 64, 1), np.float64))
        assert watched_for == 64 << 20

    _, before = watched(lambda: None)
    seconds, most = watched(work)
    assert most - before > 48 << 20
    assert seconds > 0


def test_prepare_and_the_copy_have_the_same_rows(tmp_path: Path) -> None:
    source = tmp_path / "interactions.parquet"
    write_interactions(source, 1_000, block=300)
    for kind in ("prepare", "copy"):
        measured = run(kind, source, tmp_path / kind)
        assert measured.seconds > 0
        assert measured.written > 0
    copied = pq.read_table(tmp_path / "copy")
    assert copied.to_pydict() == pq.read_table(source).to_pydict()
    times = np.load(tmp_path / "prepare" / "parts" / "00000" / "time.npy")
    assert times.tolist() == sorted(copied["time"].to_pylist())


def test_the_table_has_rates_and_their_ratio() -> None:
    runs = {
        1_000_000: {"prepare": Run(4.0, 300 << 20, 200 << 20, 9), "copy": Run(2.0, 1 << 20, 1, 1)}
    }
    (row,) = table(runs).splitlines()[2:]
    assert row == ("| 1,000,000 | 4.0 | 250,000 | 500,000 | 0.50 | 300 MiB | 200 MiB | 1 MiB |")
