"""Bodies of requests: none too long or too slow, all together within a budget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.requests.body import FREE, PART, BodyBudget, HeldBody, is_arrow


class Sent:
    """A request whose body comes in chunks, and then waits for ever or ends."""

    def __init__(self, chunks: Sequence[bytes], *, ends: bool = True, kind: str = "") -> None:
        self._chunks, self._ends = chunks, ends
        self.headers = {"content-type": kind} if kind else {}

    async def stream(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if not self._ends:
            await asyncio.sleep(60)


def read(body: HeldBody, sent: Any, limit: int = 10**9, patience: float = 5.0) -> None:
    asyncio.run(body.read(sent, limit, patience))


def test_a_body_is_its_chunks_in_their_order() -> None:
    body = HeldBody(BodyBudget(10))
    read(body, Sent([b"ab", b"", b"c"]))
    assert (body.content(), body.size) == (b"abc", 3)
    assert body.content() is body.content()
    empty = HeldBody(BodyBudget(10))
    read(empty, Sent([]))
    assert (empty.content(), empty.size) == (b"", 0)


def test_a_body_is_refused_at_the_chunk_that_is_too_much() -> None:
    body = HeldBody(BodyBudget(10))
    read(body, Sent([b"abc"]), limit=3)
    with pytest.raises(RefusedError, match="longer than 3 bytes; send fewer rows") as refusal:
        read(HeldBody(BodyBudget(10)), Sent([b"ab", b"cd", b"ef"]), limit=3)
    assert (refusal.value.status, refusal.value.code) == (413, "limit")


def test_a_body_that_stops_coming_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"came for 0\.05 seconds; send it again") as refusal:
        read(HeldBody(BodyBudget(10)), Sent([b"a"], ends=False), patience=0.05)
    assert (refusal.value.status, refusal.value.code) == (408, "slow")


def test_small_bodies_take_nothing_of_the_budget_and_large_ones_their_rest() -> None:
    budget = BodyBudget(1000)
    read(HeldBody(budget), Sent([b"x" * FREE]))
    assert budget.held == 0
    large = HeldBody(budget)
    read(large, Sent([b"x" * FREE, b"y" * 100]))
    assert budget.held == 100 + PART
    with pytest.raises(RefusedError, match="Too many large requests") as refusal:
        read(HeldBody(budget), Sent([b"x" * (FREE + 1000)]))
    assert (refusal.value.status, refusal.value.code) == (503, "busy")
    large.leave()
    assert budget.held == 0


def test_tiny_chunks_are_counted_with_their_overhead() -> None:
    budget = BodyBudget(10**9)
    read(HeldBody(budget), Sent([b"x"] * 3000))
    assert budget.held == 3000 + 2999 * PART - FREE


def test_the_budget_is_given_back_once_by_the_last_holder() -> None:
    budget = BodyBudget(1000)
    body = HeldBody(budget)
    read(body, Sent([b"x" * (FREE + 10)]))
    body.hold()
    body.leave()
    assert budget.held == 10
    body.leave()
    assert budget.held == 0


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        ("application/json", False),
        ("Application/JSON; charset=utf-8", False),
        ("application/vnd.apache.arrow.stream", True),
    ],
)
def test_a_body_is_json_or_arrow(kind: str, arrow: bool) -> None:
    sent: Any = Sent([], kind=kind)
    assert is_arrow(sent) == arrow


@pytest.mark.parametrize(
    ("kind", "described"), [("", "of no type"), ("text/plain", "of the type 'text/plain'")]
)
def test_types_that_a_foreign_page_could_send_are_refused(kind: str, described: str) -> None:
    sent: Any = Sent([], kind=kind)
    with pytest.raises(RefusedError, match=described) as refusal:
        is_arrow(sent)
    assert (refusal.value.status, refusal.value.code) == (415, "media_type")
