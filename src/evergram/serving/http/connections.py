"""Limits on connections: how many there may be, and how long each may wait for its client.

uvicorn closes a connection that is silent after an answer (`timeout_keep_alive`), and refuses
requests beyond a number of connections (`limit_concurrency`). It waits for ever for the first byte
of a request, for the rest of its headers, and for a client to take its answer; and it counts idle
connections like busy ones.
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
from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.h11_impl import H11Protocol

from evergram.log_lines import LogFormat, log_format
from evergram.serving.http.answers.errors import ErrorResponse, RefusedError, error_response
from evergram.serving.settings import ServiceSettings

# Connections beyond the limit that get an answer saying so; any further one is cut off.
REFUSED = 64
# Bytes of a request's headers.
HEADERS = 1 << 14
# Bytes that are read from a connection at once. An event loop by itself reads a quarter of a
# megabyte, which in HTTP chunks of one byte each keeps it busy for more than a second.
READ = 1 << 14


class Wait(Enum):
    """The event that a connection waits for."""

    HEADERS = auto()  # the first request, or the rest of a request's headers
    NEXT = auto()  # the next request, of which nothing has come
    ANSWER = auto()  # the service's answer
    LINGER = auto()  # the client's end of a body that is no longer read
    END = auto()  # the client taking what was written, before the connection closes


@dataclass
class Connections:
    """The open connections of a service.

    Args:
        most: how many may be open.
        silence: seconds that a client may be silent within a request.
        ended: called with the reason whenever the service closes a connection that its client kept
            open.
    """

    most: int
    silence: float
    ended: Callable[[str], None]
    open: set[LimitedProtocol] = field(default_factory=set)
    refused: set[LimitedProtocol] = field(default_factory=set)
    # Those that wait for their client, longest first.
    waiting: dict[Wait, dict[LimitedProtocol, None]] = field(
        default_factory=lambda: {Wait.HEADERS: {}, Wait.NEXT: {}}
    )

    def add(self, new: LimitedProtocol) -> bool:
        """Admit a connection, in place of a waiting one where there is no room.

        The one that has waited for its client longest is closed, first of those that never sent a
        request.

        Returns: False where every connection is busy, and the new one is not admitted.
        """
        if len(self.open) >= self.most:
            silent = [first for waiting in self.waiting.values() for first in list(waiting)[:1]]
            if not silent:
                return False
            silent[0].end("full")
        self.open.add(new)
        return True

    def remove(self, closed: LimitedProtocol) -> None:
        self.open.discard(closed)
        self.refused.discard(closed)
        self.wait(closed, None)

    def wait(self, connection: LimitedProtocol, event: Wait | None) -> None:
        """Record the event that a connection waits for from now on."""
        for waiting in self.waiting.values():
            waiting.pop(connection, None)
        if event in self.waiting and connection in self.open:
            self.waiting[event][connection] = None


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol, which closes a connection that waits too long. One a connection."""

    rules: ClassVar[Connections]
    _waits: Wait | None = None
    _timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.rules.add(self):
            self._settle()
            return
        self.rules.ended("refused")
        if len(self.rules.refused) >= REFUSED:
            transport.abort()
            return
        self.rules.refused.add(self)
        busy = RefusedError(503, "busy", "Too many connections are open already; try again.")
        self._send(error_response(busy))
        # Closing at once could lose the answer, where a request is on its way.
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
        self.end("invalid", RefusedError(400, "http", "The request is not valid HTTP."))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader_timer is not None and self._waits is not Wait.END:
            self._reader_timer.cancel()

    def end(self, why: str, error: RefusedError | None = None) -> None:
        """Close the connection, whatever its client does.

        Args:
            why: the reason, for `Connections.ended`.
            error: sent to the client first.
        """
        self.rules.ended(why)
        if error is not None:
            self._send(error_response(error))
        self.transport.close()
        self._settle()

    def _settle(self) -> None:
        """Find the event that the connection waits for now, and start its clock."""
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

    def _wait(self, event: Wait) -> None:
        self._waits = event
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if event is Wait.END:
            self.rules.remove(self)
            self._watch_reader(self.transport.get_write_buffer_size())
            return
        self.rules.wait(self, event)
        if event in (Wait.HEADERS, Wait.LINGER):
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

    def _send(self, response: ErrorResponse) -> None:
        """Write an answer without waiting for a whole request."""
        reason = HTTPStatus(response.status).phrase
        headers = {
            "content-type": "application/json",
            "content-length": str(len(response.body)),
            "connection": "close",
            **response.headers,
        }
        lines = [f"HTTP/1.1 {response.status} {reason}", *(f"{k}: {v}" for k, v in headers.items())]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + response.body)


class ReadInPieces(asyncio.BufferedProtocol):
    """Hands a protocol what comes in pieces of at most `READ` bytes, and between two of them lets
    the loop look at its other connections.

    uvloop asks a protocol for the size of a piece only if it is no `asyncio.Protocol`, and reads up
    to 32 of them from one connection at once.
    """

    def __init__(self, reads: LimitedProtocol) -> None:
        self._reads = reads
        self._piece = bytearray()

    def get_buffer(self, sizehint: int) -> bytearray:
        self._piece = bytearray(READ)
        return self._piece

    def buffer_updated(self, nbytes: int) -> None:
        # A silent connection keeps no piece.
        piece, self._piece = self._piece, bytearray()
        self._reads.data_received(bytes(memoryview(piece)[:nbytes]))
        if nbytes == READ and self._reads.transport.is_reading():
            self._reads.transport.pause_reading()
            self._reads.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        # uvicorn itself pauses a client that sends faster than the application takes.
        if not self._reads.flow.read_paused:
            self._reads.transport.resume_reading()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._reads.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._reads.connection_lost(exc)

    def eof_received(self) -> None:
        self._reads.eof_received()

    def pause_writing(self) -> None:
        self._reads.pause_writing()

    def resume_writing(self) -> None:
        self._reads.resume_writing()


def uvicorn_server(app: Any, settings: ServiceSettings, connections: Connections) -> uvicorn.Server:
    """Return a uvicorn server of an application that keeps to the limits on connections."""

    class Protocol(LimitedProtocol):
        rules = connections

    def protocol(**options: Any) -> asyncio.BaseProtocol:
        return ReadInPieces(Protocol(**options))

    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.host,
            http=protocol,  # type: ignore[arg-type]
            ws="none",
            # Refusals are counted in the metrics; a client must not fill the log.
            log_level="error",
            access_log=False,
            # Its own handlers would write another format; its errors go to the process's log.
            log_config=None if log_format() is LogFormat.json else LOGGING_CONFIG,
            server_header=False,
            h11_max_incomplete_event_size=HEADERS,
            timeout_keep_alive=max(1, round(settings.keep_alive)),
            timeout_graceful_shutdown=max(1, int(settings.timeout)),
        )
    )
