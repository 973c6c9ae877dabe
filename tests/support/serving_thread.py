"""`evergram serve` in a thread of this process, where a test can patch what it is made of."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import uvicorn

from evergram.cli import main


@contextmanager
def serving_in_thread(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Iterator[str]:
    """Run `evergram serve ARGUMENTS` in a thread of this process. Yields: its address."""
    begun: list[tuple[uvicorn.Server, int]] = []
    run = uvicorn.Server.run

    def remembered(self: uvicorn.Server, sockets: Any = None) -> None:
        begun.append((self, sockets[0].getsockname()[1]))
        run(self, sockets)

    monkeypatch.setattr(uvicorn.Server, "run", remembered)
    monkeypatch.setattr("evergram.cli.serve.log_to_stderr", lambda: None)
    monkeypatch.setattr("sys.argv", ["evergram", "serve", *map(str, arguments), "--port", "0"])

    def command() -> None:
        with suppress(SystemExit):
            main()

    thread = threading.Thread(target=command)
    thread.start()
    try:
        while not begun or not begun[0][0].started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{begun[0][1]}"
    finally:
        for server, _ in begun:
            server.should_exit = True
        thread.join()
        gc.unfreeze()


@contextmanager
def no_address_listened_on() -> Iterator[None]:
    """Bind `evergram serve` to no address, so that a refusal is proven to come before an answer."""
    with pytest.MonkeyPatch.context() as during:
        during.setattr("evergram.serving.server.bound_socket", lambda host, port: socket.socket())
        yield
