"""Who may read what: a token never reads a version that it may not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.arrow_requests import ARROW, stream
from tests.support.consumer_versions import LABELS, resolve
from tests.support.lineages import DIMS, lineage_of, publish
from tests.support.running_service import Running, running

from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.serving.http.requests.auth import Access
from evergram.serving.settings import ServiceSettings

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


class _Line:
    """A lineage of three versions and the labels of `consumer_versions`."""

    def __init__(self) -> None:
        self.readable: list[int] = [0, 1, 2]
        self.labels: dict[str, int] = LABELS

    def resolve(self, what: int | str | None) -> int:
        return resolve(str(what))


def test_labels_are_followed_and_one_that_is_gone_adds_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ads = Access("ads", "stable", ("stable", "v2", "v0"))
    assert ads.readable(_Line()) == {0, 1, 2}
    monkeypatch.delitem(LABELS, "stable")
    assert ads.readable(_Line()) == {0, 2}
    assert Access("admin").readable(_Line()) == {0, 1, 2}


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


def test_the_administrator_reads_everything(guarded: Guarded) -> None:
    for version in (0, 1, 2):
        answer = guarded.send("/v1/embeddings", {"input": [1], "version": version}, ADMIN)
        assert answer.json()["evergram"]["version"] == version
    consumers = guarded.served.get("/v1/consumers", ADMIN)
    assert {c["name"]: c["version"] for c in consumers.json()["data"]} == {
        "old": 0,
        "prod": 1,
        "both": 0,
    }
    assert "token" not in consumers.text
    assert guarded.served.get("/metrics", ADMIN).status_code == 200


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer x", "Basic eDp5", "x"])
@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/v1/search", "/v1/transform", "/v1/versions", "/v1/models"]
)
def test_without_a_known_token_nothing_is_read(
    guarded: Guarded, header: str | None, path: str
) -> None:
    headers = {} if header is None else {"Authorization": header}
    method = "GET" if path in ("/v1/versions", "/v1/models") else "POST"
    answer = guarded.served.http.request(method, path, json={"input": 1}, headers=headers)
    assert answer.status_code == 401
    assert "token" in answer.json()["error"]["message"]
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("route", ["embeddings", "search", "transform", "model"])
def test_a_refusal_does_not_tell_whether_there_is_such_a_version(
    guarded: Guarded, route: str
) -> None:
    """Versions 1 and 2, `canary` and `stable` are there; the others are not."""
    refusals = set()
    for what in ("v1", "v2", "stable", "canary", "newest", "v7", "nightly", "v" + "9" * 60, 1, 7):
        path, asked = asked_of(
            "embeddings" if route == "model" else route,
            what,
            "v0",
            by_model=route == "model",
        )
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
    """A proxy may have looked at the first, and the service would at the last."""
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
    answers = [
        guarded.served.get(path, ADMIN).text
        for path in (
            "/metrics",
            "/v1/consumers",
            "/v1/dashboard",
            "/v1/versions",
            "/openapi.json",
            "/readyz",
        )
    ]
    for secret in (*guarded.tokens.values(), ADMIN):
        assert secret not in json.dumps(answers)
