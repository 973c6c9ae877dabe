"""The Dockerfile, checked without building it: what it names exists and fits together."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from urllib.parse import urlparse

import pytest
import typer

from evergram.cli import app

ROOT = Path(__file__).parents[1]
CONSTRAINTS = (ROOT / "constraints.txt").read_text().splitlines()


def instructions() -> list[tuple[str, str]]:
    """Return each instruction with its arguments; continued lines are joined."""
    text = (ROOT / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    split = [line.strip().split(maxsplit=1) for line in whole.splitlines() if line.strip()]
    return [(name, re.sub(r"\s+", " ", rest)) for name, rest in split]


def arguments(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def project() -> dict[str, dict[str, list[str]]]:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    table: dict[str, dict[str, list[str]]] = document["project"]
    return table


def test_copied_files_exist_and_are_in_the_build_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    copies = arguments("COPY")
    assert len(copies) >= 3
    for copy in copies:
        *sources, _ = copy.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source
    kept = {name[1:] for name in ignored if name.startswith("!")}
    assert "*" in ignored
    assert kept == {source for copy in copies for source in copy.split()[:-1]}


def test_installed_packages_are_pinned() -> None:
    steps = [step for step in arguments("RUN") if "pip install" in step]
    assert len(steps) == 2
    for step in steps:
        assert "--constraint constraints.txt" in step
    assert re.findall(r"torch==\S+", steps[0]) == [
        c for c in CONSTRAINTS if c.startswith("torch==")
    ]
    [extras] = re.findall(r'"\.\[(.*)\]"', steps[1])
    assert set(extras.split(",")) <= set(project()["optional-dependencies"])
    assert "PIP_NO_CACHE_DIR=1" in arguments("ENV")[0]


def test_it_does_not_run_as_root() -> None:
    [user] = arguments("USER")
    assert user not in ("root", "0")
    assert any("useradd --uid 10001 --no-create-home" in s and user in s for s in arguments("RUN"))
    order = [name for name, _ in instructions()]
    assert order.index("USER") > max(i for i, name in enumerate(order) if name in ("RUN", "COPY"))
    assert order.index("USER") < order.index("CMD")


def test_command_exposed_port_and_health_check_agree() -> None:
    command = json.loads(arguments("CMD")[0])
    [port] = arguments("EXPOSE")
    assert command[command.index("--port") + 1] == port
    check = json.loads(arguments("HEALTHCHECK")[0].split(" CMD ")[1])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "HEALTHCHECK", "exec")
    [address] = re.findall(r"http://[^']+", check[2])
    assert urlparse(address)[1:3] == (f"127.0.0.1:{port}", "/healthz")


def test_the_container_runs_evergram_serve() -> None:
    name, *words = json.loads(arguments("CMD")[0])
    assert name in project()["scripts"]
    group = typer.main.get_command(app)
    context = group.make_context(name, list(words), resilient_parsing=False)
    assert isinstance(group, typer.core.TyperGroup)
    subcommand, command, rest = group.resolve_command(context, words)
    assert (subcommand, command is None) == ("serve", False)
    assert command is not None
    [volume] = arguments("VOLUME")
    parsed = command.make_context("serve", rest, parent=context).params
    assert volume in map(str, parsed.values())
    assert "0.0.0.0" in parsed.values()
    with pytest.raises(Exception, match="no-such-option"):
        command.make_context("serve", [*rest, "--no-such-option"], parent=context)
