"""The application: its health, its refusals, and what closes with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.running_service import Running, running

from evergram.errors import ServiceError
from evergram.serving.app import create_app
from evergram.serving.settings import ServiceSettings


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
