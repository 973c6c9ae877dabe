"""Encoders of text in the service: batched, checked, replaced; and the vectors kept of them."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from tests.support.text_encoders import (
    ADDRESSES,
    CALLS,
    encoded,
    first,
    text_lineage,
    word_vectors,
)

from evergram.errors import DataError, ServiceError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.releasing.files.import_file import import_embeddings
from evergram.serving import text_encoders as module
from evergram.serving.documents import BATCH, Documents
from evergram.serving.text_encoders import (
    OVERHEAD,
    Batcher,
    CheckedEncoder,
    CrowdedError,
    ServedTexts,
    TextEncoderError,
    VectorCache,
)
from evergram.texts.addresses import CallableEncoder, open_text_encoder
from evergram.texts.record import parse_record, record_of
from evergram.texts.recorded_encoder import MismatchError
from evergram.texts.text_encoder import Prompts, Role, TextEncoder, Vectors
from evergram.vector_files.base import FINGERPRINT, TEXT_ENCODER
from evergram.vector_files.open_embeddings import open_embeddings

TEXTS = ["word1 word2", "word3"]
FIRST, SECOND, THIRD = (record_of(open_text_encoder(address)) for address in ADDRESSES)


class Encoder:
    """Encodes a text as its number; waits in its first call until it is let go."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.entered, self.go = threading.Event(), threading.Event()

    def encode(self, texts: list[str], role: Role) -> Vectors:
        self.calls.append(texts)
        if len(self.calls) == 1:
            self.entered.set()
            assert self.go.wait(30)
        if "poison" in texts:
            raise DataError("poison")
        if "down" in texts:
            raise ServiceError("down")
        sign = -1 if role == "query" else 1
        return np.array([[sign * float(text)] for text in texts], dtype=np.float32)


@pytest.mark.parametrize(
    ("jobs", "most", "results", "calls"),
    [
        # Those that wait are one batch, each with its own rows; queries are a batch apart.
        (["0", "1 2", "3", "?4", "5"], 9, [[0], [1, 2], [3], [-4], [5]], ["0", "1 2 3", "4", "5"]),
        # A batch has no more than it may, but for one long request.
        (["0", "1 1", "2 2", "3 3 3 3", "4"], 3, None, ["0", "1 1", "2 2", "3 3 3 3", "4"]),
        # A bad text fails its own request alone.
        (["0", "1", "poison", "2"], 9, [[0], [1], "poison", [2]], None),
        # A failure of the encoder is not repeated for each request.
        (["0", "1", "down", "2"], 9, [[0], "down", "down", "down"], ["0", "1 down 2"]),
    ],
)
def test_those_that_wait_are_encoded_together(
    jobs: list[str], most: int, results: list[Any] | None, calls: list[str] | None
) -> None:
    encoder = Encoder()
    batcher = Batcher(encoder.encode, most)

    def run(job: str) -> object:
        try:
            role: Role = "query" if job.startswith("?") else "document"
            return batcher.encode(job.strip("?").split(), role).ravel().tolist()
        except (DataError, ServiceError) as error:
            return str(error)

    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = [pool.submit(run, jobs[0])]
        assert encoder.entered.wait(30)
        for number, job in enumerate(jobs[1:], 1):
            futures.append(pool.submit(run, job))
            while len(batcher._waiting) < number:
                threading.Event().wait(0.001)
        encoder.go.set()
        got = [future.result() for future in futures]
    assert results is None or got == results
    assert calls is None or encoder.calls == [call.split() for call in calls]


def test_a_request_whose_turn_does_not_come_gives_up_and_leaves_the_queue() -> None:
    encoder = Encoder()
    batcher = Batcher(encoder.encode, 10, patience=0.01)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(batcher.encode, ["0"], "document")
        assert encoder.entered.wait(30)
        with pytest.raises(CrowdedError):
            batcher.encode(["1"], "document")
        encoder.go.set()
        assert first.result().tolist() == [[0]]
    assert encoder.calls == [["0"]]


def checked(prompts: Prompts | None = None) -> tuple[CheckedEncoder, Any, list[int]]:
    """Return a checked encoder, the encoder in it, and a list that grows with each failure."""
    encoder: Any = open_text_encoder(ADDRESSES[0], prompts)
    failures: list[int] = []
    failed = partial(failures.append, 1)
    made = CheckedEncoder(3, record_of(encoder), lambda _: encoder, failed, 30.0)
    assert made.check()
    CALLS.clear()
    return made, encoder, failures


def test_each_batch_takes_a_canary_along_and_gives_only_its_own_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder, inner, failures = checked()
    for _ in range(2):
        vectors = encoder.encode(["word1", "word2"], "query")
        assert_array_equal(vectors, word_vectors(["word1", "word2"], 0, 10))
    assert [call[2] for call in CALLS] == list(encoder.record.texts[:2])
    assert (encoder.problem, failures) == (None, [])
    # With other prompts for queries the canary keeps that of a document.
    prompted = checked(Prompts("ask ", "tell "))[0]
    prompted.encode(["word1"], "query")
    assert list(CALLS) == [["ask word1", f"tell {prompted.record.texts[0]}"]]
    # Where weights can be compared, no canary is needed.
    monkeypatch.setattr(inner, "fingerprint", "weights:00")
    CALLS.clear()
    encoder.encode(["word1"], "document")
    assert list(CALLS) == [["word1"]]


def test_one_that_cannot_be_opened_is_tried_again() -> None:
    inner = open_text_encoder(ADDRESSES[0])
    failing: list[ServiceError] = [ServiceError("down"), MismatchError("dims")]

    def opened(_: object) -> TextEncoder:
        if failing:
            raise failing.pop()
        return inner

    encoder = CheckedEncoder(3, record_of(inner), opened, lambda: None)
    with pytest.raises(TextEncoderError, match="is not open yet"):
        encoder.encode(["word1"], "document")
    for words in ("is none of those", "cannot be opened"):
        assert not encoder.check()
        assert words in str(encoder.problem)
    assert encoder.check()
    assert encoder.problem is None


DIM = 10


def written(folder: Path, count: int = 200) -> Path:
    rows = [f"{i},word{i % 50} word{i % 7}" for i in range(count)]
    (folder / "texts.csv").write_text("\n".join(["id,text", *rows]) + "\n")
    return folder / "texts.csv"


def test_texts_are_found_by_id_without_the_file_where_they_are_known(tmp_path: Path) -> None:
    documents = Documents(written(tmp_path, 5))
    (tmp_path / "texts.csv").unlink()
    for ids in (pa.array([3, 0]), pa.array(["3", "0"])):
        assert documents.texts_of(ids) == ["word3 word3", "word0 word0"]
    with pytest.raises(DataError, match="no file"):
        documents.texts_of(pa.array([99]))


def test_texts_are_encoded_in_parts_and_what_was_done_is_kept(tmp_path: Path) -> None:
    documents = Documents(written(tmp_path))
    CALLS.clear()

    def until_the_third(texts: list[str]) -> np.ndarray:
        if len(CALLS) == 2:
            raise DataError("out of time")
        return first(texts)

    kept = documents.kept(1, "space", DIM, until_the_third)
    with pytest.raises(DataError, match="out of time"):
        kept.of(pa.array(range(200)))
    assert [len(call) for call in CALLS] == [BATCH, BATCH]
    assert documents.counts() == {1: 2 * BATCH}
    assert documents.kept(1, "space", DIM, first) is kept
    assert len(documents.kept(1, "another", DIM, first)) == 0


def test_only_what_a_check_came_after_is_saved_and_outlives_a_failed_one(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    documents = Documents(written(tmp_path), folder)
    kept = documents.kept(1, "space", DIM, first, FIRST)
    before = kept.of(pa.array([5, 6]))
    documents.save()
    assert not folder.exists()
    documents.trust(1, 2)
    kept.of(pa.array([7]))
    documents.save()
    documents.save()
    (path,) = folder.glob("*.parquet")
    provenance = open_embeddings(path).provenance
    assert parse_record(provenance[TEXT_ENCODER], "") == FIRST
    assert provenance[FINGERPRINT] == "space"
    documents.distrust(1)
    assert kept.ids().to_pylist() == [5, 6]
    kept.of(pa.array([8]))
    documents.trust(1, 3)
    documents.save()
    assert len(list(folder.glob("*.parquet"))) == 2
    again = Documents(written(tmp_path), folder).kept(1, "space", DIM, first)
    assert sorted(again.ids().to_pylist()) == [5, 6, 8]
    CALLS.clear()
    assert_array_equal(again.of(pa.array([5, 6])), before)
    assert not CALLS


def test_what_was_saved_of_another_version_or_is_damaged_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def saved(folder: Path) -> Documents:
        documents = Documents(written(tmp_path), folder)
        documents.kept(1, "space", DIM, first).of(pa.array([5]))
        documents.trust(1, 1)
        documents.save()
        return documents

    folder = tmp_path / "kept"
    saved(folder)
    (path,) = folder.glob("*.parquet")
    # A file under the name of another version is still of its own.
    path.rename(folder / path.name.replace("space", "other"))
    (folder / "other-b.parquet").write_bytes(b"PAR1")
    assert len(Documents(written(tmp_path), folder).kept(1, "other", DIM, first)) == 0
    # The folder cannot be made where a file is.
    assert saved(folder / "other-b.parquet").counts() == {1: 1}
    for words in ("not of the version other", "other-b.parquet", "cannot be saved"):
        assert words in caplog.text


def lineage_with(production: int, *records: Any) -> Any:
    """A lineage of versions 0, 1, … with these encoders."""
    versions = [SimpleNamespace(version=n, text_encoder=r) for n, r in enumerate(records)]
    return SimpleNamespace(production=production, versions=versions)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of the encoders that were closed."""
    addresses: list[str] = []
    monkeypatch.setattr(CallableEncoder, "close", lambda self: addresses.append(self.address))
    return addresses


def test_an_encoder_is_closed_when_no_version_uses_it(closed: list[str]) -> None:
    texts = ServedTexts(ADDRESSES)
    texts.load(lineage_with(0, FIRST))
    model = weakref.ref(next(iter(texts._open.values())))
    texts.load(lineage_with(1, FIRST, SECOND))
    # It may still be asked for by requests under way.
    assert closed == []
    texts.load(lineage_with(2, FIRST, SECOND, THIRD))
    assert closed == ADDRESSES[:1]
    assert model() is None
    texts.close()
    assert closed == ADDRESSES


def test_an_encoder_is_closed_after_its_last_call(closed: list[str]) -> None:
    texts = ServedTexts(ADDRESSES)
    texts.load(lineage_with(0, FIRST))
    entered, go = threading.Event(), threading.Event()

    def slowly(asked: list[str]) -> Any:
        entered.set()
        assert go.wait(60)
        return word_vectors(asked, 0, 10)

    next(iter(texts._open.values()))._function = slowly  # type: ignore[attr-defined]
    retired = texts._encoders[0]
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(texts.encode, 0, TEXTS, "document")
        try:
            assert entered.wait(60)
            texts.load(lineage_with(1, FIRST, SECOND))
            texts.load(lineage_with(2, FIRST, SECOND, THIRD))
            texts.look()
            assert closed == []
            with pytest.raises(TextEncoderError, match="was replaced"):
                retired.encode(TEXTS, "document")
            assert not retired.check()
        finally:
            go.set()
        assert_allclose(under_way.result(60), word_vectors(TEXTS, 0, 10), rtol=1e-5)
    texts.look()
    assert closed == ADDRESSES[:1]


def test_a_number_that_goes_to_another_version_is_encoded_by_its_encoder() -> None:
    texts = ServedTexts(ADDRESSES)
    texts.load(lineage_with(1, FIRST, SECOND))
    texts.encode(1, TEXTS, "document")
    texts.load(lineage_with(0, FIRST))
    texts.load(lineage_with(1, FIRST, THIRD))
    assert texts.cached(1, TEXTS, "document") is None
    assert_allclose(texts.encode(1, TEXTS, "document"), word_vectors(TEXTS, 2, 11), rtol=1e-5)
    # A request under way may be of the lineage before.
    for ask in (texts.encode, texts.cached):
        with pytest.raises(TextEncoderError, match="was replaced"):
            ask(1, TEXTS, "document", SECOND)
    texts.load(lineage_with(1, FIRST, None))
    with pytest.raises(TextEncoderError, match="records no encoder"):
        texts.encode(1, TEXTS, "document")


def test_each_version_has_its_encoder_and_only_new_texts_are_encoded(lineage: Lineage) -> None:
    repeated = [*TEXTS, TEXTS[0]]
    texts = loaded(lineage, *reversed(ADDRESSES))
    assert texts.problem is None
    assert_allclose(texts.encode(1, repeated, "document"), word_vectors(repeated, 1, 12), rtol=1e-5)
    # Version 0 is read through the chain: its encoder is not opened.
    with pytest.raises(TextEncoderError, match="records no encoder"):
        texts.encode(0, repeated, "document")
    CALLS.clear()
    more = ["word9", *repeated, "word4"]
    assert_allclose(texts.encode(1, more, "document"), word_vectors(more, 1, 12), rtol=1e-5)
    assert CALLS[0][:2] == ["word9", "word4"]
    # A query is not the document of the same words.
    texts.encode(1, ["word9"], "query")
    assert len(CALLS) == 2
    texts.close()


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    return text_lineage(tmp_path_factory.mktemp("served"))


def loaded(lineage: Lineage, *addresses: str, **options: Any) -> ServedTexts:
    texts = ServedTexts(addresses or ADDRESSES, **options)
    texts.load(lineage)
    return texts


def test_the_encoder_before_stays_after_a_roll_back_and_forth(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "line", "line")
    import_embeddings(encoded(tmp_path, ADDRESSES[0]), lineage)
    lineage.label("stable", 0)
    align(0, encoded(tmp_path, ADDRESSES[1]), lineage, promote=False)
    texts = loaded(lineage)
    # A request under way may still be of the version before.
    lineage.promote(1)
    texts.load(lineage)
    assert len(texts.encode(0, TEXTS, "document")) == 2
    texts.load(lineage)
    with pytest.raises(TextEncoderError):
        texts.encode(0, TEXTS, "document")
    assert len(texts.encode(1, TEXTS, "document")) == 2


def test_checks_are_due_every_so_often_and_sooner_after_a_failure(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    good, bad = loaded(lineage), loaded(lineage, ADDRESSES[2])
    due = []
    for seconds in (1, 11, 301):
        now[0] = 1000.0 + seconds
        due.append((good.is_due(), bad.is_due()))
    assert due == [(False, False), (False, True), (True, True)]
    good.check()
    assert not good.is_due()


def test_kept_vectors_follow_the_checks_of_their_encoder(lineage: Lineage, tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("id,text\ntext-1,word1 word2\ntext-2,word3\n")
    documents = Documents(tmp_path / "texts.csv", tmp_path / "kept")
    texts, manifest = loaded(lineage, documents=documents), lineage.manifest(1)
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


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=40), st.integers(0, 4))
def test_a_cache_is_a_dictionary_of_the_last_few(steps: list[tuple[bool, int]], room: int) -> None:
    size = 16 + OVERHEAD
    cache, expected = VectorCache(room * size), OrderedDict[int, np.ndarray]()
    rows = np.repeat(np.arange(7, dtype=np.float32)[:, None], 4, axis=1)
    for write, key in steps:
        if write and room:
            expected.pop(key, None)
            expected[key] = rows[key]
            while len(expected) > room:
                expected.popitem(last=False)
        elif key in expected:
            expected.move_to_end(key)
        if write:
            cache.put(key, rows[key], 0)
        else:
            held = cache.get(key)
            assert (held is None) == (key not in expected)
            # A row does not keep its batch in memory.
            assert held is None or (held.base is None and (held == rows[key]).all())
        assert len(cache) == len(expected)
        assert cache.held == len(expected) * size <= cache.most
    cache.clear()
    assert (len(cache), cache.held) == (0, 0)


def test_encoders_are_checked_while_they_are_watched(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK", 0.001)
    texts, calls = loaded(lineage, every=0.001), list[int]()

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
