"""Every loader: what all do, layouts and faults, compressed files; and the public data sets."""

from __future__ import annotations

import gzip
import re
import sys
import tomllib
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from reproduction.loaders.wikispeedia import load_wikispeedia
from tests.support.loader_examples import EXAMPLES
from tests.support.prepared import assert_same, bags_of, pairs_of

from evergram.data import Corpus, load_adjacency_list, load_movielens
from evergram.data.data_sets import existing, whole_path
from evergram.data.loaders import LOADERS, DataSettings, path_kinds
from evergram.errors import DataError

PAGE = (Path(__file__).parents[2] / "docs" / "extend" / "loader.md").read_text()


def of_the_page() -> tuple[type[DataSettings], Callable[[Path], DataSettings]]:
    """The settings that the page adds to the table, and the example of its loader."""
    code, line, example = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module = ModuleType("baskets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "baskets", module)
        exec(compile(code, "loader.md", "exec"), vars(module))
        exec(compile(line, "loader.md", "exec"), {})
        documented = LOADERS.pop("baskets")
    space: dict[str, Any] = {"DataSettings": DataSettings, "Path": Path}
    exec(compile(example, "loader.md", "exec"), space)
    space["of"] = lambda kind, path: documented.model_validate({"kind": kind, "path": str(path)})
    return documented, space["baskets"]


DOCUMENTED, SOURCE = of_the_page()
SOURCES: dict[str, Callable[[Path], DataSettings]] = {**EXAMPLES, "baskets": SOURCE}
FROM_A_PATH = [*path_kinds(), "baskets"]


@pytest.mark.parametrize("kind", SOURCES)
def test_a_corpus_is_whole_and_the_same_twice(kind: str, tmp_path: Path) -> None:
    settings = SOURCES[kind](tmp_path)
    corpus = settings.load(0)
    assert_same(corpus, settings.load(0))
    assert len(corpus) > 1
    for name in corpus.interactions.column_names:
        assert bool(corpus.column(name).isfinite().all())
    for side in (corpus.queries, corpus.candidates):
        keys = side.vocabulary.keys
        assert len(keys) == len(keys.unique())
        assert not keys.null_count
    if corpus.has_times:
        assert bool((corpus.column("time").diff() >= 0).all())
    assert corpus.counts("query").sum() == len(corpus)
    # A restriction to all is the same corpus.
    assert len(corpus.restrict(torch.arange(len(corpus)))) == len(corpus)
    if kind in FROM_A_PATH:
        absent = settings.model_copy(update={"path": str(tmp_path / "nowhere")})
        with pytest.raises(DataError, match=r"no file or folder .*nowhere; correct the path\."):
            absent.load(0)


@pytest.mark.parametrize("kind", FROM_A_PATH)
@pytest.mark.parametrize("content", [b"", b"\x00\xff{[\n\x80,,,\n"], ids=["empty", "damaged"])
def test_a_damaged_source_is_refused_in_one_sentence(
    kind: str, content: bytes, tmp_path: Path
) -> None:
    if kind == "baskets" and content:
        pytest.skip("the page's loader reads text alone, to stay short")
    settings = SOURCES[kind](tmp_path)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        settings.load(0)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_loader_of_ones_own_does_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('["tea"]\nmilk\n')
    with pytest.raises(DataError, match="row 2 is not a JSON list"):
        DOCUMENTED.model_validate({"path": str(tmp_path / "b.jsonl")}).load(0)


HEADER = "userId,movieId,rating,timestamp\n"
RATINGS = HEADER + "1,10,4.5,100\n2,20,3.0,50\n1,20,5,200\n"
MOVIES = (
    "movieId,title,genres\n10,Heat (1995),Action|Crime\n"
    '20,"American President, The (1995)",(no genres listed)\n30,Nobody Saw It,Drama\n'
)
# A quotation mark is a letter here, and \x85, which ends a line in Python, is one of a title's.
DAT = {
    "ratings.dat": b"1::10::4.5::100\n2::20::3::50\n1::20::5::200\n\n",
    "movies.dat": b'10::"Heat (1995)::Action|Crime\n20::Am\xe9lie\x85 (1995)::(no genres listed)\n',
}
CSV = {"ratings.csv": RATINGS.encode(), "movies.csv": MOVIES.encode()}


def zipped(**members: str | bytes) -> bytes:
    content = BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return content.getvalue()


LAYOUTS: dict[str, dict[str, bytes]] = {
    "csv": CSV,
    "dat": DAT,
    "zip": {
        "ml.zip": zipped(
            **{f"ml-x/{name}": text for name, text in CSV.items()},
            **{"__MACOSX/ml-x/._ratings.csv": "junk"},
        )
    },
    "zipped files": {f"{name}.zip": zipped(**{name: text}) for name, text in CSV.items()},
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_movielens_layout(tmp_path: Path, kind: str) -> None:
    for name, content in LAYOUTS[kind].items():
        (tmp_path / name).write_bytes(content)
    corpus = load_movielens(tmp_path / "ml.zip" if kind == "zip" else tmp_path)
    assert pairs_of(corpus) == [(2, 20), (1, 10), (1, 20)]
    assert corpus.column("value").tolist() == [3.0, 4.5, 5.0]
    assert corpus.column("time").tolist() == [50, 100, 200]
    assert bags_of(corpus.candidates, "genres") == {20: [], 10: ["Action", "Crime"]}
    assert bags_of(corpus.candidates, "year") == {20: [1995], 10: [1995]}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ratings.csv", HEADER, "no rows"),
        ("ratings.csv", "a,b\n1,2\n", "userId"),
        ("ratings.csv", RATINGS + "3,10,nan,5\n", "row 4: rating is 'nan'"),
        ("ratings.csv", HEADER + "1,10,4,5\n1,,4,5\n", r"ratings\.csv row 2\b"),
        ("ratings.dat", "1::10::4::5\n1::11::great::5\n", r"ratings\.dat row 2\b"),
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


def test_titles_without_a_year_and_movies_without_genres(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text(HEADER + "1,10,4,1\n1,11,4,2\n1,12,4,3\n1,13,4,4\n")
    (tmp_path / "movies.csv").write_text(
        "movieId,title,genres\n10,Nobody Knows,Drama\n11,Series (1995-1999),\n"
        "12,2001 (1968) ,(no genres listed)\n"
    )
    candidates = load_movielens(tmp_path).candidates
    assert bags_of(candidates, "year") == {10: [], 11: [], 12: [1968], 13: []}
    assert bags_of(candidates, "genres") == {10: ["Drama"], 11: [], 12: [], 13: []}


def test_a_damaged_or_locked_zip_is_refused(tmp_path: Path) -> None:
    text = HEADER + "".join(f"{i},{i % 7},3,{i * 37 % 1001}\n" for i in range(5000))
    whole = zipped(**{"ml-x/ratings.csv": text})
    # The lowest bit of a member's flags, in the archive's directory, says "encrypted".
    flags = whole.index(b"PK\x01\x02") + 8
    for content, message in [
        (whole[:200] + b"\xff" * 60 + whole[260:], "not a readable zip"),
        (whole[:flags] + bytes([whole[flags] | 1]) + whole[flags + 1 :], "encrypted"),
        (b"not a zip", "not a readable zip"),
    ]:
        (tmp_path / "ml.zip").write_bytes(content)
        with pytest.raises(DataError, match=message):
            load_movielens(tmp_path / "ml.zip")


REAL: list[tuple[str, Callable[[Path], Corpus], tuple[int, int, int]]] = [
    ("movielens-25m-head", load_movielens, (391_223, 2_687, 16_158)),
    ("movielens-latest-small/ml-latest-small.zip", load_movielens, (100_836, 610, 9_724)),
    ("wikispeedia", load_wikispeedia, (119_882, 4_592, 4_592)),  # of 4,604: twelve have no link
    ("gowalla/train.txt.gz", load_adjacency_list, (810_128, 29_858, 40_981)),
]


@pytest.mark.parametrize(("path", "loader", "size"), REAL)
def test_the_real_data_sets(
    path: str, loader: Callable[[Path], Corpus], size: tuple[int, int, int], real_data: Path
) -> None:
    corpus = loader(real_data / path)
    assert (len(corpus), len(corpus.queries), len(corpus.candidates)) == size
    assert corpus.repeats == 0
    features = corpus.candidates.features
    if path == "movielens-25m-head":
        assert int((features["year"].offsets.diff() == 0).sum()) >= 1_276
        assert {"Comedy", "IMAX"} <= set(features["genres"].vocabulary.keys.to_pylist())
    if path == "wikispeedia":
        assert len(features["category"].vocabulary) == 129
        assert int((features["title"].offsets.diff() == 0).sum()) == 0


def write_lists(folder: Path, text: str) -> Path:
    path = folder / "train.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_line_is_a_query_and_its_candidates(tmp_path: Path) -> None:
    corpus = load_adjacency_list(write_lists(tmp_path, "0 5 7 \n\n2\n1\t5\n0 9\n"))
    assert pairs_of(corpus) == [(0, 5), (0, 7), (1, 5), (0, 9)]
    assert not corpus.has_times
    assert not corpus.shared_ids
    content = b"\xef\xbb\xbf0 5 7\n1 5\n"  # a byte-order mark is no part of an id
    for suffix, packed in (("", content), (".gz", gzip.compress(content))):
        path = tmp_path / f"train.txt{suffix}"
        path.write_bytes(packed)
        assert pairs_of(load_adjacency_list(path)) == [(0, 5), (0, 7), (1, 5)]


def test_a_list_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    for content, message in [
        (b"0 1\n\n2 NULL\n", "row 2: candidate is 'NULL'"),
        (b"0\n1\n", "has no pairs"),
        (b"0 \xff\n", "is not in UTF-8"),
    ]:
        (tmp_path / "lists.txt").write_bytes(content)
        with pytest.raises(DataError, match=message):
            load_adjacency_list(tmp_path / "lists.txt")


ROOT = Path(__file__).parents[2]
DATA_SETS_PAGE = (ROOT / "docs" / "data-sets.md").read_text()


def test_the_folder_is_the_variable_or_data_where_the_process_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERGRAM_DATA", raising=False)
    assert whole_path("$EVERGRAM_DATA/gowalla", Path("/recipes")) == tmp_path / "data" / "gowalla"
    monkeypatch.setenv("EVERGRAM_DATA", "/sets")
    assert whole_path("$EVERGRAM_DATA/gowalla", Path("/recipes")) == Path("/sets/gowalla")
    assert whole_path("../x.csv", Path("/recipes")) == Path("/x.csv")


def test_the_error_about_a_missing_file_leads_to_the_public_sets(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"docs/data-sets\.md .* EVERGRAM_DATA"):
        existing(tmp_path / "gowalla" / "train.txt")


@pytest.mark.parametrize("name", re.findall(r"^## `(.*)`$", DATA_SETS_PAGE, re.MULTILINE))
def test_the_page_has_one_command_that_fetches_a_data_set(name: str) -> None:
    section = DATA_SETS_PAGE.split(f"\n## `{name}`")[1].split("\n## ")[0]
    (command,) = re.findall(r"^    (.*curl .*)$", section, re.MULTILINE)
    (words,) = re.findall(r"curl -fL (.*?)(?:$| && )", str(command))
    # Of several files curl reports the last alone, and the half of another would be used.
    assert len(re.findall(r"(?:^| )-[oO] ", words)) < 2 or words.startswith("--fail-early")
    assert re.search(r"https://\S", words)


def test_no_recipe_leads_out_of_the_repository() -> None:
    for path in sorted((ROOT / "recipes").glob("*.toml")):
        data = tomllib.loads(path.read_text())["data"]
        for text in (data.get("path"), data.get("test")):
            if text is not None and not text.startswith("$EVERGRAM_DATA/"):
                assert (path.parent / text).resolve().is_relative_to(ROOT)
