"""The manifests: valid by Kubernetes' own schemas, and fitting the service."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.command import parsed
from tests.support.running_service import running

from evergram.errors import ServiceError
from evergram.serving.http.connections import DRAIN
from evergram.serving.settings import ADMIN_TOKEN, ServiceSettings, admin_token

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
FILES = sorted(p for p in FOLDER.glob("*.yaml") if p.name != "kustomization.yaml")
MANIFESTS: dict[str, dict[str, Any]] = {p.stem: yaml.safe_load(p.read_text()) for p in FILES}
# The oldest and the newest Kubernetes that the manifests are checked for.
VERSIONS = ("1.28", "1.34")


def pod(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = MANIFESTS[name]["spec"]
    return spec["template"]["spec"] if "template" in spec else spec


def container(name: str) -> dict[str, Any]:
    containers: list[dict[str, Any]] = pod(name)["containers"]
    assert len(containers) == 1
    return containers[0]


def validate(manifest: dict[str, Any], version: str) -> None:
    """Compare with Kubernetes' schema, where an unknown key is an error."""
    reason = "the schemas are not installed: pip install kubernetes-validate"
    schemas = pytest.importorskip("kubernetes_validate", reason=reason)
    schemas.validate(manifest, version, strict=True)


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_valid(name: str, version: str) -> None:
    validate(MANIFESTS[name], version)


def test_a_wrong_manifest_is_refused() -> None:
    wrong = copy.deepcopy(MANIFESTS["deployment"])
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(Exception, match="readynessProbe"):
        validate(wrong, VERSIONS[-1])


PODS = [name for name, manifest in MANIFESTS.items() if manifest["kind"] in ("Deployment", "Pod")]


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_no_rights_and_asks_for_what_it_needs(name: str) -> None:
    own, whole = container(name)["securityContext"], pod(name)["securityContext"]
    assert whole["runAsNonRoot"] is True
    assert whole["runAsUser"] == 10001
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert pod(name)["automountServiceAccountToken"] is False
    assert {"cpu", "memory"} <= container(name)["resources"]["requests"].keys()
    assert "memory" in container(name)["resources"]["limits"]
    volumes = {volume["name"] for volume in pod(name)["volumes"]}
    assert {mount["name"] for mount in container(name)["volumeMounts"]} == volumes


def test_the_user_is_that_of_the_image() -> None:
    image = (FOLDER.parents[1] / "Dockerfile").read_text()
    assert f"useradd --uid {pod('deployment')['securityContext']['runAsUser']} " in image


def test_the_service_is_started_as_its_command_line_allows() -> None:
    served = container("deployment")
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
    assert pod("deployment")["terminationGracePeriodSeconds"] > takes


def test_probes_ask_for_paths_that_answer_without_a_token(tmp_path: Path) -> None:
    served = container("deployment")
    paths = {kind: served[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness")}
    paths["readiness"] = served["readinessProbe"]["httpGet"]
    assert {path["port"] for path in paths.values()} == {served["ports"][0]["name"]}
    assert paths["readiness"]["path"] == "/readyz"
    assert paths["liveness"]["path"] == "/healthz"
    settings = ServiceSettings(host="0.0.0.0", admin_token="secret")
    with running(tmp_path / "line", settings) as service:
        assert service.get("/v1/versions").status_code == 401
        for path in paths.values():
            asked = service.http.get(path["path"], headers={"Host": "10.1.2.3:8080"})
            assert asked.status_code == 200


def test_pods_are_reached_at_the_port_of_the_service_alone_and_reach_nobody() -> None:
    policy = MANIFESTS["network"]["spec"]
    [chosen] = policy["podSelector"]["matchExpressions"]
    names = {MANIFESTS[name]["metadata"]["labels"][chosen["key"]] for name in PODS}
    assert (chosen["operator"], set(chosen["values"])) == ("In", names)
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["egress"] == []
    [allowed] = policy["ingress"]
    assert [port["port"] for port in allowed["ports"]] == [
        port["name"] for port in container("deployment")["ports"]
    ]


def test_names_agree() -> None:
    deployment, service = MANIFESTS["deployment"], MANIFESTS["service"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    assert MANIFESTS["loader"]["metadata"]["labels"] != labels, "it would be sent requests"
    assert service["spec"]["ports"][0]["targetPort"] == container("deployment")["ports"][0]["name"]
    claim = MANIFESTS["volume"]["metadata"]["name"]
    for name in ("deployment", "loader"):
        [volume] = [v for v in pod(name)["volumes"] if "persistentVolumeClaim" in v]
        assert volume["persistentVolumeClaim"]["claimName"] == claim
    kept = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert {*kept} == {f"{name}.yaml" for name in MANIFESTS} - {"secret.yaml", "loader.yaml"}


def test_a_service_with_the_secret_as_it_is_here_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [variable] = container("deployment")["env"]
    secret = MANIFESTS["secret"]
    assert variable["name"] == ADMIN_TOKEN
    reference = variable["valueFrom"]["secretKeyRef"]
    assert reference["name"] == secret["metadata"]["name"]
    monkeypatch.setenv(ADMIN_TOKEN, secret["stringData"][reference["key"]])
    assert admin_token() is None
    with pytest.raises(ServiceError, match=ADMIN_TOKEN):
        ServiceSettings(host="0.0.0.0", admin_token=admin_token()).check(tokens=False)
