"""The compose file, checked without an engine: what it names exists and fits together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.command import Command, evergram, parsed
from tests.support.lineages import lineage_of
from tests.support.postgres_server import PostgresServer

from evergram.serving.settings import ADMIN_TOKEN

__all__ = ["evergram"]
ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "deploy" / "compose.yaml").read_text()
COMPOSE = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_every_file_that_it_mounts_exists() -> None:
    mounts = [m for service in SERVICES.values() for m in service.get("volumes", [])]
    files = [m.split(":")[0] for m in mounts if m.startswith("./")]
    assert len(files) >= 5
    for name in files:
        assert (ROOT / "deploy" / name).is_file(), name
    named = {m.split(":")[0] for m in mounts if re.match(r"[a-z]", m)}
    assert named == set(COMPOSE["volumes"])


def test_every_secret_must_be_set() -> None:
    used = set(re.findall(r"\$\{(\w+)", "\n".join(s for s in TEXT.splitlines() if "#" not in s)))
    required = set(re.findall(r"\$\{(\w+):\?", TEXT))
    assert used - required == {"EVERGRAM_USER"}
    assert {ADMIN_TOKEN, "POSTGRES_PASSWORD", "GRAFANA_PASSWORD", "LINEAGE"} == required
    assert COMPOSE["secrets"]["admin_token"] == {"environment": ADMIN_TOKEN}
    assert SERVICES["evergram"]["environment"].keys() == {ADMIN_TOKEN, "PGPASSWORD"}


def test_nothing_listens_to_other_machines_and_images_have_versions() -> None:
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        image = service["image"]
        assert image == "evergram" or re.search(r":v?\d+\.\d+\.\d+", image), name


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_has_no_rights_and_limits(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"] <= 512
    assert not service["user"].removeprefix("${EVERGRAM_USER:-").startswith(("0", "root"))
    # Compose writes a secret from the environment into the container.
    assert service.get("read_only", False) is ("secrets" not in service)


def test_the_service_writes_nothing_into_the_lineage() -> None:
    for name in ("evergram", "fill"):
        [mount] = SERVICES[name]["volumes"]
        assert mount.endswith(":/lineage:ro")


def test_the_image_has_what_the_stores_need() -> None:
    [extras] = re.findall(r'"\.\[(.*)\]"', (ROOT / "Dockerfile").read_text())
    assert {"serve", "pgvector"} <= set(extras.split(","))


def test_both_commands_use_the_same_stores_and_port() -> None:
    fill, filled = parsed(SERVICES["fill"]["command"])
    serve, served = parsed(SERVICES["evergram"]["command"])
    assert (fill, serve) == ("store fill", "serve")
    assert filled["store"] == served["store"]
    [port] = SERVICES["evergram"]["ports"]
    assert port.endswith(f":{served['port']}")
    [job] = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"evergram:{served['port']}"]}]
    database = SERVICES["postgres"]["environment"]
    for store in served["store"]:
        where = f"postgresql://{database['POSTGRES_USER']}@postgres/{database['POSTGRES_DB']}#"
        assert where in store


@pytest.mark.long
def test_filling_a_database_writes_nothing_into_the_lineage(
    tmp_path: Path, evergram: Command
) -> None:
    """So that the lineage may be mounted read-only."""

    def files() -> dict[str, int]:
        return {str(p): p.stat().st_mtime_ns for p in tmp_path.rglob("*")}

    lineage_of(tmp_path / "line")
    before = files()
    server = PostgresServer()
    try:
        address = f"object={server.address('objects')}"
        result = evergram.json("store", "fill", tmp_path / "line", "--store", address, "--index")
        [store] = result["stores"]
        assert store["rows"] == 300
    finally:
        server.stop()
    assert files() == before
