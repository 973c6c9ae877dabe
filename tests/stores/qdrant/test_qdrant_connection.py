"""The client of a Qdrant server or folder: its key, its errors, and a cut connection."""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from evergram.errors import DataError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.qdrant.qdrant_connection import QdrantConnection, is_local_mode, is_url
from evergram.stores.store import Space


def test_without_qdrant_client_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(DataError, match=r"pip install 'evergram\[qdrant\]'"):
        open_store(f"qdrant:{tmp_path}#emb", create="int64")


def test_a_server_that_is_not_there_is_an_error_within_seconds() -> None:
    start = time.monotonic()
    with pytest.raises(StoreError, match=r"http://127\.0\.0\.1:9#emb cannot be reached"):
        open_store("qdrant:http://127.0.0.1:9#emb")
    assert time.monotonic() - start < 5


class _Server(BaseHTTPRequestHandler):
    """Answers the questions of opening a store, and of what spaces it has; nothing else."""

    protocol_version = "HTTP/1.1"
    keys: ClassVar[list[str | None]]
    cut: ClassVar[bool]

    def _answer(self, result: Any) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.keys.append(self.headers.get("api-key"))
        if type(self).cut:
            type(self).cut = False
            self.close_connection = True
            return
        body = json.dumps({"result": result, "status": "ok", "time": 0.0}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer({"exists": True})

    def do_POST(self) -> None:
        space = {"version": 3, "dim": 2, "fingerprint": "sha256:three"}
        payloads = [{"format_version": 1, "id_type": "string"}, space]
        points = [{"id": i, "payload": one} for i, one in zip((0, 4), payloads, strict=True)]
        self._answer({"points": points, "next_page_offset": None})

    def log_message(self, *_: Any) -> None:
        """Not into the tests' output."""


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_a_server_is_given_the_key_and_asked_again_after_a_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Handler(_Server):
        keys: ClassVar[list[str | None]] = []
        cut = False

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("QDRANT_API_KEY", "hush")
    try:
        with open_store(f"qdrant:http://127.0.0.1:{server.server_port}#emb") as store:
            assert store.id_type == pa.string()
            assert "hush" not in store.address
            Handler.cut = True
            assert store.spaces() == {3: Space(3, 2, "sha256:three")}
            assert not Handler.cut
            assert set(Handler.keys) == {"hush"}
    finally:
        server.shutdown()
        server.server_close()


def test_a_folder_without_a_store_is_not_made_unless_asked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no store at qdrant:x#emb; create it first"):
        QdrantConnection(str(tmp_path / "none"), "qdrant:x#emb", create=False)
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_client_are_one_sentence_and_our_own_pass(tmp_path: Path) -> None:
    connection = QdrantConnection(str(tmp_path / "q"), "qdrant:x#emb", create=True)
    with pytest.raises(
        StoreError, match=r"qdrant:x#emb cannot be reached, read or written: .*none"
    ):
        connection.ask("count", "none")
    with pytest.raises(DataError, match="mine"), connection.errors_as_store_errors():
        raise DataError("mine")
    with (
        pytest.raises(StoreError, match="read or written: TimeoutError"),
        connection.errors_as_store_errors(),
    ):
        raise TimeoutError
    for _ in range(2):
        connection.close()
    with pytest.raises(StoreError, match="qdrant:x#emb was closed; open it again"):
        connection.ask("get_collections")


@pytest.mark.parametrize(
    ("place", "url"), [("http://host:6333", True), ("https://x", True), ("folder/http", False)]
)
def test_a_server_is_named_by_its_url(place: str, url: bool) -> None:
    assert is_url(place) == url


def test_only_a_folder_of_qdrant_is_of_the_local_mode() -> None:
    for address in ("qdrant:dir#a", "qdrant-collection:/dir#collection=a&v0=e"):
        assert is_local_mode(address)
    for address in ("qdrant:http://h:6333#a", "qdrant-collection:https://h#collection=a", "dir"):
        assert not is_local_mode(address)
