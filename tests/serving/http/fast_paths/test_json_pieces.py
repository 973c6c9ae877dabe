"""A JSON object in pieces is the same object, whatever is in it and wherever it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.fast_paths import json_pieces
from evergram.serving.http.fast_paths.json_pieces import cut_body

TEXT = st.text(st.sampled_from('ab"\\[]{},: é\n'), max_size=8)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=20,
)
OBJECT = st.dictionaries(TEXT, VALUE, max_size=5)
SPACED = st.sampled_from([(",", ":"), (" ,\n ", " : ")])


def many(_: str) -> int:
    return 10**6


def joined(body: bytes) -> Any:
    """What the pieces of a body say. Raises: ValueError: one of them is not JSON."""
    cut = cut_body(body, many, many)
    whole = json.loads(cut.short)
    if not isinstance(whole, dict):
        raise ValueError("no object")
    for name, pieces in cut.lists.items():
        elements = [json.loads(piece.text) for piece in pieces]
        if [len(e) for e in elements] != [piece.count for piece in pieces]:
            raise ValueError("a comma too many")
        if isinstance(whole[name], list):
            assert whole[name] == [x for part in elements for x in part][:1]
            whole[name] = [x for part in elements for x in part]
    return whole


@pytest.fixture(params=[1, 3, 7, 1 << 16])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of a piece, and of what is looked at at once."""
    monkeypatch.setattr(json_pieces, "PIECE", request.param)
    return int(request.param)


@pytest.mark.usefixtures("size")
@settings(deadline=None)
@given(whole=OBJECT, separators=SPACED, ascii_only=st.booleans())
def test_the_pieces_are_the_whole(
    whole: Any, separators: tuple[str, str], ascii_only: bool
) -> None:
    body = json.dumps(whole, separators=separators, ensure_ascii=ascii_only).encode()
    assert joined(body) == whole


@pytest.mark.usefixtures("size")
@settings(deadline=None, max_examples=100)
@given(
    whole=OBJECT,
    places=st.lists(st.tuples(st.integers(0, 200), st.sampled_from(b'[]{},":\\ 1')), max_size=4),
    replace=st.booleans(),
)
def test_a_body_that_is_not_json_is_refused_in_pieces_too(
    whole: Any, places: list[tuple[int, int]], replace: bool
) -> None:
    text = bytearray(json.dumps(whole).encode())
    for place, sign in places:
        at = place % len(text)
        text[at : at + replace] = bytes([sign])
    body = bytes(text)
    try:
        expected = json.loads(body)
    except ValueError:
        expected = None
    if isinstance(expected, dict):
        assert joined(body) == expected
    else:
        with pytest.raises((ValueError, RefusedError)):
            joined(body)


def test_elements_are_counted_before_anything_is_parsed() -> None:
    body = b'{"input": [' + b"[]," * 99 + b"[]]}"
    assert sum(piece.count for piece in cut_body(body, lambda _: 100, many).lists["input"]) == 100
    for bad in (body, body.replace(b"[]", b"*")):
        with pytest.raises(RefusedError, match="more than the 99") as refused:
            cut_body(bad, lambda _: 99, many)
        assert (refused.value.status, refused.value.param) == (413, "input")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"input": [1, "' + b"x" * 200 + b'"]}', "An element of 'input' is 20"),
        (b'{"user": "' + b"x" * 200 + b'", "input": [1]}', "beside the elements of its lists"),
        (b'{"input": {' + b'"a": 1, ' * 40 + b'"b": 2}}', "no list"),
    ],
)
def test_elements_that_are_too_long_are_not_parsed(body: bytes, words: str) -> None:
    with pytest.raises(RefusedError, match=words) as refused:
        cut_body(body, many, lambda _: 100)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "body",
    [
        b"[[1, 2], [3]]",
        b'{"a": [1}',
        b'{"a": [1]',
        b'{"a": "',
        b'{"a": [1]}}',
        b'{"a": [1]}{"a": [1]}',
        b"{[1, 2]}",
        b'{"a": [1], 5: [2]}',
        b"{" + b'"a":1,' * 70 + b'"b":2}',
    ],
)
def test_a_body_that_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(RefusedError) as refused:
        cut_body(body, many, many)
    assert refused.value.status == 400
