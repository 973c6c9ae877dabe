"""Limits on connections: how many may be open, and how long each may wait for its client.

uvicorn limits only the silence after an answer (`timeout_keep_alive`) and the number of connections
(`limit_concurrency`), counting idle ones like busy ones. It waits forever for the first byte of a
request, for the rest of its headers, and for a client to read its answer. So a `LimitedProtocol`
sits between the socket and uvicorn's protocol. It relies on asyncio, ASGI and h11's state.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.h11_impl import H11Protocol

from evergram.log_lines import LogFormat, log_format
from evergram.serving.access import refusal_response
from evergram.serving.errors import JSON, ErrorResponse, RefusedError, error_response
from evergram.serving.settings import LONGEST, ServiceSettings

# Connections beyond the limit that may still send a request; when full, the oldest is closed.
EXTRA = 64
HEALTH = ("/healthz", "/readyz")  # pages that are answered even if all connections are taken
PATIENCE = 1.0  # seconds to wait for the rest of a request that will be refused
# Seconds for which a stopping service keeps answering, so that clients with an open connection
# are told to close it.
DRAIN = 1.0
HEADERS = 1 << 14  # maximum size of a request's headers in bytes
# Bytes to read from a connection at once. By default an event loop reads 256 KiB, and parsing
# that many one-byte HTTP chunks would block it for more than a second.
READ = 1 << 14
_CLOSE = (b"connection", b"close")
_CONNECTION: contextvars.ContextVar[LimitedProtocol] = contextvars.ContextVar("connection")


class Wait(Enum):
    """What a connection is waiting for. To make room for a new connection, one that waits for its
    client is closed: the first state in this order, and within a state the one that has waited
    longest. A connection in `ANSWER` is never closed."""

    LINGER = auto()  # the end of a request body that nobody reads: the request is answered
    END = auto()  # the client to read the remaining output, before the connection closes
    HEADERS = auto()  # the first request, or the rest of a request's headers
    NEXT = auto()  # the next request; none of its bytes have arrived
    READER = auto()  # the client to read more of the answer
    BODY = auto()  # the rest of a request's body
    ANSWER = auto()  # the service's answer


# In these states the whole answer is written, or being written.
_ANSWERED = (Wait.LINGER, Wait.END, Wait.READER)


@dataclass
class Connections:
    """The open connections of a service."""

    most: int  # maximum number; `EXTRA` more may request a page of `HEALTH`
    silence: float  # seconds that a client may be silent within a request
    keep_alive: float  # seconds that a connection stays open between two requests
    ended: Callable[[str], None]  # called with the reason when the service closes a connection
    stopping: bool = False  # if True, every answer closes its connection
    open: set[LimitedProtocol] = field(default_factory=set)
    extra: dict[LimitedProtocol, None] = field(default_factory=dict)

    def add(self, new: LimitedProtocol) -> bool:
        """Admit a connection, closing a waiting one if needed; return False if all are busy."""
        if new in self.open:
            return True
        if len(self.open) >= self.most:
            evicted = min(self.open, key=lambda open_: (open_.waits.value, open_.since))
            if evicted.waits is Wait.ANSWER:
                return False
            self.remove(evicted)
            evicted.give_way()
        self.extra.pop(new, None)
        self.open.add(new)
        return True

    def add_extra(self, new: LimitedProtocol) -> None:
        """Let a connection that was not admitted send a request."""
        if len(self.extra) >= EXTRA:
            oldest = next(iter(self.extra))
            self.remove(oldest)
            self.ended("refused")
            oldest.transport.abort()
        self.extra[new] = None

    def remove(self, closed: LimitedProtocol) -> None:
        self.open.discard(closed)
        self.extra.pop(closed, None)


class LimitedProtocol(asyncio.BufferedProtocol):
    """Wraps the server's protocol, and closes a connection that waits too long.

    Reads at most `READ` bytes at a time, and gives other connections a turn between reads: uvloop
    may read 32 times in a row. Only buffered protocols can choose uvloop's read size."""

    def __init__(self, rules: Connections, inner: H11Protocol) -> None:
        self.rules, self.inner = rules, inner
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.waits, self.since = Wait.ANSWER, 0.0
        self.transport: asyncio.Transport
        self._read_buffer = bytearray()
        # Request tasks that the server starts find their connection in this context.
        self._context = contextvars.copy_context()
        self._context.run(_CONNECTION.set, self)
        self._request: Any = None  # the ASGI scope of the current request
        # Whether any request was received, and whether the current answer has started.
        self._had_request = self.begun = False
        # Whether the client has stopped reading, and whether the server has.
        self._write_paused = self.read_paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.inner.connection_made(_ServersTransport(transport, self))  # type: ignore[arg-type]
        if not self.rules.add(self):
            self.rules.add_extra(self)
        self._settle()

    def get_buffer(self, sizehint: int) -> bytearray:
        self._read_buffer = bytearray(READ)
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        # Release the buffer, so that idle connections use no memory for it.
        buffer, self._read_buffer = self._read_buffer, bytearray()
        self.data_received(bytes(memoryview(buffer)[:nbytes]))
        if nbytes == READ and self.transport.is_reading():
            self.transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self.read_paused:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.waits is Wait.END:
            return
        try:
            self._context.run(self.inner.data_received, data)
        except h11.LocalProtocolError:  # invalid bytes in a body that nobody reads
            self.end("invalid")
            return
        if self.waits is Wait.BODY:
            self.since = self.loop.time()  # the client has just sent something
        # Later, so that the task of a complete request starts first.
        self.loop.call_soon(self._settle)

    def eof_received(self) -> None:
        self.inner.eof_received()

    def pause_writing(self) -> None:
        self._write_paused = True
        self.inner.pause_writing()
        self._settle()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._write_paused = False
        self.inner.resume_writing()
        self._settle()
        if self._reader_timer is not None and self.waits is not Wait.END:
            self._reader_timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self.rules.remove(self)
        for timer in (self._timer, self._reader_timer):
            if timer is not None:
                timer.cancel()
        # Given an error, uvicorn would keep its timer, and so the connection, until it expires.
        self.inner.connection_lost(None)

    async def answer(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Let the application answer a request, or refuse it."""
        self._request, self._had_request = scope, True
        self._settle()

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.begun = True
                if self.rules.stopping:
                    message = {**message, "headers": [*message["headers"], _CLOSE]}
            last = message["type"] == "http.response.body" and not message.get("more_body")
            if last:
                # If the next request has arrived, uvicorn parses it within `send`.
                self.begun = False
            await send(message)
            if last:
                self._end_request(scope)

        names = [name for name, _ in scope["headers"]]
        error = None
        if b"content-length" in names and b"transfer-encoding" in names:
            # RFC 9112, 6.1: a proxy may have used the other header (request smuggling).
            both = "The request has both Content-Length and Transfer-Encoding; send one of them."
            error, why = RefusedError(400, "http", both), "invalid"
        elif not self.rules.add(self) and scope["path"] not in HEALTH:
            busy = "Too many connections are open already; try again."
            error, why = RefusedError(503, "busy", busy), "refused"
        try:
            if error is None:
                await app(scope, receive, sent)
                return
            self.rules.ended(why)
            # Closing before the whole request has arrived could lose the answer.
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    while (await receive()).get("more_body"):
                        pass
            await refusal_response(error_response(error), connection="close")(scope, receive, sent)
        finally:
            self._end_request(scope)

    def _end_request(self, request: Any) -> None:
        # The next request may have started already.
        if self._request is request:
            self._request, self.begun = None, False
            self._settle()

    def give_way(self) -> None:
        """Close this connection to make room for a new one."""
        if self.waits in _ANSWERED:
            self.rules.ended("full")
            self.transport.abort()
            return
        busy = RefusedError(503, "busy", "Others are waiting; send the whole request at once.")
        self.end("full", busy if self.waits is Wait.BODY and not self.begun else None)

    def end(self, why: str, error: RefusedError | None = None) -> None:
        """Close the connection, after sending `error` if there is one."""
        self.rules.ended(why)
        if error is not None:
            self.transport.write(_written(error_response(error)))
        self.transport.close()
        self._settle()

    def _has_partial_headers(self) -> bool:
        """Return whether some, but not all, bytes of a request's headers have arrived."""
        return bool(self.inner.conn.trailing_data[0])

    def _settle(self) -> None:
        """Update the state that the connection waits in, and start its timer."""
        body = self.inner.conn.their_state is h11.SEND_BODY
        if self.transport.is_closing():
            now = Wait.END
        elif self._write_paused:
            now = Wait.READER
        elif self._request is not None:
            now = Wait.BODY if body else Wait.ANSWER
        elif body:
            now = Wait.LINGER
        else:
            idle = self._had_request and not self._has_partial_headers()
            now = Wait.NEXT if idle else Wait.HEADERS
        if now is self.waits:
            return
        self.waits, self.since = now, self.loop.time()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if now is Wait.END:
            self._watch_reader(self.transport.get_write_buffer_size())
        elif now in (Wait.HEADERS, Wait.LINGER, Wait.NEXT):
            seconds = self.rules.keep_alive if now is Wait.NEXT else self.rules.silence
            self._timer = self.loop.call_later(seconds, self._expired)

    def _expired(self) -> None:
        if self.waits is Wait.NEXT:
            self.end("idle")
        elif self.waits is Wait.LINGER:
            self.end("unread_body")
        elif self._has_partial_headers():
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


class _ServersTransport:
    """The transport that the server's protocol writes to. It replaces uvicorn's refusal of invalid
    HTTP by one in the service's format, and drops writes after the connection is closing."""

    def __init__(self, transport: asyncio.Transport, connection: LimitedProtocol) -> None:
        self._transport, self._connection = transport, connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if not self._connection.begun and data.startswith(b"HTTP/1.1 400 "):
            error = RefusedError(400, "http", "The request is not valid HTTP.")
            self._connection.end("invalid", error)
            return
        self._transport.write(data)

    def pause_reading(self) -> None:
        self._connection.read_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._connection.read_paused = False
        self._transport.resume_reading()


def _written(response: ErrorResponse) -> bytes:
    """Return the bytes of an HTTP/1.1 response that closes the connection."""
    headers = {
        "content-type": JSON,
        "content-length": str(len(response.body)),
        "connection": "close",
        **response.headers,
    }
    first = f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"
    lines = [first, *(f"{k}: {v}" for k, v in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + response.body


class StoppingServer(uvicorn.Server):
    """A server that answers requests already sent before it stops; uvicorn closes idle connections
    immediately, even if a request is on its way."""

    connections: Connections

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.connections.stopping = True
        end = time.monotonic() + DRAIN
        # Sleep at least once: some connections may not be accepted yet.
        await asyncio.sleep(0.1)
        while self.connections.open and not self.force_exit and time.monotonic() < end:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)


def uvicorn_server(app: Any, settings: ServiceSettings, connections: Connections) -> uvicorn.Server:
    """Return a uvicorn server for an application, with limits on connections."""

    def protocol(**options: Any) -> asyncio.BaseProtocol:
        return LimitedProtocol(connections, H11Protocol(**options))

    async def limited(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await _CONNECTION.get().answer(app, scope, receive, send)
        else:
            await app(scope, receive, send)

    server = StoppingServer(
        uvicorn.Config(
            limited,
            interface="asgi3",
            host=settings.host,
            http=protocol,  # type: ignore[arg-type]
            ws="none",
            # Refusals are counted in the metrics; clients must not be able to fill the log.
            log_level="error",
            access_log=False,
            # uvicorn's handlers do not write JSON; without them its errors go to the root logger.
            log_config=None if log_format() is LogFormat.json else LOGGING_CONFIG,
            server_header=False,
            h11_max_incomplete_event_size=HEADERS,
            timeout_keep_alive=LONGEST,  # `Connections.keep_alive` ends first
            timeout_graceful_shutdown=max(1, int(settings.timeout)),
        )
    )
    server.connections = connections
    return server
