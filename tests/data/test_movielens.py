"""MovieLens: damaged and odd files; the layouts themselves are in test_loaders."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from evergram.data.movielens import load_movielens
from evergram.errors import DataError

HEADER = "userId,movieId,rating,timestamp\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ratings.csv", HEADER + "1,10,4,5\n1,11,great,5\n"),
        ("ratings.csv", HEADER + "1,10,4,5\n1,11,4\n"),
        ("ratings.csv", HEADER + "1,10,4,5\n1,,4,5\n"),
        ("ratings.csv", HEADER + "1,10,4,5\n1,11,,5\n"),
        ("ratings.dat", "1::10::4::5\n1::11::great::5\n"),
        ("ratings.dat", "1::10::4::5\n1::11::4\n"),
        ("ratings.dat", "1::10::4::5\n1::11::nan::5\n"),
    ],
)
def test_a_bad_line_is_named_by_its_file_and_row(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=rf"{name} row 2\b") as caught:
        load_movielens(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_bad_line_in_a_zip_is_named_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "ml.zip", "w") as archive:
        archive.writestr("ml-x/ratings.csv", HEADER + "1,10,nan,5\n")
    with pytest.raises(DataError, match=r"ml\.zip:ratings\.csv row 1: value is nan"):
        load_movielens(tmp_path / "ml.zip")


def test_a_bad_line_far_down_is_named(tmp_path: Path) -> None:
    # Several of Arrow's blocks of 1 MiB: the row is the file's, not the block's.
    text = HEADER + "1,10,4,978300760\n" * 200_000 + "1,10,great,5\n"
    (tmp_path / "ratings.csv").write_text(text)
    with pytest.raises(DataError, match=r"row 200001\b"):
        load_movielens(tmp_path)


def test_latin_1_titles_of_the_dat_layout(tmp_path: Path) -> None:
    (tmp_path / "ratings.dat").write_text("1::10::4::5\n1::11::3::6\n\n")
    # \x85 is a letter's place here, but a line's end to Python; the quotation mark is a letter.
    movies = b'10::Am\xe9lie\x85 (2001)::Comedy|Drama\n11::"Heat (1995)::Crime\n'
    (tmp_path / "movies.dat").write_bytes(movies)
    features = load_movielens(tmp_path).candidates.features
    assert features["year"].vocabulary.keys.to_pylist() == [1995, 2001]
    assert features["genres"].offsets.tolist() == [0, 2, 3]


def test_titles_without_a_year_and_movies_without_genres(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text(HEADER + "1,10,4,1\n1,11,4,2\n1,12,4,3\n1,13,4,4\n")
    (tmp_path / "movies.csv").write_text(
        "movieId,title,genres\n10,Nobody Knows,Drama\n11,Series (1995-1999),\n"
        "12,2001 (1968) ,(no genres listed)\n"
    )
    features = load_movielens(tmp_path).candidates.features
    assert features["year"].vocabulary.keys.to_pylist() == [1968]
    assert features["year"].offsets.tolist() == [0, 0, 0, 1, 1]
    assert features["genres"].vocabulary.keys.to_pylist() == ["Drama"]
    assert features["genres"].offsets.tolist() == [0, 1, 1, 1, 1]


def test_without_movies_there_are_no_features(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text(HEADER + "1,10,4,5\n")
    assert load_movielens(tmp_path).candidates.features == {}


def test_a_damaged_or_locked_zip_is_refused(tmp_path: Path) -> None:
    text = HEADER + "".join(f"{i},{i % 7},3,{i * 37 % 1001}\n" for i in range(5000))
    path = tmp_path / "ml.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ml-x/ratings.csv", text)
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + b"\xff" * 60 + whole[260:])
    with pytest.raises(DataError, match="not a readable zip"):
        load_movielens(path)
    # The lowest bit of a member's flags, in the archive's directory, says "encrypted".
    flags = whole.index(b"PK\x01\x02") + 8
    path.write_bytes(whole[:flags] + bytes([whole[flags] | 1]) + whole[flags + 1 :])
    with pytest.raises(DataError, match="encrypted"):
        load_movielens(path)


def test_the_real_head_has_metadata_for_most_movies(real_data: Path) -> None:
    corpus = load_movielens(real_data / "movielens-25m-head")
    year, genres = (corpus.candidates.features[n].offsets.diff() for n in ("year", "genres"))
    counts = corpus.counts("candidate")
    bare = (year == 0) & (genres == 0)
    # 1,276 movies (3,707 ratings) are not in movies.csv; a few that are say nothing either.
    assert 1_276 <= int(bare.sum()) < 1_400
    assert 3_707 <= int(counts[bare].sum()) < 5_000
    assert corpus.repeats == 0
    assert set(corpus.column("value").tolist()) == {i / 2 for i in range(1, 11)}
