"""Two hundred at once, for a while, against the command as it is started."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.lineages import lineage_of
from tests.support.store_kinds import STORES

from evergram.retrieval.fill import fill

AT_ONCE = 200
# Seconds that one answer may take, however busy the machine is.
PATIENCE = 240
JSON = {"Content-Type": "application/json"}


@contextmanager
def command(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """`evergram serve --json …`, and what it said when it began to listen."""
    code = "import sys; from evergram.cli import main; sys.argv[0] = 'evergram'; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", *arguments, "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, json.loads(line)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def resident(process: subprocess.Popen[str]) -> int:
    """Bytes of memory of a process."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
def test_the_command_serves_and_ends_cleanly(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    with command(str(tmp_path / "line")) as (process, said):
        assert said["version"] == 2
        assert said["open"] is True
        answer = httpx.post(f"{said['url']}/v1/embeddings", json={"input": 1})
        assert answer.status_code == 200
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode in (0, -15), err
    assert said["url"] in err
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "--no-auth"),
        (["--store", "object"], "SIDE=ADDRESS"),
        (["--store", "query=x"], "no side 'query'"),
        (["--host", "203.0.113.1", "--no-auth"], "cannot be listened on"),
    ],
)
def test_the_command_refuses_in_one_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    lineage_of(tmp_path / "line", versions=1)
    code = "import sys; from evergram.cli import main; main()"
    run = subprocess.run(
        [sys.executable, "-c", code, "serve", str(tmp_path / "line"), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert run.returncode == 2
    assert words in run.stderr
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.long
@pytest.mark.parametrize(("kind", "requests"), [("snapshot", 4_000), ("pgvector", 2_000)])
def test_two_hundred_at_once(tmp_path: Path, kind: str, requests: int) -> None:
    """No error, and memory that does not grow once all has been warm."""
    lineage = lineage_of(tmp_path / "line")
    arguments = [str(tmp_path / "line"), "--timeout", str(PATIENCE)]
    with ExitStack() as stack:
        if kind != "snapshot":
            store = stack.enter_context(STORES[kind](tmp_path, "int64"))
            fill(lineage, store, "object")
            arguments += ["--store", f"object={store.address}"]
        process, said = stack.enter_context(command(*arguments))
        statuses, before, after = asyncio.run(_load(said["url"], process, requests))
    assert statuses == {200: requests}
    assert after < before * 1.05 + 4 * 2**20, (before, after)


async def _load(
    url: str, process: subprocess.Popen[str], requests: int
) -> tuple[dict[int, int], int, int]:
    """Args:
    requests: in all; after a third of them all is warm.
    """
    statuses: dict[int, int] = {}
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    kinds: list[tuple[str, Any]] = [
        ("/v1/embeddings", {"model": "line@v0", "input": list(range(100))}),
        ("/v1/embeddings", {"input": list(range(50)), "encoding_format": "base64"}),
        ("/v1/search", {"id": 5, "version": 1, "k": 10}),
        ("/v1/transform", {"vectors": [[0.5] * 10] * 5, "source": 2, "target": 0}),
    ]
    bodies = [(path, json.dumps(body).encode()) for path, body in kinds]
    numbers = iter(range(requests))
    before = 0

    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=PATIENCE) as http:

        async def ask() -> None:
            nonlocal before
            for number in numbers:
                if number == requests // 3:
                    before = resident(process)
                path, body = bodies[number % len(bodies)]
                answer = await http.post(path, content=body, headers=JSON)
                statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1

        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    return statuses, before, resident(process)
