"""Every loader: what all do, and the layouts and faults of MovieLens, Wikispeedia and lists."""

from __future__ import annotations

import gzip
import itertools
import re
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loader_examples import EXAMPLES, LoaderSettings

from evergram.data.corpus import Corpus
from evergram.data.files import adjacency_list
from evergram.data.loaders import LOADERS, READ_FROM_A_PATH, Loader, load
from evergram.data.movielens import load_movielens
from evergram.data.tables import load_adjacency_list
from evergram.data.wikispeedia import load_wikispeedia
from evergram.errors import DataError
from evergram.training.recipe import Recipe

PAGE = (Path(__file__).parents[2] / "docs" / "extend" / "loader.md").read_text()


def of_the_page() -> tuple[Loader, Callable[[Path], LoaderSettings]]:
    """The entry that the page adds to the table, and the example of its loader."""
    code, line, example = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module = ModuleType("baskets")
    exec(compile(code, "loader.md", "exec"), vars(module))
    space: dict[str, Any] = {"LoaderSettings": LoaderSettings, "Path": Path}
    exec(compile(example, "loader.md", "exec"), space)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "baskets", module)
        patch.setitem(LOADERS, "baskets", LOADERS["table"])  # taken out again afterwards
        exec(compile(line, "loader.md", "exec"), {})
        return LOADERS["baskets"], space["baskets"]


DOCUMENTED, SOURCE = of_the_page()
ALL: dict[str, Loader] = {**LOADERS, "baskets": DOCUMENTED}
SOURCES: dict[str, Callable[[Path], LoaderSettings]] = {**EXAMPLES, "baskets": SOURCE}
FROM_A_PATH = [*READ_FROM_A_PATH, "baskets"]


def same(one: Corpus, other: Corpus) -> bool:
    sides = ((one.queries, other.queries), (one.candidates, other.candidates))
    return bool(one.interactions.equals(other.interactions)) and all(
        a.vocabulary.same_keys(b.vocabulary) and list(a.features) == list(b.features)
        for a, b in sides
    )


def test_every_loader_has_an_example() -> None:
    assert set(SOURCES) == set(ALL)


@pytest.mark.parametrize("kind", ALL)
def test_a_corpus_is_whole_and_the_same_twice(kind: str, tmp_path: Path) -> None:
    settings = SOURCES[kind](tmp_path)
    corpus = ALL[kind](settings, 0)
    assert same(corpus, ALL[kind](settings, 0))
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


def test_a_source_that_is_absent_is_named(tmp_path: Path) -> None:
    for kind in FROM_A_PATH:
        settings = replace(SOURCES[kind](tmp_path), path=str(tmp_path / "nowhere"))
        with pytest.raises(DataError, match=r"no file or folder .*nowhere; correct the path\.$"):
            ALL[kind](settings, 0)


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
        ALL[kind](settings, 0)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_row_of_the_pages_loader_is_named(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('["tea"]\nmilk\n')
    with pytest.raises(DataError, match="row 2 is no JSON list"):
        DOCUMENTED(LoaderSettings(str(tmp_path / "b.jsonl")), 0)


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
        ("ratings.csv", "userId,movieId,rating,timestamp\n", "no rows"),
        ("ratings.csv", "a,b\n1,2\n", "userId"),
        ("ratings.csv", RATINGS + "3,10,nan,5\n", "row 4: value is nan"),
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


HEADER = "userId,movieId,rating,timestamp\n"


def test_a_bad_line_is_named_by_its_file_and_row(tmp_path: Path) -> None:
    for name, text in [
        ("ratings.csv", HEADER + "1,10,4,5\n1,11,great,5\n"),
        ("ratings.csv", HEADER + "1,10,4,5\n1,,4,5\n"),
        ("ratings.dat", "1::10::4::5\n1::11::great::5\n"),
        ("ratings.dat", "1::10::4::5\n1::11::4\n"),
    ]:
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=rf"{name} row 2\b") as caught:
            load_movielens(tmp_path)
        assert "\n" not in str(caught.value)
        (tmp_path / name).unlink()


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


def speedia(folder: Path, **changed: str) -> Path:
    files = {
        "articles": "# all\n\n%C3%81ed\nA_b\nAlone\n",
        "links": "# FORMAT: a b\n\n%C3%81ed\tA_b\nA_b\t%C3%81ed\n",
        "categories": "A_b\tsubject.X\nA_b\tsubject.Y.Z\n%C3%81ed\tsubject.X\n",
    } | changed
    for name, text in files.items():
        (folder / f"{name}.tsv").write_text(text)
    return folder


def bags(corpus: Corpus, feature: str) -> list[set[str]]:
    column = corpus.candidates.features[feature]
    keys, ends = column.vocabulary.keys.to_pylist(), column.offsets.tolist()
    return [{keys[row] for row in column.indices[a:b]} for a, b in itertools.pairwise(ends)]


def test_wikispeedia(tmp_path: Path) -> None:
    corpus = load_wikispeedia(speedia(tmp_path))
    assert corpus.shared_ids
    assert corpus.queries.vocabulary.keys.to_pylist() == ["Áed", "A_b"]
    assert corpus.column("query").tolist() == [0, 1]
    assert corpus.column("candidate").tolist() == [1, 0]
    assert bags(corpus, "title") == [{"áed"}, {"a", "b", "a b"}]
    assert bags(corpus, "category") == [{"subject.X"}, {"subject.X", "subject.Y.Z"}]


def test_wikispeedia_that_cannot_be_used(tmp_path: Path) -> None:
    for changed, message in [
        ({"links": "A_b\tAlone\nA_b\tNobody\n"}, r"links\.tsv row 2: 'Nobody' is not in"),
        ({"links": "A_b\tAlone\nA_b\n"}, r"links\.tsv row 2 cannot be read"),
        ({"links": "# none\n"}, r"links\.tsv has no rows"),
        ({"categories": "Nobody\tX\n"}, r"categories\.tsv row 1: 'Nobody'"),
        ({"articles": "%FF\n"}, "not UTF-8"),
    ]:
        with pytest.raises(DataError, match=message):
            load_wikispeedia(speedia(tmp_path, **changed))


def test_wikispeedia_files_that_are_missing_or_damaged(tmp_path: Path) -> None:
    (speedia(tmp_path) / "links.tsv").unlink()
    with pytest.raises(DataError, match=r"no links\.tsv or links\.tsv\.gz"):
        load_wikispeedia(tmp_path)
    whole = gzip.compress(b"A_b\tAlone\n" * 1000)
    for content in (whole[:-9], b"no gzip", whole[:20] + b"\xff" * 9 + whole[29:]):
        (tmp_path / "links.tsv.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"links\.tsv\.gz cannot be read"):
            load_wikispeedia(tmp_path)


def test_the_real_wikispeedia(real_data: Path) -> None:
    corpus = load_wikispeedia(real_data / "wikispeedia")
    assert len(corpus) == 119_882
    assert len(corpus.queries) == 4_592  # of 4,604: twelve have no link
    assert corpus.repeats == 0
    category = corpus.queries.features["category"]
    assert len(category.vocabulary) == 129
    assert "Édouard_Manet" in corpus.queries.vocabulary.keys.to_pylist()
    assert int((corpus.queries.features["title"].offsets.diff() == 0).sum()) == 0


def listed(corpus: Corpus) -> list[tuple[object, object]]:
    """The pairs of a corpus by their ids, in its order."""
    ids = corpus.queries.vocabulary.keys, corpus.candidates.vocabulary.keys
    rows = zip(corpus.column("query").tolist(), corpus.column("candidate").tolist(), strict=True)
    return [(ids[0][q].as_py(), ids[1][c].as_py()) for q, c in rows]


def write_lists(folder: Path, text: str) -> Path:
    path = folder / "train.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_line_is_a_query_and_its_candidates(tmp_path: Path) -> None:
    corpus = load_adjacency_list(write_lists(tmp_path, "0 5 7 \n\n2\n1\t5\n0 9\n"))
    assert listed(corpus) == [(0, 5), (0, 7), (1, 5), (0, 9)]
    assert not corpus.has_times
    assert not corpus.shared_ids


def test_a_byte_order_mark_is_no_part_of_the_first_id(tmp_path: Path) -> None:
    for suffix in ["", ".gz"]:
        content = b"\xef\xbb\xbf0 5 7\n1 5\n"
        path = tmp_path / f"train.txt{suffix}"
        path.write_bytes(gzip.compress(content) if suffix else content)
        assert listed(load_adjacency_list(path)) == [(0, 5), (0, 7), (1, 5)]


def test_the_real_gowalla(real_data: Path) -> None:
    corpus = load_adjacency_list(real_data / "gowalla" / "train.txt.gz")
    assert len(corpus) == 810_128
    assert (len(corpus.queries), len(corpus.candidates)) == (29_858, 40_981)
    assert corpus.repeats == 0


@given(
    st.integers(1, 30),
    st.lists(
        st.tuples(st.integers(0, 50), st.lists(st.integers(0, 50), max_size=5)), min_size=1
    ).filter(lambda lines: any(candidates for _, candidates in lines)),
)
def test_every_pair_of_every_line_is_read(
    tmp_path_factory: pytest.TempPathFactory, block: int, lines: list[tuple[int, list[int]]]
) -> None:
    text = "".join(" ".join(map(str, (query, *each))) + "\n" for query, each in lines)
    path = write_lists(tmp_path_factory.mktemp("lists"), text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adjacency_list, "BLOCK", block)
        assert listed(load_adjacency_list(path)) == [(q, c) for q, each in lines for c in each]
