"""What holds while a case runs: a full disk, a read-only folder, a held lock, a service cut off."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager as Context
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from tests.support.bad_input.case import tree_of

# Seconds after which a command that has neither refused nor ended is stopped.
DEADLINE = 30


def all_of(*conditions: Callable[[], Context[Any]]) -> Callable[[], Context[Any]]:
    """Return several conditions as one."""

    @contextmanager
    def during() -> Iterator[None]:
        with ExitStack() as stack:
            for condition in conditions:
                stack.enter_context(condition())
            yield

    return during


@contextmanager
def deadline() -> Iterator[None]:
    """Fail a case that waits; a command that serves is stopped as soon as it would answer."""

    def stop(*_: object) -> None:
        pytest.fail(f"the command neither refused its input nor ended in {DEADLINE} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def no_answer() -> Iterator[None]:
    """Fail `evergram serve` where it would begin to answer requests."""

    def run(_: object) -> None:
        pytest.fail("the input was not refused: the service began to answer")

    with pytest.MonkeyPatch.context() as patch, deadline():
        patch.setattr("evergram.serving.server.Server.run", run)
        patch.setattr("evergram.serving.server_processes.ServerProcesses.run", run)
        patch.setattr("evergram.cli.serve.log_to_stderr", lambda: None)
        patch.delenv("EVERGRAM_ADMIN_TOKEN", raising=False)
        yield


def environment(**variables: str) -> Callable[[], Context[Any]]:
    """Return the condition that variables have these values."""

    @contextmanager
    def during() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            yield

    return during


def patched(name: str, value: object) -> Callable[[], Context[Any]]:
    """Return the condition that a name of a module or class has another value."""

    @contextmanager
    def during() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(name, value)
            yield

    return during


def locked(file: str) -> Callable[[], Context[Any]]:
    """Return the condition that another process holds a lock."""

    @contextmanager
    def during() -> Iterator[None]:
        # A lock of flock(2) is one of the open file: a second one in this process is kept out, too.
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


def full_disk(folder: str) -> Callable[[], Context[Any]]:
    """Return the condition that a folder is a disk of its own that has no more room.

    Afterwards nothing may have been written to it.
    """

    @contextmanager
    def during() -> Iterator[None]:
        with _mounted(folder, "-t", "tmpfs", "-o", "size=64k", "tmpfs"):
            ballast = Path(folder) / "ballast"
            with ballast.open("wb", buffering=0) as file:
                file.write(bytes(48_000))
            before = tree_of(Path(folder))
            yield
            assert tree_of(Path(folder)) == before

    return during


def read_only(folder: str) -> Callable[[], Context[Any]]:
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


def answering(content: bytes, variable: str = "") -> Callable[[], Context[Any]]:
    """Return the condition that a server sends these bytes to every request, and hangs up.

    Args:
        content: whole answers, halves of ones, or none.
        variable: of the environment that has the server's address; port PORT if there is none.
    """

    @contextmanager
    def during() -> Iterator[None]:
        with socket.create_server(("127.0.0.1", 0 if variable else PORT)) as server:
            thread = threading.Thread(target=_answer, args=(server, content))
            thread.start()
            try:
                with pytest.MonkeyPatch.context() as patch:
                    if variable:
                        address = f"http://127.0.0.1:{server.getsockname()[1]}"
                        patch.setenv(variable, address)
                    yield
            finally:
                server.shutdown(socket.SHUT_RDWR)
                thread.join()

    return during


def free_port() -> int:
    """Return a port that nobody listens at; tests that run beside these have others."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


# Of a server that a case's command line names.
PORT = free_port()
CUT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n{"
PAGE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 21\r\nConnection: close\r\n\r\n"
    b"<html>a page</html>\r\n"
)


def _answer(server: socket.socket, content: bytes) -> None:
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
def taken_port() -> Iterator[None]:
    """Listen at PORT."""
    with socket.create_server(("127.0.0.1", PORT)):
        yield


def edited(file: str, **values: Any) -> Callable[[Path], None]:
    """Return a function that changes values of a JSON file, as somebody does by hand."""

    def make(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return make
