"""Requests and answers as they go over a socket."""

from __future__ import annotations

import socket
from typing import Any

ONE_ID = b'{"input": [1]}'


def post_bytes(body: bytes = ONE_ID, **headers: Any) -> bytes:
    """Return a POST to /v1/embeddings as it goes over the wire.

    Args:
        headers: beside the known ones, or in their place; `Content_Length` is Content-Length.
    """
    known = {
        "Host": "127.0.0.1",
        "Content-Type": "application/json",
        "Content-Length": len(body),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = ["POST /v1/embeddings HTTP/1.1", *(f"{k}: {v}" for k, v in known.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def read_until_closed(connection: socket.socket) -> bytes:
    """Return all that the service sends until it closes the connection."""
    parts = []
    try:
        while part := connection.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def read_answer(connection: socket.socket) -> bytes:
    """Return one answer of a connection that stays open."""
    text = b""
    while b"\r\n\r\n" not in text:
        text += connection.recv(1)
    length = int(text.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while length:
        part = connection.recv(length)
        text += part
        length -= len(part)
    return text
