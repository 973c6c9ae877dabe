"""The file that ends a migration has every text's own vector, and encodes only what is missing."""

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
from evergram.releasing.files import encode_file as encoding
from evergram.releasing.files.encode_file import KnownVectors, Texts, encode_file
from evergram.releasing.files.first_version import text_encoder_of
from evergram.releasing.migration.finish_migration import finish_migration, plan_rest
from evergram.texts.addresses import open_text_encoder
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.writers import write_vectors

ROWS = sentences(50)
TEXTS = Texts(pa.array(range(50)), ROWS)
OWN = word_vectors(ROWS, 1, 12)


def kept_file(path: Path, rows: list[int]) -> Path:
    some = Texts(TEXTS.ids.take(pa.array(rows)), [ROWS[row] for row in rows])
    encode_file(some, open_text_encoder(ADDRESSES[1]), path, overwrite=True)
    return path


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
    assert rest.to_encode == 50 - len(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "PART", part)
        CALLS.clear()
        record = finish_migration(TEXTS, encoder, rest, folder / "new.parquet")
    asked = [text for call in CALLS for text in call if text in ROWS]
    assert sorted(asked) == sorted(ROWS[row] for row in range(50) if row not in rows)
    np.testing.assert_allclose(read(folder / "new.parquet"), OWN, rtol=1e-6)
    assert text_encoder_of(open_embeddings(folder / "new.parquet")) == record


def test_kept_vectors_are_written_as_they_are(tmp_path: Path) -> None:
    """Not computed again: a rounding of 1 % of their length, which the check allows, stays."""
    rounded = OWN * np.float32(1.01)
    kept = tmp_path / "kept.parquet"
    write_vectors(kept, [(TEXTS.ids.slice(10, 20), torch.from_numpy(rounded[10:30]))])
    encoder = open_text_encoder(ADDRESSES[1])
    rest = plan_rest(TEXTS, encoder, [kept], unrecorded=True)
    finish_migration(TEXTS, encoder, rest, tmp_path / "new.npy")
    vectors = read(tmp_path / "new.npy")
    np.testing.assert_array_equal(vectors[10:30], rounded[10:30])
    np.testing.assert_allclose(vectors[:10], OWN[:10], rtol=1e-6)


def test_the_plan_counts_what_is_left(tmp_path: Path) -> None:
    kept = tmp_path / "kept.parquet"
    ids = pa.array([*range(20), 999])
    vectors = torch.from_numpy(np.concatenate([OWN[:20], OWN[:1]]))
    write_vectors(kept, [(ids, vectors)])
    again = kept_file(tmp_path / "again.parquet", [19, 20])
    encoder = open_text_encoder(ADDRESSES[1])
    rest = plan_rest(TEXTS, encoder, [kept, again], check=4, unrecorded=True)
    report = rest.report()
    assert report == {
        "texts": 50,
        "to_encode": 29,
        "kept": 21,
        "share_to_encode": 29 / 50,
        "text_bytes": len("".join(ROWS[21:]).encode()),
        "vector_bytes": 50 * 12 * 4,
        "unknown_ids": 1,
        "repeated": 1,
        "checked": rest.checked,
        "differing": pytest.approx(1 - 0.05 ** (1 / 4)),
    }
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
        finish_migration(TEXTS, encoder, rest, out)
    encoder._function = whole
    more = plan_rest(TEXTS, encoder, [kept, kept_file(tmp_path / "more.parquet", [49])])
    with pytest.raises(DataError, match=r"new\.parquet\.parts has shards of other settings"):
        finish_migration(TEXTS, encoder, more, out)
    CALLS.clear()
    finish_migration(TEXTS, encoder, rest, out)
    asked = {text for call in CALLS for text in call}
    assert ROWS[1] not in asked
    assert ROWS[49] in asked
    np.testing.assert_allclose(read(out), OWN, rtol=1e-6)
    # The parts of a run that is given up are kept vectors, too, and nothing is encoded twice.
    encoder._function = dying
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        finish_migration(TEXTS, encoder, rest, tmp_path / "two.parquet")
    encoder._function = whole
    parts = tmp_path / "two.parquet.parts"
    rest = plan_rest(TEXTS, encoder, [kept, parts])
    assert 0 < rest.to_encode < 25
    finish_migration(TEXTS, encoder, rest, tmp_path / "three.parquet")
    np.testing.assert_allclose(read(tmp_path / "three.parquet"), OWN, rtol=1e-6)
    finish_migration(TEXTS, encoder, rest, tmp_path / "two.parquet", overwrite=True)
    assert not parts.exists()


def test_a_plan_of_other_texts_and_queries_are_refused(tmp_path: Path) -> None:
    encoder = open_text_encoder(ADDRESSES[1])
    kept = kept_file(tmp_path / "kept.parquet", [1, 2])
    rest = plan_rest(TEXTS, encoder, [kept])
    fewer = Texts(TEXTS.ids.slice(0, 49), ROWS[:49])
    with pytest.raises(DataError, match="The plan is of 50 texts, and 49 were given"):
        finish_migration(fewer, encoder, rest, tmp_path / "new.parquet")
    with pytest.raises(DataError, match="not queries"):
        plan_rest(Texts(TEXTS.ids, ROWS, "query"), encoder, [kept])


def test_an_encoder_whose_dims_change_midway_is_refused(tmp_path: Path) -> None:
    encoder: Any = open_text_encoder(ADDRESSES[1])
    whole = encoder._function
    assert encoder.dim == 12
    encoder._function = lambda texts: whole(texts) if "query: " in texts[1] else whole(texts)[:, :5]
    known = KnownVectors(np.full(50, -1), np.empty((0, 12), np.float32))
    with pytest.raises(DataError, match="its vectors have 5 dims, not 12"):
        encode_file(TEXTS, encoder, tmp_path / "new.parquet", known=known)
    assert not (tmp_path / "new.parquet").exists()


@pytest.mark.parametrize("swap", [1, 2, 3, 4, 5])
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
        finish_migration(TEXTS, encoder, plan_rest(TEXTS, encoder, [kept]), out)
    assert not out.exists()
    encoder._function = lambda texts: word_vectors(texts, 1, 12)
    finish_migration(TEXTS, encoder, plan_rest(TEXTS, encoder, [kept]), out)
    np.testing.assert_allclose(read(out), OWN, rtol=1e-6)
