"""A service over a small lineage, its consumers, and a server of it in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.testclient import TestClient
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import lineage_of

from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import fill, id_type
from evergram.retrieval.reader import Reader
from evergram.serving.app import create_app
from evergram.serving.client import Client
from evergram.serving.connections import uvicorn_server
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings
from evergram.stores.store import Store


class CountedStore(DictionaryStore):
    """A store that fails the test when it is read after it was closed."""

    closed = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True

    def _read(self, ids: Any) -> Any:
        assert not self.closed, "a closed store was read"
        return super()._read(ids)


def read_from_dictionaries(folder: Path) -> Reader:
    """Return a reader whose stores hold production's embeddings."""
    lineage = Lineage.open(folder)
    version = lineage.production
    stores: dict[str, Store] = {}
    for side in lineage.manifest(version).embeddings:
        store = CountedStore(id_type(lineage, side, version))
        fill(lineage, store, side)
        stores[side] = store
    return Reader(lineage, stores)


def service_of(folder: Path) -> Service:
    return Service(folder, open_reader=lambda: read_from_dictionaries(folder))


# One of the names that a service on loopback is asked for under.
ADDRESS = "http://127.0.0.1"


@dataclass
class Running:
    """A service and a client of it that needs no network."""

    folder: Path
    service: Service
    http: TestClient

    def post(self, path: str, body: Any, token: str | None = None) -> Any:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.http.post(path, json=body, headers=headers)

    def get(self, path: str, token: str | None = None) -> Any:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.http.get(path, headers=headers)


@contextmanager
def running(
    folder: Path, settings: ServiceSettings | None = None, **line: Any
) -> Iterator[Running]:
    """Serve the lineage in a folder for a `with` block; one is made where there is none."""
    if not (folder / "lineage.json").exists():
        lineage_of(folder, **line)
    service = service_of(folder)
    app = create_app(service, ServiceSettings(poll=0.05) if settings is None else settings)
    with TestClient(app, ADDRESS, raise_server_exceptions=False) as http:
        yield Running(folder, service, http)


@contextmanager
def http_of(
    folder: Path,
    stores: dict[str, str] | None = None,
    settings: ServiceSettings | None = None,
    **opened: Any,
) -> Iterator[TestClient]:
    """Serve the lineage in a folder from its own stores, or those named, for a `with` block."""
    app = create_app(Service(folder, stores, **opened), settings)
    with TestClient(app, ADDRESS, raise_server_exceptions=False) as http:
        yield http


def client_of(http: TestClient) -> Client:
    """The package's own client, which needs no network: the test client is one of httpx."""
    client = Client(ADDRESS, retries=0)
    client._http = http  # type: ignore[assignment]
    return client


@contextmanager
def listening(served: uvicorn.Server) -> Iterator[str]:
    """Run a server on a free port in a thread for a `with` block. Yields: its address."""
    served.config.port = 0
    thread = threading.Thread(target=served.run)
    thread.start()
    try:
        while not served.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{served.servers[0].sockets[0].getsockname()[1]}"
    finally:
        served.should_exit = True
        thread.join()


def server(app: Any) -> AbstractContextManager[str]:
    """Run a real server of the service's application, as `listening` does."""
    handler = app.state.handler
    return listening(uvicorn_server(app, handler.settings, handler.connections))


def refused(answer: Any, status: int, words: str = "", code: str | None = None) -> None:
    """Check that an answer refuses its request: its status, and what its sentence names."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert code in (None, error["code"]), error
    assert words in error["message"], error


def until(holds: Callable[[], object], seconds: float = 240) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)
