"""Errors as answers: their codes, their form, and what they keep to themselves."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.support.running_service import CountedStore, Running

from evergram.errors import EvergramError, IntegrityError, StoreError
from evergram.serving.http.answers.errors import clean


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreError("postgresql://me@db.internal/shop#items went away: /var/run/x"), 503),
        (IntegrityError("/srv/data/line/versions/0/x.safetensors is damaged."), 500),
        (RuntimeError("/srv/data/secret.py line 3"), 500),
        (EvergramError("no class fits"), 500),
    ],
)
def test_faults_of_the_service_are_answered_without_particulars(
    served: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    status: int,
) -> None:
    def broken(self: CountedStore, ids: Any) -> Any:
        raise error

    monkeypatch.setattr(CountedStore, "_read", broken)
    with caplog.at_level(logging.ERROR):
        answer = served.post("/v1/embeddings", {"input": 1})
    assert answer.status_code == status
    for word in ("/srv", "/var", "postgresql", "Traceback", "secret"):
        assert word not in answer.text
    assert str(error) in caplog.text


@pytest.mark.parametrize(
    ("message", "cleaned"),
    [
        ("Ids are int64; those of /srv/a b/x are string.", "Ids are int64; those of the lineage"),
        ("There is no side 'x' in ~/data/line; it has object.", "in the lineage; it has object."),
        ("qdrant:http://host:6333#items is full", "the store is full"),
        ("openai:http://host:81/v1#m returned 3; it", "the encoder returned 3; it"),
        ("python:own.module:encode failed", "the encoder failed"),
        ("model2vec:/srv/models/m is gone", "the encoder is gone"),
        ("qdrant-collection:qd#collection=my%20docs&v0=txt%201 has", "the store has"),
        (
            "pgvector-table:postgresql://a,b/d#table=t&filter=len,ok,We%2Cird, and others",
            "the store, and others",
        ),
        ("Ask /v1/versions for and/or 1/2.", "Ask /v1/versions for and/or 1/2."),
    ],
)
def test_files_and_addresses_are_taken_out_of_messages(message: str, cleaned: str) -> None:
    assert cleaned in clean(message)


def test_no_refusal_names_a_folder(served: Running) -> None:
    asked: list[tuple[str, Any]] = [
        ("/v1/embeddings", {"input": 1, "model": "line@v9"}),
        ("/v1/embeddings", {"input": 1, "side": "nobody"}),
        ("/v1/embeddings", {"input": {"features": {"a": 1}}}),
        ("/v1/search", {"vector": [1.0], "version": 1}),
        ("/v1/search", {"vector": [1.0] * 10, "filter": {"a": 1}}),
        ("/v1/transform", {"vectors": [[1.0] * 7], "source": 2, "target": 0}),
        ("/v1/transform", {"vectors": [[1.0] * 6], "source": "stable", "target": 2}),
    ]
    for path, body in asked:
        answer = served.post(path, body)
        assert 400 <= answer.status_code < 500, answer.text
        for part in served.folder.parts[1:-1]:
            assert f"/{part}" not in answer.text
