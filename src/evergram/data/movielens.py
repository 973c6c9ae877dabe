"""MovieLens, as GroupLens ships it: a folder or a zip, in the csv or the `::` layout."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from evergram.data.corpus import Corpus
from evergram.errors import DataError

RATINGS = ("userId", "movieId", "rating", "timestamp")
MOVIES = ("movieId", "title", "genres")


def load_movielens(path: Path) -> Corpus:
    """Users as queries, movies as candidates, ratings as values.

    Candidate features: `year`, from the title's end, and `genres`. The file of movies may be
    missing; then there are no features.

    Args:
        path: a folder or a zip with `ratings.csv` or `ratings.dat` (and `movies.…`) in it, at any
            depth; in a folder each may itself be zipped (`ratings.csv.zip`).
    Raises: DataError: no ratings are there, or a file is damaged.
    """
    ratings = _find(path, "ratings", RATINGS)
    if ratings is None:
        raise DataError(f"{path} holds neither ratings.csv nor ratings.dat; is it MovieLens?")
    movies = _find(path, "movies", MOVIES)
    interactions = ratings.rename_columns(["query", "candidate", "value", "time"])
    return Corpus.from_tables(
        interactions,
        candidate_features=None if movies is None else _features(movies),
        source=f"{path}: ratings",
    )


def _features(movies: pa.Table) -> pa.Table:
    year = pc.struct_field(
        pc.extract_regex(movies["title"], r"\((?P<year>\d{4})\)[\s\"]*$"), "year"
    ).cast(pa.int64())
    none = pc.or_(pc.equal(movies["genres"], "(no genres listed)"), pc.equal(movies["genres"], ""))
    genres = pc.split_pattern(pc.if_else(none, None, movies["genres"]), "|")
    return pa.table({"id": movies["movieId"], "year": year, "genres": genres})


def _find(path: Path, stem: str, columns: tuple[str, ...]) -> pa.Table | None:
    """The table of `stem` at `path`, or None where there is none."""
    if not path.exists():
        raise DataError(f"There is no file or folder {path}.")
    for suffix in (".csv", ".dat"):
        name = stem + suffix
        if path.is_dir():
            plain = sorted(path.rglob(name))
            if plain:
                return _parse(plain[0].read_bytes(), suffix, columns, str(plain[0]))
            archives = sorted(path.rglob(f"{name}.zip"))
        else:
            archives = [path]
        for archive in archives:
            content = _unzip(archive, name)
            if content is not None:
                return _parse(content, suffix, columns, f"{archive}:{name}")
    return None


def _unzip(archive: Path, name: str) -> bytes | None:
    try:
        with zipfile.ZipFile(archive) as opened:
            for member in opened.namelist():
                if Path(member).name == name and "__MACOSX" not in member:
                    return opened.read(member)
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{archive} is not a readable zip file: {error}.") from error
    return None


def _parse(content: bytes, suffix: str, columns: tuple[str, ...], source: str) -> pa.Table:
    types = {
        "userId": pa.int64(),
        "movieId": pa.int64(),
        "rating": pa.float64(),
        "timestamp": pa.int64(),
        "title": pa.string(),
        "genres": pa.string(),
    }
    if not content.strip():
        raise DataError(f"{source} is empty.")
    try:
        if suffix == ".csv":
            options = csv.ConvertOptions(
                include_columns=list(columns), column_types=types, null_values=[""]
            )
            return csv.read_csv(io.BytesIO(content), convert_options=options)
        # "::" is no delimiter that a CSV reader takes: split whole lines.
        lines = pa.array(content.decode("latin-1").splitlines())
        parts = pc.split_pattern(lines, "::")
        lengths = pc.list_value_length(parts)
        bad = pc.index(pc.not_equal(lengths, len(columns)), True).as_py()
        if bad >= 0:
            raise DataError(f"{source} row {bad + 1}: {lines[bad]} has not {len(columns)} fields.")
        return pa.table(
            {n: pc.list_element(parts, i).cast(types[n]) for i, n in enumerate(columns)}
        )
    except (pa.ArrowException, KeyError) as error:
        raise DataError(f"{source} cannot be read: {' '.join(str(error).split())}.") from error
