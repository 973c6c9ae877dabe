"""Which encoder encodes at which version, and what is kept of it."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from numpy.testing import assert_allclose
from tests.support.text_encoders import ADDRESSES, CALLS, encoded, text_lineage, word_vectors

from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.releasing.files.import_file import import_embeddings
from evergram.serving.texts import served_texts as module
from evergram.serving.texts.checked_encoder import TextEncoderError
from evergram.serving.texts.documents import Documents
from evergram.serving.texts.served_texts import ServedTexts
from evergram.texts.recorded_encoder import RECORDED

TEXTS = ["word1 word2", "word3", "word1 word2"]


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    return text_lineage(tmp_path_factory.mktemp("served"))


def loaded(lineage: Lineage, *addresses: str, cache: int = 1 << 20) -> ServedTexts:
    texts = ServedTexts(addresses or ADDRESSES, cache)
    texts.load(lineage)
    return texts


def test_each_version_has_its_encoder_whatever_the_order_of_addresses(lineage: Lineage) -> None:
    texts = loaded(lineage, *reversed(ADDRESSES))
    assert texts.problem is None
    assert_allclose(texts.encode(1, TEXTS, "document"), word_vectors(TEXTS, 1, 12), rtol=1e-5)
    # Version 0 is read through the chain: its encoder is not opened.
    with pytest.raises(TextEncoderError, match="records no encoder"):
        texts.encode(0, TEXTS, "document")
    texts.close()


def test_cached_and_fresh_texts_are_put_together_in_order(lineage: Lineage) -> None:
    texts = loaded(lineage)
    texts.encode(1, TEXTS[:1], "document")
    CALLS.clear()
    vectors = texts.encode(1, ["word9", *TEXTS], "document")
    assert_allclose(vectors, word_vectors(["word9", *TEXTS], 1, 12), rtol=1e-5)
    assert CALLS[0][:2] == ["word9", "word3"]
    # A query is not the document of the same words.
    texts.encode(1, ["word9"], "query")
    assert len(CALLS) == 2


def test_without_a_cache_every_request_is_encoded(lineage: Lineage) -> None:
    texts = loaded(lineage, cache=0)
    CALLS.clear()
    texts.encode(1, ["word1"], "document")
    texts.encode(1, ["word1"], "document")
    assert len(CALLS) == 2


def test_recorded_functions_are_never_opened(lineage: Lineage) -> None:
    texts = loaded(lineage, RECORDED)
    assert "none of those that may be opened" in str(texts.problem)
    both = loaded(lineage, RECORDED, ADDRESSES[1])
    assert both.problem is None


def test_the_encoder_before_stays_after_a_roll_back_and_forth(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "line", "line")
    import_embeddings(encoded(tmp_path, ADDRESSES[0]), lineage)
    lineage.label("stable", 0)
    align(0, encoded(tmp_path, ADDRESSES[1]), lineage, promote=False)
    texts = loaded(lineage)
    # A request under way may still be of the version before.
    lineage.promote(1)
    texts.load(lineage)
    assert len(texts.encode(0, TEXTS, "document")) == 3
    texts.load(lineage)
    with pytest.raises(TextEncoderError):
        texts.encode(0, TEXTS, "document")
    assert len(texts.encode(1, TEXTS, "document")) == 3


def test_checks_are_due_every_so_often_and_sooner_after_a_failure(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("evergram.serving.texts.served_texts.monotonic", lambda: now[0])
    good, bad = loaded(lineage), loaded(lineage, ADDRESSES[2])
    due = []
    for seconds in (1, 11, 301):
        now[0] = 1000.0 + seconds
        due.append((good.is_due(), bad.is_due()))
    assert due == [(False, False), (False, True), (True, True)]
    good.check()
    assert not good.is_due()


def test_it_is_checked_while_it_is_watched(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK", 0.001)
    texts = ServedTexts(ADDRESSES, every=0.001)
    texts.load(lineage)
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("once")

    monkeypatch.setattr(texts, "check", check)

    async def watch() -> None:
        watching = asyncio.create_task(texts.watch())
        while len(calls) < 3:
            await asyncio.sleep(0.001)
        watching.cancel()

    asyncio.run(asyncio.wait_for(watch(), 30))


def test_kept_vectors_follow_the_checks_of_their_encoder(lineage: Lineage, tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("id,text\ntext-1,word1 word2\ntext-2,word3\n")
    documents = Documents(tmp_path / "texts.csv", tmp_path / "kept")
    texts = ServedTexts(ADDRESSES, documents=documents)
    texts.load(lineage)
    manifest = lineage.manifest(1)
    encode = partial(texts.encode, 1, role="document")
    kept = documents.kept(1, manifest.fingerprint, manifest.dim, encode)
    kept.of(pa.array(["text-1"]))
    texts.check()
    assert len(list((tmp_path / "kept").iterdir())) == 1
    kept.of(pa.array(["text-2"]))
    # The encoder turns out to be another: what it made since the last check goes.
    texts._encoders[1]._fail("is another", "")
    assert kept.ids().to_pylist() == ["text-1"]
    texts.check()
    kept.of(pa.array(["text-2"]))
    texts.close()
    assert len(list((tmp_path / "kept").iterdir())) == 2
