"""A process of a service whose parent ends while it loads."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from unittest.mock import MagicMock

import pytest

from evergram.serving import server_processes
from evergram.serving.settings import ServiceSettings


def test_it_is_told_to_stop_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    server = MagicMock(**{"as_json.return_value": {}}, checked_sentence="")
    server.run.side_effect = lambda: told.wait(10)
    for name in ("Service", "log_to_stderr", "set_log_format"):
        monkeypatch.setattr(server_processes, name, MagicMock())
    monkeypatch.setattr(server_processes, "Server", lambda *_: server)
    monkeypatch.setattr(signal, "signal", MagicMock())
    stops: list[int] = []

    def kill(_: int, number: int) -> None:
        stops.append(number)
        told.set()

    monkeypatch.setattr(os, "kill", kill)
    parent, child = multiprocessing.Pipe()
    parent.close()
    with socket.socket() as listening:
        server_processes._serve(
            server_processes._Work("shop", None, ServiceSettings()), listening, child
        )
    assert stops == [signal.SIGTERM]
