"""Data sets: their paths, the commands of docs/data-sets.md, and errors that give them."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from reproduction.bc.images.pictures import list_pictures
from reproduction.gramian.words.judgements import PAIRS, QUESTIONS, read_judgements
from tests.support.image_files import write_images
from tests.support.loader_examples import EXAMPLES

from benchmarks import gowalla, unseen
from evergram.data.amazon import load_amazon
from evergram.data.data_sets import DATA_SETS, existing, whole_path
from evergram.data.movielens import load_movielens
from evergram.data.wikipedia.wikispeedia import load_wikispeedia
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
    assert whole_path("$EVERGRAM_DATA/gowalla", Path("/recipes")) == Path("/sets/gowalla")
    assert whole_path("../x.csv", Path("/recipes")) == Path("/x.csv")


@pytest.mark.parametrize("name", DATA_SETS)
def test_the_page_and_the_error_about_a_missing_set_give_its_command(
    name: str, tmp_path: Path
) -> None:
    data_set, section = DATA_SETS[name], section_of(name)
    with pytest.raises(DataError) as caught:
        existing(tmp_path / name / "train.txt")
    sentence = str(caught.value)
    for part in (data_set.title, f"mkdir -p {tmp_path} && cd {tmp_path} &&", "EVERGRAM_DATA"):
        assert part in sentence
    for part in (data_set.terms, data_set.command):
        assert part in sentence
        assert part in section


def test_a_table_that_a_program_makes_of_a_set_is_named_with_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"python -m benchmarks\.gowalla"):
        existing(tmp_path / "build" / "gowalla" / "train.parquet")


def section_of(name: str) -> str:
    return PAGE.split(f"\n## `{name}`")[1].split("\n## ")[0]


def test_no_recipe_leads_out_of_the_repository() -> None:
    for path in sorted((ROOT / "recipes").glob("*.toml")):
        data = tomllib.loads(path.read_text())["data"]
        for text in (data.get("path"), data.get("test")):
            if text is not None and not text.startswith("$EVERGRAM_DATA/"):
                assert (path.parent / text).resolve().is_relative_to(ROOT)


# Does what the commands ask of curl: -f, -L, and a file for each -O URL or -o NAME URL.
CURL = """#!{python}
import pathlib, shutil, sys
words, name, names = sys.argv[1:], None, []
assert words.pop(0) == "-fL", "a missing file must fail, and redirects be followed"
# Of several files curl reports the last alone, and the half of another would be used.
assert words.count("-O") + words.count("-o") < 2 or words[0] == "--fail-early"
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


def example(folder: Path, name: str, kind: str) -> Path:
    """Return the example of a loader in a folder of this name."""
    (folder / name).mkdir()
    EXAMPLES[kind](folder / name)
    return folder / name


def files(name: str, folder: Path) -> dict[str, bytes]:
    """Return the owners' files of a data set by name, made small."""
    if name.startswith("movielens"):
        at = "ml-25m" if "25m" in name else "ml-latest-small"
        return {f"{at}.zip": archive(example(folder, at, "movielens"), "zip")}
    if name.startswith("amazon"):
        reviews = example(folder, "reviews", "amazon") / "reviews.json"
        stem = "Beauty" if "beauty" in name else "Musical_Instruments"
        product = gzip.compress(b"{'asin': 'a1', 'title': 'A', 'brand': 'B'}\n")
        content = gzip.compress(reviews.read_bytes())
        return {f"reviews_{stem}_5.json.gz": content, f"meta_{stem}.json.gz": product}
    if name == "wikispeedia":
        graph = example(folder, "wikispeedia_paths-and-graph", "wikispeedia")
        texts = folder / "plaintext_articles"
        texts.mkdir()
        (texts / "April.txt").write_text("April is a month.\n")
        parts = {"paths-and-graph": graph, "articles_plaintext": texts}
        return {f"wikispeedia_{n}.tar.gz": archive(f, "gztar") for n, f in parts.items()}
    if name == "scifact":
        inside = folder / "scifact"
        (inside / "qrels").mkdir(parents=True)
        (inside / "corpus.jsonl").write_text('{"_id": "1", "title": "T", "text": "x"}\n')
        (inside / "queries.jsonl").write_text('{"_id": "1", "text": "x"}\n')
        (inside / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\t1\t1\n")
        return {"scifact.zip": archive(inside, "zip")}
    if name == "words":
        questions = {QUESTIONS: b": capitals\nAthens Greece Oslo Norway\n"}
        return dict.fromkeys(PAIRS.values(), b"tiger\tcat\t7.35\n") | questions
    if name == "cifar10":
        images = write_images(folder, ("cat",), (2, 1)).rename(folder / "CIFAR-10-images-master")
        return {"master.zip": archive(images, "zip")}
    return {
        "train.txt": b"0 1 2\n1 2\n",
        "test.txt": b"0 3\n1 1\n",
        "all_data.csv": b",0,1,2\n0,7,1,993.0\n1,8,1,5.0\n2,8,2,6.0\n",
        "users.dat": b"2 1 2\n1 2\n",
        "trainData.txt": b"USER_1 LOC_1 1.0\nUSER_2 LOC_1 1.0\n",
        "testData.txt": b"USER_1 LOC_2 1.0\n",
    }


def archive(folder: Path, kind: str) -> bytes:
    stem = folder.parent / "archive"
    return Path(shutil.make_archive(str(stem), kind, folder.parent, folder.name)).read_bytes()


def pairs_read(name: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many pairs the folder of a data set has, as its reader sees it."""
    folder = data / name
    if name.startswith("movielens"):
        zips = [*folder.glob("*.zip")]  # recipes read the small one as it is
        return len(load_movielens(zips[0] if zips else folder))
    if name.startswith("amazon"):
        return len(load_amazon(folder))
    if name == "wikispeedia":
        with tarfile.open(folder / "plaintext_articles.tar.xz") as texts:
            assert "plaintext_articles/April.txt" in texts.getnames()
        return len(load_wikispeedia(folder))
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


def run(command: str, served: Path, folder: Path) -> int:
    """Run a command in a folder with a curl that reads `served`, and return its exit code."""
    programs = served.parent / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "curl").write_text(CURL.format(python=sys.executable, served=str(served)))
    (programs / "curl").chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", command], cwd=folder, env=environment).returncode


@pytest.mark.parametrize("name", DATA_SETS)
def test_the_command_makes_the_folder_that_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, served, data = (tmp_path / f for f in ("made", "served", "data"))
    for folder in (made, served, data):
        folder.mkdir()
    command, sources = DATA_SETS[name].command, files(name, made)
    assert run(command, served, data) == 22, "a file that is gone ends the command"
    shutil.rmtree(data)
    data.mkdir()
    addresses = re.findall(r"https://(\S+)", command)
    assert addresses
    for address in addresses:
        (served / address).parent.mkdir(parents=True, exist_ok=True)
        (served / address).write_bytes(sources[Path(address).name])
    assert run(command, served, data) == 0
    kind = next(k for k in EXPECTED if name.startswith(k))
    assert pairs_read(name, data, monkeypatch) == EXPECTED[kind]
    monkeypatch.chdir(data)
    for code in re.findall(r"```python\n(.*?)```", section_of(name), re.DOTALL):
        names: dict[str, Any] = {}
        exec(compile(code, "data-sets.md", "exec"), names)
        assert len(names["corpus"]) == EXPECTED[kind]
