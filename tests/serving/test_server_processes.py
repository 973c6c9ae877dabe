"""Several real processes behind one port: what they share, and what each has for itself."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.support.lineages import DIMS, lineage_of, publish, vectors_of
from tests.support.serving_process import PATIENCE, ServingProcess, serving

from evergram.errors import ServiceError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.migration.make_sidecar import make_sidecar
from evergram.serving import listen_processes
from evergram.serving.server_processes import ServerProcesses
from evergram.serving.settings import ServiceSettings
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.writers import write_embeddings

pytestmark = pytest.mark.long

COUNT = 2
ROWS = 20_000
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
        if len(clients) == COUNT:
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
    arguments = ("--processes", str(COUNT))
    with serving(folder, *arguments, EVERGRAM_ADMIN_TOKEN="root") as running:
        yield running


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


def test_a_killed_process_is_replaced(service: ServingProcess) -> None:
    victim, *others = processes(service)
    os.kill(victim, signal.SIGKILL)
    soon(lambda: victim not in processes(service) and len(processes(service)) == COUNT)
    assert set(others) < set(processes(service))
    assert service.alive
    with ExitStack() as stack:
        assert len(each_process(service, stack)) == COUNT


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_all_end_with_the_first(folder: Path, how: signal.Signals) -> None:
    with serving(folder, "--processes", str(COUNT), "--no-auth") as running:
        numbers = processes(running)
        assert len(numbers) == COUNT
        os.kill(running.process.pid, how)
        soon(lambda: not any(Path(f"/proc/{n}/cmdline").exists() for n in numbers))


@pytest.mark.parametrize(
    "address", ["qdrant:{}#films", "qdrant-collection:{}#collection=films&v0=e"]
)
def test_a_folder_of_qdrant_is_of_one_process(tmp_path: Path, address: str) -> None:
    stores = {"object": address.format(tmp_path)}
    with pytest.raises(ServiceError, match="--processes asks for 2: serve with --processes 1"):
        listen_processes(tmp_path, 2, stores=stores)


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


def test_why_a_replacement_cannot_serve_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lineage_of(tmp_path / "shop", versions=1)
    with listen_processes(tmp_path / "shop", 1, port=0) as service:
        keeping = threading.Thread(target=service.run)
        keeping.start()
        (tmp_path / "shop" / "lineage.json").write_text("{")
        service._running[0].process.kill()
        try:
            soon(lambda: "ended with code 1: " in caplog.text)
        finally:
            service.stop()
            keeping.join()
    assert "ended with code -9; another is started" in caplog.text
    reason = caplog.text.partition("ended with code 1: ")[2].partition("; another is started")[0]
    assert "lineage.json is damaged" in reason


def test_a_process_whose_sidecar_is_gone_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lineage = lineage_of(tmp_path / "shop", versions=2, canaries=5)
    old = tmp_path / "old.parquet"
    write_embeddings(old, [(pa.array(range(300)), vectors_of(0))])
    sidecar = tmp_path / "1.safetensors"
    make_sidecar(lineage, open_embeddings(old), size=2).save(sidecar)
    settings = ServiceSettings(sidecars=(str(sidecar),))
    with listen_processes(tmp_path / "shop", 1, port=0, settings=settings) as service:
        keeping = threading.Thread(target=service.run)
        keeping.start()
        try:
            sidecar.unlink()
            service._running[0].process.kill()
            soon(lambda: "another is started" in caplog.text)
            with httpx.Client(base_url=service.url) as client:

                def answers() -> bool:
                    with suppress(httpx.TransportError):
                        return "idecar" in client.get("/readyz").text
                    return False

                soon(answers)
        finally:
            service.stop()
            keeping.join()
    assert caplog.text.count("another is started") == 1
