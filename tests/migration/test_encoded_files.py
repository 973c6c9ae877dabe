"""Files of texts become files of vectors that know their encoder, in a migration too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.text_encoders import ADDRESSES, CALLS, endpoint, sentences, word_vectors

from evergram.errors import DataError
from evergram.migration import encoded_files as encoding
from evergram.migration.cascade import KeptVectors
from evergram.migration.encoded_files import MigrationRest, Texts, encode_file, plan_rest
from evergram.releasing.past_file import text_encoder_of
from evergram.texts.addresses import EndpointEncoder, open_text_encoder
from evergram.texts.record import record_of
from evergram.texts.text_encoder import Prompts, Role, TextEncoder, Vectors
from evergram.vector_files.open_embeddings import TEXT_ENCODER, open_embeddings, write_vectors

ROWS = sentences(50)
TEXTS = Texts(pa.array(range(50)), ROWS)
OWN = word_vectors(ROWS, 1, 12)


def kept_file(path: Path, rows: list[int]) -> Path:
    some = Texts(TEXTS.ids.take(pa.array(rows)), [ROWS[row] for row in rows])
    encode_file(some, open_text_encoder(ADDRESSES[1]), path, overwrite=True)
    return path


def mark(encoder: TextEncoder) -> dict[str, str]:
    return {TEXT_ENCODER: record_of(encoder).model_dump_json()}


def read(path: Path) -> Any:
    blocks = list(open_embeddings(path).blocks())
    assert [i for ids, _ in blocks for i in ids.to_pylist()] == TEXTS.ids.to_pylist()
    return torch.cat([vectors for _, vectors in blocks]).numpy()


@settings(max_examples=15, deadline=None)
@given(st.sets(st.integers(0, 49), min_size=1), st.integers(2, 20), st.integers(1, 60))
def test_the_file_is_that_of_encoding_all_and_each_missing_text_is_encoded_once(
    tmp_path_factory: pytest.TempPathFactory, rows: set[int], batch: int, part: int
) -> None:
    folder = tmp_path_factory.mktemp("migration")
    kept = kept_file(folder / "kept.parquet", sorted(rows, key=lambda row: row * 7 % 50))
    encoder = open_text_encoder(ADDRESSES[1])
    encoder.batch = batch
    rest = plan_rest(TEXTS, encoder, [kept], check=5)
    assert rest.counts["to_encode"] == 50 - len(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "PART", part)
        CALLS.clear()
        record = encode_file(TEXTS, encoder, folder / "new.parquet", known=rest)
    asked = [text for call in CALLS for text in call if text in ROWS]
    assert sorted(asked) == sorted(ROWS[row] for row in range(50) if row not in rows)
    np.testing.assert_allclose(read(folder / "new.parquet"), OWN, rtol=1e-6)
    assert text_encoder_of(open_embeddings(folder / "new.parquet")) == record


def test_kept_vectors_are_written_as_they_are(tmp_path: Path) -> None:
    """Not computed again: a rounding of 1 % of their length, which the check allows, stays."""
    rounded = OWN * np.float32(1.01)
    kept = tmp_path / "kept.parquet"
    encoder = open_text_encoder(ADDRESSES[1])
    block = TEXTS.ids.slice(10, 20), torch.from_numpy(rounded[10:30])
    write_vectors(kept, [block], mark(encoder))
    rest = plan_rest(TEXTS, encoder, [kept])
    encode_file(TEXTS, encoder, tmp_path / "new.npy", known=rest)
    vectors = read(tmp_path / "new.npy")
    np.testing.assert_array_equal(vectors[10:30], rounded[10:30])
    np.testing.assert_allclose(vectors[:10], OWN[:10], rtol=1e-6)


def test_the_plan_counts_what_is_left(tmp_path: Path) -> None:
    kept = tmp_path / "kept.parquet"
    ids = pa.array([*range(20), 999])
    vectors = torch.from_numpy(np.concatenate([OWN[:20], OWN[:1]]))
    encoder = open_text_encoder(ADDRESSES[1])
    write_vectors(kept, [(ids, vectors)], mark(encoder))
    again = kept_file(tmp_path / "again.parquet", [19, 20])
    rest = plan_rest(TEXTS, encoder, [kept, again], check=4)
    expected = {"texts": 50, "to_encode": 29, "kept": 21, "unknown_ids": 1, "repeated": 1}
    expected |= {"text_bytes": len("".join(ROWS[21:]).encode())}
    expected |= {"checked": 5}  # one of the second file more
    assert rest.counts == expected
    assert not list(tmp_path.glob("*.parts"))


def test_a_killed_run_goes_on_and_other_kept_vectors_begin_anew_only_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "PART", 10)
    encoder: Any = open_text_encoder(ADDRESSES[1])
    encoder.batch = 9
    kept = kept_file(tmp_path / "kept.parquet", list(range(0, 50, 2)))
    rest = plan_rest(TEXTS, encoder, [kept])
    whole, calls = encoder._function, []

    def dying(texts: list[str]) -> Any:
        calls.append(texts)
        if len(calls) == 4:  # canaries, then two calls for each part
            raise KeyboardInterrupt
        return whole(texts)

    encoder._function = dying
    out = tmp_path / "new.parquet"
    with pytest.raises(KeyboardInterrupt):
        encode_file(TEXTS, encoder, out, known=rest)
    encoder._function = whole
    more = plan_rest(TEXTS, encoder, [kept, kept_file(tmp_path / "more.parquet", [49])])
    with pytest.raises(DataError, match=r"new\.parquet\.parts has parts of other texts"):
        encode_file(TEXTS, encoder, out, known=more)
    CALLS.clear()
    encode_file(TEXTS, encoder, out, known=rest)
    asked = {text for call in CALLS for text in call}
    assert ROWS[1] not in asked
    assert ROWS[49] in asked
    np.testing.assert_allclose(read(out), OWN, rtol=1e-6)
    # The parts of a run that is given up are kept vectors, too, and nothing is encoded twice.
    encoder._function = dying
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        encode_file(TEXTS, encoder, tmp_path / "two.parquet", known=rest)
    encoder._function = whole
    parts = tmp_path / "two.parquet.parts"
    rest = plan_rest(TEXTS, encoder, [kept, parts])
    assert 0 < rest.counts["to_encode"] < 25
    encode_file(TEXTS, encoder, tmp_path / "three.parquet", known=rest)
    np.testing.assert_allclose(read(tmp_path / "three.parquet"), OWN, rtol=1e-6)
    encode_file(TEXTS, encoder, tmp_path / "two.parquet", known=rest, overwrite=True)
    assert not parts.exists()


def test_a_plan_of_other_texts_and_queries_are_refused(tmp_path: Path) -> None:
    encoder = open_text_encoder(ADDRESSES[1])
    kept = kept_file(tmp_path / "kept.parquet", [1, 2])
    rest = plan_rest(TEXTS, encoder, [kept])
    fewer = Texts(TEXTS.ids.slice(0, 49), ROWS[:49])
    with pytest.raises(DataError, match="The plan is of 50 texts, not 49"):
        encode_file(fewer, encoder, tmp_path / "new.parquet", known=rest)
    with pytest.raises(DataError, match="not queries"):
        plan_rest(Texts(TEXTS.ids, ROWS, "query"), encoder, [kept])


@pytest.mark.parametrize("swap", [1, 3, 5])
def test_kept_vectors_and_the_rest_are_of_one_model(swap: int, tmp_path: Path) -> None:
    """From a call on another model answers: while kept vectors are compared, or after."""
    kept = kept_file(tmp_path / "kept.parquet", list(range(0, 50, 2)))
    encoder: Any = open_text_encoder(ADDRESSES[1])
    calls: list[int] = []

    def changing(texts: list[str]) -> Any:
        calls.append(1)
        return word_vectors(texts, 1 if len(calls) <= swap else 4, 12)

    encoder._function = changing
    out = tmp_path / "new.parquet"
    with pytest.raises(DataError, match=r"changed while|is not the model that the kept"):
        encode_file(TEXTS, encoder, out, known=plan_rest(TEXTS, encoder, [kept]))
    assert not out.exists()
    encoder._function = lambda texts: word_vectors(texts, 1, 12)
    encode_file(TEXTS, encoder, out, known=plan_rest(TEXTS, encoder, [kept]))
    np.testing.assert_allclose(read(out), OWN, rtol=1e-6)


KEPT_ROWS = sentences(60)
KEPT_TEXTS = Texts(pa.array([f"t{i}" for i in range(60)]), KEPT_ROWS)
DIM = 12


@pytest.fixture(scope="module")
def new() -> TextEncoder:
    return open_text_encoder(ADDRESSES[1])


def own(rows: list[int]) -> Vectors:
    return word_vectors([KEPT_ROWS[row] for row in rows], 1, DIM)


def saved(path: Path, encoder: TextEncoder, ids: list[str], vectors: Vectors) -> Path:
    """Save vectors as a cascade does, with the record of an encoder."""
    by_id = dict(zip(ids, vectors, strict=True))
    kept = KeptVectors(lambda asked: np.stack([by_id[i] for i in asked.to_pylist()]), DIM)
    kept.of(pa.array(ids))
    kept.save(path, record_of(encoder))
    return path


def kept_of(path: Path, encoder: TextEncoder, rows: list[int]) -> Path:
    return saved(path, encoder, [f"t{row}" for row in rows], own(rows))


def by_text(kept: MigrationRest) -> dict[int, Vectors]:
    return {int(row): kept.vectors[kept.rows[row]] for row in np.flatnonzero(kept.rows >= 0)}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 79), unique=True, min_size=1), min_size=1, max_size=4))
def test_each_text_gets_its_own_kept_vector_whatever_the_files(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]]
) -> None:
    """Beside a dictionary; the numbers from 60 on are ids that no text has."""
    folder = tmp_path_factory.mktemp("kept")
    encoder = open_text_encoder(ADDRESSES[1])
    vectors = word_vectors([*KEPT_ROWS, *["word1"] * 20], 1, DIM)
    paths, unknown_ids = [], 0
    expected: dict[int, Vectors] = {}
    for number, rows in enumerate(files):
        ids = [f"t{row}" for row in rows]
        paths.append(saved(folder / f"{number}.parquet", encoder, ids, vectors[rows]))
        expected |= {row: vectors[row] for row in rows if row < 60}
        unknown_ids += sum(row >= 60 for row in rows)
    if not expected:
        with pytest.raises(DataError, match="is among the 60 texts"):
            plan_rest(KEPT_TEXTS, encoder, paths)
        return
    kept = plan_rest(KEPT_TEXTS, encoder, paths, check=1000)
    assert by_text(kept).keys() == expected.keys()
    for row, vector in by_text(kept).items():
        np.testing.assert_array_equal(vector, expected[row])
    assert kept.counts["unknown_ids"] == unknown_ids
    assert kept.counts["repeated"] == sum(map(len, files)) - unknown_ids - len(expected)
    assert kept.counts["checked"] == len(expected)


def test_a_folder_is_its_parquet_files_and_a_file_counts_once(
    tmp_path: Path, new: TextEncoder
) -> None:
    kept_of(tmp_path / "a.parquet", new, [3, 1])
    kept_of(tmp_path / "b.parquet", new, [1, 7])
    (tmp_path / "notes.txt").write_text("mine")
    kept = plan_rest(KEPT_TEXTS, new, [tmp_path, tmp_path / "a.parquet"])
    assert sorted(by_text(kept)) == [1, 3, 7]
    assert kept.counts["repeated"] == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no Parquet files"):
        plan_rest(KEPT_TEXTS, new, [tmp_path / "empty"])
    with pytest.raises(DataError, match="No kept vectors were given"):
        plan_rest(KEPT_TEXTS, new, [])


def test_numbers_are_the_same_ids_as_text(tmp_path: Path, new: TextEncoder) -> None:
    numbered = Texts(pa.array(range(60)), KEPT_ROWS)
    path = saved(tmp_path / "k.parquet", new, ["4", "2", "002"], own([4, 2, 5]))
    kept = plan_rest(numbered, new, [path])
    assert sorted(by_text(kept)) == [2, 4]
    assert kept.counts["unknown_ids"] == 1


def test_vectors_of_another_encoder_of_other_prompts_or_dims_are_refused(
    tmp_path: Path, new: TextEncoder
) -> None:
    other = open_text_encoder(ADDRESSES[1], Prompts("", "passage "))
    path = kept_of(tmp_path / "k.parquet", other, [1, 2])
    with pytest.raises(DataError, match=r"k\.parquet was not made by .*its prompts are"):
        plan_rest(KEPT_TEXTS, new, [path])
    old = open_text_encoder(ADDRESSES[0])
    encode_file(Texts(KEPT_TEXTS.ids.slice(0, 5), KEPT_ROWS[:5]), old, tmp_path / "old.parquet")
    with pytest.raises(DataError, match=r"10 dims"):
        plan_rest(KEPT_TEXTS, new, [tmp_path / "old.parquet"])
    mixed: Any = open_text_encoder(ADDRESSES[1])
    mixed._function = lambda texts: word_vectors(texts, 5, DIM)
    path = kept_of(tmp_path / "mixed.parquet", mixed, [1, 2])
    with pytest.raises(DataError, match="its vectors of the canary texts differ"):
        plan_rest(KEPT_TEXTS, new, [path])


def test_an_id_twice_in_a_file_or_with_two_vectors_is_refused(
    tmp_path: Path, new: TextEncoder
) -> None:
    twice = tmp_path / "twice.parquet"
    ids = pa.array(["t1", "t2", "t1"])
    write_vectors(twice, [(ids, torch.from_numpy(own([1, 2, 1])))])
    with pytest.raises(DataError, match="has no record of its encoder"):
        plan_rest(KEPT_TEXTS, new, [twice])
    write_vectors(twice, [(ids, torch.from_numpy(own([1, 2, 1])))], mark(new), overwrite=True)
    with pytest.raises(DataError, match="1 ids are repeated, such as 't1'"):
        plan_rest(KEPT_TEXTS, new, [twice])
    one = kept_of(tmp_path / "one.parquet", new, [1, 2])
    two = saved(tmp_path / "two.parquet", new, ["t1", "t2"], own([1, 3]))
    with pytest.raises(DataError, match=r"two\.parquet and a file before it.*the id 't2'"):
        plan_rest(KEPT_TEXTS, new, [one, two])


def test_a_wrong_vector_in_the_sample_is_refused_with_its_id_and_its_file(
    tmp_path: Path, new: TextEncoder
) -> None:
    good = kept_of(tmp_path / "good.parquet", new, list(range(40)))
    wrong = saved(tmp_path / "wrong.parquet", new, ["t50"], own([51]))
    # Each file has one vector in the sample, however small the sample and the file are.
    with pytest.raises(DataError, match=r"1 of 2 kept vectors .*'t50' in .*wrong\.parquet"):
        plan_rest(KEPT_TEXTS, new, [good, wrong], check=1)


def test_a_share_of_wrong_vectors_is_caught_as_often_as_the_check_says(
    tmp_path: Path, new: TextEncoder
) -> None:
    """6 of 60 are wrong: 24 without replacement miss all with a probability of C(36,6)/C(60,6)."""
    vectors = own(list(range(60)))
    vectors[::10] = -vectors[::10]
    path = saved(tmp_path / "k.parquet", new, KEPT_TEXTS.ids.to_pylist(), vectors)
    missed = 0
    for seed in range(60):
        try:
            plan_rest(KEPT_TEXTS, new, [path], check=24, seed=seed)
        except DataError:
            continue
        missed += 1
    # Expected: 60 · 0.039 = 2.3; 9 or more have a probability below 1e-3.
    assert missed < 9
    right = kept_of(tmp_path / "w.parquet", new, list(range(60)))
    rest = plan_rest(KEPT_TEXTS, new, [right], check=24)
    assert rest.counts["checked"] == 24


def test_the_encoder_computes_only_canaries_and_the_sample(
    tmp_path: Path, new: TextEncoder
) -> None:
    paths = [kept_of(tmp_path / f"{n}.parquet", new, [n, n + 20]) for n in range(3)]
    CALLS.clear()
    plan_rest(KEPT_TEXTS, new, paths, check=4)
    # Canaries for its record and for the one record that all files have, and the sample.
    assert len(CALLS) <= 3
    assert 4 <= sum(text in KEPT_ROWS for call in CALLS for text in call) <= 6


@pytest.mark.parametrize("name", ["v.parquet", "v.arrow", "v.npy"])
def test_the_file_has_the_vectors_in_order_and_knows_its_encoder(name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    record = encode_file(TEXTS, open_text_encoder(ADDRESSES[0], Prompts("a ", "b ")), out)
    file = open_embeddings(out)
    [(ids, vectors)] = file.blocks()
    assert ids.to_pylist() == list(range(50))
    np.testing.assert_allclose(vectors, word_vectors([f"b {t}" for t in ROWS], 0, 10), rtol=1e-5)
    assert text_encoder_of(file) == record
    assert record.prompts == {"query": "a ", "document": "b "}
    assert not list(tmp_path.glob("*.parts"))


def test_formats_without_a_place_for_the_record_are_refused(tmp_path: Path) -> None:
    encoder = open_text_encoder(ADDRESSES[0])
    for name in ("v.csv", "v.safetensors", "v"):
        with pytest.raises(DataError, match="can store the encoder's record"):
            encode_file(TEXTS, encoder, tmp_path / name)


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
    monkeypatch.setattr(encoding, "PART", PART)


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


def test_force_removes_no_folder_of_other_files(tmp_path: Path) -> None:
    mine = tmp_path / "out.parquet.parts" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    encoder, out = open_text_encoder(ADDRESSES[1]), tmp_path / "out.parquet"
    with pytest.raises(DataError, match="has files that are no parts"):
        encode_file(TEXTS, encoder, out, overwrite=True)
    assert mine.read_text() == "mine"
