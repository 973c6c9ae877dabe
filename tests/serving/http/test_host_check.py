"""What a web page makes a browser send is refused, unless the page is the service's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.lineages import lineage_of
from tests.support.running_service import Running, running

from evergram.errors import ServiceError
from evergram.serving.app import create_app
from evergram.serving.settings import ServiceSettings

ADMIN = "the-administrators"
OPEN, GUARDED = ServiceSettings(), ServiceSettings(admin_token=ADMIN)
ELSEWHERE = ServiceSettings(host="0.0.0.0", no_auth=True)
NAMED = ServiceSettings(allowed_hosts=("shop.example", "*.internal.example"))


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A service of given settings, made once."""
    folder = tmp_path_factory.mktemp("hosts") / "line"
    lineage_of(folder)
    known: dict[ServiceSettings, Running] = {}
    with ExitStack() as stack:

        def of(settings: ServiceSettings) -> Running:
            if settings not in known:
                known[settings] = stack.enter_context(running(folder, settings))
            return known[settings]

        yield of


@pytest.mark.parametrize(
    ("settings", "host", "answered"),
    [
        (OPEN, "localhost", True),
        (OPEN, "LOCALHOST:8000", True),
        (OPEN, "localhost.:8000", True),
        (OPEN, "127.0.0.1:1", True),
        (OPEN, "127.1.2.3", True),
        (OPEN, "[::1]:8000", True),
        (OPEN, "rebound.attacker.example", False),
        (OPEN, "rebound.attacker.example:8000", False),
        (OPEN, "localhost.attacker.example", False),
        (OPEN, "127.0.0.1.attacker.example", False),
        (OPEN, "192.168.0.7", False),
        (OPEN, "0.0.0.0:8000", False),
        (OPEN, "localhost:8000@attacker.example", False),
        (OPEN, "localhost attacker.example", False),
        (OPEN, "[::1", False),
        (OPEN, "", False),
        # Whoever has no token reads nothing, under whatever name.
        (GUARDED, "rebound.attacker.example", True),
        (ELSEWHERE, "192.168.0.7:8000", True),
        (ELSEWHERE, "[fe80::1]:8000", True),
        (ELSEWHERE, "rebound.attacker.example", False),
        (NAMED, "shop.example:443", True),
        (NAMED, "a.internal.example", True),
        (NAMED, "internal.example", False),
        (NAMED, "ainternal.example", False),
        (NAMED, "localhost", True),
        (ServiceSettings(allowed_hosts=("*",)), "rebound.attacker.example", True),
        (
            ServiceSettings(admin_token=ADMIN, allowed_hosts=("shop.example",)),
            "other.example",
            False,
        ),
    ],
)
def test_a_service_answers_to_its_own_names_only(
    services: Any, settings: ServiceSettings, host: str, answered: bool
) -> None:
    http = services(settings).http
    headers = {"Host": host, "Authorization": f"Bearer {ADMIN}"}
    for path in ("/v1/versions", "/readyz", "/", "/v1/dashboard", "/nowhere"):
        answer = http.get(path, headers=headers)
        assert (answer.status_code != 421) == answered, answer.text
    answer = http.post("/v1/embeddings", json={"input": [1]}, headers=headers)
    assert answer.status_code == (200 if answered else 421)
    if not answered:
        assert answer.json()["error"]["code"] == "host"
        assert "--allowed-host" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("settings", "host", "origin", "answered"),
    [
        (OPEN, "127.0.0.1:8000", "http://127.0.0.1:8000", True),
        (OPEN, "localhost", "http://localhost", True),
        (OPEN, "localhost", "http://localhost:80", True),
        (OPEN, "127.0.0.1:8000", "http://127.0.0.1:3000", False),
        (OPEN, "127.0.0.1:8000", "http://localhost:8000", False),
        (OPEN, "127.0.0.1:8000", "https://attacker.example", False),
        (OPEN, "127.0.0.1:8000", "null", False),
        (OPEN, "127.0.0.1:8000", "", False),
        (OPEN, "127.0.0.1:8000", "http://127.0.0.1:8000@attacker.example", False),
        (OPEN, "127.0.0.1:8000", "http://127.0.0.1:x", False),
        (OPEN, "127.0.0.1:8000", "file://127.0.0.1:8000", False),
        (GUARDED, "shop.example", "https://shop.example", True),
        (GUARDED, "shop.example", "https://attacker.example", False),
        (NAMED, "127.0.0.1:8000", "https://shop.example", True),
        (NAMED, "shop.example", "https://other.example", False),
        (ServiceSettings(allowed_hosts=("*",)), "127.0.0.1", "https://attacker.example", False),
    ],
)
def test_a_service_answers_its_own_pages_only(
    services: Any, settings: ServiceSettings, host: str, origin: str, answered: bool
) -> None:
    headers = {"Host": host, "Origin": origin, "Authorization": f"Bearer {ADMIN}"}
    http = services(settings).http
    answer = http.post("/v1/embeddings", json={"input": [1]}, headers=headers)
    assert answer.status_code == (200 if answered else 403), answer.text
    assert http.get("/v1/versions", headers=headers).status_code == answer.status_code
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
        ("cross-site", "navigate", 200),
        ("cross-site", "no-cors", 403),
        ("same-site", "no-cors", 403),
    ],
)
def test_a_page_elsewhere_may_only_link_to_the_service(
    served: Running, site: str, mode: str, status: int
) -> None:
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
    assert served.http.get("/v1/versions", headers=headers).status_code == status


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "text/plain",
        "text/plain;application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "text/json",
    ],
)
@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/search", "/v1/transform"])
def test_a_body_of_another_type_than_json_is_refused(
    served: Running, path: str, kind: str | None
) -> None:
    """What a page of another origin may send without asking is none of it."""
    headers = {} if kind is None else {"Content-Type": kind}
    answer = served.http.post(path, content=b'{"input": [1], "id": 1}', headers=headers)
    assert answer.status_code == 415, answer.text
    assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["application/json", "APPLICATION/JSON ; charset=utf-8"])
def test_the_type_json_may_name_its_encoding(served: Running, kind: str) -> None:
    headers = {"Content-Type": kind}
    answer = served.http.post("/v1/embeddings", content=b'{"input": [1]}', headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "attacker.example"])
def test_nothing_is_redirected(services: Any, host: str) -> None:
    for settings in (OPEN, ServiceSettings(allowed_hosts=("*",))):
        for path in ("/v1/versions/", "/readyz/", "/v1/models/line/", "//attacker.example/v1"):
            answer = services(settings).http.get(
                path, headers={"Host": host}, follow_redirects=False
            )
            assert answer.status_code in (404, 421)
            assert "location" not in answer.headers


def test_refusals_are_counted(served: Running) -> None:
    served.http.get("/v1/versions", headers={"Host": "attacker.example"})
    assert 'evergram_errors_total{code="host"} 1.0' in served.get("/metrics").text


@pytest.mark.parametrize("name", ["http://shop.example", "shop.example:80", "", "a*.example", "x/"])
def test_a_name_that_is_none_is_refused(served: Running, tmp_path: Path, name: str) -> None:
    with pytest.raises(ServiceError, match="no name of a host"):
        create_app(served.service, ServiceSettings(allowed_hosts=(name,)))
