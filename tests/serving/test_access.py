"""Who may read what, and which names and pages a service answers to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from tests.support.arrow_requests import ARROW, stream
from tests.support.lineages import DIMS, lineage_of, publish
from tests.support.running_service import Running, refused, running

from evergram.errors import ServiceError
from evergram.lineage.consumers import ConsumerRegistry
from evergram.serving.settings import ServiceSettings

ADMIN = "the-administrators"


class Guarded(NamedTuple):
    served: Running
    tokens: dict[str, str]


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
    for name, pinned in (("old", "v0"), ("prod", "stable")):
        consumers.add(name, pinned, lineage.resolve)
    consumers.add("both", "v0", lineage.resolve, allowed=("canary",))
    tokens = {c.name: consumers.issue_token(c.name) for c in consumers.list()}
    with running(folder, ServiceSettings(admin_token=ADMIN)) as served:
        yield Guarded(served, tokens)


MAY = {"old": {0}, "prod": {1}, "both": {0, 2}}
DEFAULT = {"old": 0, "prod": 1, "both": 0}
NUMBERS = {"stable": 1, "canary": 2, "newest": 2}
WAYS = [None, 0, 1, 2, "0", "v1", "2", "v2", "stable", "canary", "newest", "v00", "v01", "v002"]


def number_of(what: Any, default: int) -> int:
    if what is None:
        return default
    return NUMBERS[what] if what in NUMBERS else int(str(what).removeprefix("v"))


def asked_of(route: str, version: Any, other: Any, by_model: bool) -> tuple[str, Any]:
    """A request of a route that names a version in one of its ways."""
    name = "target" if route == "transform" else "version"
    asked: dict[str, Any] = {}
    if version is not None:
        asked = {"model": f"line@{version}"} if by_model else {name: version}
    if route == "transform":
        asked |= {"vectors": [[0.5] * DIMS[number_of(other, 0)]], "source": other}
    else:
        asked |= {"input": [1]} if route == "embeddings" else {"id": 1, "k": 1}
    return f"/v1/{route}", asked


ROUTES = ("embeddings", "search", "transform")
REQUESTS = [*product(sorted(MAY), ROUTES, WAYS, WAYS[1:], (False, True), (False, True))]


@pytest.mark.long
def test_a_token_reads_only_what_it_may(guarded: Guarded) -> None:
    for who, route, version, other, by_model, arrow in Random(0).sample(REQUESTS, 800):
        path, body = asked_of(route, version, other, by_model and route == "embeddings")
        headers = {"Authorization": f"Bearer {guarded.tokens[who]}"}
        sent: dict[str, Any] = {"json": body}
        if arrow and route != "search":
            given, name = ("input", "id") if route == "embeddings" else ("vectors", "vector")
            sent = {"content": stream({name: pa.array(body.pop(given))}, body)}
            headers["Content-Type"] = ARROW
        answer = guarded.served.http.post(path, headers=headers, **sent)
        number = number_of(version, DEFAULT[who])
        needed = {number, number_of(other, DEFAULT[who])} if route == "transform" else {number}
        if needed <= MAY[who]:
            # A forward map may be missing; who may read is not kept out for another reason.
            assert answer.status_code == 200 or (route, answer.status_code) == ("transform", 400)
            if answer.status_code == 200:
                assert answer.headers["x-evergram-version"] == str(number)
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
    for path in ("/v1/dashboard", "/metrics"):
        assert guarded.served.get(path, token).status_code == 403


def test_without_a_known_token_nothing_is_read(guarded: Guarded) -> None:
    for header in (None, "", "Bearer", "Bearer ", "Bearer x", "Basic eDp5", "x"):
        headers = {} if header is None else {"Authorization": header}
        answer = guarded.served.http.get("/v1/versions", headers=headers)
        assert answer.status_code == 401, header
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_the_administrator_reads_everything_but_tokens(guarded: Guarded) -> None:
    for version in (0, 1, 2):
        answer = guarded.served.post("/v1/embeddings", {"input": [1], "version": version}, ADMIN)
        assert answer.json()["evergram"]["version"] == version
    consumers = guarded.served.get("/v1/dashboard", ADMIN).json()["consumers"]
    assert {c["name"]: c["version"] for c in consumers} == DEFAULT
    assert "token" not in consumers[0]
    secrets = (*guarded.tokens.values(), ADMIN)
    for path in ("metrics", "v1/dashboard", "v1/versions", "openapi.json", "readyz"):
        answer = guarded.served.get(f"/{path}", ADMIN)
        assert answer.status_code == 200
        assert not [secret for secret in secrets if secret in answer.text], path


@pytest.mark.parametrize("route", ["embeddings", "search", "transform", "model"])
def test_a_refusal_does_not_tell_whether_there_is_such_a_version(
    guarded: Guarded, route: str
) -> None:
    refusals = set()
    for what in ("v1", "v2", "stable", "canary", "newest", "v7", "nightly", "v" + "9" * 60, 1, 7):
        by_model = route == "model"
        path, asked = asked_of("embeddings" if by_model else route, what, "v0", by_model)
        answer = guarded.served.post(path, asked, guarded.tokens["old"])
        message = answer.json()["error"]["message"]
        assert "may read v0." in message
        refusals.add(
            (answer.status_code, message.replace(f"'{what}'", "?").replace(f" {what};", " ?;"))
        )
    assert len(refusals) == 1, refusals
    assert refusals.pop()[0] == 403


def test_two_tokens_in_one_request_are_refused(guarded: Guarded, served: Running) -> None:
    good, other = guarded.tokens["both"], guarded.tokens["old"]
    guarding = guarded.served.http
    for http, second in ((guarding, other), (guarding, good), (served.http, good)):
        headers = [("Authorization", f"Bearer {token}") for token in (good, second)]
        answers = [http.post("/v1/embeddings", json={"input": [1]}, headers=headers)]
        for path in ("/v1/versions", "/v1/dashboard", "/metrics"):
            answers.append(http.get(path, headers=headers))
        for answer in answers:
            refused(answer, 400, code="several_tokens")


def test_versions_that_are_gone_labels_that_move_and_the_last_token(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    lineage.label("stable", 1)
    publish(lineage, 2, promote=False)
    consumers = ConsumerRegistry.open(lineage.path)
    consumers.add("ads", "stable", lineage.resolve, allowed=("v0",))
    token = consumers.issue_token("ads")
    lineage.retire(0)
    with running(lineage.path) as served:
        for what, status in ((0, 404), ("v00", 404), ("v2", 403), ("v3", 403), (None, 200)):
            answer = served.post("/v1/embeddings", {"input": 1, "version": what}, token)
            assert answer.status_code == status, answer.text
        assert answer.json()["evergram"]["version"] == 1
        lineage.label("stable", 2)
        served.service.refresh()
        answer = served.post("/v1/embeddings", {"input": 1}, token)
        assert answer.json()["evergram"]["version"] == 2
        ConsumerRegistry.open(lineage.path).remove("ads")
        served.service.refresh()
        # A service that asked for tokens does not become open when the last of them is gone.
        for sent in (token, None):
            assert served.post("/v1/embeddings", {"input": 1}, sent).status_code == 401


OPEN, GUARDED = ServiceSettings(), ServiceSettings(admin_token=ADMIN)
ELSEWHERE = ServiceSettings(host="0.0.0.0", no_auth=True)
NAMED = ServiceSettings(allowed_hosts=("shop.example", "*.internal.example"))
ANY = ServiceSettings(allowed_hosts=("*",))


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


# By settings: names that a service answers to, and others.
HOSTS: dict[ServiceSettings, tuple[str, str]] = {
    OPEN: (
        "LOCALHOST:8000 localhost.:8000 127.1.2.3 [::1]:8000",
        "rebound.attacker.example localhost.attacker.example 127.0.0.1.attacker.example "
        f"0.0.0.0:8000 localhost:8000@attacker.example 127.0.0.1:x {'x' * 300}",
    ),
    # Whoever has no token reads nothing, under whatever name.
    GUARDED: ("rebound.attacker.example", ""),
    ELSEWHERE: ("192.168.0.7:8000", "rebound.attacker.example"),
    NAMED: ("shop.example:443 a.internal.example", "internal.example ainternal.example"),
    ANY: ("rebound.attacker.example", ""),
    replace(NAMED, admin_token=ADMIN): ("", "other.example"),
}
# Settings, the host and the origin of a request, and whether it is answered.
ORIGINS = (
    (OPEN, "127.0.0.1:8000", "http://127.0.0.1:8000", True),
    (OPEN, "localhost", "http://localhost:80", True),
    (OPEN, "127.0.0.1:8000", "http://127.0.0.1:3000", False),
    (OPEN, "127.0.0.1:8000", "https://attacker.example", False),
    (OPEN, "127.0.0.1:8000", "null", False),
    (OPEN, "127.0.0.1:8000", "http://127.0.0.1:8000@attacker.example", False),
    (OPEN, "127.0.0.1:8000", "file://127.0.0.1:8000", False),
    (OPEN, "127.0.0.1:8000", "http://127.0.0.1:port", False),
    (GUARDED, "shop.example", "https://shop.example", True),
    (NAMED, "127.0.0.1:8000", "https://shop.example", True),
    (ANY, "127.0.0.1", "https://attacker.example", False),
)


def test_a_service_answers_to_its_own_names_only(services: Any) -> None:
    for chosen, (own, others) in HOSTS.items():
        foreign = [*others.split(), ""] if chosen is OPEN else others.split()
        for host in (*own.split(), *foreign):
            http, answered = services(chosen).http, host not in foreign
            headers = {"Host": host, "Authorization": f"Bearer {ADMIN}"}
            for path in ("/v1/versions", "/readyz", "/"):
                assert (http.get(path, headers=headers).status_code != 421) == answered, host
            answer = http.post("/v1/embeddings", json={"input": [1]}, headers=headers)
            assert answer.status_code == (200 if answered else 421), host
            if not answered:
                refused(answer, 421, "--allowed-host", "host")


def test_a_service_answers_its_own_pages_only(services: Any) -> None:
    for chosen, host, origin, answered in ORIGINS:
        headers = {"Host": host, "Origin": origin, "Authorization": f"Bearer {ADMIN}"}
        http = services(chosen).http
        answer = http.post("/v1/embeddings", json={"input": [1]}, headers=headers)
        assert answer.status_code == (200 if answered else 403), (host, origin)
        assert http.get("/v1/versions", headers=headers).status_code == answer.status_code
        assert "access-control-allow-origin" not in answer.headers


def test_pages_elsewhere_may_only_link_to_it_and_nothing_is_redirected(
    served: Running, services: Any
) -> None:
    for site, mode, status in (
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
        ("cross-site", "navigate", 200),
        ("cross-site", "no-cors", 403),
    ):
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
        assert served.http.get("/v1/versions", headers=headers).status_code == status, site
    for path in ("/v1/versions/", "/readyz/", "//attacker.example/v1"):
        for host in ("127.0.0.1", "attacker.example"):
            headers = {"Host": host}
            answer = services(OPEN).http.get(path, headers=headers, follow_redirects=False)
            assert answer.status_code in (404, 421)
            assert "location" not in answer.headers


def test_a_body_of_another_type_than_json_is_refused(served: Running) -> None:
    forms = ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x")
    texts = ("", "text/plain", "text/plain;application/json", "text/json", "application/jsonp")
    for kind in (None, *texts, *forms):
        headers = {} if kind is None else {"Content-Type": kind}
        for route in ("embeddings", "search", "transform", "fold-in"):
            answer = served.http.post(f"/v1/{route}", content=b'{"id": 1}', headers=headers)
            refused(answer, 415, code="media_type")
    headers = {"Content-Type": "APPLICATION/JSON ; charset=utf-8"}
    answer = served.http.post("/v1/embeddings", content=b'{"input": [1]}', headers=headers)
    assert answer.status_code == 200


def test_settings_that_let_anybody_in_or_match_nothing_are_refused() -> None:
    for host in ("127.0.0.1", "::1", "0.0.0.0", "example.org"):
        settings, local = ServiceSettings(host=host), host in ("127.0.0.1", "::1")
        assert settings.is_open(False) == local
        assert not settings.is_open(True)
        assert not replace(settings, admin_token="x").is_open(False)
        assert replace(settings, no_auth=True).is_open(True)
        replace(settings, no_auth=True).check(False)
        settings.check(True)
        if not local:
            with pytest.raises(ServiceError, match="--no-auth"):
                settings.check(False)
    for name in ("shop.example", "*.shop.example", "*", "a_b-c", "::1", "10.0.0.7"):
        ServiceSettings(allowed_hosts=(name,)).check(False)
    for name in ("http://shop.example", "shop.example:80", "shop.*", "", "a b", "*.", ".shop"):
        with pytest.raises(ServiceError, match=re.escape(f"--allowed-host {name} ")):
            ServiceSettings(allowed_hosts=("shop.example", name)).check(False)
