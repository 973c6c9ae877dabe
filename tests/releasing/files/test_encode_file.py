"""A file of texts becomes a file of vectors with the record of its encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from numpy.testing import assert_allclose
from tests.support.text_encoders import ADDRESSES, CALLS, HERE, endpoint, sentences, word_vectors

from evergram.errors import DataError, ServiceError
from evergram.releasing.files import encode_file as module
from evergram.releasing.files.encode_file import Texts, encode_file
from evergram.releasing.files.past_file import text_encoder_of
from evergram.texts.addresses import open_text_encoder
from evergram.texts.endpoint import EndpointEncoder
from evergram.texts.record import record_of
from evergram.texts.text_encoder import Prompts, Role, Vectors
from evergram.vector_files.open_embeddings import open_embeddings

ROWS = sentences(50)
TEXTS = Texts(pa.array(range(50)), ROWS)


@pytest.mark.parametrize("name", ["v.parquet", "v.arrow", "v.npy"])
def test_the_file_has_the_vectors_in_order_and_knows_its_encoder(name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    record = encode_file(TEXTS, open_text_encoder(ADDRESSES[0], Prompts("a ", "b ")), out)
    file = open_embeddings(out)
    [(ids, vectors)] = file.blocks()
    assert ids.to_pylist() == list(range(50))
    assert_allclose(vectors, word_vectors([f"b {t}" for t in ROWS], 0, 10), rtol=1e-5)
    assert text_encoder_of(file) == record
    assert record.prompts == {"query": "a ", "document": "b "}
    assert not list(tmp_path.glob("*.parts"))


def test_queries_get_their_prompt(tmp_path: Path) -> None:
    queries = Texts(TEXTS.ids, ROWS, "query")
    encode_file(queries, open_text_encoder(ADDRESSES[0], Prompts("a ", "")), tmp_path / "q.npy")
    [(_, vectors)] = open_embeddings(tmp_path / "q.npy").blocks()
    assert_allclose(vectors, word_vectors([f"a {t}" for t in ROWS], 0, 10), rtol=1e-5)


def test_a_run_that_was_killed_within_a_part_goes_on_from_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All texts are one part, of which some batches were saved."""
    monkeypatch.setattr(module, "EVERY", 0.0)
    encoder: Any = open_text_encoder(ADDRESSES[0])
    encoder.batch = 11
    whole, calls = encoder._function, []

    def dying(texts: list[str]) -> Any:
        calls.append(texts)
        if sum(ROWS[30] in call for call in calls):
            raise KeyboardInterrupt
        return whole(texts)

    monkeypatch.setattr(encoder, "_function", dying)
    out = tmp_path / "v.parquet"
    with pytest.raises(KeyboardInterrupt):
        encode_file(TEXTS, encoder, out)
    monkeypatch.undo()
    with pytest.raises(DataError, match="other settings"):
        encode_file(Texts(TEXTS.ids, ROWS[::-1]), open_text_encoder(ADDRESSES[0]), out)
    CALLS.clear()
    encode_file(TEXTS, open_text_encoder(ADDRESSES[0]), out)
    again = [text for call in CALLS for text in call]
    assert (ROWS[0] in again, ROWS[29] in again, ROWS[49] in again) == (False, False, True)
    [(ids, vectors)] = open_embeddings(out).blocks()
    assert ids.to_pylist() == list(range(50))
    assert_allclose(vectors, word_vectors(ROWS, 0, 10), rtol=1e-5)


def test_parts_of_other_texts_or_of_another_encoder_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned = Texts(pa.array([0, 1]), ["word1", "poison"])
    out = tmp_path / "v.parquet"
    with pytest.raises(ServiceError):
        encode_file(poisoned, open_text_encoder(f"{HERE}:failing"), out)
    with pytest.raises(DataError, match=r"give another OUT, remove .*v\.parquet\.parts, or"):
        encode_file(TEXTS, open_text_encoder(ADDRESSES[0]), out)


def test_formats_without_a_place_for_the_record_and_existing_files_are_refused(
    tmp_path: Path,
) -> None:
    encoder = open_text_encoder(ADDRESSES[0])
    for name in ("v.csv", "v.safetensors", "v"):
        with pytest.raises(DataError, match="have a place for"):
            encode_file(TEXTS, encoder, tmp_path / name)
    (tmp_path / "v.npy").write_text("mine")
    with pytest.raises(DataError, match="is there already"):
        encode_file(TEXTS, encoder, tmp_path / "v.npy")
    encode_file(TEXTS, encoder, tmp_path / "v.npy", overwrite=True)


def test_vectors_of_zeros_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encoder: Any = open_text_encoder(ADDRESSES[0])
    encode_file(TEXTS, encoder, tmp_path / "whole.parquet")
    assert not caplog.records
    whole = encoder._function

    def some(texts: list[str]) -> Any:
        vectors = whole(texts)
        vectors[[text in ROWS[:3] for text in texts]] = 0
        return vectors

    monkeypatch.setattr(encoder, "_function", some)
    encode_file(TEXTS, encoder, tmp_path / "some.parquet")
    assert "3 of 50 vectors are zeros" in caplog.text


# Three batches a part, and one text left over: 7 + 7 + 3 of 17, 17 and 16 texts.
PART, BATCH = 20, 8


class Server:
    """An endpoint whose model is chosen for each request.

    Args:
        model: returns the seed of the model that answers a request, by its number from 0 and its
            texts.
    """

    def __init__(self, model: Callable[[int, list[str]], int], prompts: Prompts | None = None):
        self.model = model
        self.asked: list[list[str]] = []
        self.encoder: Any = EndpointEncoder(
            "http://h/v1#m", prompts, transport=endpoint(self.answer)
        )
        self.encoder.batch = BATCH

    def answer(self, texts: list[str]) -> Vectors:
        seed = self.model(len(self.asked), texts)
        self.asked.append(texts)
        return word_vectors(texts, seed, 10)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", PART)


def right(number: int, texts: list[str]) -> int:
    return 0


def has(row: int) -> Callable[[list[str]], bool]:
    """Return whether a request has a text of the file."""
    return lambda texts: any(text.endswith(ROWS[row]) for text in texts)


@pytest.fixture
def undisturbed(tmp_path: Path, small_parts: None) -> bytes:
    """The file of one model that ran through."""
    out = tmp_path / "undisturbed.parquet"
    encode_file(TEXTS, Server(right).encoder, out)
    return out.read_bytes()


@pytest.mark.parametrize("row", [0, 17, 49])
def test_one_request_of_another_model_is_an_error_and_the_next_run_repairs_it(
    row: int, tmp_path: Path, undisturbed: bytes
) -> None:
    """The model is back for the request after, so that canaries at both ends are the same."""
    other = has(row)
    out = tmp_path / "v.parquet"
    with pytest.raises(DataError, match=r"changed while the texts were encoded .* go(es)? on"):
        encode_file(TEXTS, Server(lambda _, texts: int(other(texts))).encoder, out)
    assert not out.exists()
    encode_file(TEXTS, Server(right).encoder, out)
    assert out.read_bytes() == undisturbed
    assert not list(tmp_path.glob("*.parts"))


@pytest.mark.parametrize("swap", [1, 5, 8])
@pytest.mark.parametrize("killed", [KeyboardInterrupt, None])
def test_a_swap_and_a_kill_leave_parts_of_the_first_model_alone(
    swap: int, killed: type[BaseException] | None, tmp_path: Path, undisturbed: bytes
) -> None:
    """From a request on another model answers, and the process dies at a later one if at all."""

    def model(number: int, texts: list[str]) -> int:
        if killed is not None and number == swap + 1:
            raise killed
        return int(number >= swap)

    out = tmp_path / "v.parquet"
    with pytest.raises((DataError, KeyboardInterrupt)):
        encode_file(TEXTS, Server(model).encoder, out)
    # The other model stays: what the first one made is not mixed with its vectors.
    if list(tmp_path.glob("v.parquet.parts/part-*")):
        with pytest.raises(DataError, match=r"has parts of another model .* bring back"):
            encode_file(TEXTS, Server(lambda *_: 1).encoder, out)
    again = Server(right)
    encode_file(TEXTS, again.encoder, out)
    assert out.read_bytes() == undisturbed
    if swap >= 5:
        assert not any(has(0)(texts) for texts in again.asked)


def test_parts_of_another_model_are_dropped_by_force(tmp_path: Path, undisturbed: bytes) -> None:
    out = tmp_path / "v.parquet"
    with pytest.raises(DataError, match="changed while"):
        encode_file(TEXTS, Server(lambda number, _: int(number < 8)).encoder, out)
    encode_file(TEXTS, Server(right).encoder, out, overwrite=True)
    assert out.read_bytes() == undisturbed


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("role", ["query", "document"])
def test_each_request_is_checked_whatever_the_prompts(role: Role, tmp_path: Path) -> None:
    texts = Texts(TEXTS.ids, ROWS, role)
    out = tmp_path / "v.parquet"
    server = Server(lambda _, asked: int(has(20)(asked)), Prompts("ask: ", "tell: "))
    with pytest.raises(DataError, match="changed while the texts were encoded"):
        encode_file(texts, server.encoder, out)
    whole = Server(right, Prompts("ask: ", "tell: "))
    encode_file(texts, whole.encoder, out)
    prompt = "ask: " if role == "query" else "tell: "
    canaries = [f"tell: {text}" for text in record_of(whole.encoder).texts]
    for asked in whole.asked[1:-1]:
        assert len(asked) <= BATCH
        assert asked[-1] in canaries
        assert all(text.startswith(prompt) for text in asked[:-1] if text not in canaries)
