"""The board and the alerts name series, labels and codes that a running service has."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.running_service import running

from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.serving.http.answers.errors import _STATUS_AND_CODE
from evergram.serving.settings import ServiceSettings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BOARD = json.loads((DEPLOY / "grafana" / "evergram.json").read_text())
GROUPS = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
BOARD_QUERIES = [t["expr"] for panel in BOARD["panels"] for t in panel["targets"]]
QUERIES = [*BOARD_QUERIES, *(rule["expr"] for rule in ALERTS.values())]
# Prometheus's own series, and the labels that it adds to every series.
OWN_SERIES, OWN_LABELS = {"up"}, {"job", "instance"}


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
        handler.metrics.connection_ended("full")
        with served.service.entered() as state:
            handler.metrics.drift.look(state.reader)
        labels: dict[str, set[str]] = defaultdict(set)
        for family in text_string_to_metric_families(served.get("/metrics").text):
            for sample in family.samples:
                labels[sample.name] |= set(sample.labels)
    return labels


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_names_series_and_labels_that_exist(
    query: str, exported: dict[str, set[str]]
) -> None:
    names = series_of(query)
    assert names
    assert names <= {*exported, *OWN_SERIES}
    known = OWN_LABELS.union(*(exported[name] for name in names - OWN_SERIES))
    assert labels_of(query) <= known


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_is_promql(query: str) -> None:
    parser = pytest.importorskip("promql_parser", reason="pip install promql-parser")
    parser.parse(query.replace("$__rate_interval", "5m"))


def test_every_series_of_the_service_is_on_the_board(exported: dict[str, set[str]]) -> None:
    shown = set().union(*map(series_of, BOARD_QUERIES))
    created = {name for name in exported if name.endswith("_created")}
    rest = {re.sub(r"_(count|sum)$", "_bucket", name) for name in {*exported} - created}
    assert rest == shown - OWN_SERIES


def test_legends_and_summaries_name_labels_that_their_query_keeps() -> None:
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= labels_of(target["expr"]), target
    for name, rule in ALERTS.items():
        shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        kept = labels_of(rule["expr"])
        if "by (" not in rule["expr"]:  # nothing is summed: all labels stay
            kept |= {*OWN_LABELS, "side", "version"}
        assert shown <= kept, name


def codes_in_source() -> set[str]:
    """Return every code of a refusal that the service's files write."""
    text = "".join(p.read_text() for p in (ROOT / "src/evergram/serving").rglob("*.py"))
    written = re.findall(r"RefusedError\(\s*\d{3},\s*\"(\w+)\"", text)
    return {*written, *(code for _, _, code in _STATUS_AND_CODE)}


def alternatives() -> Iterator[str]:
    for query in QUERIES:
        for values in re.findall(r"code=~?\"([^\"]+)\"", query):
            yield from values.split("|")


@pytest.mark.parametrize("pattern", [*alternatives()])
def test_every_code_that_an_alert_selects_is_one_that_the_service_gives(pattern: str) -> None:
    assert any(re.fullmatch(pattern, code) for code in codes_in_source())


def test_the_limit_of_buffers_is_the_default_of_the_service() -> None:
    product = ALERTS["EvergramBuffersFull"]["expr"].split("> 0.8 * ")[1]
    size = 1
    for factor in product.split("*"):
        size *= int(factor)
    assert size == ServiceSettings().max_buffered
    assert 'why="full"' in ALERTS["EvergramFull"]["expr"]


def test_alerts_are_complete_and_the_runbook_has_a_section_on_each() -> None:
    page = (ROOT / "docs" / "production.md").read_text()
    described = page.split("## What to do for each alert\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\*\*`(\w+)`", described, re.MULTILINE)) == set(ALERTS)
    for rule in ALERTS.values():
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_board_is_one_that_grafana_provisions() -> None:
    assert BOARD["uid"] == "evergram"
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    [source] = yaml.safe_load((DEPLOY / "grafana" / "datasources.yml").read_text())["datasources"]
    places: list[dict[str, Any]] = []
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for other in places:
            beside = place["x"] >= other["x"] + other["w"] or other["x"] >= place["x"] + place["w"]
            below = place["y"] >= other["y"] + other["h"] or other["y"] >= place["y"] + place["h"]
            assert beside or below, "two panels overlap"
        places.append(place)
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == source["uid"]


def test_prometheus_reads_the_path_that_needs_the_administrators_token(tmp_path: Path) -> None:
    [job] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert job["authorization"]["type"] == "Bearer"
    with running(tmp_path / "line", ServiceSettings(admin_token="secret")) as served:
        ConsumerRegistry.open(served.folder)
        assert served.get(job["metrics_path"]).status_code == 401
        assert served.get(job["metrics_path"], "secret").status_code == 200
    [rules] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["rule_files"]
    assert (DEPLOY / rules).is_file()
