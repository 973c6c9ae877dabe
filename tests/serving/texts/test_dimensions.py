"""`dimensions` of OpenAI's request: vectors cut after the way back, where the version allows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose
from tests.support.command import Command
from tests.support.running_service import server
from tests.support.text_encoders import ADDRESSES, sentences, word_vectors

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.releasing.files.align_settings import AlignSettings
from evergram.releasing.files.encode_file import Texts, encode_file
from evergram.retrieval.reader import Reader
from evergram.serving.app import create_app
from evergram.serving.client import Client
from evergram.serving.service import Service
from evergram.serving.texts.served_texts import ServedTexts
from evergram.texts.addresses import open_text_encoder
from evergram.vector_files.open_embeddings import open_embeddings

TEXTS = ["word1 word2 word3", "word4 word9"]
# Of version 0; version 1 declares 6 alone.
CUTS = ((4, 8), (6,))


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    import pyarrow as pa

    folder = tmp_path_factory.mktemp("cuts")
    lineage = Lineage.create(folder / "line", "line")
    rows = sentences()
    texts = Texts(pa.array([f"text-{i}" for i in range(len(rows))]), rows)
    files = []
    for number, (address, cuts) in enumerate(zip(ADDRESSES[:2], CUTS, strict=True)):
        path = folder / f"{number}.parquet"
        encode_file(texts, open_text_encoder(address), path, matryoshka=cuts)
        files.append(open_embeddings(path))
    align(files[0], files[1], lineage, AlignSettings())
    return lineage


@pytest.fixture(scope="module")
def address(lineage: Lineage) -> Iterator[str]:
    texts = ServedTexts(ADDRESSES)
    with server(create_app(Service.open(lineage.path, texts=texts))) as url:
        yield url


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:
        yield client


def unit(vectors: np.ndarray) -> np.ndarray:
    lengths = np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1))
    return np.asarray(vectors / lengths[:, None])


def test_an_openai_client_gets_the_first_coordinates_with_length_1(
    client: openai.OpenAI, lineage: Lineage
) -> None:
    newest = word_vectors(TEXTS, 1, 12)
    answer = client.embeddings.create(model="line@v1", input=TEXTS, dimensions=6)
    assert_allclose([d.embedding for d in answer.data], unit(newest[:, :6]), atol=1e-5)
    # A past version is cut after the way back: its own coordinates, by its own record.
    back = newest @ lineage.chain.matrix(1, 0).float().numpy().T
    for dims in CUTS[0]:
        answer = client.embeddings.create(model="line@v0", input=TEXTS, dimensions=dims)
        assert_allclose([d.embedding for d in answer.data], unit(back[:, :dims]), atol=1e-4)
    whole = client.embeddings.create(model="line@v0", input=TEXTS, dimensions=10)
    assert_allclose([d.embedding for d in whole.data], back, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "dims", "words"),
    [("line@v0", 6, "declares 4, 8"), ("line@v1", 4, "declares 6"), ("line@v0", 12, "10 dim")],
)
def test_what_the_version_does_not_declare_is_refused_in_openais_shape(
    client: openai.OpenAI, model: str, dims: int, words: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as refused:
        client.embeddings.create(model=model, input=TEXTS, dimensions=dims)
    assert (refused.value.code, refused.value.param) == ("dimensions", "dimensions")
    assert refused.value.type == "invalid_request_error"


def test_ids_are_cut_alike_by_reader_and_client(lineage: Lineage, address: str) -> None:
    reader = Reader.open(lineage)
    ids = ["text-0", "text-7", "missing"]
    whole = reader.embed(ids, 0)
    read = reader.embed(ids, 0, dimensions=4)
    assert_allclose(read.vectors[:2], unit(whole.vectors[:2, :4]), atol=1e-6)
    assert read.vectors[2].tolist() == [0.0] * 4
    assert read.sources.tolist() == whole.sources.tolist() == [1, 1, -1]
    assert reader.embed(ids, 0, dimensions=10).vectors.tolist() == whole.vectors.tolist()
    with Client(address) as client:
        assert_allclose(client.embed(ids, 0, dimensions=4).vectors, read.vectors, atol=1e-6)
        rows = [sentences()[0], sentences()[7]]
        assert_allclose(client.encode(rows, 0, dimensions=4), read.vectors[:2], atol=1e-3)
        for call in (reader.embed, client.embed):
            with pytest.raises(DataError, match="is not cut to 5"):
                call(ids, 0, dimensions=5)
    reader.close()


def test_a_file_of_cut_vectors_carries_no_fingerprint(
    lineage: Lineage, tmp_path: Path, evergram: Command
) -> None:
    out = tmp_path / "v0.parquet"
    arguments = ("vectors", "export", str(lineage.path), str(out), "--side", "object", "--as", "0")
    facts = json.loads(evergram(*arguments, "--dimensions", "8", "--json").out)
    assert (facts["dim"], facts["rows"], facts["as"]) == (8, 400, 0)
    table = pq.read_table(out)
    rows = np.array(table["vector"].to_pylist())
    _, whole = lineage.view(0).embeddings("object")
    assert_allclose(rows, unit(whole.numpy()[:, :8]), atol=1e-6)
    metadata = {key.decode() for key in table.schema.metadata or {}}
    assert not {key for key in metadata if key.startswith("evergram")}
    assert "is not cut to 5" in evergram.refused(*arguments, "--dimensions", "5", "--force")
    assert "--dimensions" in evergram.refused(
        *arguments, "--dimensions", "8", "--shards", "2", "--force"
    )
