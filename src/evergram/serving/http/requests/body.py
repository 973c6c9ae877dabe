"""Bodies of requests as they come in: none too long or too slow, all together within a budget."""

from __future__ import annotations

import asyncio
import threading

from starlette.requests import Request

from evergram.serving.http.errors import RefusedError
from evergram.serving.http.requests.arrow_stream import MEDIA as ARROW

JSON = "application/json"
# Bytes of each body that are counted to no budget, so that whoever fills it keeps only large
# requests out.
FREE = 1 << 16
# What a part of a body takes beside its bytes.
PART = 64


class BodyBudget:
    """Counts the bytes of bodies that are held at once, over all requests."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        return self._held

    def take(self, size: int) -> None:
        """Raises: RefusedError: it is more than is left."""
        with self._lock:
            if self._held + size > self._most:
                raise RefusedError(
                    503, "busy", "Too many large requests are being read already; try again."
                )
            self._held += size

    def give_back(self, size: int) -> None:
        with self._lock:
            self._held -= size


class HeldBody:
    """The body of one request, on the budget until everybody has left who holds it."""

    def __init__(self, budget: BodyBudget) -> None:
        self.size = 0
        self._parts: list[bytes] = []
        self._budget, self._taken, self._holders = budget, 0, 1
        self._lock = threading.Lock()

    def content(self) -> bytes:
        """Put it together, when it is first asked for: a large one in a worker's thread."""
        if len(self._parts) != 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]

    def hold(self) -> None:
        with self._lock:
            self._holders += 1

    def leave(self) -> None:
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            self._budget.give_back(self._taken)
            self._taken = 0

    async def read(self, request: Request, limit: int, patience: float) -> None:
        """Take the body in. It is counted as it comes: what a header says of its length may be
        wrong, or missing.

        Args:
            limit: bytes that it may have.
            patience: seconds from one part to the next.
        Raises: RefusedError: it is longer, stops coming, or is past the budget.
        """
        clock = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(patience) as waiting:
                async for chunk in request.stream():
                    waiting.reschedule(clock.time() + patience)
                    self._add(chunk, limit)
        except TimeoutError:
            raise RefusedError(
                408,
                "slow",
                f"Nothing more of the body came for {patience:g} seconds; send it again.",
            ) from None

    def _add(self, chunk: bytes, limit: int) -> None:
        size = self.size + len(chunk)
        if size > limit:
            raise RefusedError(
                413,
                "limit",
                f"The body is longer than {limit} bytes; send fewer rows at a time.",
            )
        more = max(0, size + PART * len(self._parts) - FREE) - self._taken
        if more > 0:
            self._budget.take(more)
            self._taken += more
        self.size = size
        if chunk:
            self._parts.append(chunk)


def is_stream(request: Request) -> bool:
    """Return whether the body is said to be an Arrow stream, and not JSON.

    A page of another origin can send texts and forms without asking, but neither of these two.

    Raises: RefusedError: it is said to be something else, or nothing is said.
    """
    said = request.headers.get("content-type", "")
    kind = said.partition(";")[0].strip().lower()
    if kind not in (JSON, ARROW):
        given = f"of the type {kind[:80]!r}" if kind else "of no type"
        raise RefusedError(
            415,
            "media_type",
            f"The body is {given}; send JSON with the header 'Content-Type: {JSON}', or an Arrow "
            f"stream with 'Content-Type: {ARROW}'.",
        )
    return kind == ARROW
