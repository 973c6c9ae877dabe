"""Lineages under s3://, on a real S3 server through fsspec's own driver, by the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.command import PROGRAM, CommandResult
from tests.support.lineages import vectors_of
from tests.support.several_processes import free_port

from evergram.vector_files.open_embeddings import write_vectors

NEEDED = ("moto", "s3fs")
BUCKET = "shelf"
PATIENCE = 60.0


@dataclass
class S3Server:
    """A server with one bucket.

    Args:
        url: its endpoint.
    """

    url: str

    def started(self, code: str, *arguments: object, machine: Path) -> subprocess.Popen[str]:
        """Start a Python program as on another machine, whose mirror of lineages is `machine`."""
        return subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "AWS_ENDPOINT_URL": self.url,
                "AWS_ACCESS_KEY_ID": "any",
                "AWS_SECRET_ACCESS_KEY": "any",
                "AWS_DEFAULT_REGION": "us-east-1",
                "EVERGRAM_CACHE": str(machine),
            },
        )

    def run(self, code: str, *arguments: object, machine: Path) -> CommandResult:
        """Run a Python program, and return its result."""
        return ended(self.started(code, *arguments, machine=machine))

    def evergram(self, *arguments: object, machine: Path) -> CommandResult:
        """Run `evergram ARGUMENTS`, and return its result."""
        return self.run(PROGRAM, *arguments, machine=machine)


def ended(process: subprocess.Popen[str]) -> CommandResult:
    """Wait for a program, and return its result."""
    out, err = process.communicate(timeout=600)
    return CommandResult(process.returncode, out, err)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server for a `with` block; skip the test where none is installed."""
    for name in NEEDED:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed, so there is no S3 server here")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            server = S3Server(f"http://127.0.0.1:{port}")
            _wait_for(server.url, process)
            bucket = urllib.request.Request(f"{server.url}/{BUCKET}", method="PUT")
            with urllib.request.urlopen(bucket):
                pass
            yield server
        finally:
            process.terminate()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(f"{url}/moto-api/"):
                return
        except URLError:
            assert process.poll() is None, "the S3 server ended at once"
            assert time.monotonic() < until, "the S3 server does not answer"
            time.sleep(0.2)


pytestmark = pytest.mark.long

ROWS = 300
SHOP = "s3://shelf/shop"
CREATE_TWICE = """
import fsspec
files = fsspec.filesystem("s3")
files.pipe_file("shelf/once", b"first", mode="create")
try:
    files.pipe_file("shelf/once", b"second", mode="create")
except FileExistsError:
    pass
files.invalidate_cache()
print(files.cat_file("shelf/once").decode())
"""

PUT = "import sys, fsspec; fsspec.filesystem('s3').pipe_file(sys.argv[1], sys.argv[2].encode())"


# Stops itself before it writes the file that is named first, and then runs the command.
SLEEPER = """
import os, signal, sys, s3fs
named = sys.argv.pop(1)
for method in ("put_file", "pipe_file"):
    def write(files, *args, real=getattr(s3fs.S3FileSystem, method), **options):
        if any(str(a).endswith(named) for a in args if isinstance(a, str)):
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(files, *args, **options)
    setattr(s3fs.S3FileSystem, method, write)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of two models, the second turned."""
    folder = tmp_path_factory.mktemp("vectors")
    old = vectors_of(0, ROWS)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))[0]
    for name, vectors in (("old", old), ("new", old @ turn.T)):
        write_vectors(folder / f"{name}.parquet", [(pa.array(range(ROWS)), vectors)])
    return folder


@pytest.fixture(scope="module")
def shop(server: S3Server, folder: Path) -> S3Server:
    """The server with a lineage of two versions, published from machine `a`."""
    a = folder / "a"
    arguments = ("vectors", "import", folder / "old.parquet", "--lineage", SHOP, "--name", "shop")
    assert server.evergram(*arguments, machine=a).code == 0
    align = ("vectors", "align", "newest", folder / "new.parquet", "--lineage", SHOP, "--json")
    assert server.evergram(*align, machine=a).json["version"] == 1
    return server


def test_another_machine_reads_every_version(shop: S3Server, folder: Path) -> None:
    b, out = folder / "b", folder / "as_v0.parquet"
    versions = shop.evergram("lineage", "list", SHOP, "--json", machine=b).json["versions"]
    assert [v["version"] for v in versions] == [0, 1]
    arguments = ("vectors", "export", SHOP, out, "--side", "object", "--as", "v0", "--json")
    assert shop.evergram(*arguments, machine=b).json["rows"] == ROWS
    read = np.array(pq.read_table(out)["vector"].to_pylist())
    np.testing.assert_allclose(read, vectors_of(0, ROWS).numpy(), atol=1e-3)
    assert shop.evergram("lineage", "check", SHOP, machine=b).code == 0


def test_consumers_and_labels_reach_other_machines(shop: S3Server, folder: Path) -> None:
    add = ("consumer", "add", SHOP, "ads", "--pin", "v0")
    assert shop.evergram(*add, machine=folder / "a").code == 0
    assert shop.evergram("lineage", "label", SHOP, "old", "v0", machine=folder / "b").code == 0
    consumers = shop.evergram("consumer", "list", SHOP, "--json", machine=folder / "c").json
    assert [c["name"] for c in consumers["consumers"]] == ["ads"]
    versions = shop.evergram("lineage", "list", SHOP, "--json", machine=folder / "c").json
    assert versions["labels"]["old"] == 0


def test_the_driver_creates_an_object_only_once(server: S3Server, tmp_path: Path) -> None:
    """What `publishing.lock` rests on."""
    run = server.run(CREATE_TWICE, machine=tmp_path)
    assert run.out.strip() == "first", run.err


def test_publishers_at_once_leave_a_whole_lineage(
    shop: S3Server, folder: Path, tmp_path: Path
) -> None:
    place = "s3://shelf/race"
    start = ("vectors", "import", folder / "old.parquet", "--lineage", place, "--name", "race")
    assert shop.evergram(*start, machine=tmp_path / "0").code == 0
    align = ("vectors", "align", "newest", folder / "new.parquet", "--lineage", place)
    both = [shop.started(PROGRAM, *align, machine=tmp_path / name) for name in "12"]
    results = [ended(process) for process in both]
    won = [r for r in results if r.code == 0]
    lost = [r for r in results if r.code != 0]
    assert won
    for result in lost:
        assert result.code == 2, result.err
        assert result.err.splitlines()[-1].startswith("error: ")
    versions = shop.evergram("lineage", "list", place, "--json", machine=tmp_path / "3").json[
        "versions"
    ]
    assert len(versions) == 1 + len(won)
    assert shop.evergram("lineage", "check", place, machine=tmp_path / "3").code == 0


def test_a_held_lock_and_a_damaged_file_are_refused(
    shop: S3Server, folder: Path, tmp_path: Path
) -> None:
    place = "s3://shelf/damaged"
    start = ("vectors", "import", folder / "old.parquet", "--lineage", place, "--name", "damaged")
    assert shop.evergram(*start, machine=tmp_path / "0").code == 0
    holder = {"owner": "eve", "host": "far", "process": 1, "since": "2026-01-01"}
    lock = ("shelf/damaged/publishing.lock", json.dumps(holder))
    assert shop.run(PUT, *lock, machine=tmp_path / "0").code == 0
    label = shop.evergram("lineage", "label", place, "x", "v0", machine=tmp_path / "1")
    assert "eve on far" in label.refusal()
    other = ("shelf/damaged/embeddings/0/object.parquet", "of another file")
    assert shop.run(PUT, *other, machine=tmp_path / "0").code == 0
    arguments = ("vectors", "export", place, tmp_path / "x.npy", "--side", "object")
    assert "by its SHA-256" in shop.evergram(*arguments, machine=tmp_path / "2").refusal()


@pytest.mark.parametrize("named", ["1/canary.parquet", "/lineage.json"])
def test_a_publisher_that_was_suspended_changes_nothing_that_another_published(
    server: S3Server, folder: Path, named: str
) -> None:
    """Its lock is deleted meanwhile, as docs/lineage.md says, and another publishes version 1."""
    place = f"s3://shelf/slept-{len(named)}"
    a, b = folder / f"a-{len(named)}", folder / f"b-{len(named)}"
    first = ("vectors", "import", folder / "old.parquet", "--lineage", place)
    assert server.evergram(*first, machine=a).code == 0
    align = ("vectors", "align", "0", folder / "new.parquet", "--lineage", place)
    sleeper = server.started(SLEEPER + PROGRAM, named, *align, machine=a)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    remove = "import sys, fsspec; fsspec.filesystem('s3').rm_file(sys.argv[1])"
    assert server.run(remove, f"{place}/publishing.lock", machine=b).code == 0
    theirs = (*align, "--transform", "affine")
    assert server.evergram(*theirs, machine=b).code == 0
    sleeper.send_signal(signal.SIGCONT)
    woken = ended(sleeper)
    assert (woken.code, woken.out) == (2, "")
    assert "Traceback" not in woken.err
    listed = server.evergram("lineage", "list", place, "--json", machine=folder / f"c-{len(named)}")
    assert [v["version"] for v in listed.json["versions"]] == [0, 1]
    checked = server.evergram("lineage", "check", place, machine=folder / f"c-{len(named)}")
    assert checked.code == 0, checked.err
