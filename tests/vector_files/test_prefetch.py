"""Prefetched items keep their order, one is made ahead, and errors come at their place."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from evergram.vector_files.prefetch import ahead


def test_the_next_item_is_made_while_one_is_used() -> None:
    made = threading.Semaphore(0)

    def items() -> Iterator[int]:
        for i in range(3):
            made.release()
            yield i

    items_ahead = ahead(items())
    assert next(items_ahead) == 0
    assert made.acquire(timeout=5)
    assert made.acquire(timeout=5)  # the second, which nobody has asked for
    assert list(items_ahead) == [1, 2]


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("two")

    items_ahead = ahead(items())
    assert next(items_ahead) == 1
    with pytest.raises(ValueError, match="two"):
        next(items_ahead)
