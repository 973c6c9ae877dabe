"""Limits on connections: how many there may be, and how long each may wait for its client.

uvicorn closes a connection that is silent after an answer (`timeout_keep_alive`), and refuses
requests beyond a number of connections (`limit_concurrency`). It waits for ever for the first byte
of a request, for the rest of its headers, and for a client to take its answer; and it counts idle
connections like busy ones. So a `LimitedProtocol` stands between the socket and uvicorn's protocol,
of which it uses the interfaces of asyncio and of ASGI, and looks at its connection of h11.
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
_CONNECTION: contextvars.ContextVar[LimitedProtocol] = contextvars.ContextVar("connection")


class Wait(Enum):
    """The event that a connection waits for. Where there is no room for a new connection, one that
    waits for its client gives way, in this order, and of these the one that has waited longest;
    only `ANSWER` keeps its place."""

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
    """The open connections of a service."""

    most: int  # may be open; `EXTRA` more may ask for a page of `HEALTH`
    silence: float  # seconds that a client may be silent within a request
    keep_alive: float  # seconds that a connection stays open between two requests
    ended: Callable[[str], None]  # called with the reason why the service closes a connection
    stopping: bool = False  # every answer then says that its connection is closed
    open: set[LimitedProtocol] = field(default_factory=set)
    extra: dict[LimitedProtocol, None] = field(default_factory=dict)

    def add(self, new: LimitedProtocol) -> bool:
        """Admit a connection, in place of a waiting one; return False where every one is busy."""
        if new in self.open:
            return True
        if len(self.open) >= self.most:
            first = min(self.open, key=lambda one: (one.waits.value, one.since))
            if first.waits is Wait.ANSWER:
                return False
            self.remove(first)
            first.give_way()
        self.extra.pop(new, None)
        self.open.add(new)
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


class LimitedProtocol(asyncio.BufferedProtocol):
    """Stands before a server's protocol, and closes a connection that waits too long. It reads
    pieces of at most `READ` bytes, and between two of them lets the loop look at its other
    connections: uvloop asks a protocol for the size of a piece only if it is a buffered one, and
    reads up to 32 of them from one connection at once."""

    def __init__(self, rules: Connections, inner: H11Protocol) -> None:
        self.rules, self.inner = rules, inner
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        # The event that it waits for, and since when.
        self.waits, self.since = Wait.ANSWER, 0.0
        self.transport: asyncio.Transport
        self._piece = bytearray()
        # Tasks that the server starts for its requests know their connection by this.
        self._context = contextvars.copy_context()
        self._context.run(_CONNECTION.set, self)
        # The request that is worked on; whether there was one, whether its answer has begun, and
        # whether the client takes no more of an answer.
        self._request: Any = None
        self._asked = self.begun = self._write_paused = False
        # Whether the server itself reads no more for now.
        self.read_paused: bool = False
        self._timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.inner.connection_made(_ServersTransport(transport, self))  # type: ignore[arg-type]
        if not self.rules.add(self):
            self.rules.add_extra(self)
        self._settle()

    def get_buffer(self, sizehint: int) -> bytearray:
        self._piece = bytearray(READ)
        return self._piece

    def buffer_updated(self, nbytes: int) -> None:
        # A silent connection keeps no piece.
        piece, self._piece = self._piece, bytearray()
        self.data_received(bytes(memoryview(piece)[:nbytes]))
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
        except h11.LocalProtocolError:  # nonsense in a body that is no longer read
            self.end("invalid")
            return
        if self.waits is Wait.BODY:
            self.since = self.loop.time()  # it has waited for its client no longer
        # After the task of a request that is complete has begun.
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
        # Of an error, uvicorn would keep its timer, and with it the connection, until that ends.
        self.inner.connection_lost(None)

    async def answer(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Let the application answer a request that may be answered."""
        self._request, self._asked = scope, True
        self._settle()

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.begun = True
                if self.rules.stopping:
                    message = {**message, "headers": [*message["headers"], _CLOSE]}
            last = message["type"] == "http.response.body" and not message.get("more_body")
            if last:
                # The next request may have come; uvicorn reads it before it returns.
                self.begun = False
            await send(message)
            if last:
                self._end_request(scope)

        names = [name for name, _ in scope["headers"]]
        error = None
        if b"content-length" in names and b"transfer-encoding" in names:
            # RFC 9112, 6.1: a proxy may have believed the other one.
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
            # Closing while a part of the request is on its way could lose the answer.
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    while (await receive()).get("more_body"):
                        pass
            await refusal_response(error_response(error), connection="close")(scope, receive, sent)
        finally:
            self._end_request(scope)

    def _end_request(self, request: Any) -> None:
        # The next one may have begun already.
        if self._request is request:
            self._request, self.begun = None, False
            self._settle()

    def give_way(self) -> None:
        """Close the connection for a new one."""
        if self.waits in _ANSWERED:
            self.rules.ended("full")
            self.transport.abort()
            return
        busy = RefusedError(503, "busy", "Others are waiting; send the whole request at once.")
        self.end("full", busy if self.waits is Wait.BODY and not self.begun else None)

    def end(self, why: str, error: RefusedError | None = None) -> None:
        """Close the connection, whatever its client does; `error` is sent to the client first."""
        self.rules.ended(why)
        if error is not None:
            self.transport.write(_written(error_response(error)))
        self.transport.close()
        self._settle()

    def _part_has_come(self) -> bool:
        """Return whether bytes of a request's headers have come, and not all."""
        return bool(self.inner.conn.trailing_data[0])

    def _settle(self) -> None:
        """Find the event that the connection waits for now, and start its clock."""
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
            now = Wait.NEXT if self._asked and not self._part_has_come() else Wait.HEADERS
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
        elif self._part_has_come():
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
    """A connection's transport as the server's protocol has it: its own refusal of what is not HTTP
    is sent in the form of all others, and nothing after the end."""

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
    """Return an answer as it goes over the wire without waiting for a whole request."""
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
    """A server that, told to stop, first answers what has been sent; uvicorn closes idle
    connections at once, also those with a request on its way."""

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
            # Refusals are counted in the metrics; a client must not fill the log.
            log_level="error",
            access_log=False,
            # Its own handlers would write another format; its errors go to the process's log.
            log_config=None if log_format() is LogFormat.json else LOGGING_CONFIG,
            server_header=False,
            h11_max_incomplete_event_size=HEADERS,
            timeout_keep_alive=LONGEST,  # `Connections.keep_alive` is less
            timeout_graceful_shutdown=max(1, int(settings.timeout)),
        )
    )
    server.connections = connections
    return server
