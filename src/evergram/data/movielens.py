"""The loader of MovieLens in GroupLens' layouts: a folder or a zip, of csv or of `::`."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.corpus import Corpus
from evergram.data.reading.text_files import DAMAGED, read_csv, read_member
from evergram.errors import DataError

RATINGS = {
    "userId": pa.int64(),
    "movieId": pa.int64(),
    "rating": pa.float64(),
    "timestamp": pa.int64(),
}
MOVIES = {"movieId": pa.int64(), "title": pa.string(), "genres": pa.string()}


def load_movielens(path: Path) -> Corpus:
    """Return users as queries, movies as candidates, and ratings as values.

    Candidate features: `year`, from the title's end, and `genres`. The file of movies may be
    missing; then there are no features.

    Args:
        path: a folder or a zip with `ratings.csv` or `ratings.dat` (and `movies.…`) in it, at any
            depth; in a folder each may itself be zipped (`ratings.csv.zip`).
    Raises: DataError: there are no ratings, or a file is damaged; the error names the row.
    """
    if not path.exists():
        raise DataError(f"There is no file or folder {path}; correct the path.")
    ratings = _find(path, "ratings", RATINGS)
    if ratings is None:
        raise DataError(f"{path} holds neither ratings.csv nor ratings.dat; is it MovieLens?")
    movies = _find(path, "movies", MOVIES)
    table, source = ratings
    return Corpus.from_tables(
        table.rename_columns(["query", "candidate", "value", "time"]),
        candidate_features=None if movies is None else _features(movies[0]),
        source=source,
    )


def _features(movies: pa.Table) -> pa.Table:
    year = pc.struct_field(
        pc.extract_regex(movies["title"], r"\((?P<year>\d{4})\)[\s\"]*$"), "year"
    ).cast(pa.int64())
    none = pc.or_(pc.equal(movies["genres"], "(no genres listed)"), pc.equal(movies["genres"], ""))
    genres = pc.split_pattern(pc.if_else(none, None, movies["genres"]), "|")
    return pa.table({"id": movies["movieId"], "year": year, "genres": genres})


def _find(path: Path, stem: str, types: dict[str, pa.DataType]) -> tuple[pa.Table, str] | None:
    """Return the table of `stem` at `path` and the name of its file; None if there is none."""
    for suffix in (".csv", ".dat"):
        name = stem + suffix
        if path.is_dir():
            plain = sorted(file for file in path.rglob(name) if file.is_file())
            if plain:
                return _parse(plain[0].read_bytes(), types, str(plain[0])), str(plain[0])
            archives = sorted(path.rglob(f"{name}.zip"))
        else:
            archives = [path]
        for archive in archives:
            content = _unzip(archive, name)
            if content is not None:
                source = f"{archive}:{name}"
                return _parse(content, types, source), source
    return None


def _unzip(archive: Path, name: str) -> bytes | None:
    try:
        with zipfile.ZipFile(archive) as opened:
            for member in opened.namelist():
                if Path(member).name == name and "__MACOSX" not in member:
                    return read_member(opened, member, archive)
    except DAMAGED as error:
        raise DataError(f"{archive} is not a readable zip file: {error}; get it anew.") from error
    return None


def _parse(content: bytes, types: dict[str, pa.DataType], source: str) -> pa.Table:
    if not content.strip():
        raise DataError(f"{source} is empty.")
    if source.endswith(".csv"):
        return read_csv(content, source, types=types)
    # "::" is no delimiter that a CSV reader takes; a unit separator stands in no title.
    text = content.decode("latin-1").replace("::", "\x1f").encode()
    return read_csv(text, source, types=types, delimiter="\x1f", header=False)
