"""The application: its health, its refusals, and what closes with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.running_service import Running, running

from evergram.errors import EvergramError, ServiceError
from evergram.serving.app import create_app
from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.settings import ServiceSettings

# All other pages show what is in the lineage.
OPEN = {"/", "/dashboard/{name}", "/healthz", "/readyz", "/openapi.json"}


def requests_of(served: Running, *methods: str) -> Iterator[tuple[str, Any]]:
    """Yield the path of every route of the application, and the answer to a request of it.

    Args:
        methods: asked beside the route's own.
    """
    app: Any = served.http.app
    routers = [getattr(route, "original_router", None) for route in app.routes]
    included = [route for router in routers if router is not None for route in router.routes]
    for route in [*app.routes, *included]:
        if not hasattr(route, "methods"):  # the place of an included router
            continue
        for method in {*route.methods, *methods}:
            yield (
                route.path,
                served.http.request(
                    *(method, route.path.format(model="line@v0", name="dashboard.js")),
                    json={} if method == "POST" else None,
                ),
            )


def test_every_page_but_those_without_data_asks_for_a_token(tmp_path: Path) -> None:
    with running(tmp_path / "line", ServiceSettings(admin_token="root")) as served:
        answers = list(requests_of(served))
    assert {path for path, _ in answers} > OPEN
    assert [(p, a.status_code) for p, a in answers if p not in OPEN and a.status_code != 401] == []
    assert {a.status_code for p, a in answers if p in OPEN} == {200}


def errors_of(kind: type[EvergramError]) -> Iterator[type[EvergramError]]:
    for one in kind.__subclasses__():
        if not issubclass(one, RefusedError):
            yield one
            yield from errors_of(one)


@pytest.mark.parametrize("kind", [EvergramError, *errors_of(EvergramError), OSError])
def test_no_page_answers_an_error_with_a_path_or_an_address(
    served: Running, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def failing() -> Any:
        raise kind("/srv/secret/line of postgresql://me:secret@db/x#secret and python:secret:s is")

    monkeypatch.setattr(served.service, "enter", failing)
    answers = list(requests_of(served))
    assert [(path, a.text) for path, a in answers if "secret" in a.text] == []
    assert {path for path, a in answers if a.status_code < 400} == OPEN


def test_health_readiness_and_unknown_pages_have_their_answers(served: Running) -> None:
    assert served.get("/healthz").json() == {"status": "ok"}
    assert served.get("/readyz").json() == {"ready": True, "version": 2, "problem": None}
    for answer in (served.get("/nowhere"), served.get("/v1/search")):
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert "openapi.json" in served.get("/nowhere").json()["error"]["message"]


def test_a_page_that_is_not_there_is_refused_like_all_else(served: Running) -> None:
    error = served.get("/v1/versions/").json()["error"]
    assert error["code"] == "http"
    assert "or not with a slash at its end" in error["message"]
    wrong_method = served.get("/v1/embeddings")
    assert wrong_method.status_code == 405
    assert wrong_method.headers["allow"] == "POST"
    assert "does not take that method" in wrong_method.json()["error"]["message"]


def test_a_store_that_does_not_answer_is_not_ready_and_says_so(served: Running) -> None:
    served.service.store_problem = "The store of side 'object' does not answer."
    answer = served.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {
        "ready": False,
        "version": 2,
        "problem": "The store of side 'object' does not answer.",
    }
    assert served.get("/healthz").status_code == 200


def test_an_application_that_strangers_could_reach_is_not_made(served: Running) -> None:
    with pytest.raises(ServiceError, match="others can reach the service"):
        create_app(served.service, ServiceSettings(host="0.0.0.0"))


def test_the_service_is_closed_with_the_application(tmp_path: Path) -> None:
    with running(tmp_path / "line") as served:
        store: Any = served.service.shared.reader.store()
        assert not store.closed
    assert store.closed


def test_head_works_wherever_get_does(served: Running) -> None:
    answers = {(path, a.request.method): a for path, a in requests_of(served, "HEAD")}
    with_get = [path for path, method in answers if method == "GET"]
    assert len(with_get) >= 8
    for path in with_get:
        head, get = answers[path, "HEAD"], answers[path, "GET"]
        assert (head.status_code, head.content) == (get.status_code, b"") == (200, b"")
        assert head.headers["content-type"] == get.headers["content-type"]
    assert answers["/v1/search", "HEAD"].status_code == 405
