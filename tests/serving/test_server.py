"""Serving from Python, the limits of a process, two hundred requests at once, and several real
processes behind one port: what they share, and what each has for itself."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import re
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.support.lineages import DIMS, lineage_of, publish, vectors_of
from tests.support.serving_process import ServingProcess, serving

from evergram.errors import ServiceError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.migration.make_sidecar import make_sidecar
from evergram.serving import Client, ServiceSettings, listen, listen_processes
from evergram.serving.server import FILES, allowed_connections
from evergram.serving.server_processes import ServerProcesses
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.writers import write_embeddings


def test_a_lineage_is_served_until_it_is_stopped(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    server = listen(tmp_path / "line", port=0)
    facts, files = server.as_json(), server.service.files()
    assert (facts["url"], facts["version"], facts["open"]) == (server.url, 2, True)
    assert facts["checked"] == [name for name, done in files.items() if done]
    thread = threading.Thread(target=server.run)
    # Before it runs, a client that connects waits.
    with Client(server.url) as client:
        thread.start()
        assert client.embed([1, 2], 0).vectors.shape == (2, 6)
    server.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_an_address_that_is_taken_is_refused_before_stores_are_filled(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=f"127.0.0.1:{port} cannot be listened on"):
            listen(tmp_path / "line", port=port)
    assert not (tmp_path / "line" / "stores").exists()
    with listen(tmp_path / "line", port=port):  # is free again, though it never ran
        pass
    with socket.create_server(("127.0.0.1", port)):
        pass


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


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "evergram.serving.http.connections", raising=False)
    with pytest.raises(ServiceError) as refusal:
        listen("line")
    assert str(refusal.value) == "Serving needs uvicorn: pip install 'evergram[serve]'."


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The soft and the hard limit of files, which the process is told and may change."""
    values = [FILES, FILES + 40]

    def change(_: int, changed: tuple[int, int]) -> None:
        if resource.RLIM_INFINITY != values[1] < changed[0]:
            raise ValueError("not allowed to raise maximum limit")
        values[:] = changed

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(values))
    monkeypatch.setattr(resource, "setrlimit", change)
    return values


def test_connections_are_as_many_as_the_limit_of_files_can_be_raised_to(
    limits: list[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert allowed_connections(30) == 30
    assert limits == [FILES + 30, FILES + 40]
    with caplog.at_level(logging.WARNING):
        assert allowed_connections(100) == 40
    assert f"it takes 40 connections at once, not 100; 'ulimit -n {FILES + 100}'" in caplog.text
    limits[:] = [resource.RLIM_INFINITY] * 2
    assert allowed_connections(10**6) == 10**6
    limits[:] = [10, resource.RLIM_INFINITY]
    assert allowed_connections(10**6) == 10**6
    assert limits[0] == 10**6 + FILES
    limits[:] = [10, 10]
    assert allowed_connections(30) == 1
    monkeypatch.setitem(sys.modules, "resource", None)
    assert allowed_connections(7) == 7


AT_ONCE = 200
# Seconds that one answer may take, however busy the machine is.
PATIENCE = 240


def resident(number: int) -> int:
    """Bytes of memory of a process."""
    pages = int(Path(f"/proc/{number}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
def test_two_hundred_at_once_are_answered_and_leave_nothing_behind(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    with serving(tmp_path / "line", "--set", f"timeout={PATIENCE}") as service:
        statuses, before, after = asyncio.run(_load(service, 4_000))
    assert statuses == {200: 4_000}
    assert after < before * 1.05 + 4 * 2**20, (before, after)


async def _load(service: ServingProcess, requests: int) -> tuple[dict[int, int], int, int]:
    """Return statuses, and the memory once all was warm and at the end."""
    statuses: dict[int, int] = {}
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    kinds: list[tuple[str, Any]] = [
        ("/v1/embeddings", {"model": "line@v0", "input": list(range(100))}),
        ("/v1/embeddings", {"input": list(range(50)), "encoding_format": "base64"}),
        ("/v1/search", {"id": 5, "version": 1, "k": 10}),
        ("/v1/transform", {"vectors": [[0.5] * 10] * 5, "source": 2, "target": 0}),
    ]
    bodies = [(path, json.dumps(body).encode()) for path, body in kinds]
    numbers, before = iter(range(requests)), 0
    headers = {"Content-Type": "application/json"}

    async with httpx.AsyncClient(base_url=service.url, limits=limits, timeout=PATIENCE) as http:

        async def ask() -> None:
            nonlocal before
            for number in numbers:
                if number == requests // 3:
                    before = resident(service.process.pid)
                path, body = bodies[number % len(bodies)]
                answer = await http.post(path, content=body, headers=headers)
                statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1

        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    return statuses, before, resident(service.process.pid)


PROCESSES, ROWS = 2, 20_000
# Of the administrator, who reads the metrics.
ADMIN = {"Authorization": "Bearer root"}
# Between two looks at the lineage; what a process needs to load it is added.
POLL = 1.0


def processes(service: ServingProcess) -> list[int]:
    """The numbers of the processes that serve."""
    children = Path(f"/proc/{service.process.pid}/task").glob("*/children")
    numbers = [int(n) for path in children for n in path.read_text().split()]
    command = "multiprocessing.spawn"
    return [n for n in numbers if command in Path(f"/proc/{n}/cmdline").read_text()]


def each_process(service: ServingProcess, stack: ExitStack) -> dict[str, httpx.Client]:
    """A client of each process, on a connection that it keeps open."""
    clients: dict[str, httpx.Client] = {}
    for _ in range(500):
        client = stack.enter_context(httpx.Client(base_url=service.url, timeout=PATIENCE))
        number = process_of(client)
        clients.setdefault(number, client)
        if len(clients) == PROCESSES:
            return clients
    raise AssertionError(f"only processes {list(clients)} answered")


def metrics_of(client: httpx.Client) -> str:
    answer = client.get("/metrics", headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return answer.text


def process_of(client: httpx.Client) -> str:
    (number,) = set(re.findall(r'process="(\d+)"', metrics_of(client)))
    return str(number)


def embed(client: httpx.Client, model: str, token: str = "root") -> httpx.Response:
    body = {"model": model, "input": ["3"], "side": "object"}
    return client.post("/v1/embeddings", json=body, headers={"Authorization": f"Bearer {token}"})


def soon(holds: Callable[[], bool]) -> float:
    """Wait until something holds. Returns: seconds."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0.05)
    return time.monotonic() - begun


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("service") / "shop"
    lineage_of(folder, versions=2, rows=ROWS)
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ServingProcess]:
    arguments = ("--processes", str(PROCESSES))
    with serving(folder, *arguments, EVERGRAM_ADMIN_TOKEN="root") as running:
        yield running


@pytest.mark.long
def test_metrics_and_drift_are_counted_by_each_process(service: ServingProcess) -> None:
    with ExitStack() as stack:
        first, second = each_process(service, stack).values()
        name = 'evergram_rows_total{computed_from="1",process="%s",version="0"}'

        def rows(client: httpx.Client) -> float:
            line = re.escape(name % process_of(client)) + r" (\S+)"
            match = re.search(line, metrics_of(client))
            return 0.0 if match is None else float(match[1])

        before = rows(first), rows(second)
        for _ in range(5):
            assert embed(first, "line@v0").status_code == 200
        assert (rows(first), rows(second)) == (before[0] + 5, before[1])
        soon(lambda: "evergram_drift_vectors{" in metrics_of(first))


@pytest.mark.long
def test_tokens_and_versions_are_taken_up_by_all(service: ServingProcess, folder: Path) -> None:
    with ExitStack() as stack:
        clients = list(each_process(service, stack).values())
        lineage = Lineage.open(folder)
        registry = ConsumerRegistry.open(folder)
        registry.add("ads", "v0", lineage.resolve)
        token = registry.issue_token("ads")

        def answers(client: httpx.Client, status: int) -> Callable[[], bool]:
            return lambda: embed(client, "line@v0", token).status_code == status

        taken = [soon(answers(client, 200)) for client in clients]
        registry.remove("ads")
        gone = [soon(answers(client, 401)) for client in clients]
        assert max(taken + gone) < 20 * POLL
        publish(lineage, 2, ROWS)
        for client in clients:
            soon(lambda c=client: embed(c, "line").headers.get("x-evergram-version") == "2")  # type: ignore[misc]


@pytest.mark.long
def test_the_snapshot_is_in_memory_once(service: ServingProcess, folder: Path) -> None:
    with ExitStack() as stack:
        clients = list(each_process(service, stack).values())
        body = {"vector": [1.0] * DIMS[0], "k": 1, "version": "v0", "side": "object"}
        for client in clients:  # reads every row
            assert client.post("/v1/search", json=body, headers=ADMIN).status_code == 200
    resident, proportional = [], []
    for number in processes(service):
        rss = pss = 0
        mine = False
        for line in Path(f"/proc/{number}/smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                mine = str(folder / "stores") in line
            elif mine and line.startswith("Rss:"):
                rss += int(line.split()[1])
            elif mine and line.startswith("Pss:"):
                pss += int(line.split()[1])
        resident.append(rss)
        proportional.append(pss)
    # KiB: each maps all rows, and together they have little more than one copy of them.
    assert min(resident) * 1024 >= ROWS * 4 * DIMS[0]
    assert sum(proportional) <= 1.2 * max(resident)


@pytest.mark.long
def test_a_killed_process_is_replaced(service: ServingProcess) -> None:
    victim, *others = processes(service)
    os.kill(victim, signal.SIGKILL)
    soon(lambda: victim not in processes(service) and len(processes(service)) == PROCESSES)
    assert set(others) < set(processes(service))
    assert service.alive
    with ExitStack() as stack:
        assert len(each_process(service, stack)) == PROCESSES


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_all_end_with_the_first(folder: Path, how: signal.Signals) -> None:
    with serving(folder, "--processes", str(PROCESSES), "--no-auth") as running:
        numbers = processes(running)
        assert len(numbers) == PROCESSES
        os.kill(running.process.pid, how)
        soon(lambda: not any(Path(f"/proc/{n}/cmdline").exists() for n in numbers))


def test_a_folder_of_qdrant_is_of_one_process(tmp_path: Path) -> None:
    for address in ("qdrant:{}#films", "qdrant-collection:{}#collection=films&v0=e"):
        with pytest.raises(ServiceError, match="--processes 1"):
            listen_processes(tmp_path, 2, stores={"object": address.format(tmp_path)})


@pytest.mark.long
def test_a_service_answers_when_all_have_started_and_replaces_who_was_killed_before(
    tmp_path: Path,
) -> None:
    lineage_of(tmp_path / "shop", versions=1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made: list[ServerProcesses] = []
    failed: list[Exception] = []

    def start() -> None:
        try:
            made.append(listen_processes(tmp_path / "shop", 2, port=port))
        except Exception as error:
            failed.append(error)

    def child(number: int) -> Any:
        named = [p for p in multiprocessing.active_children() if p.name.endswith(f"-{number}")]
        return named[0] if named else None

    starting = threading.Thread(target=start)
    starting.start()
    soon(lambda: child(1) is not None or bool(failed))
    # The first could answer by now, and does not yet.
    with socket.create_connection(("127.0.0.1", port)) as asking:
        asking.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        killed = [child(0).pid, child(1).pid]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        asking.setblocking(False)
        with pytest.raises(BlockingIOError):
            asking.recv(1)
        starting.join(PATIENCE)
        assert not failed
        with made[0] as service:
            assert {child(0).pid, child(1).pid}.isdisjoint(killed)
            asking.settimeout(PATIENCE)
            assert asking.recv(12) == b"HTTP/1.1 200"
            assert service.as_json()["processes"] == 2


@contextmanager
def one_process(folder: Path, **settings: Any) -> Iterator[ServerProcesses]:
    """Serve from one process, which is replaced when it ends, for a `with` block."""
    with listen_processes(folder, 1, port=0, settings=ServiceSettings(**settings)) as service:
        keeping = threading.Thread(target=service.run)
        keeping.start()
        try:
            yield service
        finally:
            service.stop()
            keeping.join()


@pytest.mark.long
def test_why_a_replacement_cannot_serve_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lineage_of(tmp_path / "shop", versions=1)
    with one_process(tmp_path / "shop") as service:
        (tmp_path / "shop" / "lineage.json").write_text("{")
        service._running[0].process.kill()
        soon(lambda: "ended with code 1: " in caplog.text)
    assert "ended with code -9; another is started" in caplog.text
    reason = caplog.text.partition("ended with code 1: ")[2].partition("; another is started")[0]
    assert "lineage.json is damaged" in reason


@pytest.mark.long
def test_a_process_whose_sidecar_is_gone_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lineage = lineage_of(tmp_path / "shop", versions=2, canaries=5)
    old, sidecar = tmp_path / "old.parquet", tmp_path / "1.safetensors"
    write_embeddings(old, [(pa.array(range(300)), vectors_of(0))])
    make_sidecar(lineage, open_embeddings(old), size=2).save(sidecar)
    with (
        one_process(tmp_path / "shop", sidecars=(str(sidecar),)) as service,
        httpx.Client(base_url=service.url) as client,
    ):
        sidecar.unlink()
        service._running[0].process.kill()
        soon(lambda: "another is started" in caplog.text)

        def answers() -> bool:
            with suppress(httpx.TransportError):
                return "idecar" in client.get("/readyz").text
            return False

        soon(answers)
    assert caplog.text.count("another is started") == 1
