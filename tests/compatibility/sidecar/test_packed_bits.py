"""Codes in bytes, beside a row that is written out as text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.compatibility.sidecar import packed_bits
from evergram.compatibility.sidecar.packed_bits import pack, packed_size, unpack


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 8), max_size=20), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_codes_come_back_and_lie_as_written(widths: list[int], rows: int, seed: int) -> None:
    bits = np.array(widths, dtype=np.int64)
    draw = np.random.default_rng(seed)
    codes = draw.integers(0, 2**bits, (rows, len(bits))).astype(np.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (rows, packed_size(bits))
    assert packed.dtype == np.uint8
    for row, own in zip(packed, codes, strict=True):
        text = "".join(f"{code:0{width}b}" for code, width in zip(own, widths, strict=True))
        assert "".join(f"{byte:08b}" for byte in row) == text.ljust(8 * len(row), "0")
    np.testing.assert_array_equal(unpack(packed, bits), codes)


def test_many_rows_are_taken_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = np.array([3, 8, 2], dtype=np.int64)
    codes = np.random.default_rng(0).integers(0, 2**bits, (50, 3)).astype(np.uint8)
    whole = pack(codes, bits)
    monkeypatch.setattr(packed_bits, "BLOCK", 40)
    np.testing.assert_array_equal(pack(codes, bits), whole)
    np.testing.assert_array_equal(unpack(whole, bits), codes)
