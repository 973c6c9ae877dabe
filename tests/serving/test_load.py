"""Two hundred at once, for a while, against the command as it is started."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.lineage.lines import lineage_of
from tests.stores.kinds import STORES

from evergram.lineage.filling import fill

AT_ONCE, WARM_UP = 200, 8.0
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
        process.communicate(timeout=60)


def resident(process: subprocess.Popen[str]) -> int:
    """Bytes of memory of a process."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_the_command_serves_and_ends_cleanly(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    with command(str(tmp_path / "line")) as (process, said):
        assert said["version"] == 2
        assert said["open"] is True
        answer = httpx.post(f"{said['url']}/v1/embeddings", json={"input": 1})
        assert answer.status_code == 200
        process.terminate()
        out, err = process.communicate(timeout=30)
    assert process.returncode in (0, -15), err
    assert said["url"] in err
    assert "Traceback" not in err
    assert out == ""


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
    found = subprocess.run(
        [sys.executable, "-c", code, "serve", str(tmp_path / "line"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 2
    assert words in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.long
@pytest.mark.parametrize(("kind", "seconds"), [("snapshot", 30.0), ("pgvector", 15.0)])
def test_two_hundred_at_once(tmp_path: Path, kind: str, seconds: float) -> None:
    """No error, and memory that does not grow once all has been warm."""
    lineage = lineage_of(tmp_path / "line")
    arguments = [str(tmp_path / "line"), "--timeout", "60"]
    if kind != "snapshot":
        with STORES[kind](tmp_path, "int64") as store:
            fill(lineage, store, "object")
            arguments += ["--store", f"object={store.address}"]
    with command(*arguments) as (process, said):
        statuses, before, after = asyncio.run(_load(said["url"], process, seconds))
    assert set(statuses) == {200}, statuses
    assert statuses[200] > 1000
    assert after < before * 1.05 + 4 * 2**20, (before, after)


async def _load(
    url: str, process: subprocess.Popen[str], seconds: float
) -> tuple[dict[int, int], int, int]:
    statuses: dict[int, int] = {}
    start = time.monotonic()
    end = start + seconds
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    requests: list[tuple[str, Any]] = [
        ("/v1/embeddings", {"model": "line@v0", "input": list(range(100))}),
        ("/v1/embeddings", {"input": list(range(50)), "encoding_format": "base64"}),
        ("/v1/search", {"id": 5, "version": 1, "k": 10}),
        ("/v1/transform", {"vectors": [[0.5] * 10] * 5, "source": 2, "target": 0}),
    ]
    bodies = [(path, json.dumps(body).encode()) for path, body in requests]
    before = 0

    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as http:

        async def ask(number: int) -> None:
            nonlocal before
            while (now := time.monotonic()) < end:
                if not before and now > start + WARM_UP:
                    before = resident(process)
                path, body = bodies[number % len(bodies)]
                number += 1
                answer = await http.post(path, content=body, headers=JSON)
                statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1

        await asyncio.gather(*(ask(n) for n in range(AT_ONCE)))
    return statuses, before, resident(process)
