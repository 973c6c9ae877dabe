"""Bad input of a command: good files, of which a case spoils one, and what holds while it runs."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from filelock import FileLock
from tests.support import onnx_graphs
from tests.support.command import exit_code
from tests.support.golden import TRAINED

from evergram.vector_files.writers import write_vectors

# What a file is made of: bytes, text in UTF-8, a table, a function that makes it, or no file.
Content: TypeAlias = bytes | str | pa.Table | Callable[[Path], object] | None
Make: TypeAlias = Callable[[Path], object]
Condition: TypeAlias = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Case:
    """A command line in a copy of the good files that must be refused.

    Args:
        names: what the sentence names.
        make: makes the bad input in the working directory.
        during: what holds while the command runs, such as a port that is taken.
        what: the kind of bad input, where the command line does not say it.
    """

    command: str
    names: str = ""
    make: Make = lambda _: None
    during: tuple[Condition, ...] = ()
    what: str = ""

    def __str__(self) -> str:
        return (self.what or self.command).replace("/", "|")


def put(content: Content, file: str) -> Make:
    """Return a function that writes a file of this content into a folder, in another's place."""

    def make(folder: Path) -> None:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        elif isinstance(content, pa.Table):
            (feather.write_feather if file.endswith(".arrow") else pq.write_table)(content, path)
        elif content is not None:
            content(path)

    return make


def edited(file: str, **values: Any) -> Make:
    """Return a function that changes values of a JSON file, as somebody does by hand."""

    def make(folder: Path) -> None:
        path = folder / file
        text = json.dumps({**json.loads(path.read_text()), **values})
        path.unlink()  # shared with other cases by a hard link
        path.write_text(text)

    return make


def tree_of(folder: Path) -> dict[str, str]:
    """Return all that is below a folder: names, and the sizes and hashes of files."""
    tree = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            tree[name] = f"-> {path.readlink()}"
        elif path.is_file():
            content = path.read_bytes()
            tree[name] = f"{len(content)} {hashlib.sha256(content).hexdigest()}"
        else:
            tree[name] = "folder" if path.is_dir() else "special"
    return tree


ROWS, DIM = 300, onnx_graphs.DIM
IDS = [f"id{i}" for i in range(ROWS)]
RECIPE = """
name = "shop"
[data]
kind = "table"
path = "clicks.parquet"
[model]
dim = 4
[training]
epochs = 1
batch_size = 64
"""


def clicks(rows: int = 600) -> pa.Table:
    """Return interactions that train in an instant, in the order of their times."""
    draw = random.Random(0)
    pairs = [(draw.randrange(40), draw.randrange(30)) for _ in range(rows)]
    columns = {"query": [q for q, _ in pairs], "candidate": [f"item{c}" for _, c in pairs]}
    return pa.table({**columns, "time": [1_700_000_000 + 60 * i for i in range(rows)]})


def make_good_files(folder: Path) -> None:
    """Write into the working directory, `folder`, all that commands of the cases read.

    A recipe and its clicks; vectors of two models with ids (`old`, `new`); texts; a consumer's
    probe; the lineage `l` of two versions of these vectors, with a consumer, a filled store `s` and
    a store `older` with rows of version 0; and the lineage `t` of three trained versions.
    """
    pq.write_table(clicks(), "clicks.parquet")
    (folder / "shop.toml").write_text(RECIPE)
    draw = np.random.default_rng(0)
    old = draw.normal(size=(ROWS, DIM)).astype(np.float32)
    turn, _ = np.linalg.qr(draw.normal(size=(DIM, DIM)))
    for name, values in (("old", old), ("new", (old @ turn).astype(np.float32))):
        write_vectors(Path(f"{name}.parquet"), [(pa.array(IDS), torch.from_numpy(values))])
        np.save(f"{name}.npy", values)
    pq.write_table(pa.table({"id": IDS, "label": old.sum(axis=1) > 0}), "data.parquet")
    (folder / "plain.onnx").write_bytes(onnx_graphs.plain().SerializeToString())
    (folder / "texts.csv").write_text("id,text\n" + "".join(f"{i},word {i}\n" for i in range(20)))
    for command in (
        "vectors import old.parquet --lineage l",
        "store fill l --store object=older",
        "consumer add l ads --pin v0",
        "vectors align 0 new.parquet --lineage l",
        "store fill l --store object=s",
    ):
        assert exit_code(command) == 0, command
    shutil.copytree(TRAINED, folder / "t")


@contextmanager
def never_served(seconds: float = 30) -> Iterator[None]:
    """Fail a command that waits, and `evergram serve` where it would begin to answer requests."""

    def stop(*_: object) -> None:
        pytest.fail(f"the command neither refused its input nor ended in {seconds} s")

    def run(_: object) -> None:
        pytest.fail("the input was not refused: the service began to answer")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evergram.serving.server.Server.run", run)
        patch.setattr("evergram.serving.server_processes.ServerProcesses.run", run)
        patch.setattr("evergram.cli.serve.log_to_stderr", lambda: None)
        patch.delenv("EVERGRAM_ADMIN_TOKEN", raising=False)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def environment(**variables: str) -> Condition:
    """Return the condition that variables have these values."""

    @contextmanager
    def during() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            yield

    return during


def patched(name: str, value: object) -> Condition:
    """Return the condition that a name of a module or class has another value."""

    @contextmanager
    def during() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(name, value)
            yield

    return during


def not_permitted(*_: object) -> None:
    """Refuse as the system does where a user may not do something."""
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def locked(pattern: str) -> Condition:
    """Return the condition that another process holds the one lock that a pattern finds."""

    @contextmanager
    def during() -> Iterator[None]:
        # A lock of flock(2) is one of the open file: a second one in this process is kept out, too.
        (file,) = Path().glob(pattern)
        with FileLock(file, is_singleton=False):
            yield

    return during


@contextmanager
def small_files() -> Iterator[None]:
    """Let no file grow past a few kilobytes, as on a disk that has no more room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        # Python itself would leave the half of a module's bytecode, and fail to read it ever after.
        patch.setattr(sys, "dont_write_bytecode", True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def full_disk() -> Iterator[None]:
    """Let the folder `full` be a disk of its own without room, to which nothing may be written."""
    with _mounted("full", "-t", "tmpfs", "-o", "size=64k", "tmpfs"):
        with Path("full/ballast").open("wb", buffering=0) as file:
            file.write(bytes(48_000))
        before = tree_of(Path("full"))
        yield
        assert tree_of(Path("full")) == before


def read_only(folder: str) -> Condition:
    """Return the condition that nobody may write into a folder, not even root."""

    @contextmanager
    def during() -> Iterator[None]:
        with _mounted(folder, "--bind", folder):
            remount = ["mount", "-o", "remount,ro,bind", folder]
            subprocess.run(remount, check=True, capture_output=True)
            yield

    return during


@contextmanager
def _mounted(folder: str, *options: str) -> Iterator[None]:
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    done = subprocess.run(["mount", *options, folder], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


# The port of a server that a command line names; a bucket's server has one of its own.
with socket.create_server(("127.0.0.1", 0)) as _free:
    PORT: int = _free.getsockname()[1]
CUT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n{"
PAGE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 21\r\nConnection: close\r\n\r\n"
    b"<html>a page</html>\r\n"
)


def answering(content: bytes) -> Condition:
    """Return the condition that a server at PORT, which a bucket's address is, too, sends these
    bytes to every request and hangs up."""

    def answer(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    connection.recv(65_536)
                    connection.sendall(content)
                except OSError:
                    continue

    @contextmanager
    def during() -> Iterator[None]:
        with socket.create_server(("127.0.0.1", PORT)) as server:
            thread = threading.Thread(target=answer, args=(server,))
            thread.start()
            try:
                yield
            finally:
                server.shutdown(socket.SHUT_RDWR)
                thread.join()

    return during


BUCKET = environment(
    AWS_ACCESS_KEY_ID="any",
    AWS_SECRET_ACCESS_KEY="any",
    AWS_DEFAULT_REGION="us-east-1",
    AWS_MAX_ATTEMPTS="1",
    AWS_ENDPOINT_URL=f"http://127.0.0.1:{PORT}",
    EVERGRAM_CACHE="cache",
)
