"""The page and its files: their types, their headers, and nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from tests.support.dashboards import make_lineage, serve

from evergram.lineage.lineage import Lineage
from evergram.serving.dashboard import page
from evergram.serving.dashboard.data import dashboard_data
from evergram.serving.dashboard.schemas import DashboardData, Live


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return make_lineage(tmp_path / "lineage")


def test_the_page_and_its_files_are_sent_with_strict_headers(lineage: Lineage) -> None:
    data = dashboard_data(lineage, [], Live())
    with serve(data) as service, httpx.Client(base_url=service.url) as client:
        for path, kind in (
            ("/", "text/html"),
            ("/dashboard/dashboard.css", "text/css"),
            ("/dashboard/chain.js", "text/javascript"),
        ):
            answer = client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
            policy = dict(
                rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; ")
            )
            assert policy["default-src"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert policy["img-src"] == "'self' data:"
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
        for path in ("/dashboard/nothing.js", "/dashboard/../dashboard.py", "/dashboard/%2e%2e/x"):
            assert client.get(path).status_code == 404
        answer = client.get("/v1/dashboard")
        assert answer.json() == data.model_dump(mode="json")
        assert answer.headers["cache-control"] == "no-store"
        described = client.get("/openapi.json").json()
        assert list(described["paths"]) == ["/v1/dashboard"]
        assert "fingerprint" in described["components"]["schemas"]["VersionFacts"]["properties"]
        service.token = "secret"
        assert client.get("/v1/dashboard").status_code == 401
        assert client.get("/").status_code == 200


def test_the_page_loads_nothing_from_elsewhere() -> None:
    folder = Path(page.__file__).parent / "static"
    names = {path.name for path in folder.iterdir()}
    assert {"dashboard.html", "dashboard.js", "dashboard.css"} <= names
    for path in folder.iterdir():
        # The two names of namespaces are never fetched.
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in text.replace("// ", ""), path
        assert "innerHTML" not in text, path
        assert "style=" not in text, path


def test_the_python_of_the_document_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[3] / "docs" / "dashboard.md").read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    make_lineage(tmp_path / "lineages" / "films", 2)
    monkeypatch.chdir(tmp_path)
    exec(compile(block[1], "dashboard.md", "exec"), {})
    printed = DashboardData.model_validate_json(capsys.readouterr().out)
    assert [v.version for v in printed.versions] == [0, 1]
