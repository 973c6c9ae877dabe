"""Texts at one version, alike by a service and by the lineage itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tests.support.lineages import lineage_of
from tests.support.pinned_lineages import PROMPTS, TEXTS, as_version_0
from tests.support.text_encoders import ADDRESSES

from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.serving.frameworks import pinned_texts
from evergram.serving.frameworks.pinned_texts import PinnedTexts


def test_both_ways_give_the_version_and_its_cuts(lineage: Lineage, place: dict[str, Any]) -> None:
    for role, prompt in (("query", PROMPTS.query), ("document", PROMPTS.document)):
        whole = as_version_0(lineage, TEXTS, prompt)
        rows = PinnedTexts(0, **place).encode(TEXTS, role)  # type: ignore[arg-type]
        assert_allclose(rows, whole, rtol=1e-4, atol=1e-3)
        kept = whole[:, :4].astype(np.float64)
        short = PinnedTexts(0, dimensions=4, **place).encode(TEXTS, role)  # type: ignore[arg-type]
        assert_allclose(short, kept / np.linalg.norm(kept, axis=1, keepdims=True), atol=1e-4)
    assert PinnedTexts(0, **place).encode([], "query") == []
    with pytest.raises(DataError, match="is not cut to 5"):
        PinnedTexts(0, dimensions=5, **place).encode(TEXTS, "query")
    with pytest.raises(LineageError, match="9"):
        PinnedTexts(9, **place).encode(TEXTS, "query")


def test_many_texts_are_sent_in_batches_and_keep_their_order(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"word{i} word{i + 1}" for i in range(7)]
    whole = PinnedTexts(0, **place).encode(texts, "document")
    monkeypatch.setattr(pinned_texts, "BATCH", 3)
    assert_allclose(PinnedTexts(0, **place).encode(texts, "document"), whole, atol=1e-5)


@pytest.mark.parametrize(
    ("version", "options", "words"),
    [
        ("stable", {"url": "http://x"}, "version is 'stable'; give the number"),
        (True, {"url": "http://x"}, "version is True"),
        (-1, {"url": "http://x"}, "version is -1"),
        (0, {}, "one of 'url', of a service, and 'lineage'"),
        (0, {"url": "http://x", "lineage": "l"}, "one of 'url'"),
        (0, {"url": "http://x", "encoder": "wordllama:"}, "leave 'encoder' out"),
        (0, {"lineage": "l", "token": "t"}, "leave 'token' out"),
    ],
)
def test_what_cannot_be_pinned_is_refused(version: Any, options: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        PinnedTexts(version, **options)


def test_a_lineage_runs_no_code_by_itself_and_no_other_encoder(
    lineage: Lineage, tmp_path: Path
) -> None:
    folder = str(lineage.path)
    with pytest.raises(DataError, match="name that address in 'encoder'"):
        PinnedTexts(0, lineage=folder).encode(TEXTS, "query")
    with pytest.raises(DataError, match="is not the encoder that version 1 records"):
        PinnedTexts(0, lineage=folder, encoder=ADDRESSES[0]).encode(TEXTS, "query")
    with pytest.raises(DataError, match="records no encoder of text"):
        PinnedTexts(0, lineage=str(lineage_of(tmp_path / "l").path)).encode(TEXTS, "query")


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(PinnedTexts(0, url="http://x", token="secret"))


def test_a_name_differs_where_vectors_may_and_holds_no_secret() -> None:
    every = [
        PinnedTexts(0, url="http://me:secret@127.0.0.1:8000/"),
        PinnedTexts(1, url="http://127.0.0.1:8000"),
        PinnedTexts(0, url="http://127.0.0.1:9000"),
        PinnedTexts(0, lineage="lineages/texts"),
        PinnedTexts(0, lineage="lineages/texts", dimensions=4),
    ]
    names = [texts.name for texts in every]
    assert names[0] == "evergram@v0 of http://127.0.0.1:8000"
    assert names[4] == "evergram@v0, 4 dimensions of lineages/texts"
    assert len(set(names)) == len(names)
