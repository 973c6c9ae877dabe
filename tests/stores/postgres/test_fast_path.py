"""Parameters in PostgreSQL's binary formats are those that PostgreSQL itself writes."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from tests.support.postgres_server import PostgresServer

from evergram.stores.postgres.fast_path import BIGINT, integers, layout, vector, vectors


@pytest.mark.parametrize("numbers", [[0], [1, -(2**63), 2**63 - 1]])
def test_integers_are_an_array_of_bigint(numbers: list[int]) -> None:
    items = b"".join(struct.pack(">iq", 8, number) for number in numbers)
    data = integers(np.array(numbers, np.int64)).data
    assert data == struct.pack(">5i", 1, 0, BIGINT, len(numbers), 1) + items
    assert integers(np.zeros(0, np.int64)).data == struct.pack(">3i", 0, 0, BIGINT)


def test_a_vector_is_its_dim_and_its_values() -> None:
    values = np.array([1.5, -2], np.float32)
    assert vector(values).data == struct.pack(">hhff", 2, 0, 1.5, -2)
    data = vectors(np.stack([values, values * 2]), oid=99).data
    items = b"".join(struct.pack(">ihhff", 12, 2, 0, 1.5 * n, -2 * n) for n in (1, 2))
    assert data == struct.pack(">5i", 1, 0, 99, 2, 1) + items
    assert np.frombuffer(vector(values).data, layout(2))["values"][0].tolist() == [1.5, -2]


def test_postgresql_writes_the_same_bytes(server: PostgresServer) -> None:
    server.sql("create extension if not exists vector")
    hexadecimal = vector(np.array([1.5, -2], np.float32)).data.hex()
    sent = server.sql("select encode(vector_send('[1.5,-2]'), 'hex')")
    assert sent == [(hexadecimal,)]
    array = integers(np.array([1, -2], np.int64)).data.hex()
    assert server.sql("select encode(array_send('{1,-2}'::bigint[]), 'hex')") == [(array,)]
