"""The loaders of the papers' data: Amazon reviews and Wikispeedia."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from reproduction.loaders import amazon
from reproduction.loaders.amazon import load_amazon
from reproduction.loaders.wikispeedia import load_wikispeedia, page_features
from tests.support import loader_examples
from tests.support.prepared import bags_of, pairs_of

from evergram.data.corpus import Corpus
from evergram.errors import DataError


def test_features_of_pages() -> None:
    """N-grams in lower case of any script; a page that is twice in a category counts once."""
    titles = ["_The_the_THE", "2006年_(film)", "!!!", "", "हिन्दी भाषा"]
    entity, categories = np.array([0, 2, 1, 2, 2]), pa.array(["a", "b", "a", "b", "c"])
    table = page_features(pa.array(titles), entity, categories)
    assert [set(bag) for bag in table["title"].to_pylist()] == [
        {"the", "the the"},
        {"2006年", "film", "2006年 film"},
        set(),
        set(),
        {"हिन्दी", "भाषा", "हिन्दी भाषा"},
    ]
    assert table["category"].to_pylist() == [["a"], ["a"], ["b", "c"], [], []]


def review(user: str, asin: str, overall: float, time: int, **more: Any) -> dict[str, Any]:
    return {"reviewerID": user, "asin": asin, "overall": overall, "unixReviewTime": time, **more}


def review_2014(user: str, asin: str, overall: float, time: int) -> str:
    more = {"reviewerName": 'Al "Ace"', "helpful": [0, 2], "reviewText": "Good.\n", "summary": ""}
    return json.dumps(review(user, asin, overall, time, **more, reviewTime="03 16, 2013"))


def review_2018(user: str, asin: str, overall: float, time: int) -> str:
    # Keys come and go, and some change their type between rows.
    more = {"verified": time % 2 == 0, "vote": "1,003", "style": {"Format:": " Vinyl"}}
    more["image"] = ["a.jpg"] if time % 3 else None
    return json.dumps({**more, **review(user, asin, overall, time)})


def write(path: Path, *lines: str) -> Path:
    content = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def bags(corpus: Corpus) -> dict[str, tuple[list[str], list[str]]]:
    """The brands and the categories of each candidate."""
    brands, categories = (bags_of(corpus.candidates, name) for name in ("brand", "category"))
    return {asin: (brands[asin], categories[asin]) for asin in sorted(brands)}


@pytest.mark.parametrize(("line", "name"), [(review_2014, "r.json.gz"), (review_2018, "r.jsonl")])
def test_both_layouts_in_every_file(tmp_path: Path, name: str, line: Any) -> None:
    write(
        tmp_path / name,
        line("bo", "B2", 4.0, 86400),
        line("al", "0B1", 5, 86400),  # the same day: the file's order stays
        "",
        line("cy", "B2", 1.0, 0),
        line("bo", "B2", 2.5, 86400),  # the pair again: kept
    )
    for path in (tmp_path, tmp_path / name):
        corpus = load_amazon(path)
        assert pairs_of(corpus) == [("cy", "B2"), ("bo", "B2"), ("al", "0B1"), ("bo", "B2")]
        assert corpus.column("value").tolist() == [1.0, 4.0, 5.0, 2.5]
        assert corpus.column("time").tolist() == [0, 86400, 86400, 86400]
        assert corpus.candidates.features == {}


PRODUCTS_2014: list[dict[str, Any]] = [
    {"asin": "B0", "title": "Mom's \"best\"", "brand": "Dr. Bronner's",
     "categories": [["Beauty", "Soap"], ["Beauty", "Gifts & More"]], "price": 3.5},
    {"asin": "B9", "brand": "Unreviewed", "categories": [["Nowhere"]]},
    {"asin": "B1", "salesRank": {"Beauty": 7}, "categories": [["Beauty"]]},
    {"asin": "B2", "brand": "Clean &amp; Clear", "categories": []},
]  # fmt: skip
PRODUCTS_2018: list[dict[str, Any]] = [
    {"asin": "B0", "brand": "\n\n  Hal \n Leonard", "category": ["Music", "Rock &amp; Pop"]},
    {"asin": "B1", "brand": "", "category": ["Music", "</span></span>", '<a href="#"', "<3 Jazz"]},
    {"asin": "B9", "brand": "Unreviewed", "category": ["Nowhere"]},
    {"asin": "B0", "brand": "Second", "category": ["Again"]},
    {"asin": "B2", "title": "var aPageStart = 1;", "category": [], "also_buy": ["B1"]},
    {"asin": "B0", "brand": "Third", "category": []},
]
MUSIC = {
    "B0": (["Hal Leonard"], ["Music", "Rock & Pop"]),
    "B1": ([], ["Music", "<3 Jazz"]),
    **dict.fromkeys(("B2", "B3"), ([], [])),
}
METADATA: list[tuple[list[str], dict[str, Any]]] = [
    (
        [*map(repr, PRODUCTS_2014)],
        {
            "B0": (["Dr. Bronner's"], ["Beauty", "Soap", "Gifts & More"]),
            "B1": ([], ["Beauty"]),
            "B2": (["Clean & Clear"], []),
            "B3": ([], []),
        },
    ),
    ([*map(json.dumps, PRODUCTS_2018)], MUSIC),
    # One odd row sends its block down the slow way, which must see the same.
    ([*map(json.dumps, PRODUCTS_2018), '{"asin": "B8", "brand": 5, "category": "Music"}'], MUSIC),
    (
        [
            '{"asin": "B0", "brand": ["Sony"], "category": "Music"}',
            '{"asin": "B1", "brand": 5, "category": {"a": "b"}}',
            r'{"asin": "B2", "brand": "half \ud83d", "category": ["fire \ud83d\udd25"]}',
            r"{'asin': 'B3', 'brand': 'AC\/DC'}",
        ],
        {
            "B0": (["Sony"], ["Music"]),
            "B1": ([], []),
            "B2": (["half ?"], ["fire 🔥"]),
            "B3": ([r"AC\/DC"], []),
        },
    ),
]


@pytest.mark.parametrize(("lines", "expected"), METADATA)
def test_metadata_of_both_layouts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lines: list[str], expected: dict[str, Any]
) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path / "r.json", *(review_2018("al", f"B{i}", 5.0, i) for i in range(4)))
    write(tmp_path / "meta.json", *lines)
    assert bags(load_amazon(tmp_path)) == expected
    assert ("2 rows repeat a product" in caplog.text) == (expected is MUSIC)


def test_rare_keys_and_undescribed_products_can_be_left_out(tmp_path: Path) -> None:
    # B4 has no review, and does not count; neither does a second review of a product.
    asins = ["B0", "B1", "B2", "B3", "B3", "B5"]
    write(tmp_path / "r.json", *(review_2018("al", a, 5.0, i) for i, a in enumerate(asins)))
    # Without any metadata there is nothing to go by.
    assert len(load_amazon(tmp_path, described_only=True)) == 6
    brands = ["Sony", "Sony", "Sony", "Rare", "Rare"]
    categories = [["All", "A"], ["All", "A"], ["All"], ["All", "A"], ["A"]]
    products = [
        {"asin": f"B{i}", "brand": brand, "category": category}
        for i, (brand, category) in enumerate(zip(brands, categories, strict=True))
    ]
    write(tmp_path / "meta.json", *map(json.dumps, products))
    full = (["Sony"], ["All", "A"])
    described = {"B0": full, "B1": full, "B2": (["Sony"], ["All"]), "B3": (["Rare"], ["All", "A"])}
    assert bags(load_amazon(tmp_path)) == described | {"B5": ([], [])}
    three = load_amazon(tmp_path, minimum_products=3, described_only=True)
    assert (bags(three), len(three)) == (described | {"B3": ([], ["All", "A"])}, 5)
    four = bags(load_amazon(tmp_path, minimum_products=4, described_only=True))
    assert four == dict.fromkeys(described, ([], ["All"]))


def test_metadata_that_cannot_be_used(tmp_path: Path) -> None:
    write(tmp_path / "r.json", review_2014("al", "B1", 5.0, 1))
    for line, message in [
        ("{'asin': open('trace', 'w').name}", r"meta\.json row 1: the line is"),  # no code is run
        (json.dumps({"asin": "B2"}), "none of the reviewed products"),
    ]:
        write(tmp_path / "meta.json", line)
        with pytest.raises(DataError, match=message):
            load_amazon(tmp_path)
    assert not Path("trace").exists()


GOOD = review_2018("al", "B1", 5.0, 1)


def test_a_bad_line_is_named_by_its_file_and_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for block in (amazon.BLOCK, 400):
        monkeypatch.setattr(amazon, "BLOCK", block)
        for bad, words in [
            (GOOD.replace('"B1"', '""'), "asin is ''"),
            (GOOD.replace('"al"', r'"\ud83d"'), "encode"),
            (GOOD.replace("reviewerID", "user_id"), "reviewerID is None"),
            (GOOD.replace("5.0", "1e999"), "overall is inf"),
            (GOOD.replace('Time": 1', 'Time": 1.5'), "unixReviewTime is 1.5"),
            (GOOD.replace('Time": 1', 'Time": 99999999999999999999'), "unixReviewTime is 9999"),
            (f"[{GOOD}]", "one whole JSON object"),
            ("[" * 300, "one whole JSON object"),
        ]:
            lines = [*[GOOD] * 8, "", bad, GOOD]
            path = write(tmp_path / "r.json.gz", *lines)
            with pytest.raises(DataError, match=rf"r\.json\.gz row 10: .*{words}"):
                load_amazon(path)
        assert len(load_amazon(write(path, *[GOOD] * 8, "", GOOD))) == 9
    with pytest.raises(DataError, match="row 2 is longer than"):
        load_amazon(write(path, GOOD, "x" * 900))
    path.write_bytes(write(path, GOOD, GOOD).read_bytes()[:-9])
    with pytest.raises(DataError, match=r"gz row \d+ cannot be read"):
        load_amazon(path)


def test_a_folder_holds_one_file_of_reviews_and_one_of_metadata_at_most(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no file or folder"):
        load_amazon(tmp_path / "nowhere")
    for name, holds in [
        ("meta_a.json", "none"),
        ("meta_b.json", r"meta_a\.json"),
        ("a.json", r"meta_a\.json, meta_b\.json"),
        ("", r"a\.json, meta_a\.json, meta_b\.json"),
    ]:
        with pytest.raises(DataError, match=f"must contain one file .* contains {holds};"):
            load_amazon(tmp_path)
        if name:
            write(tmp_path / name, GOOD)


def beauty(folder: Path) -> Path:
    write(folder / "events.tsv.gz", "user\titem\tunix_time", "u\tB1\t9", "u\tB0\t5", "v\tB2\t5")
    write(folder / "product.txt.gz", "B0", "B1", "B2", "B9")
    write(folder / "brand.txt.gz", "L&#39;Oreal", "Prada")
    write(folder / "brand_p_b.txt.gz", "1", "", "0", "1")
    write(folder / "category.txt.gz", "Beauty", "Hair", "Skin")
    write(folder / "category_p_c.txt.gz", "0 2", "0", "", "0 1")
    return folder


def test_beauty_in_columns(tmp_path: Path) -> None:
    corpus = load_amazon(beauty(tmp_path))
    assert pairs_of(corpus) == [("u", "B0"), ("v", "B2"), ("u", "B1")]
    assert corpus.column("time").tolist() == [5, 5, 9]
    assert not corpus.has_values
    expected = {"B0": (["Prada"], ["Beauty", "Skin"]), "B1": ([], ["Beauty"])}
    assert bags(corpus) == expected | {"B2": (["L'Oreal"], [])}
    (tmp_path / "product.txt.gz").unlink()
    assert load_amazon(tmp_path).candidates.features == {}


def test_a_bad_row_of_beauty_is_named(tmp_path: Path) -> None:
    for name, lines, words in [
        ("events.tsv.gz", ["user\titem\tunix_time", "u\tB1\t9", "u\t\t5"], "row 2: item"),
        ("events.tsv.gz", ["user\titem\ttime", "u\tB1\t9"], "unix_time"),
        ("brand_p_b.txt.gz", ["1", "", "2", ""], "row 3: the line is '2'; .* from 0 to 1"),
        ("category_p_c.txt.gz", ["0", "1"], "has 2 rows; it must have 4"),
        ("category_p_c.txt.gz", ["\udcff"], "row 1 is not UTF-8"),
    ]:
        write(beauty(tmp_path) / name, *lines)
        with pytest.raises(DataError, match=words) as caught:
            load_amazon(tmp_path)
        assert str(tmp_path) in str(caught.value)


def test_the_real_reviews(real_data: Path) -> None:
    corpus = load_amazon(real_data / "amazon-musical-instruments")
    assert (len(corpus), len(corpus.queries), len(corpus.candidates)) == (10_261, 1_429, 900)
    assert set(corpus.column("value").tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0}
    corpus = load_amazon(real_data / "amazon-beauty")
    assert (len(corpus), len(corpus.queries), len(corpus.candidates)) == (198_502, 22_363, 12_101)
    categories = bags_of(corpus.candidates, "category").values()
    assert len({key for bag in categories for key in bag}) == 248
    assert sum(not bag for bag in bags_of(corpus.candidates, "brand").values()) == 2_098


def test_wikispeedia(tmp_path: Path) -> None:
    loader_examples.wikispeedia(tmp_path)
    corpus = load_wikispeedia(tmp_path)
    assert corpus.shared_ids
    assert pairs_of(corpus) == [("Áed", "A_b"), ("A_b", "Áed")]
    titles, categories = (bags_of(corpus.candidates, n) for n in ("title", "category"))
    assert {k: sorted(v) for k, v in titles.items()} == {"Áed": ["áed"], "A_b": ["a", "a b", "b"]}
    assert categories == {"Áed": ["subject.X"], "A_b": ["subject.X", "subject.Y.Z"]}


WHOLE = gzip.compress(b"A_b\tAlone\n" * 1000, mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("links.tsv", b"A_b\tAlone\nA_b\tNobody\n", r"links\.tsv row 2: 'Nobody' is not in"),
        ("links.tsv", b"# none\n", r"links\.tsv has no rows"),
        ("categories.tsv", b"Nobody\tX\n", r"categories\.tsv row 1: 'Nobody'"),
        ("articles.tsv", b"%FF\n", "not UTF-8"),
        ("links.tsv", None, r"no links\.tsv or links\.tsv\.gz"),
        ("links.tsv.gz", WHOLE[:-9], r"links\.tsv\.gz cannot be read"),
    ],
)
def test_wikispeedia_that_cannot_be_used(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    loader_examples.wikispeedia(tmp_path)
    (tmp_path / name.removesuffix(".gz")).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_wikispeedia(tmp_path)
