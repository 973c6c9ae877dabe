"""Requests that are answered without a worker."""

from __future__ import annotations

import pytest

from evergram.serving.http.fast_paths.inline_answers import is_quick


@pytest.mark.parametrize(
    ("body", "quick"),
    [
        (b'{"input": [1, 2]}', True),
        (b'{"input": ["a text"], "input_type": "query"}', True),
        (b'{"input": {"features": {}}}', False),
        (rb'{"input": {"\u0066eatures": {}}}', False),
        (b'{"input": 1, "user": "' + b"x" * 5000 + b'"}', False),
    ],
)
def test_only_a_few_ids_or_texts_are_answered_without_a_worker(body: bytes, quick: bool) -> None:
    assert is_quick(len(body), True, lambda: body) is quick


def test_a_store_elsewhere_is_always_read_by_a_worker() -> None:
    def content() -> bytes:
        raise AssertionError("the body was read")

    assert not is_quick(10, False, content)
