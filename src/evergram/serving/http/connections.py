"""Limits on connections: how many there may be, and how long each may wait for its client.

uvicorn closes a connection that is silent after an answer (`timeout_keep_alive`), and refuses
requests beyond a number of connections (`limit_concurrency`). It waits for ever for the first byte
of a request, for the rest of its headers, and for a client to take its answer; and it counts idle
connections like busy ones.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.h11_impl import H11Protocol

from evergram.log_lines import LogFormat, log_format
from evergram.serving.http.access import refusal_response
from evergram.serving.http.call import JSON
from evergram.serving.http.errors import ErrorResponse, RefusedError, error_response
from evergram.serving.settings import ServiceSettings

# Connections beyond the limit that may ask; any further one takes the place of the oldest of them.
EXTRA = 64
# Pages that are answered however busy the service is.
HEALTH = ("/healthz", "/readyz")
# Seconds that a request has to arrive whole before it is refused.
PATIENCE = 1.0
# Seconds for which a service that is told to stop goes on answering, so that clients with an open
# connection learn of it.
DRAIN = 1.0
# Bytes of a request's headers.
HEADERS = 1 << 14
# Bytes that are read from a connection at once. An event loop by itself reads a quarter of a
# megabyte, which in HTTP chunks of one byte each keeps it busy for more than a second.
READ = 1 << 14
_CLOSE = (b"connection", b"close")


class Wait(Enum):
    """The event that a connection waits for. Where there is no room for a new connection, one that
    waits for its client gives way, in this order; only `ANSWER` keeps its place."""

    LINGER = auto()  # the client's end of a body that is no longer read: the request is answered
    END = auto()  # the client taking what was written, before the connection closes
    HEADERS = auto()  # the first request, or the rest of a request's headers
    NEXT = auto()  # the next request, of which nothing has come
    READER = auto()  # the client taking more of the answer
    BODY = auto()  # the rest of a request's body
    ANSWER = auto()  # the service's answer


# Those of which the client does not wait for an answer that is still to be written.
_ANSWERED = (Wait.LINGER, Wait.END, Wait.READER)


@dataclass
class Connections:
    """The open connections of a service.

    Args:
        most: how many may be open; `EXTRA` more may ask for a page of `HEALTH`.
        silence: seconds that a client may be silent within a request.
        ended: called with the reason when the service closes a connection that its client holds.
        stopping: whether the service ends: every answer says that its connection is closed.
    """

    most: int
    silence: float
    ended: Callable[[str], None]
    stopping: bool = False
    open: set[LimitedProtocol] = field(default_factory=set)
    extra: dict[LimitedProtocol, None] = field(default_factory=dict)
    # Those that wait for their client, longest first.
    waiting: dict[Wait, dict[LimitedProtocol, None]] = field(
        default_factory=lambda: {event: {} for event in Wait if event is not Wait.ANSWER}
    )

    def add(self, new: LimitedProtocol) -> bool:
        """Admit a connection, in place of a waiting one where there is no room.

        Returns: False where every connection is busy, and the new one is not admitted.
        """
        if new in self.open:
            return True
        if len(self.open) >= self.most:
            first = next((one for waiting in self.waiting.values() for one in waiting), None)
            if first is None:
                return False
            self.remove(first)
            first.give_way()
        self.extra.pop(new, None)
        self.open.add(new)
        self.wait(new, new.waits)
        return True

    def add_extra(self, new: LimitedProtocol) -> None:
        """Let a connection ask that was not admitted."""
        if len(self.extra) >= EXTRA:
            oldest = next(iter(self.extra))
            self.remove(oldest)
            self.ended("refused")
            oldest.transport.abort()
        self.extra[new] = None

    def remove(self, closed: LimitedProtocol) -> None:
        self.open.discard(closed)
        self.extra.pop(closed, None)
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
    waits: Wait | None = None
    _timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._application, self.app = self.app, self._answer
        if not self.rules.add(self):
            self.rules.add_extra(self)
        self._settle()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request that may be answered, and say where the connection is then closed."""

        async def last(message: Any) -> None:
            if self.rules.stopping and message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], _CLOSE]}
            await send(message)

        error = None
        names = [name for name, _ in scope["headers"]]
        if b"content-length" in names and b"transfer-encoding" in names:
            # RFC 9112, 6.1: a proxy may have believed the other one.
            both = "The request has both Content-Length and Transfer-Encoding; send one of them."
            error, why = RefusedError(400, "http", both), "invalid"
        elif not self.rules.add(self) and scope["path"] not in HEALTH:
            busy = "Too many connections are open already; try again."
            error, why = RefusedError(503, "busy", busy), "refused"
        if error is None:
            await self._application(scope, receive, last)
            return
        self.rules.ended(why)
        # Closing while a part of the request is on its way could lose the answer.
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while (await receive()).get("more_body"):
                    pass
        await refusal_response(error_response(error), connection="close")(scope, receive, send)

    def data_received(self, data: bytes) -> None:
        if self.waits is Wait.END:
            return
        super().data_received(data)
        if self.waits is Wait.BODY:
            self.rules.wait(self, Wait.BODY)  # it has waited for its client no longer
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
        self._settle()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._settle()
        if self._reader_timer is not None and self.waits is not Wait.END:
            self._reader_timer.cancel()

    def give_way(self) -> None:
        """Close the connection for a new one."""
        if self.waits in _ANSWERED:
            self.rules.ended("full")
            self.transport.abort()
            return
        unanswered = self.waits is Wait.BODY and self.conn.our_state is h11.SEND_RESPONSE
        busy = RefusedError(503, "busy", "Others are waiting; send the whole request at once.")
        self.end("full", busy if unanswered else None)

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
        elif self.flow.write_paused:
            now = Wait.READER
        elif client is h11.IDLE:
            begun = self.cycle is None or bool(self.conn.trailing_data[0])
            now = Wait.HEADERS if begun else Wait.NEXT
        elif client is h11.SEND_BODY and ours in (h11.DONE, h11.MUST_CLOSE):
            now = Wait.LINGER
        else:
            now = Wait.BODY if client is h11.SEND_BODY else Wait.ANSWER
        if now is not self.waits:
            self._wait(now)

    def _wait(self, event: Wait) -> None:
        self.waits = event
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.rules.wait(self, event)
        if event is Wait.END:
            self._watch_reader(self.transport.get_write_buffer_size())
            return
        if event in (Wait.HEADERS, Wait.LINGER):
            self._timer = self.loop.call_later(self.rules.silence, self._expired)

    def _expired(self) -> None:
        if self.waits is Wait.LINGER:
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
            "content-type": JSON,
            "content-length": str(len(response.body)),
            "connection": "close",
            **response.headers,
        }
        lines = [f"HTTP/1.1 {response.status} {reason}", *(f"{k}: {v}" for k, v in headers.items())]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + response.body)


class ReadInPieces(asyncio.BufferedProtocol):
    """Hands a protocol what comes in pieces of at most `READ` bytes, and between two of them lets
    the loop look at its other connections.

    uvloop asks a protocol for the size of a piece only if it is not an `asyncio.Protocol`, and
    reads up to 32 of them from one connection at once.
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


class StoppingServer(uvicorn.Server):
    """A server that, told to stop, first answers the requests that have been sent.

    uvicorn closes idle connections at once, also those with a request on its way.
    """

    connections: Connections

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.connections.stopping = True
        end = time.monotonic() + DRAIN
        # At least once: connections may have been made that are not accepted yet.
        await asyncio.sleep(0.1)
        while self.connections.open and not self.force_exit and time.monotonic() < end:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)


def uvicorn_server(app: Any, settings: ServiceSettings, connections: Connections) -> uvicorn.Server:
    """Return a uvicorn server of an application that keeps to the limits on connections."""

    class Protocol(LimitedProtocol):
        rules = connections

    def protocol(**options: Any) -> asyncio.BaseProtocol:
        return ReadInPieces(Protocol(**options))

    server = StoppingServer(
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
    server.connections = connections
    return server
