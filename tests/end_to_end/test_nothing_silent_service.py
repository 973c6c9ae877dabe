"""`evergram serve` answers no web page of a stranger, and no consumer more than is his: promises 15
and 20, and what the service shows of itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.arrow_requests import ARROW, stream
from tests.support.command import Command, exit_code
from tests.support.lineages import lineage_of, publish
from tests.support.raw_http import post_bytes, read_until_closed
from tests.support.serving_process import (
    ServingProcess,
    newest_vectors,
    serving,
)

from evergram.lineage.consumers.registry import ConsumerRegistry

ROUTES = ("embeddings", "search", "transform")


@pytest.fixture(scope="module")
def opened(two_versions: Path) -> Iterator[ServingProcess]:
    """A service that asks for no token."""
    with serving(two_versions) as process:
        yield process


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServingProcess, str]]:
    """A service that asks for tokens, and that of a consumer who reads version 0."""
    folder = tmp_path_factory.mktemp("guarded") / "shop"
    lineage_of(folder, versions=2)
    assert exit_code("consumer", "add", folder, "ads", "--pin", "v0") == 0
    token = ConsumerRegistry.open(folder).issue_token("ads")
    with serving(folder) as process:
        yield process, token


@pytest.mark.long
@pytest.mark.parametrize("host", ["rebound.attacker.example", "localhost.attacker.example:8000"])
def test_15_a_name_that_leads_here_reads_nothing(opened: ServingProcess, host: str) -> None:
    for path in ("/", "/v1/versions", "/v1/dashboard", "/openapi.json", "/metrics", "/readyz"):
        answer = opened.http.get(path, headers={"Host": host})
        assert answer.status_code == 421
        assert "--allowed-host" in answer.json()["error"]["message"]
    assert opened.post("embeddings", {"input": [1]}, Host=host).status_code == 421


def test_15_a_page_of_another_origin_posts_nothing(opened: ServingProcess) -> None:
    for origin in ("https://attacker.example", "null", "http://127.0.0.1:1"):
        answer = opened.post("embeddings", {"input": [1]}, Origin=origin)
        assert answer.status_code == 403, answer.text
    own = opened.url
    assert opened.post("embeddings", {"input": [1]}, Origin=own).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_15_json_says_that_it_is(opened: ServingProcess, kind: str) -> None:
    for route in ROUTES:
        answer = opened.post(route, {"input": [1]}, **{"Content-Type": kind})
        assert answer.status_code == 415, answer.text


def test_15_a_redirect_never_names_a_foreign_host(opened: ServingProcess) -> None:
    for host in ("attacker.example", "127.0.0.1"):
        answer = opened.http.get("/v1/versions/", headers={"Host": host})
        assert "location" not in answer.headers
        assert answer.status_code in (404, 421)


@pytest.mark.long
def test_15_more_names_may_be_given(two_versions: Path, evergram: Command) -> None:
    with serving(
        two_versions, "--allowed-host", "shop.example", "--allowed-host", "*.internal"
    ) as served:
        for host, status in (
            ("shop.example", 200),
            ("a.internal:443", 200),
            ("localhost", 200),
            ("other.example", 421),
        ):
            answer = served.http.get("/v1/versions", headers={"Host": host})
            assert answer.status_code == status
    sentence = evergram.refused("serve", two_versions, "--allowed-host", "http://shop.example")
    assert "http://shop.example is no name of a host" in sentence


@pytest.mark.parametrize("fingerprint", [5, ["a"], {}])
def test_20_a_fingerprint_that_is_no_text_is_refused(
    opened: ServingProcess, fingerprint: Any
) -> None:
    for route, rest in (("search", {"version": 1}), ("transform", {"source": 1, "target": 0})):
        body = stream({"vector": newest_vectors()}, {**rest, "fingerprint": fingerprint})
        answer = opened.post(route, body, **{"Content-Type": ARROW})
        assert answer.status_code == 400, answer.text
        assert "fingerprint" in answer.json()["error"]["message"]


@pytest.mark.long
def test_20_a_refusal_does_not_tell_which_versions_there_are(
    guarded: tuple[ServingProcess, str],
) -> None:
    served, token = guarded
    refusals = set()
    for version in ("v1", "newest", "v7", "nightly"):
        body = {"input": [1], "version": version}
        answer = served.post("embeddings", body, Authorization=f"Bearer {token}")
        refusals.add((answer.status_code, answer.json()["error"]["message"].replace(version, "?")))
    assert len(refusals) == 1
    body = {"input": [1], "version": "v0"}
    assert served.post("embeddings", body, Authorization=f"Bearer {token}").status_code == 200


@pytest.mark.long
def test_20_two_tokens_in_one_request_are_refused(guarded: tuple[ServingProcess, str]) -> None:
    served, token = guarded
    both = post_bytes(b'{"input": [1]}', Connection="close").replace(
        b"Content-Length", f"Authorization: Bearer {token}\r\n".encode() * 2 + b"Content-Length"
    )
    with served.connect(both) as connection:
        answer = read_until_closed(connection)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"more than once" in answer


def dashboard(served: ServingProcess) -> dict[str, Any]:
    """Return the figures of the dashboard that change while the service runs."""
    answer = served.http.get("/v1/dashboard")
    assert answer.status_code == 200, answer.text
    live: dict[str, Any] = answer.json()["live"]
    return live


@pytest.mark.long
def test_also_the_dashboard_shows_a_backfill_under_way(tmp_path: Path, evergram: Command) -> None:
    folder, store = tmp_path / "shop", f"object={tmp_path / 'store'}"
    lineage = lineage_of(folder, versions=1)
    assert evergram("store", "fill", folder, "--store", store).code == 0
    publish(lineage, 1)
    with serving(folder) as served:
        assert dashboard(served)["backfill"] == []
        plan = evergram("store", "backfill", "plan", folder, "--store", store, "--batch", 50)
        assert plan.code == 0
        apply = evergram("store", "backfill", "apply", folder, "--store", store, "--rows", 100)
        assert apply.code == 0
        expected = {"side": "object", "version": 1, "done": 100, "total": 300, "state": "paused"}
        (shown,) = dashboard(served)["backfill"]
        assert {name: shown[name] for name in expected} == expected
        assert shown["per_minute"] > 0
