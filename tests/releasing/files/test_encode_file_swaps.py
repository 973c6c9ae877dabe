"""A model that is replaced behind its address leaves no file of two models, whenever it is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.text_encoders import endpoint, sentences, word_vectors

from evergram.errors import DataError
from evergram.releasing.files import encode_file as module
from evergram.releasing.files.encode_file import Texts, encode_file
from evergram.texts.endpoint import EndpointEncoder
from evergram.texts.record import record_of
from evergram.texts.text_encoder import Prompts, Role, Vectors

ROWS = sentences(50)
TEXTS = Texts(pa.array(range(50)), ROWS)
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


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", PART)


def right(number: int, texts: list[str]) -> int:
    return 0


def has(row: int) -> Callable[[list[str]], bool]:
    """Return whether a request has a text of the file."""
    return lambda texts: any(text.endswith(ROWS[row]) for text in texts)


@pytest.fixture
def undisturbed(tmp_path: Path) -> bytes:
    """The file of one model that ran through."""
    out = tmp_path / "undisturbed.parquet"
    encode_file(TEXTS, Server(right).encoder, out)
    return out.read_bytes()


@pytest.mark.parametrize("row", [0, 16, 17, 30, 49])
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


@pytest.mark.parametrize("swap", [1, 4, 5, 6, 8])
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


def test_the_same_model_goes_on_and_encodes_no_finished_part_again(
    tmp_path: Path, undisturbed: bytes
) -> None:
    def dying(number: int, texts: list[str]) -> int:
        if has(40)(texts):
            raise KeyboardInterrupt
        return 0

    out = tmp_path / "v.parquet"
    with pytest.raises(KeyboardInterrupt):
        encode_file(TEXTS, Server(dying).encoder, out)
    again = Server(right)
    encode_file(TEXTS, again.encoder, out)
    asked = [text for texts in again.asked for text in texts if text in ROWS]
    assert asked == ROWS[33:]
    assert out.read_bytes() == undisturbed


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
