"""Disks that are full or may only be read, locks that others hold, downloads that are cut off."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.support.bad_input.case import Case, Content, nothing, put
from tests.support.bad_input.conditions import (
    CUT,
    PAGE,
    PORT,
    all_of,
    answering,
    deadline,
    environment,
    full_disk,
    locked,
    patched,
    read_only,
    small_files,
)
from tests.support.bad_input.services import BUCKET

# Of the corpus that the lineage `t` was trained on.
RECIPE = """
name = "tiny"
[data]
kind = "synthetic"
queries = 30
candidates = 20
interactions = 400
[model]
dim = 64
[training]
epochs = 1
"""
UPGRADE = "--quiet upgrade up.toml --lineage t"
TRAIN = "--quiet train shop.toml --lineage"
REGISTRY = "evergram.lineage.consumers.registry"
LETTERS = "vectors encode texts.csv {} --encoder python:evergram.texts.canaries:letters"


def during(
    condition: Callable[[], AbstractContextManager[Any]],
    name: str,
    command: str,
    names: str = "",
    make: Callable[[Path], object] = nothing,
) -> Case:
    return Case(name, command, names, make, all_of(deadline, condition))


def with_recipe(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return a function that writes the recipe of the upgrade, and makes more."""

    def both(folder: Path) -> None:
        (folder / "up.toml").write_text(RECIPE)
        make(folder)

    return both


def folder_of(name: str) -> Callable[[Path], None]:
    """Return a function that makes a folder unless it is there."""
    return lambda folder: (folder / name).mkdir(exist_ok=True)


def full(name: str, command: str, names: str = "No space left") -> Case:
    """Return the case of a command that writes to the folder `full`, which has no more room."""
    return during(full_disk("full"), f"no room for {name}", command, names, folder_of("full"))


def small(name: str, command: str, names: str = "File too large") -> Case:
    """Return the case of a command where no file may grow."""
    return during(small_files, f"no larger files for {name}", command, names, with_recipe(nothing))


def unwritable(folder: str, name: str, command: str, names: str = "Read-only file system") -> Case:
    """Return the case of a command that writes to a folder that may only be read."""
    named = f"a read-only folder of {name}"
    make = with_recipe(folder_of(folder))
    return during(read_only(folder), named, command, names, make)


def held(name: str, command: str, lock: str, make: Callable[[Path], object] = nothing) -> Case:
    """Return the case of a command while another process holds this lock."""

    def with_folder(folder: Path) -> None:
        make(folder)
        (folder / lock).parent.mkdir(parents=True, exist_ok=True)
        (folder / lock).touch()

    condition = all_of(locked(lock), patched(f"{REGISTRY}.PATIENCE", 0.1))
    named = f"{name} while another writes"
    return during(condition, named, command, "Another process", with_recipe(with_folder))


def half(name: str, file: str, content: Content, kind: str, names: str = "") -> Case:
    """Return the case of a public data set of which a part was downloaded."""
    command = f"train shop.toml --lineage new --set data.kind={kind} --set data.path={file}"
    return Case(f"half a download of {name}", command, names or file, put(content, file))


def archive(**files: str) -> bytes:
    """Return a zip of these texts."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as written:
        for name, text in files.items():
            written.writestr(f"ml-latest-small/{name}.csv", text)
    return buffer.getvalue()


# A server that does not answer is asked once, not again and again.
once = patched("evergram.texts.endpoint.TRIES", 1)
RATINGS = "userId,movieId,rating,timestamp\n" + "1,2,3.5,17\n" * 500
MOVIES = "movieId,title,genres\n2,A film,Drama\n"
ZIP = archive(ratings=RATINGS, movies=MOVIES)

CASES = [
    full("a trained lineage", f"{TRAIN} full/l --set model.dim=256", ""),
    full("an imported lineage", "vectors import old.parquet --lineage full/l"),
    full("an alignment", "vectors align old.parquet new.parquet --lineage full/l"),
    full("a store", "--quiet store fill l --store object=full/s"),
    full("exported vectors", "vectors export l full/o.parquet --side object"),
    full(
        "transformed vectors", "vectors transform new.parquet --lineage l --as 0 --out full/o.npy"
    ),
    full("an exported transform", "vectors export-transform l full/o.onnx --format onnx --as 0"),
    small("a trained lineage", f"{TRAIN} new --set model.dim=64"),
    small("an imported lineage", "vectors import old.parquet --lineage new"),
    small("an alignment", "vectors align 1 old.parquet --lineage l"),
    small("an upgrade", UPGRADE),
    small("a store", "--quiet store fill l --store object=new"),
    small("exported vectors", "vectors export l o.parquet --side object"),
    small("an exported transform", "vectors export-transform l o.onnx --format onnx --as 0"),
    small("a page of a training", f"{TRAIN} new --report r.html"),
    unwritable("ro", "a trained lineage", f"{TRAIN} ro/l"),
    unwritable("ro", "an imported lineage", "vectors import old.parquet --lineage ro/l"),
    unwritable("ro", "exported vectors", "vectors export l ro/o.parquet --side object"),
    unwritable("ro", "encoded texts", LETTERS.format("ro/o.parquet")),
    unwritable("ro", "a store", "--quiet store fill l --store object=ro/s"),
    unwritable("ro", "a store in LanceDB", "--quiet store fill l --store object=lance:ro/s#t"),
    unwritable("ro", "a store in Qdrant", "--quiet store fill l --store object=qdrant:ro/s#t"),
    unwritable("ro", "a store in SQLite", "--quiet store fill l --store object=sqlite:ro/s#t"),
    unwritable("ro", "a first recipe", "init clicks.parquet --out ro/r.toml"),
    unwritable("ro", "a page", f"{TRAIN} new --report ro/r.html"),
    unwritable("l", "a label", "lineage label l gold 0"),
    unwritable("l", "a withdrawal", "lineage withdraw l --reason bad"),
    unwritable("l", "a consumer", "consumer add l new --pin v0"),
    unwritable("l", "a token", "consumer token l ads"),
    unwritable("l", "an alignment", "vectors align 1 old.parquet --lineage l"),
    unwritable("l", "a backfill", "store backfill plan l --store object=older"),
    unwritable("t", "an upgrade", UPGRADE),
    unwritable("s", "a store's rows", "--quiet store fill l --store object=s"),
    held("a first training", f"{TRAIN} new", "new/.work/training.lock"),
    held("an upgrade", UPGRADE, "t/.work/training.lock"),
    held("a first publication", "vectors import old.parquet --lineage new", "new/.lock"),
    held("an alignment", "vectors align 1 old.parquet --lineage l", "l/.lock"),
    held("a label", "lineage label l gold 0", "l/.lock"),
    held("a promotion", "lineage promote l 0", "l/.lock"),
    held("a withdrawal", "lineage withdraw l --reason bad", "l/.lock"),
    held("a consumer", "consumer add l new --pin v0", "l/.lock"),
    held("a token", "consumer token l ads", "l/.lock"),
    held("a removal", "consumer remove l ads", "l/.lock"),
    half("MovieLens", "ml-latest-small.zip", ZIP[: len(ZIP) // 2], "movielens"),
    half("MovieLens by an empty file", "ml-latest-small.zip", b"", "movielens"),
    half("MovieLens by a page", "ml-latest-small.zip", "<html>gone</html>", "movielens"),
    half("Amazon's reviews", "reviews_Beauty_5.json.gz", b"\x1f\x8b\x08\0\0\0\0\0", "amazon"),
    half("Gowalla", "train.txt.gz", b"\x1f\x8b\x08\0\0\0\0\0", "adjacency_list"),
    half("Wikispeedia", "wikispeedia", lambda path: path.mkdir(), "wikispeedia"),
    during(
        all_of(answering(CUT), once),
        "an encoder's server that is cut off",
        f"vectors encode texts.csv o.parquet --encoder openai:http://127.0.0.1:{PORT}/v1#m",
        str(PORT),
    ),
    during(
        answering(PAGE),
        "an encoder's server that is a web page",
        f"vectors encode texts.csv o.parquet --encoder openai:http://127.0.0.1:{PORT}/v1#m",
        str(PORT),
    ),
    during(
        all_of(answering(b""), once),
        "an encoder's server that hangs up",
        f"vectors encode texts.csv o.parquet --encoder openai:http://127.0.0.1:{PORT}/v1#m",
        str(PORT),
    ),
    during(
        all_of(answering(CUT, "AWS_ENDPOINT_URL"), environment(**BUCKET)),
        "a bucket that is cut off",
        "lineage list s3://shop/l",
        "s3://shop/l",
    ),
    during(
        all_of(answering(CUT, "AWS_ENDPOINT_URL"), environment(**BUCKET)),
        "a new lineage in a bucket that is cut off",
        "vectors import old.parquet --lineage s3://shop/l",
        "s3://shop/l",
    ),
]
