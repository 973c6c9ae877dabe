"""`evergram serve`: its options become settings, and it announces where it listens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import Command
from tests.support.lineages import lineage_of

from evergram.serving import Server, ServiceSettings


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    """The servers that the command made; none of them runs."""
    made: list[Server] = []
    monkeypatch.setattr(Server, "run", lambda server: made.append(server))
    # The process's own log stays as it is.
    monkeypatch.setattr("evergram.cli.serve.log_to_stderr", lambda: None)
    monkeypatch.delenv("EVERGRAM_ADMIN_TOKEN", raising=False)
    return made


@pytest.fixture
def line(tmp_path: Path) -> Path:
    lineage_of(tmp_path / "line")
    return tmp_path / "line"


def test_every_option_is_a_setting_and_mebibytes_are_bytes(
    evergram: Command, line: Path, servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERGRAM_ADMIN_TOKEN", "boss")
    values: dict[str, Any] = {
        "max_batch": 1,
        "max_k": 2,
        "max_body": 3,
        "max_buffered": 4,
        "timeout": 5.5,
        "workers": 6,
        "max_waiting": 7,
        "max_connections": 8,
        "silence": 9.5,
        "keep_alive": 10,
    }
    flags = [part for key, v in values.items() for part in ("--set", f"{key}={v}")]
    host = ("--host", "localhost", "--no-auth", "--allowed-host", "shop.example")
    ran = evergram("serve", line, "--port", 0, *host, *flags)
    assert ran.code == 0, ran.err
    sizes = {key: values[key] * 2**20 for key in ("max_body", "max_buffered")}
    named = {"host": "localhost", "no_auth": True, "allowed_hosts": ("shop.example",)}
    expected = ServiceSettings(**{**values, **sizes, **named, "admin_token": "boss"})
    assert servers[0].settings == expected


def test_people_read_where_it_listens_and_machines_one_line_of_json(
    evergram: Command, line: Path, servers: list[Server]
) -> None:
    code, out, err = evergram("serve", line, "--port", 0)
    assert (code, out) == (0, "")
    assert "Serving version 2 on http://127.0.0.1:" in err
    assert err.endswith(" (open to everybody who can reach it).\n")
    assert [server.settings for server in servers] == [ServiceSettings()]
    result = evergram("serve", line, "--port", 0, "--json")
    assert result.out.count("\n") == 1
    facts = json.loads(result.out)
    assert (facts["lineage"], facts["version"], facts["open"]) == (str(line), 2, True)
    assert facts["url"].startswith("http://127.0.0.1:")


def test_named_stores_are_read_in_place_of_snapshots(
    evergram: Command, line: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def run(server: Server) -> None:
        with server.service.entered() as state:
            read.append(state.reader.store("object").address)

    monkeypatch.setattr(Server, "run", run)
    monkeypatch.setattr("evergram.cli.serve.log_to_stderr", lambda: None)
    store = tmp_path / "elsewhere"
    serve = ("serve", line, "--port", 0, "--store", f"object={store}")
    assert f"There is no store at {store}" in evergram.refused(*serve)
    assert evergram("store", "fill", line, "--store", f"object={store}").code == 0
    assert evergram(*serve).code == 0
    assert read == [f"snapshot:{store}"]
    assert not (line / "stores").exists()
