"""Encoders of texts: addresses, batches, prompts, cuts, fingerprints, records; files of texts."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal
from tests.support import text_encoders
from tests.support.text_encoders import ADDRESSES, CALLS, HERE, third, word_vectors

from evergram.data.reading.interactions import read_texts
from evergram.errors import DataError, ServiceError
from evergram.texts import addresses
from evergram.texts.addresses import open_text_encoder, open_with_prompts
from evergram.texts.record import (
    RECORDED,
    SAME,
    MismatchError,
    RecordedEncoder,
    canary_vectors,
    checked_dims,
    cut,
    distances,
    open_recorded,
    parse_record,
    prompts_of,
    record_of,
)
from evergram.texts.text_encoder import (
    NotFiniteError,
    Prompts,
    TextEncoder,
    TextsFailedError,
    Vectors,
    weights_fingerprint,
)


@given(st.lists(st.sampled_from(["word1", "word2 word3", "word4"]), min_size=1, max_size=9))
def test_batches_give_what_one_call_gives(texts: list[str]) -> None:
    encoder = open_text_encoder(f"{HERE}:first")
    assert encoder.address == f"{HERE}:first"
    encoder.batch = 2
    vectors = encoder.encode(texts)
    assert vectors.dtype == np.float32
    assert_array_equal(vectors, word_vectors(texts, 0, 10))


def test_what_is_not_one_finite_vector_a_text_is_refused() -> None:
    for function, texts, error, words in [
        ("misshapen", ["a", "b"], DataError, r"shape \[1, 2\] for 2 texts"),
        ("first", [], DataError, "no texts to encode"),
        ("not_finite", ["good", "bad 1", "bad 2"], NotFiniteError, "'bad 1'"),
        ("failing", ["poison"], TextsFailedError, "1 texts: RuntimeError: out of memory"),
    ]:
        with pytest.raises(error, match=words) as refusal:
            open_text_encoder(f"{HERE}:{function}").encode(texts)
        if isinstance(refusal.value, NotFiniteError):
            assert refusal.value.text == "bad 1"


def test_threads_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = open_text_encoder(f"{HERE}:first")
    entered, go = threading.Event(), threading.Event()
    inside, most = [0], [0]

    def encode(texts: list[str], prompt: str) -> np.ndarray:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        entered.set()
        assert go.wait(30)
        inside[0] -= 1
        return word_vectors(texts, 0, 10)

    monkeypatch.setattr(encoder, "_encode", encode)
    threads = [threading.Thread(target=encoder.encode, args=(["word1"],)) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert entered.wait(30)
    encoder.limit = 0.001
    with pytest.raises(ServiceError, match="has not answered for"):
        encoder.encode(["word1"])
    go.set()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_what_names_no_encoder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_encoder.py").write_text("raise ValueError('no weights')\n")
    (tmp_path / "lengths_of_texts.py").write_text(
        "def encode(texts):\n    return [[len(text), 1.0] for text in texts]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    for address, words in [
        ("minilm", "is not a text encoder address"),
        ("wordlama:", r"did you mean .wordllama.\?"),
        ("python:", "names no encoder after the colon"),
        ("python:no_such_module:f", "cannot be imported"),
        ("python:tests.support.text_encoders:NO_FUNCTION", "is not a function; it is a int"),
        ("python:failing_encoder:f", r"cannot be imported \(ValueError: no weights\)"),
    ]:
        with pytest.raises(DataError, match=words):
            open_text_encoder(address)
    # A module of this folder will do.
    encoder = open_text_encoder("python:lengths_of_texts:encode", Prompts(query="ab"))
    assert encoder.encode(["four"]).tolist() == [[4.0, 1.0]]
    assert encoder.encode(["four"], "query").tolist() == [[6.0, 1.0]]


def test_a_package_that_is_missing_or_fails_on_import_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails where two packages do not fit each other."""
    monkeypatch.syspath_prepend(tmp_path)
    for address, module in [
        ("sentence-transformers:x", "sentence_transformers"),
        ("wordllama:", "wordllama"),
        ("openai:https://host/v1#m", "httpx"),
    ]:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ServiceError, match="pip install"):
            open_text_encoder(address)
        if module != "httpx":
            (tmp_path / f"{module}.py").write_text("raise RuntimeError('no name x')")
            monkeypatch.delitem(sys.modules, module)
            with pytest.raises(ServiceError, match="RuntimeError: no name x"):
                open_text_encoder(address)


def test_each_role_has_its_prompt_and_one_leaves_the_models_own_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def opened(address: str) -> TextEncoder:
        return open_text_encoder(address, Prompts("query: ", "passage: "))

    encoder = opened(f"{HERE}:first")
    CALLS.clear()
    encoder.encode(["word1"], "query")
    encoder.encode(["word1"], "document")
    encoder.encode(["word1"])
    assert CALLS == [["query: word1"], ["passage: word1"], ["passage: word1"]]
    monkeypatch.setattr(addresses, "open_text_encoder", opened)
    cases = {
        (None, None): ("query: ", "passage: "),
        ("ask ", None): ("ask ", "passage: "),
        ("", "tell "): ("", "tell "),
    }
    for asked, prompts in cases.items():
        assert open_with_prompts(ADDRESSES[0], *asked).prompts == Prompts(*prompts)


def test_the_distance_is_relative_and_zeros_stay_zeros() -> None:
    then = np.array([[3.0, 4.0], [0.0, 2.0]], dtype=np.float32)
    now = np.array([[3.0, 4.5], [0.0, 2.0]], dtype=np.float32)
    assert distances(now, then).tolist() == pytest.approx([0.1, 0.0])
    zeros, near = np.zeros((1, 2), np.float32), np.full((1, 2), 1e-9, np.float32)
    assert distances(zeros, zeros).tolist() == [0.0]
    assert distances(near, zeros)[0] > SAME


NUMBERS = st.floats(-(2.0**127), 2.0**127, width=32, allow_subnormal=False)


@given(arrays(np.float32, (3, 5), elements=NUMBERS), st.integers(1, 5))
def test_a_cut_row_has_length_1_and_the_direction_of_its_coordinates(
    vectors: np.ndarray, dims: int
) -> None:
    rows = cut(vectors, dims)
    assert rows.shape == (3, dims)
    assert rows.dtype == np.float32
    assert cut(vectors, None) is vectors
    for whole, row in zip(vectors.tolist(), rows.tolist(), strict=True):
        # In Python's own numbers, with hypot in place of a norm.
        length = math.hypot(*whole[:dims])
        if length == 0:
            assert row == [0.0] * dims
        else:
            np.testing.assert_allclose(row, [x / length for x in whole[:dims]], atol=1e-6)


def test_only_declared_numbers_and_all_are_allowed() -> None:
    for asked, dims in ((None, None), (8, None), (4, 4)):
        assert checked_dims(asked, 8, (2, 4), 1) == dims
    for wrong in (0, 3, 9, -1):
        with pytest.raises(
            DataError, match=rf"8 dimensions and cannot be truncated to {wrong}; .* 2, 4. "
        ):
            checked_dims(wrong, 8, (4, 2), 1)
    with pytest.raises(DataError, match="declares none"):
        checked_dims(4, 8, (), 1)


ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.zeros(2, np.float32)}
RULES = {"model": {"vocab": {"x": 0}}, "padding": None}


def fingerprint(
    arrays: dict[str, np.ndarray] = ARRAYS, settings: object = 1, rules: object = RULES
) -> str:
    return weights_fingerprint(arrays.items(), settings, json.dumps(rules))


def test_each_part_of_a_fingerprint_counts_and_order_and_the_last_call_do_not() -> None:
    assert fingerprint(dict(reversed(ARRAYS.items()))) == fingerprint()
    assert fingerprint(rules={**RULES, "padding": {"length": 9}, "truncation": 3}) == fingerprint()
    assert fingerprint({**ARRAYS, "a": np.asfortranarray(ARRAYS["a"])}) == fingerprint()
    for other in [
        fingerprint({**ARRAYS, "a": ARRAYS["a"] + 1e-12}),
        fingerprint({**ARRAYS, "a": ARRAYS["a"].reshape(3, 2)}),
        fingerprint({**ARRAYS, "b": np.zeros(2, np.int32)}),
        fingerprint({"c": ARRAYS["a"], "b": ARRAYS["b"]}),
        fingerprint(settings=2),
        fingerprint(rules={"model": {"vocab": {"y": 0}}}),
        weights_fingerprint(ARRAYS.items(), 1, ""),
    ]:
        assert other != fingerprint()


PROMPTS = Prompts("word50 ", "word51 ")


def test_a_record_is_read_as_it_was_written() -> None:
    encoder = open_text_encoder(ADDRESSES[0], PROMPTS)
    record = record_of(encoder, [8, 4, 8, 10])
    again = parse_record(record.model_dump_json(), "a file")
    assert again == record
    assert again.matryoshka == [4, 8]
    assert prompts_of(again) == PROMPTS
    assert_array_equal(canary_vectors(again), encoder.encode(record.texts))
    assert again.mismatch(encoder) is None
    for wrong in (0, 11):
        with pytest.raises(DataError, match=f"have 10 dims and cannot be truncated to {wrong}"):
            record_of(encoder, [wrong])


def test_other_prompts_dims_weights_and_vectors_are_mismatches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = open_text_encoder(ADDRESSES[0], PROMPTS)
    record = record_of(encoder)
    assert "its prompts are" in str(record.mismatch(open_text_encoder(ADDRESSES[0])))
    assert "12 dims, not 10" in str(record.mismatch(open_text_encoder(ADDRESSES[1], PROMPTS)))
    weighed = record.model_copy(update={"fingerprint": "weights:00"})
    assert weighed.mismatch(encoder) is None
    monkeypatch.setattr(encoder, "fingerprint", "weights:11")
    assert weighed.mismatch(encoder) == "it has other weights"
    monkeypatch.undo()
    then = canary_vectors(record)
    assert record.canary_mismatch(then * 1.02) is None
    assert "differ by 0.04" in str(record.canary_mismatch(then * 1.04))
    assert record.canary_mismatch(then[3:4], 3) is None
    assert record.canary_mismatch(then[3:4], 2) is not None


def test_a_damaged_record_is_refused() -> None:
    fields = json.loads(record_of(open_text_encoder(ADDRESSES[0])).model_dump_json())
    damages: list[dict[str, Any]] = [
        {"vectors": ["AAAA"]},
        {"vectors": ["no base64!"] * 8},
        {"prompts": {"query": ""}},
        {"dim": 0},
        {"texts": []},
        {"more": 1},
        *({"matryoshka": cuts} for cuts in ([8, 4], [10], [0], [4, 4])),
    ]
    for change in damages:
        with pytest.raises(DataError, match=r"text encoder in a file is damaged|ascending numbers"):
            parse_record(json.dumps(fields | change), "a file")


def test_an_encoder_that_gives_only_zeros_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are not at hand, and zeros are those of any model that fails."""
    monkeypatch.setattr(text_encoders, "first", lambda texts: np.zeros((len(texts), 10)))
    with pytest.raises(DataError, match="returns zeros for all canary texts"):
        record_of(open_text_encoder(ADDRESSES[0]))


def test_the_recorded_encoder_is_found_among_the_addresses_with_its_prompts() -> None:
    record = record_of(open_text_encoder(ADDRESSES[1], PROMPTS))
    encoder = open_recorded(record, ADDRESSES)
    assert (encoder.address, encoder.prompts) == (ADDRESSES[1], PROMPTS)
    with pytest.raises(MismatchError, match="its vectors have 10 dims, not 12"):
        open_recorded(record, ADDRESSES[:1])
    # A function is opened only where it is named.
    opened: list[str] = []

    def opener(address: str, prompts: Prompts) -> Any:
        opened.append(address)
        return open_text_encoder(address, prompts)

    with pytest.raises(MismatchError, match="not among the addresses that may be opened"):
        open_recorded(record, [RECORDED], opener)
    assert not opened
    open_recorded(record, [RECORDED, ADDRESSES[1]], opener)
    assert opened == [ADDRESSES[1]]


def test_each_batch_takes_a_canary_along_and_shows_another_model() -> None:
    encoder: Any = open_text_encoder(ADDRESSES[0], Prompts())
    encoder.batch = 3
    recorded = RecordedEncoder(encoder, record_of(encoder))
    canaries, texts = recorded.record.texts, [f"word{i}" for i in range(5)]
    CALLS.clear()
    assert_array_equal(recorded.encode(texts), word_vectors(texts, 0, 10))
    assert list(CALLS) == [
        [*texts[:2], canaries[0]],
        [*texts[2:4], canaries[1]],
        [texts[4], canaries[2]],
    ]
    recorded.check()
    encoder._encode = lambda texts, prompt: third(list(texts))
    with pytest.raises(MismatchError, match="11 dims, not 10"):
        recorded.encode(["word1"], "document")
    with pytest.raises(MismatchError):
        recorded.check()


def test_a_query_takes_a_canary_along_after_the_prompt_of_a_document() -> None:
    encoder: Any = open_text_encoder(ADDRESSES[0], PROMPTS)
    recorded = RecordedEncoder(encoder, record_of(encoder))
    CALLS.clear()
    vectors = recorded.encode(["word1"], "query")
    assert list(CALLS) == [["word50 word1", f"word51 {recorded.record.texts[0]}"]]
    assert_array_equal(vectors, word_vectors(["word50 word1"], 0, 10))


def test_a_canary_whose_vector_is_zero_tells_nothing_and_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = open_text_encoder("python:evergram.texts.text_encoder:letters")
    recorded = RecordedEncoder(encoder, record_of(encoder))
    silent, sent = {"3.14159", "今日は雨が降っています。"}, list[str]()
    whole = encoder.encode_with

    def seen(document: str, texts: Sequence[str], prompt: str) -> Vectors:
        sent.append(document)
        return whole(document, texts, prompt)

    monkeypatch.setattr(encoder, "encode_with", seen)
    for _ in recorded.record.texts:
        recorded.encode(["abba"])
    assert set(sent) == set(recorded.record.texts) - silent


TEXTS = ["one, with a comma", 'a "quoted" one', "two\nlines"]


@pytest.mark.parametrize("name", ["t.parquet", "t.feather", "t.csv", "t.jsonl"])
def test_every_format_gives_the_same(name: str, tmp_path: Path) -> None:
    path, table = tmp_path / name, pa.table({"id": [3, 1, 2], "text": TEXTS})
    if name == "t.parquet":
        pq.write_table(table, path)
    elif name == "t.feather":
        feather.write_feather(table, path)
    elif name == "t.jsonl":
        path.write_text(table.to_pandas().to_json(orient="records", lines=True) + "\n\n")
    else:
        table.to_pandas().to_csv(path, index=False)
    ids, texts = read_texts(path)
    assert ids.to_pylist() == [3, 1, 2]
    assert texts == TEXTS


def test_ids_of_text_keep_their_form(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("key,body,more\n007,NULL,1\n008,b,2\n")
    ids, texts = read_texts(path, id_column="key", text_column="body")
    assert ids.to_pylist() == ["007", "008"]
    assert texts == ["NULL", "b"]
    for quote in ["", '"']:
        for keys in [["1.10", "1.1", "2.20"], ["1e5", "23e4"]]:
            path.write_text("id,text\n" + "".join(f"{quote}{key}{quote},a text\n" for key in keys))
            assert read_texts(path)[0].to_pylist() == keys
    lines = path.with_suffix(".jsonl")
    lines.write_text(
        '{"id": "2024-05-31", "text": "2025-01-01", "more": 1}\n'
        '{"id": "2024-06-01", "text": "2025-01-02", "more": {}}\n'
    )
    ids, texts = read_texts(lines)
    assert (ids.to_pylist(), texts) == (["2024-05-31", "2024-06-01"], ["2025-01-01", "2025-01-02"])


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    columns: list[dict[str, Any]] = [
        {"id": [1.5], "text": ["a"]},
        {"id": [1], "text": [2]},
        {"id": pa.nulls(0), "text": pa.nulls(0)},
    ]
    for name, content, words in [
        ("t.xlsx", "", "has an unsupported format"),
        ("absent.csv", None, "There is no file"),
        ("t.csv", "id,text\n1,a\n1,b\n", "are repeated, such as 1"),
        ("t.csv", "id,text\n1,a\n2,\n", "row 2: text is empty"),
        ("t.csv", "id,text\n,a\n", "id is empty"),
        ("t.csv", "id,body\n1,a\n", "no column 'text'; its columns are: id, body"),
        ("t.csv", "id,text\n", "has no rows"),
        ("t.jsonl", '{"id": 1, "text": "a"}\n{"id": 2}\n', "row 2 is not a JSON object"),
        ("t.jsonl", '{"id": 1, "text": 5}\n', "it must be text"),
        (
            "t.jsonl",
            '{"id": 1, "text": "a"}\n{"id": "x", "text": "b"}\n',
            "must each be all integers or all UTF-8 texts",
        ),
        ("t.parquet", "no parquet", "cannot be read"),
        ("t.parquet", columns[0], "ids must be integers or strings"),
        ("t.parquet", columns[1], "it must be text"),
        ("t.parquet", columns[2], "has no rows"),
    ]:
        if isinstance(content, str):
            (tmp_path / name).write_text(content)
        elif content is not None:
            pq.write_table(pa.table(content), tmp_path / name)
        with pytest.raises(DataError, match=words):
            read_texts(tmp_path / name)
    wide = pa.table({"id": pa.array([1, 2**63 - 1], pa.uint64()), "text": ["a", "b"]})
    pq.write_table(wide, tmp_path / "t.parquet")
    assert read_texts(tmp_path / "t.parquet")[0].to_pylist() == [1, 2**63 - 1]
