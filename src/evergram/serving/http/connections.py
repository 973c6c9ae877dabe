"""Connections that wait for nothing for ever, and no more of them than there is room for.

uvicorn closes a connection that is silent after an answer (`timeout_keep_alive`), and refuses
requests past a number of connections (`limit_concurrency`). It waits for ever for the first byte of
a request, for the rest of its headers, and for a client to take its answer; and a connection that
asks for nothing counts as one that does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from evergram.serving.http.errors import RefusedError, Said, say
from evergram.serving.settings import Settings

# Connections past the limit that are told so; the next is cut off.
REFUSED = 64
# Bytes of a request's headers.
HEADERS = 1 << 14
# Bytes that are read of a connection at once. In chunks of one byte each, a quarter of a megabyte,
# as asyncio would read, keeps the event loop from everybody else for more than a second.
READ = 1 << 14


class Wait(Enum):
    """What a connection waits for."""

    HEADERS = auto()  # the first request, or the rest of one's headers
    NEXT = auto()  # another request, of which nothing has come
    ANSWER = auto()  # us
    LINGER = auto()  # the client to stop sending what is not read any more
    END = auto()  # what was written to be taken, before it is closed


@dataclass
class Connections:
    """The open connections of a service.

    Args:
        most: how many there may be.
        silence: seconds that a client may be silent within a request.
        ended: is told why, whenever a connection is closed that its client kept open.
    """

    most: int
    silence: float
    ended: Callable[[str], None]
    open: set[LimitedProtocol] = field(default_factory=set)
    refused: set[LimitedProtocol] = field(default_factory=set)
    # In the order in which they began to wait.
    waiting: dict[Wait, dict[LimitedProtocol, None]] = field(
        default_factory=lambda: {Wait.HEADERS: {}, Wait.NEXT: {}}
    )

    def add(self, new: LimitedProtocol) -> bool:
        """Take a connection in; where there is no room, in place of the one that has waited for its
        client for longest, first of those that never asked. Returns: whether it was."""
        if len(self.open) >= self.most:
            silent = [one for waiting in self.waiting.values() for one in list(waiting)[:1]]
            if not silent:
                return False
            silent[0].end("full")
        self.open.add(new)
        return True

    def remove(self, gone: LimitedProtocol) -> None:
        self.open.discard(gone)
        self.refused.discard(gone)
        self.wait(gone, None)

    def wait(self, one: LimitedProtocol, what: Wait | None) -> None:
        for waiting in self.waiting.values():
            waiting.pop(one, None)
        if what in self.waiting and one in self.open:
            self.waiting[what][one] = None


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol, which ends what waits for too long. One a connection."""

    rules: ClassVar[Connections]
    _waits: Wait | None = None
    _timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if hasattr(transport, "max_size"):
            transport.max_size = READ
        if self.rules.add(self):
            self._settle()
            return
        self.rules.ended("refused")
        if len(self.rules.refused) >= REFUSED:
            transport.abort()
            return
        self.rules.refused.add(self)
        busy = RefusedError(503, "busy", "Too many connections are open already; try again.")
        self._tell(say(busy))
        # Closed at once, with a request of it on its way, the answer might be lost.
        transport.write_eof()
        self._wait(Wait.LINGER)

    def data_received(self, data: bytes) -> None:
        if self in self.rules.refused or self._waits is Wait.END:
            return
        super().data_received(data)
        self._settle()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self.rules.remove(self)
        for timer in (self._timer, self._reader_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        self.rules.ended("idle")
        super().timeout_keep_alive_handler()
        self._settle()

    def shutdown(self) -> None:
        super().shutdown()
        self._settle()

    def send_400_response(self, msg: str) -> None:
        self.end("invalid", RefusedError(400, "http", "The request is not HTTP as it should be."))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader_timer is not None and self._waits is not Wait.END:
            self._reader_timer.cancel()

    def end(self, why: str, error: RefusedError | None = None) -> None:
        """Close it, whatever its client does.

        Args:
            error: that the client is told first.
        """
        self.rules.ended(why)
        if error is not None:
            self._tell(say(error))
        self.transport.close()
        self._settle()

    def _settle(self) -> None:
        """Find what it waits for now, and for how long it may."""
        client, ours = self.conn.their_state, self.conn.our_state
        if self.transport.is_closing():
            now = Wait.END
        elif client is h11.IDLE:
            begun = self.cycle is None or bool(self.conn.trailing_data[0])
            now = Wait.HEADERS if begun else Wait.NEXT
        elif client is h11.SEND_BODY and ours in (h11.DONE, h11.MUST_CLOSE):
            now = Wait.LINGER
        else:
            now = Wait.ANSWER
        if now is not self._waits:
            self._wait(now)

    def _wait(self, what: Wait) -> None:
        self._waits = what
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if what is Wait.END:
            self.rules.remove(self)
            self._watch_reader(self.transport.get_write_buffer_size())
            return
        self.rules.wait(self, what)
        if what in (Wait.HEADERS, Wait.LINGER):
            self._timer = self.loop.call_later(self.rules.silence, self._expired)

    def _expired(self) -> None:
        if self in self.rules.refused:
            self.transport.close()
        elif self._waits is Wait.LINGER:
            self.end("unread_body")
        elif self.conn.trailing_data[0]:
            late = f"The headers were not complete after {self.rules.silence:g} seconds."
            self.end("headers", RefusedError(408, "slow", late))
        else:
            self.end("silent")

    def _watch_reader(self, left: int) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
        self._reader_timer = self.loop.call_later(self.rules.silence, self._look_at_reader, left)

    def _look_at_reader(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._watch_reader(left)
            return
        self.rules.ended("unread_answer")
        self.transport.abort()

    def _tell(self, said: Said) -> None:
        """Write an answer that no request was waited for."""
        reason = HTTPStatus(said.status).phrase
        headers = {
            "content-type": "application/json",
            "content-length": str(len(said.body)),
            "connection": "close",
            **said.headers,
        }
        lines = [f"HTTP/1.1 {said.status} {reason}", *(f"{k}: {v}" for k, v in headers.items())]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + said.body)


def server_of(app: Any, settings: Settings, connections: Connections) -> uvicorn.Server:
    """uvicorn, with limits on connections, and without what nothing here needs."""

    class Protocol(LimitedProtocol):
        rules = connections

    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.host,
            http=Protocol,
            ws="none",
            # What is refused is counted; a client must not fill the log.
            log_level="error",
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=HEADERS,
            timeout_keep_alive=max(1, round(settings.keep_alive)),
            timeout_graceful_shutdown=max(1, int(settings.timeout)),
        )
    )
