"""`evergram serve` in a process of its own, and clients of it that go down to the socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.support.command import PROGRAM
from tests.support.lineages import DIMS, lineage_of

# Seconds that a test waits for an answer.
PATIENCE = 120


@dataclass
class ServingProcess:
    """A service in a process of its own, and a client of it.

    Args:
        announcement: the JSON line that the command printed when it began to listen.
        log: all that it wrote to stderr, once it has ended.
    """

    process: subprocess.Popen[str]
    announcement: dict[str, Any]
    http: httpx.Client
    log: str = ""

    @property
    def url(self) -> str:
        return str(self.announcement["url"])

    @property
    def alive(self) -> bool:
        return self.process.poll() is None and self.http.get("/healthz").status_code == 200

    def post(self, route: str, body: Any, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        return self.http.post(f"/v1/{route}", content=content, headers={**kind, **headers})

    def connect(self, content: bytes = b"") -> socket.socket:
        """Open a connection, and send bytes over it."""
        port = int(self.url.rpartition(":")[2])
        connection = socket.create_connection(("127.0.0.1", port), PATIENCE)
        connection.sendall(content)
        return connection

    def peak_memory(self) -> int:
        """Return the most bytes of memory that the process has held so far."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the system reports no VmHWM")


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str) -> Iterator[ServingProcess]:
    """Run `evergram serve FOLDER ARGUMENTS` for a `with` block, on a free port."""
    code = "import sys; sys.argv[0] = 'evergram'; " + PROGRAM
    with subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(folder), *arguments, "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        served: ServingProcess | None = None
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            announcement = json.loads(line)
            with httpx.Client(base_url=announcement["url"], timeout=PATIENCE) as http:
                served = ServingProcess(process, announcement, http)
                yield served
        finally:
            process.terminate()
            _, log = process.communicate(timeout=PATIENCE)
            if served is not None:
                served.log = log


@pytest.fixture(scope="module")
def two_versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a lineage of two versions; tests serve it, and do not change it."""
    folder = tmp_path_factory.mktemp("service") / "shop"
    lineage_of(folder, versions=2)
    return folder


def newest_vectors(rows: int = 1) -> pa.Array:
    """Vectors of the dim of version 1."""
    flat = pa.array([0.5] * rows * DIMS[1], pa.float32())
    return pa.FixedSizeListArray.from_arrays(flat, DIMS[1])
