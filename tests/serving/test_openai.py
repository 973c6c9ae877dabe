"""The client of OpenAI, unchanged, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from numpy.testing import assert_allclose
from tests.support.lineages import lineage_of, read_as, vectors_of
from tests.support.running_service import server, service_of

from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.serving.app import create_app


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """An address, and a token that is pinned to version 0."""
    folder: Path = tmp_path_factory.mktemp("openai") / "line"
    lineage = lineage_of(folder)
    lineage.label("stable", 2)
    consumers = ConsumerRegistry.open(folder)
    consumers.add("classifier", "v0", lineage.resolve, allowed=["stable"])
    token = consumers.issue_token("classifier")
    with server(create_app(service_of(folder))) as url:
        yield f"{url}/v1", token


@pytest.fixture
def client(guarded: tuple[str, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=guarded[0], api_key=guarded[1], max_retries=0) as client:
        yield client


def test_embeddings_by_version_by_label_and_by_default(client: openai.OpenAI) -> None:
    for model, version in (("line@v0", 0), ("line", 0), ("line@stable", 2)):
        answer = client.embeddings.create(model=model, input=["7", "8"])
        expected = read_as(2, version)[[7, 8]].numpy()
        assert_allclose([d.embedding for d in answer.data], expected, rtol=1e-5, atol=1e-6)
        assert answer.model == f"line@v{version}"
        assert answer.usage.total_tokens == 0


def test_floats_users_sides_and_dimensions(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(
        model="line@stable",
        input="7",
        encoding_format="float",
        user="somebody",
        dimensions=10,
        extra_body={"side": "object"},
    )
    assert_allclose(answer.data[0].embedding, vectors_of(2)[7].numpy(), rtol=1e-6)
    with pytest.raises(openai.BadRequestError, match="10 dimensions"):
        client.embeddings.create(model="line@stable", input="7", dimensions=3)


def test_models_are_listed(client: openai.OpenAI) -> None:
    names = {model.id for model in client.models.list()}
    assert names == {"line", "line@v0", "line@v2", "line@stable"}
    assert client.models.retrieve("line@v0").owned_by == "evergram"


def test_errors_are_its_own(client: openai.OpenAI, guarded: tuple[str, str]) -> None:
    with pytest.raises(openai.NotFoundError, match="1 of 2 ids") as missing:
        client.embeddings.create(model="line", input=["7", "777"])
    assert missing.value.code == "unknown_id"
    with pytest.raises(openai.PermissionDeniedError, match="may not read"):
        client.embeddings.create(model="line@v1", input="7")
    # Nobody is told which versions there are beside those that they may read.
    with pytest.raises(openai.PermissionDeniedError, match="may not read"):
        client.embeddings.create(model="line@v9", input="7")
    with (
        openai.OpenAI(base_url=guarded[0], api_key="wrong", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError, match="token"),
    ):
        other.embeddings.create(model="line", input="7")
