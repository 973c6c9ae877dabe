"""Rows by hash: the same everywhere, spread evenly, and whose sharing is counted."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.encoders.hashed_rows import HashedRows

IDS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30),
    st.lists(st.text(st.characters(blacklist_categories=["Cs"]), max_size=12), max_size=30),
)


def row_of(text: str, table: str, count: int, seed: int) -> int:
    """The definition in the class's docstring, one id at a time."""
    key = hashlib.blake2b(f"{table}\0hash_rows {seed}".encode()).digest()
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "little") % count


@settings(deadline=None)
@given(IDS, st.integers(1, 2**31 - 1), st.integers(0, 9), st.sampled_from(["id", "query.id"]))
def test_a_row_is_that_of_the_definition(
    ids: list[int] | list[str], count: int, seed: int, table: str
) -> None:
    kind = pa.string() if ids and isinstance(ids[0], str) else pa.int64()
    rows = HashedRows(count, seed).rows(pa.array(ids, kind), table)
    assert rows.dtype == torch.int64
    assert rows.tolist() == [row_of(str(one), table, count, seed) for one in ids]


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20))
def test_a_row_depends_on_the_text_of_the_id_alone(ids: list[int]) -> None:
    hashing = HashedRows(1000)
    numbers = hashing.rows(pa.array(ids), "id")
    texts = hashing.rows(pa.array([str(one) for one in ids]), "id")
    backwards = hashing.rows(pa.array(ids[::-1]), "id")
    assert torch.equal(numbers, texts)
    assert torch.equal(numbers, backwards.flip(0))


def test_another_process_has_the_same_rows() -> None:
    code = (
        "import pyarrow as pa; from evergram.encoders.hashed_rows import HashedRows;"
        "print(HashedRows(97, 3).rows(pa.array(['a', 'ü', '7']), 'id').tolist())"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    mine = HashedRows(97, 3).rows(pa.array(["a", "ü", "7"]), "id").tolist()
    assert run.stdout.strip() == str(mine)


def test_a_missing_id_has_no_row() -> None:
    rows = HashedRows(10).rows(pa.array(["a", None, "b"]), "id")
    assert (rows >= 0).tolist() == [True, False, True]


def test_rows_are_uniform_and_independent_of_seed_and_table() -> None:
    """χ² over 64 rows, and over the cells of two hashes' rows; 5 σ above their expectation."""
    ids, count = pa.array(np.arange(40_000)), 64
    chosen = [
        HashedRows(count, seed).rows(ids, table)
        for seed, table in ((0, "query.id"), (1, "query.id"), (0, "candidate.id"))
    ]
    cells = [chosen[0], *(chosen[0] * count + other for other in chosen[1:])]
    for rows, size in zip(cells, (count, count**2, count**2), strict=True):
        expected = len(ids) / size
        chi = float(((torch.bincount(rows, minlength=size) - expected) ** 2 / expected).sum())
        assert abs(chi - (size - 1)) < 5 * (2 * (size - 1)) ** 0.5


@pytest.mark.parametrize(("size", "count"), [(1, 5), (30, 7), (2_000, 4_000)])
def test_the_share_of_ids_in_shared_rows_is_counted(size: int, count: int) -> None:
    ids, hashing = pa.array(np.arange(size)), HashedRows(count)
    rows = hashing.rows(ids, "id").tolist()
    shared = sum(rows.count(row) > 1 for row in rows) / size
    assert hashing.shared(ids, "id") == pytest.approx(shared)
    expected = 1 - (1 - 1 / count) ** (size - 1)
    assert shared == pytest.approx(
        expected, abs=5 * (expected * (1 - expected) / size) ** 0.5 + 0.05
    )
    assert hashing.shared(ids[:0], "id") == 0
