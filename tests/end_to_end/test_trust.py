"""No name, link, probe, archive, body or password reaches further than it may."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support import onnx_graphs
from tests.support.arrow_requests import ARROW, stream
from tests.support.click_shop import add_probe
from tests.support.command import Command
from tests.support.forging import forge
from tests.support.postgres_server import postgres
from tests.support.serving_process import PATIENCE, newest_vectors, serving

from evergram.evaluation.probe_process import ProbeProcess
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage

ROOT = Path(__file__).parents[2]
EXPORT = "vectors export l out.parquet --side object"
ALIGN = "vectors align 0 new.parquet --lineage l"


@pytest.mark.parametrize(
    ("part", "command"),
    [
        ("embeddings", EXPORT),
        ("embeddings/0/object.parquet", EXPORT),
        ("lineage.json", "lineage list l"),
        ("embeddings", ALIGN),
        ("versions", ALIGN),
    ],
)
def test_a_link_out_of_the_lineage_is_refused(
    evergram: Command, imported_lineage: Path, part: str, command: str
) -> None:
    """Nor is anything cleared away that a link leads to."""
    place, outside = imported_lineage / part, imported_lineage.parent / "outside"
    place.rename(outside)
    if outside.is_dir():
        (outside / "thesis.txt").write_text("years of work")
    place.symlink_to(outside)
    assert "symbolic link" in evergram.refused(command)
    assert not Path("out.parquet").exists()
    assert outside.is_file() or (outside / "thesis.txt").exists()


@pytest.mark.parametrize("name", ["../x", "a\nb"])
def test_names_are_made_by_one_rule(evergram: Command, imported_lineage: Path, name: str) -> None:
    Path("r.toml").write_text(f"name = {json.dumps(name)}\n[data]\nkind = 'synthetic'\n")
    for command, *words in (
        ("vectors import old.parquet --lineage new", f"--name={name}"),
        ("vectors align old.parquet new.parquet --lineage new", f"--name={name}"),
        ("train r.toml --lineage new",),
        ("consumer add l --pin v0 --", name),
        ("lineage label l --", name, "0"),
    ):
        assert "a name consists of letters" in evergram.refused(command, *words)
    assert not Path("new").exists()


def test_a_name_of_any_kind_is_taken_by_all(evergram: Command, imported_lineage: Path) -> None:
    name = "Films.v2_beta-1"
    for command in (
        f"vectors align old.parquet new.parquet --lineage b --name {name}",
        f"consumer add l {name} --pin v0",
        f"lineage label l {name} 0",
    ):
        assert evergram(command).code == 0
    assert Lineage.open("l").resolve(name) == 0


SECRET = "s3cret-w0rd"


@pytest.fixture(scope="module")
def guarded() -> str:
    """A database that asks for a password: an address without a table, and without it."""
    return postgres().address_with_password("", "keeper", SECRET)


@pytest.mark.parametrize("way", ["PGPASSWORD", "pgpass", "address"])
def test_a_password_is_given_without_the_command_line_and_shown_nowhere(
    trained_lineage: Path,
    tmp_path: Path,
    evergram: Command,
    guarded: str,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    address, passwords = f"{guarded}films_{way.lower()}", tmp_path / "pgpass"
    # What the user of the machine has there himself is not looked at.
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    monkeypatch.setenv("PGPASSWORD", "wrong-w0rd")
    refused = evergram.refused("store fill", trained_lineage, "--store", f"candidate={address}")
    assert "PGPASSWORD" in refused
    assert "wrong-w0rd" not in refused
    monkeypatch.delenv("PGPASSWORD")
    if way == "PGPASSWORD":
        monkeypatch.setenv("PGPASSWORD", SECRET)
    elif way == "pgpass":
        passwords.write_text(f"*:*:*:keeper:{SECRET}\n")
        passwords.chmod(0o600)
    else:
        address = address.replace("keeper@", f"keeper:{SECRET}@")
    for command, side in (
        ("store fill --json", "candidate"),
        ("store fill", "candidate"),
        ("store backfill plan --json", "candidate"),
        ("store backfill status", "candidate"),
        ("store fill", "query"),
    ):
        code, out, err = evergram(command, trained_lineage, "--store", f"{side}={address}")
        assert code == (2 if side == "query" else 0), err
        assert SECRET not in out + err
    for path in (p for p in trained_lineage.rglob("*") if p.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path


@pytest.mark.skipif(sys.platform != "linux", reason="the system keeps no limit of memory")
def test_a_probe_that_takes_all_memory_is_refused_it(
    evergram: Command, imported_lineage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("huge.onnx").write_bytes(onnx_graphs.hungry().SerializeToString())
    monkeypatch.setenv("EVERGRAM_PROBE_MIB", "300")
    assert "300 MiB" in add_probe(evergram, "huge.onnx").refusal()


@pytest.mark.parametrize("forged", ["probes/../../data.parquet", "link"])
def test_a_forged_probe_is_not_run(evergram: Command, imported_lineage: Path, forged: str) -> None:
    assert add_probe(evergram, "plain.onnx").code == 0
    if forged == "link":
        probe = ConsumerRegistry.open(imported_lineage).get("ads").probe
        assert probe is not None
        (imported_lineage / probe.data).unlink()
        (imported_lineage / probe.data).symlink_to(Path("data.parquet").absolute())
    else:
        change = lambda facts: facts["consumers"][0]["probe"].update(data=forged)  # noqa: E731
        forge(imported_lineage / "consumers.json", change)
    probe_run = evergram("consumer probe l")
    assert probe_run.code == 1
    assert "The probe of ads (v0) could not be run: " in probe_run.err


@pytest.mark.parametrize("command", [EXPORT, "store fill l --store object=s", "lineage check l"])
def test_a_forged_side_is_read_nowhere(
    evergram: Command, imported_lineage: Path, command: str
) -> None:
    """Its file is there, outside, and its hash is right."""
    outside = imported_lineage.parent.parent / "x.parquet"
    outside.write_bytes((imported_lineage / "embeddings/0/object.parquet").read_bytes())

    def change(facts: dict[str, Any]) -> None:
        facts["embeddings"] = {"../../../x": facts["embeddings"]["object"]}

    forge(imported_lineage / "versions/0/manifest.json", change)
    assert "'../../../x'" in evergram.refused(command)
    assert not Path("out.parquet").exists()
    outside.unlink()


def dies(monkeypatch: pytest.MonkeyPatch, *, at: Callable[..., Any]) -> None:
    """Let the process of every probe be killed when it is asked."""
    Path("python").write_text("#!/bin/sh\nkill -SEGV $$\n")
    Path("python").chmod(0o755)

    def killed(process: ProbeProcess, *arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(Path("python").absolute()))
            return at(process, *arguments)

    monkeypatch.setattr(ProbeProcess, at.__name__, killed)


def test_a_probe_that_dies_fails_the_strict_gate_and_is_else_a_warning(
    evergram: Command, imported_lineage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert add_probe(evergram, "plain.onnx", "--limit", "0.9").code == 0
    dies(monkeypatch, at=ProbeProcess.value)
    assert "could not be run: " in evergram.refused(f"{ALIGN} --strict-probes")
    assert Lineage.open(imported_lineage).newest == 0
    ran = evergram(ALIGN)
    assert ran.code == 0, ran.err
    assert "ended by SIGSEGV without an answer" in ran.err
    (probe,) = Lineage.open(imported_lineage).metrics(1)["probes"]
    assert (probe["value"], probe["broken"]) == (None, True)
    assert evergram("consumer probe l").code == 1


DYING = """
import sys
from pathlib import Path
import torch
from tests.support.dying import die_at
from evergram.cli import main
# All that a command imports, before its operations on files are counted.
import evergram.releasing.align, evergram.releasing.probes
import evergram.lineage.consumers
number, folder, *sys.argv = sys.argv[1:]
die_at(int(number), Path(folder))
main()
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [3, 20, 40, 60, 80])
def test_a_command_that_is_killed_leaves_whole_versions(
    evergram: Command, imported_lineage: Path, number: int
) -> None:
    """The command itself, killed just before one of its operations on the lineage's files."""
    align = ["evergram", *ALIGN.split()[:-1], str(imported_lineage)]
    died = subprocess.run(
        [sys.executable, "-c", DYING, str(number), str(imported_lineage), *align],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    newest = Lineage.open(imported_lineage).newest
    checked = evergram("lineage check l")
    # Lines are broken where they are full.
    assert checked.code == 0 or "a publication was killed" in " ".join(checked.err.split())
    assert evergram(f"vectors align {newest} old.parquet --lineage l").code == 0
    assert evergram("lineage check l").code == 0
    assert not list(imported_lineage.rglob(".*.part"))


# Bytes of a body, a little below the limit of a request.
MANY = 16 * 2**20 - 100


def hostile_bodies() -> dict[str, tuple[str, str, bytes]]:
    """Return requests by name: the route, the content type, and a body of sixteen megabytes."""

    def of(before: bytes, unit: bytes, after: bytes) -> bytes:
        return before + unit * ((MANY - len(before) - len(after)) // len(unit)) + after

    plain, ids = "application/json", of(b'{"ids": [', b"[],", b"[]]}")
    columns = (ids[: 2**20] + b"[]]}").decode()
    one = of(b'{"input": {"features": {"a": [', b"[],", b"[]]}}}")
    return {
        "input of lists": ("embeddings", plain, of(b'{"input": [', b"[],", b"[]]}")),
        "input of objects": ("embeddings", plain, of(b'{"input": [', b"{},", b"{}]}")),
        "one object": ("embeddings", plain, one),
        "ids": ("search", plain, ids.replace(b"{", b'{"id": 1, ', 1)),
        "vectors": ("transform", plain, of(b'{"source": 1, "vectors": [', b"[],", b"[]]}")),
        "one vector": ("search", plain, of(b'{"vector": [', b"[],", b"[]]}")),
        "ids of a stream": ("search", ARROW, stream({"vector": newest_vectors()}, columns)),
    }


@pytest.mark.long
def test_one_body_exhausts_no_memory_and_stalls_nobody(two_versions: Path) -> None:
    bodies = hostile_bodies()
    with serving(two_versions) as served:
        assert served.post("embeddings", {"input": [1]}).status_code == 200
        before, stop, seconds = served.peak_memory(), threading.Event(), [0.0]

        def ask() -> None:
            with httpx.Client(base_url=served.url, timeout=PATIENCE) as http:
                while not stop.is_set():
                    started = time.monotonic()
                    assert http.post("/v1/embeddings", json={"input": [1]}).status_code == 200
                    seconds.append(time.monotonic() - started)

        other = threading.Thread(target=ask)
        other.start()
        try:
            for name, (route, kind, body) in bodies.items():
                answer = served.post(route, body, **{"Content-Type": kind})
                assert answer.status_code == 413, (name, answer.text)
                assert len(answer.content) < 1000
        finally:
            stop.set()
            other.join()
        assert served.alive
        # One such body once took gigabytes, and a sixteenth of it kept others waiting for 4.6 s.
        assert served.peak_memory() - before < 300 * 2**20
        assert max(seconds) < 3
