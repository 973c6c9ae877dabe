"""A real S3 server, moto's, and programs that reach it through fsspec's driver of S3."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError

import pytest
from tests.support.command import PROGRAM, CommandResult

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
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
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
