"""Data sets: their paths, the commands of docs/data-sets.md, and errors that give them."""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from reproduction.bc.images.pictures import list_pictures
from reproduction.gramian.words.judgements import PAIRS, QUESTIONS, read_judgements
from tests.support.image_files import write_images
from tests.support.loader_examples import EXAMPLES

from benchmarks import gowalla, unseen
from evergram.cli import main
from evergram.data.amazon import load_amazon
from evergram.data.corpus import Corpus
from evergram.data.data_sets import DATA_SETS, data_folder, existing, whole_path
from evergram.data.movielens import load_movielens
from evergram.data.wikispeedia import load_wikispeedia
from evergram.errors import DataError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "data-sets.md").read_text()


def test_the_folder_is_the_variable_or_data_where_the_process_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERGRAM_DATA", raising=False)
    assert whole_path("$EVERGRAM_DATA/gowalla", Path("/recipes")) == tmp_path / "data" / "gowalla"
    monkeypatch.setenv("EVERGRAM_DATA", "/sets")
    assert data_folder() == Path("/sets")
    assert whole_path("$EVERGRAM_DATA/gowalla", Path("/recipes")) == Path("/sets/gowalla")
    assert whole_path("../x.csv", Path("/recipes")) == Path("/x.csv")


def test_the_error_about_a_missing_data_set_gives_its_command(tmp_path: Path) -> None:
    for name in DATA_SETS:
        data_set = DATA_SETS[name]
        with pytest.raises(DataError) as caught:
            existing(tmp_path / name / "train.txt")
        sentence = str(caught.value)
        for part in (data_set.title, data_set.terms, data_set.command, "EVERGRAM_DATA"):
            assert part in sentence
        assert "\n" not in sentence
        assert not re.search(r"\. [A-Z]", sentence), "more than one sentence"
        assert f"mkdir -p {tmp_path} && cd {tmp_path} &&" in sentence


def test_training_on_a_missing_data_set_gives_the_command_that_fetches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(ROOT / "recipes" / "movielens.toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERGRAM_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["evergram", "train", recipe, "--lineage", "lineage"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    sentence = " ".join(capsys.readouterr().err.split())
    wanted = DATA_SETS["movielens-25m-head"]
    with pytest.raises(DataError, match=r"python -m benchmarks\.gowalla"):
        existing(tmp_path / "build" / "gowalla" / "train.parquet")
    assert f"There is no file or folder {tmp_path}/data/movielens-25m-head:" in sentence
    for part in (wanted.title, wanted.terms, "ml-25m.zip", "docs/data-sets.md"):
        assert part in sentence


def test_the_page_has_every_data_set_with_its_terms_and_its_command() -> None:
    for name in DATA_SETS:
        section = PAGE.split(f"\n## `{name}`")[1].split("\n## ")[0]
        assert DATA_SETS[name].command in section
        assert DATA_SETS[name].terms in section


def test_no_recipe_leads_out_of_the_repository() -> None:
    for path in sorted((ROOT / "recipes").glob("*.toml")):
        data = tomllib.loads(path.read_text())["data"]
        for text in (data.get("path"), data.get("test")):
            if text is None or text.startswith("$EVERGRAM_DATA/"):
                continue
            assert (path.parent / text).resolve().is_relative_to(ROOT)


# The beginnings of files that no kind of data reads as they are; the pairs that they hold.
FILES = {
    "lastfm": (
        {"all_data.csv": ",0,1,2\n0,5,40,13\n1,5,41,2\n2,6,40,9\n"},
        [(5, 40), (5, 41), (6, 40)],
    ),
    "citeulike-t": ({"users.dat": "2 495 1631\n0\n1 495\n"}, [(0, 495), (0, 1631), (2, 495)]),
    "foursquare": (
        {"trainData.txt": "0 12 3.0\n0 13 1.0\n", "testData.txt": "4\t12\t1.0\n"},
        [(0, 12), (0, 13), (4, 12)],
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_the_python_of_the_page_reads_a_set_that_no_kind_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, pairs = FILES[name]
    (tmp_path / name).mkdir()
    for file, text in files.items():
        (tmp_path / name / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    section = PAGE.split(f"\n## `{name}`")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "data-sets.md", "exec"), names)
    assert pairs_of(names["corpus"]) == pairs


def pairs_of(corpus: Corpus) -> list[tuple[Any, Any]]:
    """The pairs of a corpus by their ids, ascending."""
    ids = corpus.queries.vocabulary.keys, corpus.candidates.vocabulary.keys
    rows = zip(corpus.column("query").tolist(), corpus.column("candidate").tolist(), strict=True)
    return sorted((ids[0][q].as_py(), ids[1][c].as_py()) for q, c in rows)


# Does what the commands ask of curl: -f, -L, and a file for each -O URL or -o NAME URL.
CURL = """#!{python}
import pathlib, shutil, sys
words, name, names = sys.argv[1:], None, []
assert words.pop(0) == "-fL", "a missing file must fail, and redirects be followed"
while words:
    word = words.pop(0)
    if word == "-o":
        name = words.pop(0)
    elif word == "--fail-early":
        continue
    elif word != "-O":
        assert word.startswith("https://")
        source = pathlib.Path({served!r}) / word.removeprefix("https://")
        if not source.is_file():
            sys.exit(22)
        shutil.copy(source, name or source.name)
        name = None
"""


def zipped(folder: Path, at: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, f"{at}/{path.relative_to(folder)}")
    return content.getvalue()


def tarred(folder: Path, at: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.add(folder, at)
    return content.getvalue()


def files(name: str, folder: Path) -> dict[str, bytes]:
    """Return the owners' files of a data set by name, made small."""
    if name.startswith("movielens"):
        EXAMPLES["movielens"](folder)
        at = "ml-25m" if "25m" in name else "ml-latest-small"
        return {f"{at}.zip": zipped(folder, at)}
    if name.startswith("amazon"):
        EXAMPLES["amazon"](folder)
        reviews = gzip.compress((folder / "reviews.json").read_bytes())
        product = gzip.compress(b"{'asin': 'a1', 'title': 'A', 'brand': 'B'}\n")
        stem = "Beauty" if "beauty" in name else "Musical_Instruments"
        return {f"reviews_{stem}_5.json.gz": reviews, f"meta_{stem}.json.gz": product}
    if name == "wikispeedia":
        EXAMPLES["wikispeedia"](folder)
        texts = folder.parent / "texts"
        texts.mkdir()
        (texts / "April.txt").write_text("April is a month.\n")
        return {
            "wikispeedia_paths-and-graph.tar.gz": tarred(folder, "wikispeedia_paths-and-graph"),
            "wikispeedia_articles_plaintext.tar.gz": tarred(texts, "plaintext_articles"),
        }
    if name == "scifact":
        (folder / "qrels").mkdir()
        (folder / "corpus.jsonl").write_text('{"_id": "1", "title": "T", "text": "x"}\n')
        (folder / "queries.jsonl").write_text('{"_id": "1", "text": "x"}\n')
        (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\t1\t1\n")
        return {"scifact.zip": zipped(folder, "scifact")}
    if name == "words":
        questions = {QUESTIONS: b": capitals\nAthens Greece Oslo Norway\n"}
        return dict.fromkeys(PAIRS.values(), b"tiger\tcat\t7.35\n") | questions
    if name == "cifar10":
        return {
            "master.zip": zipped(write_images(folder, ("cat",), (2, 1)), "CIFAR-10-images-master")
        }
    return {
        "train.txt": b"0 1 2\n1 2\n",
        "test.txt": b"0 3\n1 1\n",
        "all_data.csv": b",0,1,2\n0,7,1,993.0\n1,8,1,5.0\n2,8,2,6.0\n",
        "users.dat": b"2 1 2\n1 2\n",
        "trainData.txt": b"USER_1 LOC_1 1.0\nUSER_2 LOC_1 1.0\n",
        "testData.txt": b"USER_1 LOC_2 1.0\n",
    }


def pairs_read(name: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many pairs the folder of a data set has, as its reader sees it."""
    folder = data / name
    if name.startswith("movielens"):
        zips = [*folder.glob("*.zip")]  # recipes read the small one as it is
        return len(load_movielens(zips[0] if zips else folder).interactions)
    if name.startswith("amazon"):
        return len(load_amazon(folder).interactions)
    if name == "wikispeedia":
        with tarfile.open(folder / "plaintext_articles.tar.xz") as texts:
            assert "plaintext_articles/April.txt" in texts.getnames()
        return len(load_wikispeedia(folder).interactions)
    if name == "scifact":
        assert gzip.decompress((folder / "corpus.jsonl.gz").read_bytes()).startswith(b'{"_id"')
        return len((folder / "qrels" / "test.tsv").read_text().splitlines()) - 1
    if name == "words":
        return sum(len(each) for each in read_judgements(folder).pairs.values())
    if name == "cifar10":
        return len(list_pictures(folder, (2, 1))[1])
    module = unseen if name in unseen.READERS else gowalla
    monkeypatch.setattr(module, "DATA", data)
    monkeypatch.setattr(module, "ROOT", data)
    if module is unseen:
        tables = [unseen.convert(name)]
    else:
        tables = [gowalla.convert(name=name) / f"{part}.parquet" for part in ("train", "test")]
    return sum(int(pq.read_metadata(table).num_rows) for table in tables)


EXPECTED = {"amazon": 3, "movielens": 3, "wikispeedia": 2, "scifact": 1, "gowalla": 5} | {
    "words": 3, "cifar10": 3, "yelp2018": 5, "lastfm": 3, "citeulike-t": 3, "foursquare": 3
}  # fmt: skip


@pytest.mark.parametrize("name", DATA_SETS)
def test_the_command_makes_the_folder_that_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, served, data, programs = (tmp_path / f for f in ("made", "served", "data", "programs"))
    for folder in (made, served, data, programs):
        folder.mkdir()
    (programs / "curl").write_text(CURL.format(python=sys.executable, served=str(served)))
    (programs / "curl").chmod(0o755)
    command = DATA_SETS[name].command
    sources = files(name, made)
    addresses = re.findall(r"https://(\S+)", command)
    assert addresses
    for address in addresses:
        path = served / address
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sources[path.name])
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", command], cwd=data, env=environment, check=True)
    kind = next(k for k in EXPECTED if name.startswith(k))
    assert pairs_read(name, data, monkeypatch) == EXPECTED[kind]


def test_a_file_that_is_gone_ends_the_command(tmp_path: Path) -> None:
    for name in DATA_SETS:
        (tmp_path / "curl").write_text(CURL.format(python=sys.executable, served=str(tmp_path)))
        (tmp_path / "curl").chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["bash", "-c", DATA_SETS[name].command]
        assert subprocess.run(command, cwd=tmp_path, env=environment, check=False).returncode == 22


CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\nConnection: close\r\n\r\n0 1 2\n1"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n0 1 2\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize("name", DATA_SETS)
def test_a_download_that_is_cut_off_ends_the_command(name: str, tmp_path: Path) -> None:
    """Of several files curl reports the last alone, and the half of another would be used."""
    with answering_each(CUT, WHOLE) as address:
        command = re.sub(r"https://[^/\s]+", address, DATA_SETS[name].command)
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, check=False)
    assert done.returncode == 18, "curl's code of a part of a file"
    # Nothing that comes after the download was done with its half.
    assert not [*tmp_path.rglob("train.txt.gz"), *tmp_path.rglob("*.tar.xz")]


@contextmanager
def answering_each(*answers: bytes) -> Iterator[str]:
    """Send these answers, one a connection, the last again and again. Yields: the address."""

    def answer() -> None:
        for content in chain(answers, repeat(answers[-1])):
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(65_536)
                connection.sendall(content)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
