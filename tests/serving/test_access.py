"""Who may read what, and which names and pages a service answers to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.arrow_requests import ARROW, stream
from tests.support.lineages import DIMS, lineage_of, publish
from tests.support.running_service import Running, running

from evergram.errors import ServiceError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.serving.settings import ServiceSettings, admin_token

ADMIN = "the-administrators"


@dataclass
class Guarded:
    served: Running
    tokens: dict[str, str]

    def send(self, path: str, body: Any, token: str | None) -> Any:
        return self.served.post(path, body, token)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Three versions; `stable` is on 1, `canary` on 2. Three consumers, each with other rights."""
    folder = tmp_path_factory.mktemp("guarded") / "line"
    lineage = lineage_of(folder, versions=2)
    lineage.label("kept", 1)
    publish(lineage, 2)
    lineage.label("stable", 1)
    lineage.unlabel("kept")
    lineage.label("canary", 2)
    consumers = ConsumerRegistry.open(folder)
    for name, pinned, allowed in (
        ("old", "v0", ()),
        ("prod", "stable", ()),
        ("both", "v0", ("canary",)),
    ):
        consumers.add(name, pinned, lineage.resolve, allowed=allowed)
    tokens = {c.name: consumers.issue_token(c.name) for c in consumers.list()}
    with running(folder, ServiceSettings(admin_token=ADMIN)) as served:
        yield Guarded(served, tokens)


MAY = {"old": {0}, "prod": {1}, "both": {0, 2}}
NUMBERS = {"stable": 1, "canary": 2, "newest": 2, None: None}
WAYS = [None, 0, 1, 2, "0", "v1", "2", "v2", "stable", "canary", "newest", "v00", "v01", "v002"]


def number_of(what: Any, default: int) -> int:
    if what is None:
        return default
    return NUMBERS[what] if what in NUMBERS else int(str(what).removeprefix("v"))  # type: ignore[return-value]


def asked_of(route: str, version: Any, other: Any, by_model: bool) -> tuple[str, Any]:
    """A request of a route that names a version in one of its ways."""
    if route == "embeddings":
        if by_model and version is not None:
            return "/v1/embeddings", {"input": [1], "model": f"line@{version}"}
        named = {} if version is None else {"version": version}
        return "/v1/embeddings", {"input": [1], **named}
    if route == "search":
        named = {} if version is None else {"version": version}
        return "/v1/search", {"id": 1, "k": 1, **named}
    named = {} if version is None else {"target": version}
    dim = DIMS[number_of(other, 0)]
    return "/v1/transform", {"vectors": [[0.5] * dim], "source": other, **named}


@pytest.mark.long
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    who=st.sampled_from(sorted(MAY)),
    route=st.sampled_from(["embeddings", "search", "transform"]),
    version=st.sampled_from(WAYS),
    other=st.sampled_from([w for w in WAYS if w is not None]),
    by_model=st.booleans(),
    arrow=st.booleans(),
)
def test_a_token_reads_only_what_it_may(
    guarded: Guarded, who: str, route: str, version: Any, other: Any, by_model: bool, arrow: bool
) -> None:
    path, body = asked_of(route, version, other, by_model)
    headers = {"Authorization": f"Bearer {guarded.tokens[who]}"}
    if arrow and route != "search":
        rows = body.pop("input") if route == "embeddings" else body.pop("vectors")
        column = {"id": pa.array(rows)} if route == "embeddings" else {"vector": pa.array(rows)}
        answer = guarded.served.http.post(
            path, content=stream(column, body), headers={**headers, "Content-Type": ARROW}
        )
    else:
        answer = guarded.served.http.post(path, json=body, headers=headers)
    default = {"old": 0, "prod": 1, "both": 0}[who]
    needed = {number_of(version, default)}
    if route == "transform":
        needed.add(number_of(other, default))
    if needed <= MAY[who]:
        # A forward map may be missing; who may read is not kept out for another reason.
        assert answer.status_code in (200, 400), answer.text
        assert answer.status_code == 200 or route == "transform"
        if answer.status_code == 200:
            assert int(answer.headers["x-evergram-version"]) == number_of(version, default)
    else:
        assert answer.status_code == 403, (needed, answer.text)
        assert "x-evergram-version" not in answer.headers
        assert "embedding" not in answer.json()


@pytest.mark.parametrize("who", sorted(MAY))
def test_lists_name_only_what_may_be_read(guarded: Guarded, who: str) -> None:
    token = guarded.tokens[who]
    listed = guarded.served.get("/v1/versions", token).json()
    assert {v["version"] for v in listed["data"]} == MAY[who]
    names = {m["id"] for m in guarded.served.get("/v1/models", token).json()["data"]}
    labels = {k for k, v in (("stable", 1), ("canary", 2)) if v in MAY[who]}
    wanted = {f"line@v{n}" for n in MAY[who]} | {f"line@{k}" for k in labels} | {"line"}
    assert names == wanted
    for n in {0, 1, 2} - MAY[who]:
        assert guarded.served.get(f"/v1/models/line@v{n}", token).status_code == 404
    for path in ("/v1/consumers", "/v1/dashboard", "/metrics"):
        assert guarded.served.get(path, token).status_code == 403


def test_without_a_known_token_nothing_is_read(guarded: Guarded) -> None:
    for header in (None, "", "Bearer", "Bearer ", "Bearer x", "Basic eDp5", "x"):
        headers = {} if header is None else {"Authorization": header}
        answer = guarded.served.http.get("/v1/versions", headers=headers)
        assert answer.status_code == 401, header
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_the_administrator_reads_everything(guarded: Guarded) -> None:
    for version in (0, 1, 2):
        answer = guarded.send("/v1/embeddings", {"input": [1], "version": version}, ADMIN)
        assert answer.json()["evergram"]["version"] == version
    consumers = guarded.served.get("/v1/consumers", ADMIN)
    versions = {c["name"]: c["version"] for c in consumers.json()["data"]}
    assert versions == {"old": 0, "prod": 1, "both": 0}
    assert "token" not in consumers.text
    assert guarded.served.get("/metrics", ADMIN).status_code == 200


@pytest.mark.parametrize("route", ["embeddings", "search", "transform", "model"])
def test_a_refusal_does_not_tell_whether_there_is_such_a_version(
    guarded: Guarded, route: str
) -> None:
    refusals = set()
    for what in ("v1", "v2", "stable", "canary", "newest", "v7", "nightly", "v" + "9" * 60, 1, 7):
        by_model = route == "model"
        path, asked = asked_of("embeddings" if by_model else route, what, "v0", by_model)
        answer = guarded.send(path, asked, guarded.tokens["old"])
        message = answer.json()["error"]["message"]
        assert "may read v0." in message
        refusals.add(
            (answer.status_code, message.replace(f"'{what}'", "?").replace(f" {what};", " ?;"))
        )
    assert len(refusals) == 1, refusals
    assert refusals.pop()[0] == 403


def test_an_allowed_version_that_is_gone_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "line"
    lineage = lineage_of(folder, versions=3)
    consumers = ConsumerRegistry.open(folder)
    consumers.add("ads", "v0", lineage.resolve, allowed=("v1",))
    token = consumers.issue_token("ads")
    lineage.retire(1)
    with running(folder) as served:
        for what, status in ((1, 404), ("v01", 404), ("v2", 403), ("v3", 403), (0, 200)):
            answer = served.post("/v1/embeddings", {"input": 1, "version": what}, token)
            assert answer.status_code == status, answer.text


def test_two_tokens_in_one_request_are_refused(guarded: Guarded, served: Running) -> None:
    good, other = guarded.tokens["both"], guarded.tokens["old"]
    for http, first, second in (
        (guarded.served.http, good, other),
        (guarded.served.http, good, good),
        (served.http, "any", "any"),
    ):
        headers = [("Authorization", f"Bearer {token}") for token in (first, second)]
        for answer in (
            http.post("/v1/embeddings", json={"input": [1]}, headers=headers),
            http.get("/v1/versions", headers=headers),
            http.get("/v1/dashboard", headers=headers),
            http.get("/metrics", headers=headers),
        ):
            assert answer.status_code == 400
            assert "more than once" in answer.json()["error"]["message"]


def test_a_label_that_moves_takes_its_readers_along(tmp_path: Path) -> None:
    folder = tmp_path / "line"
    lineage = lineage_of(folder, versions=2)
    lineage.label("stable", 1)
    consumers = ConsumerRegistry.open(folder)
    consumers.add("prod", "stable", lineage.resolve)
    token = consumers.issue_token("prod")
    with running(folder) as served:
        asked = {"input": 1}
        assert served.post("/v1/embeddings", asked, token).json()["evergram"]["version"] == 1
        ConsumerRegistry.open(folder).remove("prod")
        served.service.refresh()
        # The last token is gone; the service does not become open by that.
        assert served.post("/v1/embeddings", asked, token).status_code == 401
        assert served.post("/v1/embeddings", asked).status_code == 401


def test_tokens_are_in_no_answer(guarded: Guarded) -> None:
    for path in (
        "metrics",
        "v1/consumers",
        "v1/dashboard",
        "v1/versions",
        "openapi.json",
        "readyz",
    ):
        text = guarded.served.get(f"/{path}", ADMIN).text
        assert not [secret for secret in (*guarded.tokens.values(), ADMIN) if secret in text], path


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
        (OPEN, "LOCALHOST:8000", True),
        (OPEN, "localhost.:8000", True),
        (OPEN, "127.1.2.3", True),
        (OPEN, "[::1]:8000", True),
        (OPEN, "rebound.attacker.example", False),
        (OPEN, "localhost.attacker.example", False),
        (OPEN, "127.0.0.1.attacker.example", False),
        (OPEN, "0.0.0.0:8000", False),
        (OPEN, "localhost:8000@attacker.example", False),
        (OPEN, "", False),
        # Whoever has no token reads nothing, under whatever name.
        (GUARDED, "rebound.attacker.example", True),
        (ELSEWHERE, "192.168.0.7:8000", True),
        (ELSEWHERE, "rebound.attacker.example", False),
        (NAMED, "shop.example:443", True),
        (NAMED, "a.internal.example", True),
        (NAMED, "internal.example", False),
        (NAMED, "ainternal.example", False),
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
    for path in ("/v1/versions", "/readyz", "/"):
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
        (OPEN, "localhost", "http://localhost:80", True),
        (OPEN, "127.0.0.1:8000", "http://127.0.0.1:3000", False),
        (OPEN, "127.0.0.1:8000", "https://attacker.example", False),
        (OPEN, "127.0.0.1:8000", "null", False),
        (OPEN, "127.0.0.1:8000", "http://127.0.0.1:8000@attacker.example", False),
        (OPEN, "127.0.0.1:8000", "file://127.0.0.1:8000", False),
        (GUARDED, "shop.example", "https://shop.example", True),
        (NAMED, "127.0.0.1:8000", "https://shop.example", True),
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
    ],
)
def test_a_page_elsewhere_may_only_link_to_the_service(
    served: Running, site: str, mode: str, status: int
) -> None:
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
    assert served.http.get("/v1/versions", headers=headers).status_code == status


def test_a_body_of_another_type_than_json_is_refused(served: Running) -> None:
    types = (
        None,
        "",
        "text/plain",
        "text/plain;application/json",
        "text/json",
        "application/jsonp",
    )
    for kind in (*types, "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        headers = {} if kind is None else {"Content-Type": kind}
        for route in ("embeddings", "search", "transform"):
            answer = served.http.post(f"/v1/{route}", content=b'{"id": 1}', headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (415, "media_type")
    headers = {"Content-Type": "APPLICATION/JSON ; charset=utf-8"}
    answer = served.http.post("/v1/embeddings", content=b'{"input": [1]}', headers=headers)
    assert answer.status_code == 200


def test_nothing_is_redirected(services: Any) -> None:
    for path in ("/v1/versions/", "/readyz/", "//attacker.example/v1"):
        for host in ("127.0.0.1", "attacker.example"):
            headers = {"Host": host}
            answer = services(OPEN).http.get(path, headers=headers, follow_redirects=False)
            assert answer.status_code in (404, 421)
            assert "location" not in answer.headers


@pytest.mark.parametrize(
    ("host", "open_", "starts"),
    [
        ("127.0.0.1", True, True),
        ("::1", True, True),
        ("0.0.0.0", False, False),
        ("example.org", False, False),
    ],
)
def test_others_are_let_in_with_tokens_alone(host: str, open_: bool, starts: bool) -> None:
    assert ServiceSettings(host=host).is_open(False) == open_
    assert not ServiceSettings(host=host).is_open(True)
    assert not ServiceSettings(host=host, admin_token="x").is_open(False)
    assert ServiceSettings(host=host, no_auth=True).is_open(True)
    if starts:
        ServiceSettings(host=host).check(False)
    else:
        with pytest.raises(ServiceError, match="--no-auth"):
            ServiceSettings(host=host).check(False)
        ServiceSettings(host=host, no_auth=True).check(False)
        ServiceSettings(host=host).check(True)


def test_an_administrators_token_is_one_that_a_request_can_carry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for token, read in (("", None), ("s3cret!", "s3cret!")):
        monkeypatch.setenv("EVERGRAM_ADMIN_TOKEN", token)
        assert admin_token() == read
    for token in ("pass word", "schlüssel"):
        monkeypatch.setenv("EVERGRAM_ADMIN_TOKEN", token)
        with pytest.raises(ServiceError) as refusal:
            admin_token()
        assert token not in str(refusal.value)


def test_a_host_is_a_name_an_address_or_all_below_a_name() -> None:
    for name in ("shop.example", "*.shop.example", "*", "a_b-c", "::1", "10.0.0.7"):
        ServiceSettings(allowed_hosts=(name,)).check(False)
    for name in ("http://shop.example", "shop.example:80", "shop.*", "", "a b", "*.", ".shop"):
        with pytest.raises(ServiceError, match=re.escape(f"{name} is no name")):
            ServiceSettings(allowed_hosts=("shop.example", name)).check(False)


def test_texts_need_an_encoder_and_their_vectors_need_texts() -> None:
    for wrong in ({"texts": "texts.csv"}, {"encoders": ("recorded",), "kept": "kept"}):
        with pytest.raises(ServiceError):
            ServiceSettings(**wrong).check(tokens=False)
    ServiceSettings(encoders=("recorded",), texts="texts.csv", kept="kept").check(tokens=False)
