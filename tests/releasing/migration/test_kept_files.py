"""Kept vectors are used only where they are those of the encoder, each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.text_encoders import ADDRESSES, CALLS, sentences, word_vectors

from evergram.errors import DataError
from evergram.releasing.files.encode_file import Texts, encode_file
from evergram.releasing.migration.kept_files import KeptFiles, check_kept, read_kept
from evergram.retrieval.migrating.cascade import KeptVectors
from evergram.texts.addresses import open_text_encoder
from evergram.texts.record import record_of
from evergram.texts.text_encoder import Prompts, TextEncoder, Vectors
from evergram.vector_files.writers import write_vectors

ROWS = sentences(60)
TEXTS = Texts(pa.array([f"t{i}" for i in range(60)]), ROWS)
DIM = 12


@pytest.fixture(scope="module")
def new() -> TextEncoder:
    return open_text_encoder(ADDRESSES[1])


def own(rows: list[int]) -> Vectors:
    return word_vectors([ROWS[row] for row in rows], 1, DIM)


def saved(path: Path, encoder: TextEncoder, ids: list[str], vectors: Vectors) -> Path:
    """Save vectors as a cascade does, with the record of an encoder."""
    by_id = dict(zip(ids, vectors, strict=True))
    kept = KeptVectors(lambda asked: np.stack([by_id[i] for i in asked.to_pylist()]), DIM)
    kept.of(pa.array(ids))
    kept.save(path, record_of(encoder))
    return path


def kept_of(path: Path, encoder: TextEncoder, rows: list[int]) -> Path:
    return saved(path, encoder, [f"t{row}" for row in rows], own(rows))


def by_text(kept: KeptFiles) -> dict[int, Vectors]:
    return {int(row): kept.known.vectors[kept.known.rows[row]] for row in kept.texts}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 79), unique=True, min_size=1), min_size=1, max_size=4))
def test_each_text_gets_its_own_kept_vector_whatever_the_files(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]]
) -> None:
    """Beside a dictionary; the numbers from 60 on are ids that no text has."""
    folder = tmp_path_factory.mktemp("kept")
    encoder = open_text_encoder(ADDRESSES[1])
    vectors = word_vectors([*ROWS, *["word1"] * 20], 1, DIM)
    paths, unknown_ids = [], 0
    expected: dict[int, Vectors] = {}
    for number, rows in enumerate(files):
        ids = [f"t{row}" for row in rows]
        paths.append(saved(folder / f"{number}.parquet", encoder, ids, vectors[rows]))
        expected |= {row: vectors[row] for row in rows if row < 60}
        unknown_ids += sum(row >= 60 for row in rows)
    if not expected:
        with pytest.raises(DataError, match="is among the 60 texts"):
            read_kept(paths, TEXTS, encoder)
        return
    kept = read_kept(paths, TEXTS, encoder)
    assert by_text(kept).keys() == expected.keys()
    for row, vector in by_text(kept).items():
        np.testing.assert_array_equal(vector, expected[row])
    assert kept.unknown_ids == unknown_ids
    assert kept.repeated == sum(map(len, files)) - unknown_ids - len(expected)
    check = check_kept(kept, TEXTS, encoder, 1000)
    assert (check.checked, check.differing) == (len(expected), 0)


def test_a_folder_is_its_parquet_files_and_a_file_counts_once(
    tmp_path: Path, new: TextEncoder
) -> None:
    kept_of(tmp_path / "a.parquet", new, [3, 1])
    kept_of(tmp_path / "b.parquet", new, [1, 7])
    (tmp_path / "notes.txt").write_text("mine")
    kept = read_kept([tmp_path, tmp_path / "a.parquet"], TEXTS, new)
    assert kept.texts.tolist() == [1, 3, 7]
    assert (kept.repeated, len(kept.paths)) == (1, 2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no Parquet files"):
        read_kept([tmp_path / "empty"], TEXTS, new)
    with pytest.raises(DataError, match="No kept vectors were given"):
        read_kept([], TEXTS, new)


def test_numbers_are_the_same_ids_as_text(tmp_path: Path, new: TextEncoder) -> None:
    numbered = Texts(pa.array(range(60)), ROWS)
    path = saved(tmp_path / "k.parquet", new, ["4", "2", "002"], own([4, 2, 5]))
    kept = read_kept([path], numbered, new)
    assert kept.texts.tolist() == [2, 4]
    assert kept.unknown_ids == 1


def test_vectors_of_another_encoder_of_other_prompts_or_dims_are_refused(
    tmp_path: Path, new: TextEncoder
) -> None:
    other = open_text_encoder(ADDRESSES[1], Prompts("", "passage "))
    path = kept_of(tmp_path / "k.parquet", other, [1, 2])
    with pytest.raises(DataError, match=r"k\.parquet was not made by .*its prompts are"):
        read_kept([path], TEXTS, new)
    old = open_text_encoder(ADDRESSES[0])
    encode_file(Texts(TEXTS.ids.slice(0, 5), ROWS[:5]), old, tmp_path / "old.parquet")
    with pytest.raises(DataError, match=r"has vectors of 10 dims, and .* gives 12"):
        read_kept([tmp_path / "old.parquet"], TEXTS, new)
    mixed: Any = open_text_encoder(ADDRESSES[1])
    mixed._function = lambda texts: word_vectors(texts, 5, DIM)
    path = kept_of(tmp_path / "mixed.parquet", mixed, [1, 2])
    with pytest.raises(DataError, match="its vectors of the canary texts differ"):
        read_kept([path], TEXTS, new)


def test_a_file_that_records_no_encoder_is_taken_only_on_request(
    tmp_path: Path, new: TextEncoder
) -> None:
    path = tmp_path / "k.parquet"
    write_vectors(path, [(TEXTS.ids.slice(0, 3), torch.from_numpy(own([0, 1, 2])))])
    with pytest.raises(DataError, match=r"does not say which encoder.*--unrecorded"):
        read_kept([path], TEXTS, new)
    assert read_kept([path], TEXTS, new, unrecorded=True).texts.tolist() == [0, 1, 2]


def test_an_id_twice_in_a_file_or_with_two_vectors_is_refused(
    tmp_path: Path, new: TextEncoder
) -> None:
    twice = tmp_path / "twice.parquet"
    ids = pa.array(["t1", "t2", "t1"])
    write_vectors(twice, [(ids, torch.from_numpy(own([1, 2, 1])))])
    with pytest.raises(DataError, match="has 1 ids more than once, such as 't1'"):
        read_kept([twice], TEXTS, new, unrecorded=True)
    one = kept_of(tmp_path / "one.parquet", new, [1, 2])
    two = saved(tmp_path / "two.parquet", new, ["t1", "t2"], own([1, 3]))
    with pytest.raises(DataError, match=r"two\.parquet and a file before it.*the id 't2'"):
        read_kept([one, two], TEXTS, new)


def test_a_wrong_vector_in_the_sample_is_refused_with_its_id_and_its_file(
    tmp_path: Path, new: TextEncoder
) -> None:
    good = kept_of(tmp_path / "good.parquet", new, list(range(40)))
    wrong = saved(tmp_path / "wrong.parquet", new, ["t50"], own([51]))
    kept = read_kept([good, wrong], TEXTS, new)
    # Each file has one vector in the sample, however small the sample and the file are.
    with pytest.raises(DataError, match=r"1 of 2 kept vectors .*'t50' in .*wrong\.parquet"):
        check_kept(kept, TEXTS, new, 1)
    with pytest.raises(DataError, match="check at least 1"):
        check_kept(kept, TEXTS, new, 0)


def test_a_share_of_wrong_vectors_is_caught_as_often_as_the_check_says(
    tmp_path: Path, new: TextEncoder
) -> None:
    """6 of 60 are wrong: 24 without replacement miss all with a probability of C(36,6)/C(60,6)."""
    vectors = own(list(range(60)))
    vectors[::10] = -vectors[::10]
    path = saved(tmp_path / "k.parquet", new, TEXTS.ids.to_pylist(), vectors)
    kept = read_kept([path], TEXTS, new)
    missed = 0
    for seed in range(60):
        try:
            check_kept(kept, TEXTS, new, 24, seed)
        except DataError:
            continue
        missed += 1
    # Expected: 60 · 0.039 = 2.3; 9 or more have a probability below 1e-3.
    assert missed < 9
    whole = read_kept([kept_of(tmp_path / "w.parquet", new, list(range(60)))], TEXTS, new)
    check = check_kept(whole, TEXTS, new, 24)
    assert check.checked == 24
    # The share whose absence from 24 draws has a probability of 5 %.
    assert (1 - check.differing) ** 24 == pytest.approx(0.05)


def test_the_encoder_computes_only_canaries_and_the_sample(
    tmp_path: Path, new: TextEncoder
) -> None:
    paths = [kept_of(tmp_path / f"{n}.parquet", new, [n, n + 20]) for n in range(3)]
    CALLS.clear()
    kept = read_kept(paths, TEXTS, new)
    assert len(CALLS) <= 2  # its dim, and the canaries of the one record that all files have
    CALLS.clear()
    check_kept(kept, TEXTS, new, 4)
    assert 4 <= sum(map(len, CALLS)) <= 6
