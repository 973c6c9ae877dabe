"""Load corpora from files: Parquet, Arrow, CSV or TSV tables, adjacency lists, and MovieLens."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.corpus import Corpus, plain
from evergram.data.reading.files import DAMAGED, Paths, SourceFile, TableStream, source_files
from evergram.data.reading.interactions import (
    SIDES,
    BadRows,
    BadRowsChoice,
    InteractionSources,
    SourceRows,
    adjacency_list,
    comparable,
    decoded,
    float_cells,
    keyed_table,
    read_features,
    read_keyed_files,
    source_of,
    sources_of_files,
)
from evergram.errors import DataError
from evergram.ids import refuse_repeats

# MovieLens: the rating columns by role, and the columns of .dat files, which have no header.
RATINGS = {"query": "userId", "candidate": "movieId", "value": "rating", "time": "timestamp"}
DAT = {"ratings": "userId,movieId,rating,timestamp", "movies": "movieId,title,genres"}


def load_table(
    path: Paths,
    *,
    query_features: Paths | None = None,
    candidate_features: Paths | None = None,
    shared_ids: bool = False,
    columns: Mapping[str, str] | None = None,
    bad_rows: BadRowsChoice = "refuse",
) -> Corpus:
    """Load a corpus from files of interactions and optional files of features.

    Args:
        path: a file, a folder of files or a glob; columns `query` and `candidate`, optionally
            `value`, `time` and `weight`.
        query_features, candidate_features: files with a column `id` and one column per feature; in
            a CSV, "|" separates the keys of a bag.
        shared_ids: query and candidate ids name the same things.
        columns: the files' names for these columns, {"query": "user_id"}, and for the id columns of
            features, {"candidate_id": "sku"}.
        bad_rows: see `Corpus.of`; also applies to features.
    Raises: DataError: a file cannot be read, or a row is invalid (the error names it).
    """
    interactions = InteractionSources(
        sources_of_files(path, columns or {}),
        shared_ids=shared_ids,
        bad_rows=BadRows(bad_rows),
    )
    features = read_features(query_features, candidate_features, columns or {}, bad_rows)
    return Corpus.from_interactions(interactions, features)


def load_adjacency_list(path: Path, bad_rows: BadRowsChoice = "refuse") -> Corpus:
    """Load a corpus from a text file; each line has a query and its candidates."""
    source = source_of(adjacency_list(path), {})
    return Corpus.from_interactions(InteractionSources([source], bad_rows=BadRows(bad_rows)), {})


def load_movielens(path: Path) -> Corpus:
    """Load MovieLens, with users as queries, movies as candidates, and ratings as values.

    Candidate features are `year`, from the end of the title, and `genres`; none if there is no
    file of movies.

    Args:
        path: a folder or zip file with `ratings.csv` or `ratings.dat` (and `movies.…`) at any
            depth; in a folder each file may be zipped (`ratings.csv.zip`).
    Raises: DataError: there are no ratings, or a file is damaged (the error names the row).
    """
    if not path.exists():
        raise DataError(f"There is no file or folder {path}; correct the path.")
    ratings, movies = _find(path, "ratings"), _find(path, "movies")
    if ratings is None:
        raise DataError(f"{path} has neither ratings.csv nor ratings.dat; is it MovieLens?")
    interactions = InteractionSources([source_of(ratings, RATINGS)])
    features = {} if movies is None else {SIDES[1]: _features(movies)}
    return Corpus.from_interactions(interactions, features)


def _features(movies: TableStream) -> pa.Table:
    table = keyed_table([movies], "", ["title", "genres"], ids=["movieId"])
    titles, genres = (table[name].cast(pa.string()) for name in ("title", "genres"))
    year = pc.extract_regex(titles, r"\((?P<year>\d{4})\)[\s\"]*$")
    is_empty = pc.equal(genres, "(no genres listed)")
    bags = pc.split_pattern(pc.if_else(is_empty, None, genres), "|")
    years = pc.struct_field(year, "year").cast(pa.int64())
    return pa.table({"id": table["id"], "year": years, "genres": bags})


def _find(path: Path, stem: str) -> TableStream | None:
    """Find the MovieLens table `stem`, such as "movies"; None if it is missing."""
    for name in (f"{stem}.csv", f"{stem}.dat"):
        archives = [path]
        if path.is_dir():
            plain = sorted(file for file in path.rglob(name) if file.is_file())
            if plain:
                return _table(plain[0].read_bytes(), stem, str(plain[0]))
            archives = sorted(path.rglob(f"{name}.zip"))
        for archive in archives:
            content = _unzip(archive, name)
            if content is not None:
                return _table(content, stem, f"{archive}:{name}")
    return None


def _unzip(archive: Path, name: str) -> bytes | None:
    try:
        with zipfile.ZipFile(archive) as opened:
            for member in opened.namelist():
                if Path(member).name == name and "__MACOSX" not in member:
                    return opened.read(member)
    except DAMAGED as error:
        raise DataError(
            f"{archive} is not a readable zip file: {error}; download it again."
        ) from error
    return None


def _table(content: bytes, stem: str, source: str) -> TableStream:
    """Parse a table in memory; .dat files separate cells by "::" and are in Latin-1."""
    if source.endswith(".dat"):
        text = content.decode("latin-1").strip("\r\n").replace("\r\n", "\n").replace('"', '""')
        rows = text.replace("::", '","').replace("\n", '"\n"')
        content = f'{DAT[stem]}\n"{rows}"\n'.encode()
    return TableStream(SourceFile(source, f"{stem}.csv", content=content))


def read_interactions(
    path: Paths,
    columns: Mapping[str, str] | None = None,
    bad_rows: BadRowsChoice = "refuse",
) -> pa.Table:
    """Read the columns `query` and `candidate`, and those of `value`, `time` and `weight` that the
    files have."""
    sources = sources_of_files(path, columns or {})
    return InteractionSources(sources, bad_rows=BadRows(bad_rows)).table()


def read_keyed(path: Path, name: str, *, numbers: bool = False) -> tuple[pa.Array, Any]:
    """Return the distinct ids (int64 or string) and the column `name` of a file, as float64 ≥ 0 if
    `numbers`. In a file of two columns, the other one has the ids; else the column `id`."""
    others = [n for n in TableStream(source_files(path)[0]).names if n != name]
    ids_of = others if len(others) == 1 else ("id",)
    table = read_keyed_files(path, "", [name], BadRows(advice=False), ids_of)
    refuse_repeats(table["id"], str(path))
    cells = table[name]
    if numbers:
        raw, bad_rows = comparable(decoded(cells), name, str(path)), BadRows(advice=False)
        cells, faults = float_cells(raw, pa.float64(), positive=True)
        bad_rows.good_rows(SourceRows(str(path)), {name: (raw, faults)}, len(raw))
        bad_rows.finish()
    return plain(table["id"]), cells
