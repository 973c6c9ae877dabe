"""Bad input, one case a code path, ends in one sentence, exit code 2, and nothing written."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from tests.support.click_shop import IDS, RECIPE, ROWS, clicks, put_publisher_files, tree_of
from tests.support.command import Command, exit_code
from tests.support.lineages import TRAINED
from tests.support.onnx_graphs import DIM

# What a file is made of: bytes, text in UTF-8, a table, a function that makes it, or no file.
Content: TypeAlias = bytes | str | pa.Table | Callable[[Path], object] | None
Make: TypeAlias = Callable[[Path], object]
Condition: TypeAlias = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Case:
    """A command line in a copy of the good files that must be refused.

    Args:
        names: what the sentence names.
        make: makes the bad input in the working directory.
        during: what holds while the command runs, such as a port that is taken.
        what: the kind of bad input, where the command line does not say it.
    """

    command: str
    names: str = ""
    make: Make = lambda _: None
    during: tuple[Condition, ...] = ()
    what: str = ""

    def __str__(self) -> str:
        return (self.what or self.command).replace("/", "|")


def put(content: Content, file: str) -> Make:
    """Return a function that writes a file of this content into a folder, in another's place."""

    def make(folder: Path) -> None:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        elif isinstance(content, pa.Table):
            (feather.write_feather if file.endswith(".arrow") else pq.write_table)(content, path)
        elif content is not None:
            content(path)

    return make


def edited(file: str, **values: Any) -> Make:
    """Return a function that changes values of a JSON file, as somebody does by hand."""

    def make(folder: Path) -> None:
        path = folder / file
        text = json.dumps({**json.loads(path.read_text()), **values})
        path.unlink()  # shared with other cases by a hard link
        path.write_text(text)

    return make


def make_good_files(folder: Path) -> None:
    """Write into the working directory, `folder`, all that commands of the cases read.

    A recipe and its clicks; vectors of two models with ids (`old`, `new`); texts; a consumer's
    probe; the lineage `l` of two versions of these vectors, with a consumer, a filled store `s` and
    a store `older` with rows of version 0; and the lineage `t` of three trained versions.
    """
    pq.write_table(clicks(), "clicks.parquet")
    (folder / "shop.toml").write_text(RECIPE)
    put_publisher_files()
    (folder / "texts.csv").write_text("id,text\n" + "".join(f"{i},word {i}\n" for i in range(20)))
    for command in (
        "vectors import old.parquet --lineage l",
        "store fill l --store object=older",
        "consumer add l ads --pin v0",
        "vectors align 0 new.parquet --lineage l",
        "store fill l --store object=s",
    ):
        assert exit_code(command) == 0, command
    shutil.copytree(TRAINED, folder / "t")


@contextmanager
def never_served(seconds: float = 30) -> Iterator[None]:
    """Fail a command that waits, and `evergram serve` where it would begin to answer requests."""

    def stop(*_: object) -> None:
        pytest.fail(f"the command neither refused its input nor ended in {seconds} s")

    def run(_: object) -> None:
        pytest.fail("the input was not refused: the service began to answer")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evergram.serving.server.Server.run", run)
        patch.setattr("evergram.cli.serve.log_to_stderr", lambda: None)
        patch.delenv("EVERGRAM_ADMIN_TOKEN", raising=False)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def environment(**variables: str) -> Condition:
    """Return the condition that variables have these values."""

    @contextmanager
    def during() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            yield

    return during


def patched(name: str, value: object) -> Condition:
    """Return the condition that a name of a module or class has another value."""

    @contextmanager
    def during() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(name, value)
            yield

    return during


def not_permitted(*_: object) -> None:
    """Refuse as the system does where a user may not do something."""
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def locked(pattern: str) -> Condition:
    """Return the condition that another process holds the one lock that a pattern finds."""

    @contextmanager
    def during() -> Iterator[None]:
        # A lock of flock(2) is one of the open file: a second one in this process is kept out, too.
        (file,) = Path().glob(pattern)
        with FileLock(file, is_singleton=False):
            yield

    return during


@contextmanager
def small_files() -> Iterator[None]:
    """Let no file grow past a few kilobytes, as on a disk that has no more room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        # Python itself would leave the half of a module's bytecode, and fail to read it ever after.
        patch.setattr(sys, "dont_write_bytecode", True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def full_disk() -> Iterator[None]:
    """Let the folder `full` be a disk of its own without room, to which nothing may be written."""
    with _mounted("full", "-t", "tmpfs", "-o", "size=64k", "tmpfs"):
        with Path("full/ballast").open("wb", buffering=0) as file:
            file.write(bytes(48_000))
        before = tree_of(Path("full"))
        yield
        assert tree_of(Path("full")) == before


def read_only(folder: str) -> Condition:
    """Return the condition that nobody may write into a folder, not even root."""

    @contextmanager
    def during() -> Iterator[None]:
        with _mounted(folder, "--bind", folder):
            remount = ["mount", "-o", "remount,ro,bind", folder]
            subprocess.run(remount, check=True, capture_output=True)
            yield

    return during


@contextmanager
def _mounted(folder: str, *options: str) -> Iterator[None]:
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    done = subprocess.run(["mount", *options, folder], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


# The port of a server that a command line names; a bucket's server has one of its own.
with socket.create_server(("127.0.0.1", 0)) as _free:
    PORT: int = _free.getsockname()[1]
CUT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n{"
PAGE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 21\r\nConnection: close\r\n\r\n"
    b"<html>a page</html>\r\n"
)


def answering(content: bytes) -> Condition:
    """Return the condition that a server at PORT, which a bucket's address is, too, sends these
    bytes to every request and hangs up."""

    def answer(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    connection.recv(65_536)
                    connection.sendall(content)
                except OSError:
                    continue

    @contextmanager
    def during() -> Iterator[None]:
        with socket.create_server(("127.0.0.1", PORT)) as server:
            thread = threading.Thread(target=answer, args=(server,))
            thread.start()
            try:
                yield
            finally:
                server.shutdown(socket.SHUT_RDWR)
                thread.join()

    return during


BUCKET = environment(
    AWS_ACCESS_KEY_ID="any",
    AWS_SECRET_ACCESS_KEY="any",
    AWS_DEFAULT_REGION="us-east-1",
    AWS_MAX_ATTEMPTS="1",
    AWS_ENDPOINT_URL=f"http://127.0.0.1:{PORT}",
    EVERGRAM_CACHE="cache",
)


NEW = "train shop.toml --lineage new"
ADD = "consumer add l new --pin v0"
PROBE = f"{ADD} --probe plain.onnx --data data.parquet"
IMPORT = "vectors import old.parquet --lineage"
OBJECTS = "vectors export l o.parquet --side object"
TRANSFORM = "vectors transform new.parquet --lineage l --as 0 --out"
ONNX = "vectors export-transform l {} --format onnx --as 0"
LETTERS = "--encoder python:evergram.texts.text_encoder:letters"
PLAN = "vectors plan-migration old.parquet new.parquet --new-queries new.parquet --old-queries"
BACKFILL = "store backfill {} --store object=older"
SIDECAR = "vectors sidecar l v1.safetensors"
OFF = "qdrant:http://127.0.0.1:9#t"


def trained(what: str, content: Content, file: str = "bad.csv", options: str = "") -> Case:
    """Return the case of training on a file of this content."""
    return Case(f"{NEW} --set data.path='{file}' {options}", "", put(content, file), what=what)


def recipe(what: str, content: Content, names: str = "bad.toml") -> Case:
    """Return the case of training by a recipe of this content."""
    return Case("train bad.toml --lineage new", names, put(content, "bad.toml"), what=what)


def init(what: str, content: str, names: str, options: str = "") -> Case:
    """Return the case of guessing the recipe of a file."""
    return Case(f"init bad.csv {options}", names, put(content, "bad.csv"), what=f"init: {what}")


def key(value: str) -> Case:
    """Return the case of a value given by --set."""
    return Case(f"{NEW} --set '{value}'", value.partition("=")[0])


def imported(what: str, content: Content, file: str = "bad.parquet", options: str = "") -> Case:
    """Return the case of importing a file of this content."""
    command = f"vectors import {file} --lineage new {options}"
    return Case(command, options.rpartition(" ")[2] or file, put(content, file), what=what)


def aligned(what: str, content: Content, names: str = "bad", options: str = "") -> Case:
    """Return the case of aligning the old vectors with these."""
    file = "bad.npy" if isinstance(content, bytes) else "bad.parquet"
    command = f"vectors align old.parquet {file} --lineage new {options}"
    return Case(command, names, put(content, file), what=what)


def encoded(what: str, content: Content, file: str = "bad.csv") -> Case:
    """Return the case of encoding a file of this content."""
    return Case(f"vectors encode {file} o.parquet {LETTERS}", file, put(content, file), what=what)


def encoder(address: str, names: str = "", *during: Condition) -> Case:
    command = f"vectors encode texts.csv o.parquet --encoder '{address}'"
    return Case(command, names or address, during=during, what=f"{address} {len(during)}")


def damaged(file: str, content: Content, command: str = OBJECTS, what: str = "") -> Case:
    """Return the case of a file that is replaced, or removed by None."""
    names = file.rpartition("/")[2]
    return Case(command, names, put(content, file), what=f"{what or 'damaged'} {file}: {command}")


def half(file: str) -> Make:
    """Return a function that halves a file."""
    return lambda folder: put((lambda b: b[: len(b) // 2])((folder / file).read_bytes()), file)(
        folder
    )


def fill(address: str, names: str = "", make: Make | None = None, *during: Condition) -> Case:
    """Return the case of filling a store at this address."""
    command = f"store fill l --store 'object={address}'"
    what = f"{address} {getattr(make, '__name__', '')} {len(during)}" if make else ""
    return Case(command, names or address, make or (lambda _: None), during, what)


def spoilt_vectors(content: Content) -> Make:
    """Return a function that replaces the vectors of the snapshot `s`, or removes them by None."""

    def make(folder: Path) -> None:
        (file,) = (folder / "s/segments").glob("*.vectors")
        put(content, str(file.relative_to(folder)))(folder)

    return make


def planned(_: Path) -> None:
    """Plan a backfill of the store `older`, whose rows are of version 0, and do a part of it."""
    for words in ("plan l --batch 100", "apply l --rows 100"):
        assert exit_code(BACKFILL.format(words)) == 0


def spoilt(file: str, command: str, names: str, change: Callable[[str], Make]) -> Case:
    """Return the case of a file of a planned backfill that has changed."""

    def make(folder: Path) -> None:
        planned(folder)
        (backfill,) = (path for path in (folder / "l/backfills").iterdir() if path.is_dir())
        change(str((backfill / file).relative_to(folder)))(folder)

    return Case(BACKFILL.format(f"{command} l"), names, make, what=f"{command}: {file}, {names}")


def served(options: str, names: str, make: Make = lambda _: None, *during: Condition) -> Case:
    """Return the case of serving with these options."""
    lineage = "" if options.startswith(("l ", "t ", "gone", "s3:")) else "l "
    return Case(
        f"serve {lineage}{options} --port 0", names, make, during, f"serve {options} {names}"
    )


def full(command: str) -> Case:
    """Return the case of a command that writes to the folder `full`, which has no more room."""
    return Case(command, "No space left", lambda f: (f / "full").mkdir(), (full_disk,))


def small(command: str) -> Case:
    """Return the case of a command where no file may grow."""
    what = f"no larger files: {command}"
    return Case(command, "File too large", put(UP, "up.toml"), (small_files,), what)


def unwritable(command: str, folder: str = "ro") -> Case:
    """Return the case of a command that writes to a folder that may only be read."""

    def make(place: Path) -> None:
        put(UP, "up.toml")(place)
        (place / folder).mkdir(exist_ok=True)

    what = f"read-only: {command}"
    return Case(
        command,
        "written" if "sqlite" in command else "Read-only file system",
        make,
        (read_only(folder),),
        what,
    )


def held(command: str, lock: str) -> Case:
    """Return the case of a command while another process holds this lock."""

    def make(folder: Path) -> None:
        put(UP, "up.toml")(folder)
        (folder / lock).parent.mkdir(parents=True, exist_ok=True)
        (folder / lock).touch()

    patience = patched("evergram.lineage.consumers.PATIENCE", 0.1)
    return Case(command, "Another process", make, (locked(lock), patience), f"held: {command}")


def foreign_lance(folder: Path) -> None:
    """Make a table of somebody's own, by the name that a store would take."""
    import lancedb

    table = pa.table({"name": ["a"], "price": [1.0]})
    lancedb.connect(folder / "e").create_table("t-v1", table)
    # Those who make a store at one time wait for each other.
    (folder / "e" / "t.lock").touch()


def foreign_qdrant(folder: Path) -> None:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(folder / "q"))
    size = models.VectorParams(size=3, distance=models.Distance.DOT)
    client.create_collection("t", vectors_config=size)
    client.upsert("t", [models.PointStruct(id=1, vector=[1.0, 2.0, 3.0], payload={"a": 1})])
    client.close()


def foreign_sqlite(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "e.db")) as connection, connection:
        connection.execute("create table t_v1 (name text, price real)")


def without_rows(folder: Path) -> None:
    """Remove the rows of a LanceDB store and leave its record."""
    assert exit_code("store fill l --store object=lance:e#t") == 0
    for path in (folder / "e").glob("*.lance"):
        shutil.rmtree(path)


def npy(array: Any, *, pickled: bool = False) -> bytes:
    """Return an array as the bytes of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=pickled)
    return buffer.getvalue()


def vectors(values: Any, ids: Any = IDS) -> pa.Table:
    """Return a table of ids and vectors."""
    flat = pa.array(np.ascontiguousarray(values).ravel())
    return pa.table({"id": ids, "vector": pa.FixedSizeListArray.from_arrays(flat, values.shape[1])})


def unpublished(what: str, values: Any, names: str) -> Case:
    """Return the case of importing vectors that no version may have."""
    command = "vectors import bad.parquet --lineage new"
    return Case(command, names, put(vectors(values), "bad.parquet"), what=what)


class Trap:
    """What a pickle would run: it makes a file."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Path]]:
        return Path.touch, (Path("trapped"),)


# Of the corpus that the lineage `t` was trained on.
UP = """
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
V = np.random.default_rng(7).normal(size=(ROWS, DIM)).astype(np.float32)
NAN = np.where(np.arange(V.size).reshape(V.shape) == 323, np.nan, V).astype(np.float32)
ZEROS = np.where(np.arange(ROWS)[:, None] % 10, V, 0).astype(np.float32)
HEADER = "query,candidate\n"
GOOD = HEADER + "".join(f"{i % 40},item{i % 30}\n" for i in range(400))
Q, C = clicks()["query"].to_pylist(), clicks()["candidate"].to_pylist()
PARQUET = pa.BufferOutputStream()
pq.write_table(clicks(), PARQUET)
CLICKS = PARQUET.getvalue().to_pybytes()
FEATURES = "--set data.path=clicks.parquet --set data.candidate_features=f.parquet"
ZIPPED = io.BytesIO()
with zipfile.ZipFile(ZIPPED, "w") as archive:
    archive.writestr("ml-latest-small/ratings.csv", "userId,movieId,rating,timestamp\n1,2,3.5,17\n")


def kind(name: str) -> str:
    return f"--set data.kind={name}"


MIXED = "user,item,komma,tag\n" + "".join(
    f"{i % 20},{i % 31},{number},{i % 12 + 1:02}.01.2025\n"
    for i, number in enumerate(['"2,5"', "1.5"] * 150)
)
INTERACTIONS = [
    trained("no rows", clicks().slice(0, 0), "bad.parquet"),
    trained("ids of lists", pa.table({"query": [[q] for q in Q], "candidate": C}), "bad.parquet"),
    trained("an id null", pa.table({"query": [None, *Q[1:]], "candidate": C}), "bad.parquet"),
    trained("a Parquet cut short", CLICKS[:-300], "bad.parquet"),
    trained("a Parquet named as a CSV", CLICKS),
    trained("a link to itself", lambda p: p.symlink_to(p), "bad.parquet"),
    trained("a name of 300 letters", lambda _: None, "bad.csv", f"--set data.path={'x' * 300}.csv"),
    trained("features of others", pa.table({"id": ["x"], "age": [1.0]}), "f.parquet", FEATURES),
    trained("half a zip", ZIPPED.getvalue()[:-30], "m.zip", kind("movielens")),
    trained("bytes that are no text", b"\xff\xfe\x00", "m.txt", kind("adjacency_list")),
    trained("UTF-16 without a mark", GOOD.encode("utf-16-le")),
    trained("a quotation mark that never ends", GOOD + '1,"item\n2,3\n'),
    trained("no times, split by time", GOOD, options="--set split.kind=time"),
]
RECIPES = [
    recipe("no such recipe", None),
    recipe("nested too deep", "a = " + "[" * 5000 + "]" * 5000),
    recipe("a number past 64 bits", RECIPE.replace("dim = 4", f"dim = {10**30}"), "model.dim"),
    key("model.dim=-4"),
    Case("train shop.toml", "--lineage"),
    Case(f"{NEW} --epoch 3", "--epoch"),
    Case("trian shop.toml", "trian"),
    Case(f"{NEW} --checkpoint-every often", "often"),
    Case("tune shop.toml --out c --over data.queries=8..20", "data.queries"),
]
ROW = "query,candidate\n1,2\n"
WIDE = "--set model.kind=two_tower --set 'model.hidden=[100_000_000, 100_000_000]'"
OPTIONS = [
    Case("lineage list l --device cpu", "evergram lineage list --help"),
    Case("vectors align old.parquet new.parquet --lineage new --rank 3", "rank"),
    Case("vectors align old.npy new.npy --lineage new --column id=key", "--column"),
    Case(f"{ADD} --metric rmse", "--probe"),
    Case("consumer pin l ads v0 --drop-probe --probe m.onnx --data d.parquet", "--drop-probe"),
    Case("prepare a.csv o --prefix en", "--prefix", put(ROW, "a.csv")),
    Case("init a.txt --column query=a", "--column", put("1 2 3\n", "a.txt")),
    Case("lineage label l x 0 --remove", "--remove"),
    Case("evaluate t --set model.dim=3", "model.dim"),
    # Sizes that no memory holds: counted beforehand, or told where an allocation fails.
    Case(f"{NEW} --set model.dim=10_000_000", "model.dim = 10000000 needs at least 1,600,"),
    Case(f"{NEW} {WIDE}", "bytes"),
    Case(f"{NEW} --set gramian.sampler=linear --set gramian.batch_size={10**14}", "000 bytes"),
]
LITTLE = "user,film\n1,2\n"
FILES = [
    init("ambiguous columns", "user,film,item\n1,2,3\n", "candidate=NAME"),
    init("a column without its role", LITTLE, "ROLE=NAME", "--column query"),
    init("another suffix", LITTLE, ".toml", "--out recipe.json"),
    init("a decimal comma", MIXED, "komma is '2,5'", "--column value=komma"),
    init("the year last", MIXED, "'01.01.2025'", "--column time=tag"),
    Case("prepare clicks.parquet o --memory lots", "lots"),
]
VECTORS = [
    imported("no such file", None),
    imported("no column of vectors", pa.table({"id": IDS})),
    imported("a vector NaN", vectors(NAN)),
    unpublished("vectors × 1e-42", V * np.float32(1e-42), f"{ROWS} of {ROWS} are zero"),
    unpublished("a tenth of zeros", ZEROS, f"{ROWS // 10} of {ROWS} are zero"),
    imported("ids twice", vectors(V, ["id0", *IDS[:-1]])),
    imported("pickled objects", npy(np.array([Trap()] * 3, dtype=object), pickled=True), "b.npy"),
    imported("a Parquet named as Arrow", CLICKS, "bad.arrow"),
    aligned("no ids in common", vectors(V, [f"other{i}" for i in range(ROWS)])),
    aligned("no ids", npy(V)),
    aligned(
        "a vector too long, of an object that the old file lacks",
        vectors(np.vstack([V, np.float32(1e37) * V[:1]]), [*IDS, "more"]),
        "'more' has the length",
        "--max-error inf",
    ),
    aligned("vectors at random", vectors(V)),
    aligned("vectors all the same", vectors(np.ones((ROWS, DIM), np.float32))),
    aligned("an unknown transform", vectors(V), "rotate", "--transform rotate"),
    Case("vectors transform shop.parquet --lineage l --as 0 --out o.parquet", "shop.parquet"),
    Case(f"{TRANSFORM} o.xyz", "o.xyz"),
    Case(f"{TRANSFORM} old.parquet", "old.parquet"),
    Case(f"{TRANSFORM} o.parquet --as 5", "no version 5; its versions are: 0, 1"),
    Case(f"{SIDECAR}", "give one of the two"),
    Case(f"{SIDECAR} --bytes 3", "--old"),
    Case(f"{SIDECAR} --bytes 3 --version v0 --old old.parquet", "no sidecar"),
    Case("vectors sidecar l v1.npy --bytes 3 --old old.parquet", ".safetensors"),
]
LINEAGES = [
    Case("lineage list gone", "gone"),
    Case("train shop.toml --lineage l", "l"),
    Case("train shop.toml --lineage old.npy", "old.npy"),
    Case(f"{IMPORT} other", "versions", put("x", "other/versions/1/mine.txt")),
    damaged("l/lineage.json", b"[" * 100_000, what="too deep"),
    Case("lineage list l", "99", edited("l/lineage.json", format_version=99), what="later format"),
    Case(OBJECTS, "manifest", edited("l/versions/1/manifest.json", dim=3), what="an edit by hand"),
    damaged("l/versions/1/manifest.json", None),
    damaged("l/versions/1/transform.safetensors", b"x" * 500, f"{OBJECTS} --as 0"),
    Case("lineage check l", "metrics.json", half("l/versions/1/metrics.json")),
    Case("vectors export l l --side object", "l"),
    Case("lineage withdraw l --reason ''", "reason"),
    Case("lineage label l v7 0", "'v7'"),
    Case("lineage label l canary", "--remove"),
    Case("vectors align 2 new.parquet --lineage t", "t"),
    Case("evaluate t --set data.path=gone.csv", "data.path"),
    Case("vectors export-transform l o --format tensorflow", "tensorflow"),
    Case("vectors export-transform l o.sql --format duckdb --as 0 --name 'a;b'", "a;b"),
]
OTHERS = pa.table({"id": [f"x{i}" for i in range(ROWS)], "label": [True, False] * (ROWS // 2)})
CONSUMERS = [
    Case("consumer add l new --pin v9", "no version 9"),
    Case(f"{ADD} --limit 0.5", "--probe"),
    Case(f"{ADD} --probe gone.onnx --data data.parquet", "gone.onnx"),
    Case(f"{ADD} --probe b.onnx --data data.parquet", "b.onnx", put(b"nothing", "b.onnx")),
    Case(f"{ADD} --probe plain.onnx --data b.parquet", "b.parquet", put(OTHERS, "b.parquet")),
    Case("consumer add l new --pin v0 --probe plain.onnx", "--data"),
    damaged("l/consumers.json", "{", "consumer list l"),
]
ONCE = patched("evergram.texts.addresses.TRIES", 1)
TEXTS = [
    encoded("no such file of texts", None),
    encoded("an empty text", "id,text\n1,a\n2,\n"),
    encoded("a line of JSON without a text", '{"id": 1}\n', "bad.jsonl"),
    encoder("minilm"),
    encoder("python:no_such_module:f", "no_such_module"),
    encoder("sentence-transformers:./gone", "gone"),
    encoder("openai:http://127.0.0.1:9/v1", "name after the #"),
    encoder("openai:http://127.0.0.1:9/v1#m", "127.0.0.1:9", ONCE),
    encoder(f"openai:http://127.0.0.1:{PORT}/v1#m", str(PORT), answering(PAGE)),
    encoder(
        f"openai:http://127.0.0.1:{PORT}/v1#m",
        str(PORT),
        answering(CUT),
        ONCE,
    ),
    Case(f"vectors encode texts.csv old.parquet {LETTERS}", "old.parquet"),
    Case(f"vectors encode texts.csv o.parquet {LETTERS} --column text=body", "body"),
    Case(f"vectors encode texts.csv o.parquet {LETTERS} --kept old.parquet", "record"),
    Case(f"{PLAN} old.parquet --judgements texts.csv", "texts.csv"),
    Case(
        f"{PLAN} old.parquet --judgements j.tsv",
        "'none'",
        put("query-id\tcorpus-id\tscore\n" + "id1\tnone\t1\n" * 30, "j.tsv"),
    ),
]
IMPATIENT = patched("evergram.stores.snapshot_store.WAIT", 0.1)
STORES = [
    Case("store fill l --store user=new", "user"),
    Case(f"store fill t --store query=new --store candidate={OFF}", ":9"),
    Case("store fill t --store candidate=s", "s has ids"),
    fill("redis:host#t", "redis"),
    fill("o", "", put("x", "o/segments/readme.txt")),
    fill("s", "s/store.json", put("{", "s/store.json")),
    fill("s", ".vectors", spoilt_vectors(b"x")),
    fill("s", "Another process", None, locked("s/.lock"), IMPATIENT),
    fill("postgresql://me@127.0.0.1:9/d#t", "127.0.0.1:9"),
    fill('postgresql://me@127.0.0.1:9/d#a"b', "a"),
    fill("lance:shop.toml#t", "shop.toml"),
    fill("lance:e#t", "lance:e#t", put("[]", "e/t.json")),
    fill("lance:e#t", "", foreign_lance),
    fill("lance:e#t", "", without_rows),
    fill(f"qdrant:http://127.0.0.1:{PORT}#t", "", None, answering(PAGE)),
    fill("qdrant:q#t", "", foreign_qdrant),
    fill("sqlite:e.db#t", "", foreign_sqlite),
    Case("store backfill plan l --store object=s --store object=older", "--store is given"),
    Case("store fill l --store object=s --store object=other", "given twice"),
    Case("store backfill plan l --store object=gone", "gone"),
    Case(BACKFILL.format("apply l"), "plan", what="a backfill that nobody planned"),
    Case(BACKFILL.format("plan l"), "rollback", planned),
    spoilt("backfill.json", "apply", "backfill.json", lambda file: put(b"{", file)),
    spoilt("backfill.json", "apply", "json was", lambda file: edited(file, fingerprint="sha256:0")),
    spoilt("order/store.json", "apply", "order/store.json", lambda file: put(b"x" * 100, file)),
    spoilt("source/store.json", "apply", "source/store.json", lambda file: put(b"", file)),
    Case(BACKFILL.format("apply l"), "Another process", planned, (locked("l/backfills/.*.lock"),)),
]
SERVICES = [
    Case(f"serve l --port {PORT}", str(PORT), during=(answering(b""),)),
    Case("serve l --port 80", ":80", during=(patched("socket.socket.bind", not_permitted),)),
    served("--no-auth --host no.such.host.invalid", "no.such.host.invalid"),
    served("--host 0.0.0.0", "no consumer has a token"),
    served("", "EVERGRAM_ADMIN_TOKEN", lambda _: None, environment(EVERGRAM_ADMIN_TOKEN="a b")),
    served("--allowed-host http://shop", "http://shop"),
    served("--store object", "SIDE=ADDRESS"),
    served("--sidecar data.parquet", "data.parquet"),
    served("gone", "gone"),
    damaged("l/lineage.json", b"{", "serve l --port 0"),
    damaged("l/consumers.json", b"{", "serve l --port 0"),
    damaged("l/versions/1/transform.safetensors", None, "serve l --port 0"),
    damaged("l/embeddings/1/object.parquet", b"PAR1 PAR1", "serve l --port 0"),
    served("t --store candidate=s", "s"),
    served("--store object=s", ".vectors", spoilt_vectors(None)),
    served("--store object=postgresql://me@127.0.0.1:9/d#t", ":9"),
    served("", "l/stores", put("x", "l/stores")),
    served("", "l/stores/object", put("x", "l/stores/object/segments/readme.txt")),
    served("--texts texts.csv", "--encoder"),
    served(f"{LETTERS} --texts gone.csv", "gone.csv"),
    served("s3://shop/l", "s3://shop/l", lambda _: None, answering(CUT), BUCKET),
]
DISKS = [
    full(f"{IMPORT} full/l"),
    full("--quiet store fill l --store object=full/s"),
    full(ONNX.format("full/o.onnx")),
    small(f"--quiet {NEW} --set model.dim=64"),
    small(UPGRADE),
    unwritable("--quiet train shop.toml --lineage ro/l"),
    unwritable(f"vectors encode texts.csv ro/o.parquet {LETTERS}"),
    unwritable("--quiet store fill l --store object=lance:ro/s#t"),
    unwritable("--quiet store fill l --store object=qdrant:ro/s#t"),
    unwritable("--quiet store fill l --store object=sqlite:ro/s#t"),
    unwritable("init clicks.parquet --out ro/r.toml"),
    unwritable("vectors align 1 old.parquet --lineage l", "l"),
    unwritable(BACKFILL.format("plan l"), "l"),
    unwritable(UPGRADE, "t"),
    unwritable("--quiet store fill l --store object=s", "s"),
    held(f"--quiet {NEW}", "new/.work/training.lock"),
    held("lineage promote l 0", "l/.lock"),
    Case(f"{IMPORT} s3://shop/l", "s3://shop/l", during=(answering(CUT), BUCKET)),
]
CASES = [
    *(*INTERACTIONS, *FILES, *RECIPES, *OPTIONS, *VECTORS, *LINEAGES, *CONSUMERS),
    *(*TEXTS, *STORES, *SERVICES, *DISKS),
]


@pytest.fixture(scope="module")
def good_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("good")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_good_files(folder)
    before = tree_of(folder)
    yield folder
    assert tree_of(folder) == before, "a case wrote into a file that it shares with the others"


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case).replace(str(PORT), "PORT"))
def test_bad_input_ends_in_one_sentence_and_nothing_is_written(
    case: Case,
    good_files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    evergram: Command,
) -> None:
    folder = tmp_path / "here"
    shutil.copytree(good_files, folder, symlinks=True, copy_function=os.link)
    monkeypatch.chdir(folder)
    case.make(folder)
    before = tree_of(folder)
    with never_served(), ExitStack() as conditions:
        for condition in case.during:
            conditions.enter_context(condition())
        sentence = evergram(case.command).refusal()
    assert tree_of(folder) == before
    assert case.names in sentence
