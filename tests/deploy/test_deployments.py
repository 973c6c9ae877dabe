"""Manifests, compose file, board, alerts and the commands of docs/production.md fit the service."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.command import parsed, run_in_shell, shell_environment
from tests.support.lineages import lineage_of, publish, read_as
from tests.support.running_service import running

from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.serving.connections import DRAIN
from evergram.serving.settings import ADMIN_TOKEN, ServiceSettings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = (DEPLOY / "compose.yaml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE)["services"]
BOARD = json.loads((DEPLOY / "grafana" / "evergram.json").read_text())
GROUPS = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
QUERIES = [t["expr"] for panel in BOARD["panels"] for t in panel["targets"]]
QUERIES += [rule["expr"] for rule in ALERTS.values()]
[JOB] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
# Prometheus's own series, and the labels that it adds to every series.
OWN_SERIES, OWN_LABELS = {"up"}, {"job", "instance"}
PAGE = (ROOT / "docs" / "production.md").read_text()
BLOCKS = dict(re.findall(r"<!-- run: ([\w-]+) -->\n```bash\n(.*?)```", PAGE, re.DOTALL))
FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
MANIFESTS: dict[str, dict[str, Any]] = {
    p.stem: yaml.safe_load(p.read_text()) for p in FILES if p.name != "kustomization.yaml"
}
PODS = {
    name: manifest["spec"].get("template", manifest)["spec"]
    for name, manifest in MANIFESTS.items()
    if manifest["kind"] in ("Deployment", "Pod")
}
CONTAINERS = {name: one for name, pod in PODS.items() for one in pod["containers"]}


@pytest.mark.long
def test_manifests_are_valid_and_have_no_unknown_key() -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for version in ("1.28", "1.34"):  # the oldest and the newest Kubernetes
        for manifest in MANIFESTS.values():
            schemas.validate(manifest, version, strict=True)


def test_pods_and_containers_have_no_rights_and_limits() -> None:
    image = (ROOT / "Dockerfile").read_text()
    for name, pod in PODS.items():
        own, whole = CONTAINERS[name]["securityContext"], pod["securityContext"]
        assert whole["runAsNonRoot"] is True
        assert f"useradd --uid {whole['runAsUser']} " in image
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert pod["automountServiceAccountToken"] is False
        resources = CONTAINERS[name]["resources"]
        assert {"cpu", "memory"} <= resources["requests"].keys()
        assert "memory" in resources["limits"]
        mounted = {mount["name"] for mount in CONTAINERS[name]["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert service["image"] == "evergram" or re.search(r":v?\d+\.\d+\.\d+", service["image"])
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["mem_limit"]
        assert service["pids_limit"] <= 512
        assert not service["user"].removeprefix("${EVERGRAM_USER:-").startswith(("0", "root"))
        # Compose writes a secret from the environment into the container.
        assert service.get("read_only", False) is ("secrets" not in service)
        for mount in service.get("volumes", []):
            assert not mount.startswith("./") or (DEPLOY / mount.split(":")[0]).is_file()
    assert [SERVICES[n]["volumes"][0][-12:] for n in ("evergram", "fill")] == [":/lineage:ro"] * 2


def test_the_service_is_started_as_its_command_line_allows() -> None:
    served = CONTAINERS["deployment"]
    command, options = parsed(served["args"])
    assert command == "serve"
    assert options["host"] == "0.0.0.0"
    [port] = served["ports"]
    assert port["containerPort"] == options["port"]
    [mount] = [m for m in served["volumeMounts"] if m["name"] == "lineage"]
    assert mount["mountPath"] == options["lineage"]
    program, seconds = served["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    takes = int(seconds) + DRAIN + ServiceSettings().timeout
    assert PODS["deployment"]["terminationGracePeriodSeconds"] > takes


def test_probes_ask_for_paths_that_answer_without_a_token(tmp_path: Path) -> None:
    served = CONTAINERS["deployment"]
    kinds = ("startup", "liveness", "readiness")
    paths = {kind: served[f"{kind}Probe"]["httpGet"] for kind in kinds}
    assert {path["port"] for path in paths.values()} == {served["ports"][0]["name"]}
    assert [paths[kind]["path"] for kind in kinds[1:]] == ["/healthz", "/readyz"]
    settings = ServiceSettings(host="0.0.0.0", admin_token="secret")
    with running(tmp_path / "line", settings) as service:
        for path in ("/v1/versions", JOB["metrics_path"]):
            assert service.get(path).status_code == 401
            assert service.get(path, "secret").status_code == 200
        for asked in paths.values():
            answer = service.http.get(asked["path"], headers={"Host": "10.1.2.3:8080"})
            assert answer.status_code == 200


def test_pods_are_reached_at_the_port_of_the_service_alone_and_reach_nobody() -> None:
    policy = MANIFESTS["network"]["spec"]
    [chosen] = policy["podSelector"]["matchExpressions"]
    names = {MANIFESTS[name]["metadata"]["labels"][chosen["key"]] for name in PODS}
    assert (chosen["operator"], set(chosen["values"])) == ("In", names)
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["egress"] == []
    [allowed] = policy["ingress"]
    assert [port["port"] for port in allowed["ports"]] == [
        port["name"] for port in CONTAINERS["deployment"]["ports"]
    ]


def series_of(query: str) -> set[str]:
    """Return the series that a query reads: words that are no label, no function, no keyword."""
    text = re.sub(r"\{[^}]*\}|\"[^\"]*\"|\[[^\]]*\]", " ", query)
    text = re.sub(r"\b(by|on|without|ignoring)\s*\([^)]*\)", " ", text)
    words = re.findall(r"\b[a-z_]\w*\b(?!\s*\()", text)
    return {word for word in words if word not in ("and", "or", "unless")}


def labels_of(query: str) -> set[str]:
    """Return the labels that a query selects by or groups by."""
    matchers = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
    grouped = re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", query)
    return {*matchers, *(name.strip() for part in grouped for name in part.split(","))}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each series that a service exports after some traffic."""
    with running(tmp_path_factory.mktemp("line") / "line") as served:
        served.post("/v1/embeddings", {"input": [1, 2], "model": "line@v0"})
        served.post("/v1/embeddings", {"input": [900]})
        handler = served.http.app.state.handler  # type: ignore[attr-defined]
        handler.metrics.ended.labels("full").inc()
        labels: dict[str, set[str]] = defaultdict(set)
        for family in text_string_to_metric_families(served.get("/metrics").text):
            for sample in family.samples:
                labels[sample.name] |= set(sample.labels)
    return labels


def test_every_query_names_series_and_labels_that_exist(exported: dict[str, set[str]]) -> None:
    for query in QUERIES:
        names = series_of(query)
        assert names, query
        assert names <= {*exported, *OWN_SERIES}, query
        known = OWN_LABELS.union(*(exported[name] for name in names - OWN_SERIES))
        assert labels_of(query) <= known, query


def test_alerts_are_complete_and_the_runbook_has_a_section_on_each() -> None:
    described = PAGE.split("## What to do for each alert\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\*\*`(\w+)`", described, re.MULTILINE)) == set(ALERTS)
    for rule in ALERTS.values():
        assert rule["labels"]["severity"] in ("page", "ticket")


@pytest.fixture
def shell(tmp_path: Path) -> Callable[..., str]:
    """Runs a block of the page in a shell, with the command `evergram` of this environment."""
    lineage_of(tmp_path / "line")
    environment = {
        **shell_environment(tmp_path),
        "LINEAGE": str(tmp_path / "line"),
        "BACKUP": str(tmp_path / "line.tar.gz"),
        "RESTORED": str(tmp_path / "restored"),
    }
    return lambda name, code=0: run_in_shell(BLOCKS[name], environment, tmp_path, code)


@pytest.mark.long
def test_a_lineage_is_backed_up_and_restored(shell: Any, tmp_path: Path) -> None:
    lineage = Lineage.open(tmp_path / "line")
    ConsumerRegistry.open(lineage.path).add("ads", "v0", lineage.resolve)
    (lineage.path / "stores").mkdir(exist_ok=True)
    (lineage.path / "stores" / "large").write_text("a snapshot")
    shell("back-up")
    # Others must not read hashes of tokens.
    assert (tmp_path / "line.tar.gz").stat().st_mode & 0o077 == 0
    shell("restore")
    restored = Lineage.open(tmp_path / "restored")
    assert not (restored.path / "stores").exists()
    for version in range(3):
        assert restored.manifest(version).fingerprint == lineage.manifest(version).fingerprint
        _, rows = restored.view(version).embeddings("object")
        assert (rows - read_as(2, version)).abs().max() < 1e-5
    [consumer] = ConsumerRegistry.open(restored.path).list()
    assert (consumer.name, consumer.pinned) == ("ads", "v0")
    (tmp_path / "line.tar.gz").unlink()
    for file in sorted(lineage.path.glob("embeddings/*/*.parquet"))[-1:]:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        shell("back-up", 2)
        file.unlink()
        shell("back-up", 2)
    assert not (tmp_path / "line.tar.gz").exists()


@pytest.mark.long
def test_versions_are_promoted_and_rolled_back_and_tokens_rotated(
    shell: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "line"
    publish(Lineage.open(folder), 3, promote=False)
    for block, production in (("promote", 3), ("roll-back", 2)):
        shell(block)
        assert Lineage.open(folder).production == production
    consumers = ConsumerRegistry.open(folder)
    consumers.add("ads", "v0", Lineage.open(folder).resolve)
    old = consumers.issue_token("ads")
    shell("rotate")
    assert ConsumerRegistry.open(folder).authenticate(old) is None
    shell("rotate-without-a-gap")
    [consumer] = ConsumerRegistry.open(folder).list()
    assert (consumer.name, consumer.pinned) == ("ads-next", "v0")
    assert consumer.token_sha256 is not None


def test_names_agree_between_manifests_and_every_block_of_bash_is_run_here() -> None:
    names = {"back-up", "restore", "promote", "roll-back", "rotate", "rotate-without-a-gap"}
    assert (set(BLOCKS), PAGE.count("```bash")) == (names, len(names))
    labels = MANIFESTS["deployment"]["spec"]["template"]["metadata"]["labels"]
    assert MANIFESTS["deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert MANIFESTS["service"]["spec"]["selector"] == labels
    assert MANIFESTS["loader"]["metadata"]["labels"] != labels, "it would be sent requests"
    [port] = MANIFESTS["service"]["spec"]["ports"]
    assert port["targetPort"] == CONTAINERS["deployment"]["ports"][0]["name"]
    [variable] = CONTAINERS["deployment"]["env"]
    reference = variable["valueFrom"]["secretKeyRef"]
    assert variable["name"] == ADMIN_TOKEN
    # As it is here it is empty, and a service that others can reach does not start.
    assert MANIFESTS["secret"]["stringData"][reference["key"]] == ""


def test_the_compose_file_agrees_with_itself_and_asks_for_every_secret() -> None:
    _, filled = parsed(SERVICES["fill"]["command"])
    _, served = parsed(SERVICES["evergram"]["command"])
    assert filled["store"] == served["store"]
    [port] = SERVICES["evergram"]["ports"]
    assert port.endswith(f":{served['port']}")
    assert JOB["static_configs"] == [{"targets": [f"evergram:{served['port']}"]}]
    required = {ADMIN_TOKEN, "POSTGRES_PASSWORD", "GRAFANA_PASSWORD", "LINEAGE"}
    assert set(re.findall(r"\$\{(\w+):\?", COMPOSE)) == required
    assert SERVICES["evergram"]["environment"].keys() == {ADMIN_TOKEN, "PGPASSWORD"}
