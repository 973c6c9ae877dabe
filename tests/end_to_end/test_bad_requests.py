"""Each kind of bad request is answered with a status, a code and a sentence, and the service lives.

The refusals of `evergram serve` itself are in test_bad_input.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.support.bad_input.requests import REQUESTS, BadRequest
from tests.support.command import exit_code
from tests.support.lineages import lineage_of
from tests.support.serving_process import ServingProcess, serving

from evergram.lineage.consumers.registry import ConsumerRegistry


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServingProcess, str]]:
    """A service that asks for tokens, and the token of a consumer that reads all versions."""
    folder = tmp_path_factory.mktemp("guarded") / "line"
    lineage_of(folder, versions=2)
    allowed = ("--allow", "v1")
    assert exit_code("consumer", "add", folder, "ads", "--pin", "v0", *allowed) == 0
    token = ConsumerRegistry.open(folder).issue_token("ads")
    with serving(folder, EVERGRAM_ADMIN_TOKEN="boss") as served:
        yield served, token
    assert "Traceback" not in served.log
    assert "A request failed" not in served.log


@pytest.mark.parametrize("case", REQUESTS, ids=[case.name for case in REQUESTS])
def test_a_bad_request_is_refused_in_a_sentence(
    guarded: tuple[ServingProcess, str], case: BadRequest
) -> None:
    served, token = guarded
    headers = {"Authorization": f"Bearer {token}", **case.headers}
    method = "GET" if case.content is None else "POST"
    answer = served.http.request(method, case.path, content=case.content, headers=headers)
    assert answer.status_code == case.status, answer.text
    error = answer.json()["error"]
    assert error["code"] == case.code, error
    assert error["message"].endswith((".", "?"))
    assert "\n" not in error["message"]
    assert case.names in error["message"]


def test_the_service_answers_good_requests_after_them(guarded: tuple[ServingProcess, str]) -> None:
    served, token = guarded
    answer = served.post("embeddings", {"input": [1]}, Authorization=f"Bearer {token}")
    assert answer.status_code == 200, answer.text
    assert json.loads(answer.text)["data"][0]["embedding"]
