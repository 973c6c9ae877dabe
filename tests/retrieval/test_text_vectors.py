"""Texts by a reader: encoded by the newest encoder, read and searched as any version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.support import text_encoders
from tests.support.lineages import lineage_of
from tests.support.pinned_lineages import (
    PROMPTS,
    TEXTS,
    as_version_0,
    pinned_lineage,
    pinned_service,
)
from tests.support.text_encoders import ADDRESSES, word_vectors

from evergram.errors import DataError, EvergramError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.reader import Reader
from evergram.serving.client import Client
from evergram.texts.text_encoder import Role

ROLES: tuple[Role, Role] = ("query", "document")


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    return pinned_lineage(tmp_path_factory.mktemp("pinned"))


@pytest.fixture
def reader(lineage: Lineage) -> Iterator[Reader]:
    with closing(Reader.open(lineage, encoder=ADDRESSES[1])) as opened:
        yield opened


def test_a_search_by_texts_is_that_of_the_service(lineage: Lineage, reader: Reader) -> None:
    with pinned_service(lineage) as url, Client(url) as client:
        for version in (0, "v0", None):
            for metric in ("ip", "cosine"):
                ours = reader.search_texts(TEXTS, 5, version, metric=metric)
                theirs = client.search_texts(TEXTS, 5, version, metric=metric)
                for mine, other in zip(ours, theirs, strict=True):
                    assert mine.ids.to_pylist() == other.ids.to_pylist()
                    assert_allclose(mine.scores, other.scores, rtol=1e-5)
            for role in ROLES:
                vectors: Any = client.encode(TEXTS, version, role)
                assert_allclose(reader.encode(TEXTS, version, role), vectors, rtol=1e-6)


def test_texts_are_read_as_the_version_with_prompts_and_cuts(reader: Reader) -> None:
    for role in ROLES:
        whole: Any = as_version_0(reader.lineage, TEXTS, PROMPTS.of(role))
        assert_allclose(reader.encode(TEXTS, 0, role), whole, rtol=1e-4, atol=1e-3)
    assert reader.encode(TEXTS, 0, dimensions=4).shape == (2, 4)
    with pytest.raises(DataError, match="is not cut to 5"):
        reader.encode(TEXTS, 0, dimensions=5)


def test_options_of_a_search_by_texts_are_those_of_a_search(reader: Reader) -> None:
    few, queries = ["text-3", "text-9"], reader.encode(TEXTS[:1], 0, "query")
    (hits,) = reader.search_texts(TEXTS[:1], 5, 0, ids=few)
    assert sorted(hits.ids.to_pylist()) == few
    assert_array_equal(hits.scores, reader.search(queries, 5, 0, ids=few)[0].scores)
    (hits,) = reader.search_texts(TEXTS[:1], 5, 0, scores="calibrated")
    (same,) = reader.search(queries, 5, 0, scores="calibrated", query_vectors="read_back")
    assert_array_equal(hits.scores, same.scores)
    with pytest.raises(EvergramError, match="metadata"):
        reader.search_texts(TEXTS, 5, 0, filter={"topic": "rivers"})


def test_what_is_no_list_of_texts_is_refused(reader: Reader) -> None:
    refused: list[tuple[Any, str]] = [
        ("word1", r"\['word1'\]"),
        ([], "no texts to encode"),
        (["word1", " \t"], "empty text at 1"),
        (["word1", 7], "text at 1 is a int"),
    ]
    for texts, named in refused:
        with pytest.raises(DataError, match=named):
            reader.search_texts(texts)
    with pytest.raises(DataError, match="no role 'passage'"):
        reader.encode(["word1"], role="passage")  # type: ignore[arg-type]


def test_a_reader_runs_no_code_by_itself_and_no_other_encoder(
    lineage: Lineage, tmp_path: Path
) -> None:
    gone = f"model2vec:{tmp_path / 'gone'}"
    for encoder, named in (
        (None, "name that address in 'encoder'"),
        (ADDRESSES[0], "is not the encoder that version 1 records"),
        (gone, f"Version 1 was encoded by python:.* and {gone} cannot be opened: "),
    ):
        with closing(Reader.open(lineage, encoder=encoder)) as reader:
            assert len(reader.search(word_vectors(TEXTS, 1, 12))) == 2
            with pytest.raises(EvergramError, match=named):
                reader.search_texts(TEXTS)
    with closing(Reader.open(lineage, encoder=ADDRESSES[:2])) as reader:
        assert len(reader.search_texts(TEXTS, 3, 0)) == 2
    with (
        closing(Reader.open(lineage_of(tmp_path / "l"))) as reader,
        pytest.raises(DataError, match="records no encoder of text"),
    ):
        reader.encode(TEXTS)


def test_a_model_that_is_replaced_behind_its_address_is_noticed(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.encode(TEXTS, 0)
    opened = reader._texts._encoders[1].encoder
    monkeypatch.setattr(
        opened, "_encode", lambda texts, prompt: text_encoders.third([prompt + t for t in texts])
    )
    with pytest.raises(DataError, match="no longer the encoder that version 1 records"):
        reader.encode(TEXTS, 0)
