"""Rows, their checksums, and hits of several versions merged into one ranking."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from evergram.errors import DataError, ShapeError
from evergram.stores.rows import Hits, Rows, joined_ids, merge_hits, places_among, row_checks


def rows(ids: pa.Array, version: int = 3, dim: int = 5, seed: int = 0) -> Rows:
    draw = np.random.default_rng(seed)
    return Rows(version, ids, draw.standard_normal((len(ids), dim)).astype(np.float32))


@pytest.mark.parametrize(
    ("vectors", "kind", "message"),
    [
        (
            np.zeros((3, 2), np.float32),
            ShapeError,
            r"Rows have 2 ids and vectors of shape \[3, 2\]",
        ),
        (np.zeros(2, np.float32), ShapeError, r"vectors must be \[n, D\], one for each id"),
        (np.zeros((2, 2)), DataError, "Vectors are float64; a store holds float32"),
    ],
)
def test_rows_have_a_vector_of_float32_for_each_id(
    vectors: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        Rows(0, pa.array([1, 2]), vectors)


@pytest.mark.parametrize("ids", [pa.array([7, -1, 2**40]), pa.array(["a", "é", ""])])
def test_any_changed_bit_changes_the_checksum_of_its_row_alone(ids: pa.Array) -> None:
    one = rows(ids)
    checks = row_checks(one)
    for place in range(5 * 32):
        vectors = one.vectors.copy()
        vectors.view(np.uint32)[1, place // 32] ^= np.uint32(1 << place % 32)
        differ = row_checks(Rows(3, ids, vectors)) != checks
        assert differ.tolist() == [False, True, False]


def test_the_checksum_is_of_the_id_and_the_version_too() -> None:
    vectors = np.ones((2, 4), np.float32)
    checks = row_checks(Rows(3, pa.array([1, 2]), vectors))
    assert checks[0] != checks[1]
    assert (row_checks(Rows(2, pa.array([1, 2]), vectors)) != checks).all()
    assert (row_checks(Rows(3, pa.array([2**32 + 1, 2]), vectors)) != checks).tolist() == [
        True,
        False,
    ]
    # A row does not move its values around unnoticed.
    assert len(set(row_checks(Rows(0, pa.array(range(4)), np.eye(4, dtype=np.float32))))) == 4


def test_a_row_of_zeros_has_a_checksum_that_zeroed_bytes_have_not() -> None:
    assert row_checks(Rows(0, pa.array([0]), np.zeros((1, 3), np.float32)))[0] != 0


def slow_check(key: int | str, version: int, vector: list[float]) -> int:
    """The checksum of a row, word after word in Python's own integers."""
    if isinstance(key, str):
        words = [zlib.crc32(key.encode()), 0]
    else:
        words = list(struct.unpack("<II", struct.pack("<q", key)))
    words = [
        version,
        *words,
        *struct.unpack(f"<{len(vector)}I", struct.pack(f"<{len(vector)}f", *vector)),
    ]
    total = 1
    for place, word in enumerate(words, start=1):
        mixed = place
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
            mixed = (mixed ^ mixed >> shift) * factor % 2**32
        total += (mixed | 1) * word
    return total % 2**32


@pytest.mark.parametrize("ids", [[5, -5, 2**40], ["a", "é", ""]])
def test_checksums_are_those_of_the_definition_and_of_files(ids: list[Any]) -> None:
    """They are stored beside the rows, so a later Evergram must compute the same."""
    vectors = np.arange(9, dtype=np.float32).reshape(3, 3)
    checks = row_checks(Rows(1, pa.array(ids), vectors)).tolist()
    rows_of = zip(ids, vectors.tolist(), strict=True)
    assert checks == [slow_check(key, 1, vector) for key, vector in rows_of]
    assert checks[0] == (3751147483 if ids[0] == 5 else 631072141)


def hits(version: int, *scored: tuple[int, float]) -> Hits:
    return Hits(
        pa.array([key for key, _ in scored], pa.int64()),
        np.array([score for _, score in scored], np.float32),
        np.full(len(scored), version),
    )


def test_the_best_of_several_versions_are_ranked_together() -> None:
    merged = merge_hits([hits(0, (1, 0.9), (2, 0.1)), hits(1, (3, 0.5), (4, 0.4))], 3)
    assert merged.ids.to_pylist() == [1, 3, 4]
    assert merged.scores.tolist() == pytest.approx([0.9, 0.5, 0.4])
    assert merged.versions.tolist() == [0, 1, 1]


def test_an_id_in_two_versions_counts_at_the_later_one() -> None:
    merged = merge_hits([hits(0, (1, 0.9)), hits(2, (1, 0.2), (5, 0.1))], 5)
    assert merged.ids.to_pylist() == [1, 5]
    assert merged.versions.tolist() == [2, 2]


def test_merging_nothing_or_one_version_is_that() -> None:
    one = hits(0, (1, 0.9), (2, 0.1))
    assert merge_hits([hits(1), one], 1).ids.to_pylist() == [1]
    assert len(merge_hits([hits(0), hits(1)], 5)) == 0


def test_ids_are_placed_among_others_in_any_order() -> None:
    mine, places = places_among(pa.array(["c", "x", "a", "c"]), pa.array(["a", "b", "c"]))
    assert mine.tolist() == [True, False, True, True]
    assert places.tolist() == [2, 0, 2]
    mine, places = places_among(pa.array([], pa.int64()), pa.array([1]))
    assert (mine.tolist(), places.tolist()) == ([], [])


def test_ids_of_no_part_are_of_the_type() -> None:
    assert joined_ids([], pa.string()).equals(pa.array([], pa.string()))
    assert joined_ids([pa.array([2]), pa.array([1])], pa.int64()).to_pylist() == [2, 1]


def test_hits_are_ranked_by_other_scores_and_some_of_them_kept() -> None:
    some = hits(2, (1, 0.9), (2, 0.8), (3, 0.7))
    again = some.ranked(np.array([0.5, 1e300, 0.5]))
    assert again.ids.to_pylist() == [2, 1, 3]
    assert again.scores.tolist() == [np.inf, 0.5, 0.5]
    assert again.scores.dtype == np.float32
    kept = some.where(np.array([True, False, True]))
    assert kept.ids.to_pylist() == [1, 3]
    assert kept.scores.tolist() == some.scores[[0, 2]].tolist()
    assert kept.versions.tolist() == [2, 2]
