"""Codes of a few bits each, one after the other in bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
# Bits in memory at once, each in a byte.
BLOCK = 1 << 24


def packed_size(bits: npt.NDArray[np.int64]) -> int:
    """Return the bytes of a row of codes; the last one is filled up with zeros."""
    return -(-int(bits.sum()) // 8)


def pack(codes: Bytes, bits: npt.NDArray[np.int64]) -> Bytes:
    """Return rows of codes as bytes, uint8 [N, `packed_size(bits)`], highest bits first.

    Args:
        codes: uint8 [N, r], each below 2^b of its column.
        bits: b of each column, [r], 1 to 8.
    """
    column, shift = _places(bits)
    packed = np.empty((len(codes), packed_size(bits)), np.uint8)
    for rows in _blocks(len(codes), len(column)):
        packed[rows] = np.packbits((codes[rows][:, column] >> shift) & 1, axis=1)
    return packed


def unpack(packed: Bytes, bits: npt.NDArray[np.int64]) -> Bytes:
    """Return the codes, uint8 [N, r], of bytes of `pack`."""
    start = np.cumsum(bits) - bits
    # A code is within two bytes; the last byte may have none behind it.
    next_one = np.pad(packed[:, 1:], ((0, 0), (0, 1)))[:, : packed.shape[1]]
    pairs = (packed.astype(np.uint16) << 8) | next_one
    shift = (16 - start % 8 - bits).astype(np.uint16)
    mask = ((1 << bits) - 1).astype(np.uint16)
    codes: Bytes = ((pairs.take(start // 8, axis=1) >> shift) & mask).astype(np.uint8)
    return codes


def _places(bits: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Bytes]:
    """Return of each bit of a row the column that it is of, and how far its code is shifted."""
    column = np.repeat(np.arange(len(bits)), bits)
    last = np.repeat(np.cumsum(bits), bits)
    return column, (last - 1 - np.arange(len(column))).astype(np.uint8)


def _blocks(count: int, width: int) -> list[slice]:
    step = max(1, BLOCK // max(1, width))
    return [slice(start, start + step) for start in range(0, count, step)]
