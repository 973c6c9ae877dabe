"""Serving from Python: everything that `evergram serve` does, without the command."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

import pytest
from tests.support.lineages import lineage_of

from evergram.errors import ServiceError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.serving import Client, Server, ServiceSettings, listen, serve


def test_a_lineage_is_served_until_it_is_stopped(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    server = listen(tmp_path / "line", port=0)
    assert server.as_json() == {
        "url": server.url,
        "version": 2,
        "open": True,
        "checked": [name for name, done in server.service.files().items() if done],
        "unchecked": [name for name, done in server.service.files().items() if not done],
    }
    assert "Compared with the hashes" in server.checked_sentence
    thread = threading.Thread(target=server.run)
    # Before it runs, a client that connects waits.
    with Client(server.url) as client:
        thread.start()
        assert client.embed([1, 2], 0).vectors.shape == (2, 6)
    server.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_serve_runs_in_the_calling_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lineage_of(tmp_path / "line")
    ran: list[Server] = []
    monkeypatch.setattr(Server, "run", lambda server: ran.append(server))
    serve(tmp_path / "line", port=0, settings=ServiceSettings(max_k=3))
    assert [server.settings.max_k for server in ran] == [3]


def test_an_address_that_is_taken_is_refused_before_stores_are_filled(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=f"127.0.0.1:{port} cannot be listened on"):
            listen(tmp_path / "line", port=port)
    assert not (tmp_path / "line" / "stores").exists()


def test_a_service_that_others_reach_needs_a_token(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line")
    settings = ServiceSettings(host="0.0.0.0")
    with pytest.raises(ServiceError, match="others can reach the service"):
        listen(tmp_path / "line", port=0, settings=settings)
    consumers = ConsumerRegistry.open(lineage.path)
    consumers.add("ads", "v0", lineage.resolve)
    consumers.issue_token("ads")
    with listen(tmp_path / "line", port=0, settings=settings) as server:
        assert not server.is_open


def test_a_server_that_never_ran_frees_its_address(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    with listen(tmp_path / "line", port=0) as server:
        port = int(server.url.rpartition(":")[2])
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "evergram.serving.http.connections", raising=False)
    with pytest.raises(ServiceError) as refusal:
        listen("line")
    assert str(refusal.value) == "Serving needs uvicorn: pip install 'evergram[serve]'."
