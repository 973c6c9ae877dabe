"""Texts by id, and vectors that are kept only as far as their encoder was checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.text_encoders import ADDRESSES, CALLS, first

from evergram.errors import DataError
from evergram.serving.texts.documents import BATCH, Documents, MissingTextError
from evergram.texts.addresses import open_text_encoder
from evergram.texts.record import parse_record, record_of
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.provenance import FINGERPRINT, TEXT_ENCODER

DIM = 10


def written(folder: Path, count: int = 200) -> Path:
    rows = [f"{i},word{i % 50} word{i % 7}" for i in range(count)]
    (folder / "texts.csv").write_text("\n".join(["id,text", *rows]) + "\n")
    return folder / "texts.csv"


def test_texts_are_found_by_id_and_the_file_is_read_again_when_it_grows(tmp_path: Path) -> None:
    documents = Documents(written(tmp_path, 5))
    assert documents.texts_of(pa.array([3, 0])) == ["word3 word3", "word0 word0"]
    with pytest.raises(MissingTextError, match="The id 7 is stored and has no text"):
        documents.texts_of(pa.array([3, 7]))
    written(tmp_path, 9)
    assert documents.texts_of(pa.array([7])) == ["word7 word0"]
    (tmp_path / "texts.csv").unlink()
    # What is known needs no file.
    assert documents.texts_of(pa.array([7])) == ["word7 word0"]
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


def test_only_what_a_check_came_after_is_saved_and_outlives_a_failed_one(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    documents = Documents(written(tmp_path), folder)
    kept = documents.kept(1, "space", DIM, first)
    before = kept.of(pa.array([5, 6]))
    documents.save()
    assert not folder.exists()
    documents.trust(1, 2)
    kept.of(pa.array([7]))
    documents.save()
    documents.save()
    assert len(list(folder.glob("*.parquet"))) == 1
    documents.distrust(1)
    assert kept.ids().to_pylist() == [5, 6]
    kept.of(pa.array([8]))
    documents.trust(1, 3)
    documents.save()
    assert len(list(folder.glob("*.parquet"))) == 2
    again = Documents(written(tmp_path), folder).kept(1, "space", DIM, first)
    assert sorted(again.ids().to_pylist()) == [5, 6, 8]
    CALLS.clear()
    np.testing.assert_array_equal(again.of(pa.array([5, 6])), before)
    assert not CALLS


def test_what_is_saved_says_which_encoder_made_it(tmp_path: Path) -> None:
    documents = Documents(written(tmp_path), tmp_path / "kept")
    record = record_of(open_text_encoder(ADDRESSES[0]))
    documents.kept(1, "space", DIM, first, record).of(pa.array([5]))
    documents.trust(1, 1)
    documents.save()
    (path,) = (tmp_path / "kept").glob("*.parquet")
    provenance = open_embeddings(path).provenance
    assert parse_record(provenance[TEXT_ENCODER], "") == record
    assert provenance[FINGERPRINT] == "space"


def test_what_was_saved_of_another_version_or_is_damaged_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "kept"
    documents = Documents(written(tmp_path), folder)
    documents.kept(1, "space", DIM, first).of(pa.array([5]))
    documents.trust(1, 1)
    documents.save()
    path = next(folder.glob("*.parquet"))
    assert len(Documents(written(tmp_path), folder).kept(1, "other", DIM, first)) == 0
    # A file under the name of another version is still of its own.
    path.rename(folder / path.name.replace("space", "other"))
    assert len(Documents(written(tmp_path), folder).kept(1, "other", DIM, first)) == 0
    assert "not of the version other" in caplog.text
    (folder / "other-b.parquet").write_bytes(b"PAR1")
    assert len(Documents(written(tmp_path), folder).kept(1, "other", DIM, first)) == 0
    assert "other-b.parquet" in caplog.text


def test_a_number_that_goes_to_another_version_takes_no_vectors_along(tmp_path: Path) -> None:
    documents = Documents(written(tmp_path))
    documents.kept(1, "space", DIM, first).of(pa.array([5]))
    assert len(documents.kept(1, "another", DIM, first)) == 0


def test_a_folder_that_cannot_be_written_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kept").write_text("a file")
    documents = Documents(written(tmp_path), tmp_path / "kept")
    documents.kept(1, "space", DIM, first).of(pa.array([5]))
    documents.trust(1, 1)
    documents.save()
    assert "cannot be saved" in caplog.text
    assert documents.counts() == {1: 1}


def test_a_csvs_number_is_the_text_of_a_stored_id(tmp_path: Path) -> None:
    documents = Documents(written(tmp_path, 5))
    assert documents.texts_of(pa.array(["3", "0"])) == ["word3 word3", "word0 word0"]
