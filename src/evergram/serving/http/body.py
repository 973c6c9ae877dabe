"""Read the bodies of requests: none too long or too slow, all together within a budget."""

from __future__ import annotations

import asyncio
import threading

from starlette.requests import Request

from evergram.serving.http.call import ARROW, JSON
from evergram.serving.http.errors import RefusedError

# Bytes of each body that the budget does not count, so that a full budget keeps out large requests
# only.
FREE = 1 << 16
# Bytes of memory that a part of a body takes besides its own.
PART = 64


class BodyBudget:
    """Bytes of bodies that all requests together may hold. Several threads may use one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held: int = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Take bytes from the budget; give them back where negative.

        Raises: RefusedError: fewer are left.
        """
        with self._lock:
            if size > 0 and self.held + size > self._most:
                raise RefusedError(
                    503, "busy", "Too many large requests are being read already; try again."
                )
            self.held += size


class HeldBody:
    """The body of one request, which counts to the budget until its last holder leaves."""

    def __init__(self, budget: BodyBudget) -> None:
        self.size: int = 0
        self._parts: list[bytes] = []
        self._budget, self._taken, self._holders = budget, 0, 1
        self._lock = threading.Lock()

    def content(self) -> bytes:
        """Return the body, joined on the first call: of a large one, in a worker's thread."""
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
            self._budget.take(-self._taken)
            self._taken = 0

    async def read(self, request: Request, limit: int, patience: float) -> None:
        """Receive the body.

        Its bytes are counted as they come, as the header of its length may be wrong or missing.

        Args:
            limit: bytes that the body may have.
            patience: seconds from one part to the next.
        Raises: RefusedError: the body is longer, stops coming, or does not fit the budget.
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
            long = f"The body is longer than {limit} bytes; send fewer rows at a time."
            raise RefusedError(413, "limit", long)
        more = max(0, size + PART * len(self._parts) - FREE) - self._taken
        if more > 0:
            self._budget.take(more)
            self._taken += more
        self.size = size
        if chunk:
            self._parts.append(chunk)


def is_arrow(request: Request) -> bool:
    """Return whether the header `Content-Type` says Arrow, and not JSON.

    Nothing else is accepted: a web page of another origin can send texts and forms without asking
    first, but neither of these two.

    Raises: RefusedError: the header says something else, or is missing; or the body is compressed.
    """
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise RefusedError(
            415,
            "media_type",
            f"The body is compressed ({coding[:80]!r}); send it as it is, without the header "
            "'Content-Encoding'.",
        )
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (JSON, ARROW):
        described = f"of the type {kind[:80]!r}" if kind else "of no type"
        raise RefusedError(
            415,
            "media_type",
            f"The body is {described}; send JSON with the header 'Content-Type: {JSON}', or an "
            f"Arrow stream with 'Content-Type: {ARROW}'.",
        )
    return kind == ARROW
