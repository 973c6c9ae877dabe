"""The cache holds what was asked for last, and no more bytes than it may."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evergram.serving.texts.vector_cache import OVERHEAD, VectorCache


def vector(number: int) -> np.ndarray:
    return np.full(4, number, dtype=np.float32)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=40), st.integers(0, 4))
def test_it_is_a_dictionary_of_the_last_few(steps: list[tuple[bool, int]], room: int) -> None:
    size = 16 + OVERHEAD
    cache, expected = VectorCache(room * size), OrderedDict[int, np.ndarray]()
    for write, key in steps:
        if write and room:
            expected.pop(key, None)
            expected[key] = vector(key)
            while len(expected) > room:
                expected.popitem(last=False)
        elif key in expected:
            expected.move_to_end(key)
        if write:
            cache.put(key, vector(key), 0)
        else:
            held = cache.get(key)
            assert (held is None) == (key not in expected)
            assert held is None or (held == key).all()
        assert len(cache) == len(expected)
        assert cache.held == len(expected) * size <= cache.most


def test_a_row_does_not_keep_its_batch_and_nothing_is_left_after_clear() -> None:
    cache = VectorCache(10_000)
    batch = np.zeros((100, 4), dtype=np.float32)
    cache.put("text", batch[3], 16)
    held = cache.get("text")
    assert held is not None
    assert held.base is None
    cache.clear()
    assert (len(cache), cache.held, cache.get("text")) == (0, 0, None)
