"""Schemas of requests, and the sentence on the first problem of one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from evergram.serving.http.requests.schemas import (
    REQUESTS,
    EmbeddingsRequest,
    SearchRequest,
    TransformRequest,
    problem_of,
)


def problem(schema: type[BaseModel], request: Any) -> tuple[str, str | None]:
    body = request if isinstance(request, str) else json.dumps(request)
    with pytest.raises(ValidationError) as refusal:
        schema.model_validate_json(body)
    return problem_of(refusal.value.errors())


@pytest.mark.parametrize(
    ("schema", "request_body", "sentence", "field"),
    [
        (SearchRequest, "{", "The body is not JSON: ", None),
        (SearchRequest, {}, "The request is wrong: ", None),
        (SearchRequest, {"vector": [1.0], "k": 0}, "'k' is wrong: input should be greater", "k"),
        (SearchRequest, {"vector": [1.0], "K": 1}, "'K' is wrong: extra inputs are not", "K"),
        (SearchRequest, {"vectors": [[1.0], [1.0, "a"]]}, "'vectors.1.1' is wrong: ", "vectors"),
        (TransformRequest, {"vectors": [[1.0]]}, "'source' is wrong: field required", "source"),
        (EmbeddingsRequest, {"input": 1.5}, "'input' is an id or a text, a list of these", "input"),
        (
            EmbeddingsRequest,
            {"input": {"features": {"year": True}}},
            "or objects with 'features': input should be a valid integer",
            "input",
        ),
        (
            EmbeddingsRequest,
            {"input": 1, "model": "line", "version": 1},
            "The request is wrong: name the version in 'model' or in 'version', not in both.",
            None,
        ),
    ],
)
def test_a_problem_is_a_sentence_and_a_field(
    schema: type[BaseModel], request_body: Any, sentence: str, field: str | None
) -> None:
    message, where = problem(schema, request_body)
    assert sentence in message
    assert message.endswith(".")
    assert where == field


def test_a_long_field_is_shortened() -> None:
    sentence, field = problem(SearchRequest, {"id": 1, "x" * 500: 1})
    assert field == "x" * 80
    assert len(sentence) < 200


@pytest.mark.parametrize("queries", [("vector", "id"), ("vectors", "id"), ("vector", "vectors")])
def test_a_search_has_one_kind_of_queries(queries: tuple[str, str]) -> None:
    known: dict[str, Any] = {"vector": [1.0], "vectors": [[1.0]], "id": 3}
    for name in queries:
        SearchRequest.model_validate({name: known[name]})
    with pytest.raises(ValidationError):
        SearchRequest.model_validate({name: known[name] for name in queries})


def test_ids_keep_their_type() -> None:
    assert EmbeddingsRequest.model_validate({"input": ["7", "8"]}).input == ["7", "8"]
    assert EmbeddingsRequest.model_validate({"input": [7, 8]}).input == [7, 8]
    assert EmbeddingsRequest.model_validate({"input": "7"}).input == "7"


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ({"c": ["x"] * 1001}, "'filter', field 'c', is wrong: a field has at most 1,000 values"),
        ({"c": "x" * 1025}, "'filter', field 'c', is wrong: a text has at most 1,024 characters"),
        ({"b": 1, "c": ["y", "x" * 1025]}, "field 'c', is wrong: a text has at most 1,024"),
        ({"c": {"gte": "x" * 1025}}, "field 'c', is wrong: a text has at most 1,024"),
        ({f"c{i}": 1 for i in range(33)}, "'filter' is wrong: a filter has at most 32 fields"),
        ({"c" * 257: 1}, "the name of a field has at most 256 characters"),
        ({"c": None}, "'filter', field 'c', is wrong: a filter is {"),
        ({}, "'filter' is wrong: a filter is {"),
    ],
)
def test_the_limit_that_a_filter_exceeds_is_named(conditions: Any, words: str) -> None:
    sentence, field = problem(SearchRequest, {"id": 1, "filter": conditions})
    assert words in sentence
    assert field == "filter"


def test_a_filter_that_is_wrong_beside_another_field_has_its_own_sentence() -> None:
    sentence, _ = problem(SearchRequest, {"id": 1, "k": "x", "filter": {"c": "x" * 1025}})
    assert sentence in (
        "'k' is wrong: input should be a valid integer.",
        "'filter', field 'c', is wrong: a text has at most 1,024 characters.",
    )


REQUIRED: dict[str, Any] = {
    "EmbeddingsRequest": {"input": [1]},
    "SearchRequest": {"id": 1},
    "TransformRequest": {"vectors": [[1.0]], "source": 0},
    "FoldInRequest": {"candidates": [[1]]},
}


@pytest.mark.parametrize("schema", REQUESTS)
def test_null_stands_for_the_default_of_every_optional_field(schema: type[BaseModel]) -> None:
    given = REQUIRED[schema.__name__]
    optional = [name for name in schema.model_fields if name not in given]
    request = {**dict.fromkeys(optional), **given}
    assert schema.model_validate_json(json.dumps(request)) == schema.model_validate(given)
