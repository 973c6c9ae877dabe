"""MovieLens and tables: both layouts by hand, the real thing by its counts."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from evergram.data.corpus import Corpus
from evergram.data.loaders import LOADERS, load
from evergram.data.movielens import load_movielens
from evergram.data.tables import load_table
from evergram.errors import DataError
from evergram.training.recipe import Recipe

RATINGS = "userId,movieId,rating,timestamp\n1,10,4.5,100\n2,20,3.0,50\n1,20,5,200\n"
MOVIES = (
    "movieId,title,genres\n10,Heat (1995),Action|Crime\n"
    '20,"American President, The (1995)",(no genres listed)\n30,Nobody Saw It,Drama\n'
)
DAT_RATINGS = "1::10::4.5::100\n2::20::3::50\n1::20::5::200\n"
DAT_MOVIES = "10::Heat (1995)::Action|Crime\n20::Am\xe9lie (2001)::Comedy\n"


def layout(folder: Path, kind: str) -> Path:
    """The same three ratings in each layout that MovieLens has come in."""
    if kind == "csv":
        (folder / "ratings.csv").write_text(RATINGS)
        (folder / "movies.csv").write_text(MOVIES)
    elif kind == "dat":
        (folder / "ratings.dat").write_text(DAT_RATINGS)
        (folder / "movies.dat").write_bytes(DAT_MOVIES.encode("latin-1"))
    elif kind == "zip":
        with zipfile.ZipFile(folder / "ml.zip", "w") as archive:
            archive.writestr("ml-x/ratings.csv", RATINGS)
            archive.writestr("__MACOSX/ml-x/._ratings.csv", "junk")
            archive.writestr("ml-x/movies.csv", MOVIES)
        return folder / "ml.zip"
    else:
        for name, text in (("ratings", RATINGS), ("movies", MOVIES)):
            with zipfile.ZipFile(folder / f"{name}.csv.zip", "w") as archive:
                archive.writestr(f"{name}.csv", text)
    return folder


@pytest.mark.parametrize("kind", ["csv", "dat", "zip", "zipped files"])
def test_every_movielens_layout(tmp_path: Path, kind: str) -> None:
    corpus = load_movielens(layout(tmp_path, kind))
    assert corpus.queries.vocabulary.keys.to_pylist() == [2, 1]
    assert corpus.candidates.vocabulary.keys.to_pylist() == [20, 10]
    assert corpus.column("value").tolist() == [3.0, 4.5, 5.0]
    assert corpus.column("time").tolist() == [50, 100, 200]
    genres = corpus.candidates.features["genres"]
    keys = genres.vocabulary.keys.take(pa.array(genres.indices.numpy())).to_pylist()
    assert keys[-2:] == ["Action", "Crime"]
    year = corpus.candidates.features["year"]
    assert year.vocabulary.keys.to_pylist()[int(year.indices[1])] == 1995


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ratings.csv", "", "is empty"),
        ("ratings.csv", "userId,movieId,rating,timestamp\n", "no rows"),
        ("ratings.csv", "a,b\n1,2\n", "userId"),
        ("ratings.csv", RATINGS + "3,10,nan,5\n", "row 4: value is nan"),
        ("ratings.csv", RATINGS + "3,10,great,5\n", "great"),
        ("ratings.dat", "1::10::4\n", "row 1"),
        ("other.csv", RATINGS, "neither ratings.csv nor ratings.dat"),
    ],
)
def test_a_damaged_movielens_is_one_sentence(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        load_movielens(tmp_path)
    assert "\n" not in str(caught.value)


def test_movielens_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file or folder"):
        load_movielens(tmp_path / "ml")
    (tmp_path / "ml.zip").write_text("not a zip")
    with pytest.raises(DataError, match="not a readable zip"):
        load_movielens(tmp_path / "ml.zip")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv", ".tsv", ".csv.gz"])
def test_every_table_format(tmp_path: Path, suffix: str) -> None:
    table = pa.table({"user": ["a", "b"], "candidate": [1, 2], "time": [2, 1], "extra": [0, 0]})
    path = tmp_path / f"x{suffix}"
    if suffix == ".parquet":
        pq.write_table(table, path)
    elif suffix == ".arrow":
        feather.write_feather(table, path)
    else:
        plain = tmp_path / "plain"
        delimiter = "\t" if suffix == ".tsv" else ","
        csv.write_csv(table, plain, csv.WriteOptions(delimiter=delimiter))
        content = plain.read_bytes()
        path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    corpus = load_table(path, columns={"query": "user"})
    assert corpus.queries.vocabulary.keys.to_pylist() == ["b", "a"]
    assert set(corpus.interactions.column_names) == {"query", "candidate", "time"}


def test_a_csv_cell_with_the_separator_is_a_bag(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("query,candidate\n1,5\n")
    (tmp_path / "f.csv").write_text("id,tags,kind\n5,a|b,film\n6,c,book\n")
    corpus = load_table(tmp_path / "x.csv", candidate_features=tmp_path / "f.csv")
    assert corpus.candidates.features["tags"].offsets.tolist() == [0, 2]
    assert corpus.candidates.features["kind"].offsets.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "", "is empty"),
        ("x.csv", "query,item\n1,2\n", "no column 'candidate'"),
        ("x.csv", "query,candidate,value\n1,2,3.5\n1,3,NaN\n", "row 2: value is 'NaN'"),
        ("x.csv", "query,candidate,value\n1,2,good\n", "must be a number"),
        ("x.csv", "query,candidate\n1,2\n,3\n", "row 2: query is empty"),
        ("x.parquet", "not parquet", "cannot be read"),
        ("x.xlsx", "?", "no known format"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        load_table(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_missing_file_and_column(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no file"):
        load_table(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("query,candidate\n1,2\n")
    with pytest.raises(DataError, match="no column 'user'"):
        load_table(tmp_path / "x.csv", columns={"query": "user"})


def size(corpus: Corpus) -> tuple[int, int, int]:
    return len(corpus), len(corpus.queries), len(corpus.candidates)


def test_the_real_movielens(real_data: Path) -> None:
    head = load_movielens(real_data / "movielens-25m-head")
    assert size(head) == (391_223, 2_687, 16_158)
    genres, year = (head.candidates.features[n] for n in ("genres", "year"))
    assert int((year.offsets.diff() == 0).sum()) >= 1_276
    assert {"Comedy", "IMAX"} <= set(genres.vocabulary.keys.to_pylist())
    small = load_movielens(real_data / "movielens-latest-small" / "ml-latest-small.zip")
    assert size(small) == (100_836, 610, 9_724)


def test_a_loader_that_returns_no_corpus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOADERS, "mine", lambda data, seed: [])
    with pytest.raises(DataError, match="loader of 'mine' returned list; it must return a Corpus"):
        load("mine", Recipe.of({"data": {"kind": "synthetic"}}).data, 0)
