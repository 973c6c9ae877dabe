"""Amazon's files: the layouts of 2014 and 2018, Beauty in columns, and damaged or odd files."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.prepared import bags_of, pairs_of

from evergram.data.amazon import load_amazon
from evergram.data.corpus import Corpus
from evergram.errors import DataError


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
    content = "".join(f"{line}\n" for line in lines).encode()
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
    path = write(tmp_path / "r.json", *(review_2018("al", f"B{i}", 5.0, i) for i in range(4)))
    assert bags(load_amazon(path, write(tmp_path / "products.json", *lines))) == expected
    assert ("2 rows repeat a product" in caplog.text) == (expected is MUSIC)


def test_brands_and_categories_of_few_products_can_be_left_out(tmp_path: Path) -> None:
    # B4 has no review, and does not count; neither does a second review of a product.
    asins = ["B0", "B1", "B2", "B3", "B3"]
    write(tmp_path / "r.json", *(review_2018("al", a, 5.0, i) for i, a in enumerate(asins)))
    brands = ["Sony", "Sony", "Sony", "Rare", "Rare"]
    categories = [["All", "A"], ["All", "A"], ["All"], ["All", "A"], ["A"]]
    products = [
        {"asin": f"B{i}", "brand": brand, "category": category}
        for i, (brand, category) in enumerate(zip(brands, categories, strict=True))
    ]
    write(tmp_path / "meta.json", *map(json.dumps, products))
    full = (["Sony"], ["All", "A"])
    assert bags(load_amazon(tmp_path)) == {
        **{"B0": full, "B1": full, "B2": (["Sony"], ["All"]), "B3": (["Rare"], ["All", "A"])}
    }
    assert bags(load_amazon(tmp_path, minimum_products=3)) == {
        **{"B0": full, "B1": full, "B2": (["Sony"], ["All"]), "B3": ([], ["All", "A"])}
    }
    four = bags(load_amazon(tmp_path, minimum_products=4))
    assert four == dict.fromkeys(four, ([], ["All"]))


def test_reviews_of_products_without_metadata_can_be_left_out(tmp_path: Path) -> None:
    pairs = (("al", "B0"), ("bo", "B1"))
    write(tmp_path / "r.json", *(review_2018(user, asin, 5.0, 1) for user, asin in pairs))
    # Without any metadata there is nothing to go by.
    assert len(load_amazon(tmp_path, described_only=True)) == 2
    write(tmp_path / "meta.json", json.dumps({"asin": "B0"}))
    assert pairs_of(load_amazon(tmp_path, described_only=True)) == [("al", "B0")]
    assert len(load_amazon(tmp_path)) == 2


def test_metadata_that_cannot_be_used(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", review_2014("al", "B1", 5.0, 1))
    for line, message in [
        ("{'asin': open('trace', 'w').name}", r"meta\.json row 1: the line is"),  # no code is run
        (json.dumps({"asin": "B2"}), "none of the products"),
    ]:
        with pytest.raises(DataError, match=message):
            load_amazon(path, write(tmp_path / "meta.json", line))
    assert not Path("trace").exists()


GOOD = review_2018("al", "B1", 5.0, 1)


def test_a_bad_line_is_named_by_its_file_and_row(tmp_path: Path) -> None:
    for bad, words in [
        (GOOD.replace('"B1"', "null"), "asin is None"),
        (GOOD.replace('"B1"', '""'), "asin is ''"),
        (GOOD.replace('"al"', r'"\ud83d"'), "encode"),
        (GOOD.replace("reviewerID", "user_id"), "reviewerID is None"),
        (GOOD.replace("5.0", '"5.0"'), "overall is '5.0'"),
        (GOOD.replace("5.0", "1e999"), "overall is inf"),
        (GOOD.replace("5.0", "true"), "overall is True"),
        (GOOD.replace('Time": 1', 'Time": 1.5'), "unixReviewTime is 1.5"),
        (GOOD.replace('Time": 1', 'Time": 99999999999999999999'), "unixReviewTime is 9999"),
        (f"[{GOOD}]", "one whole JSON object"),
        ("[" * 100_000, "one whole JSON object"),
    ]:
        path = write(tmp_path / "r.json.gz", GOOD, "", bad, GOOD)
        with pytest.raises(DataError, match=rf"r\.json\.gz row 3: .*{words}"):
            load_amazon(path)


def test_a_folder_holds_one_file_of_reviews_and_one_of_metadata_at_most(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no file or folder"):
        load_amazon(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"one file of reviews .* holds none"):
        load_amazon(tmp_path)
    write(tmp_path / "a.json", GOOD)
    write(tmp_path / "meta_a.json", '{"asin": "B1", "brand": "x"}')
    write(tmp_path / "meta_b.json", '{"asin": "B1", "brand": "y"}')
    with pytest.raises(DataError, match=r"meta_a\.json, meta_b\.json; say which"):
        load_amazon(tmp_path)
    assert bags(load_amazon(tmp_path, tmp_path / "meta_b.json")) == {"B1": (["y"], [])}
    write(tmp_path / "b.json.gz", GOOD)
    with pytest.raises(DataError, match=r"holds a\.json, b\.json\.gz; give the file itself"):
        load_amazon(tmp_path)


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
    other = write(tmp_path / "meta.json", '{"asin": "B1", "brand": "Other"}')
    brands = bags_of(load_amazon(tmp_path, other).candidates, "brand")
    assert brands == {"B0": [], "B2": [], "B1": ["Other"]}
    (tmp_path / "product.txt.gz").unlink()
    assert load_amazon(tmp_path).candidates.features == {}


def test_a_bad_row_of_beauty_is_named(tmp_path: Path) -> None:
    for name, lines, words in [
        ("events.tsv.gz", ["user\titem\tunix_time", "u\tB1\t9", "u\t\t5"], "row 2: candidate"),
        ("events.tsv.gz", ["user\titem\ttime", "u\tB1\t9"], "unix_time"),
        ("brand_p_b.txt.gz", ["1", "", "2", ""], "row 3: the line is '2'; .* from 0 to 1"),
        ("category_p_c.txt.gz", ["0", "1"], "has 2 rows; it must have 4"),
    ]:
        write(beauty(tmp_path) / name, *lines)
        with pytest.raises(DataError, match=words) as caught:
            load_amazon(tmp_path)
        assert str(tmp_path) in str(caught.value)


def test_the_real_reviews(real_data: Path) -> None:
    corpus = load_amazon(real_data / "amazon-musical-instruments")
    assert (len(corpus), len(corpus.queries), len(corpus.candidates)) == (10_261, 1_429, 900)
    assert set(corpus.column("value").tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert bool((corpus.column("time") % 86400 == 0).all())
    assert min(corpus.counts("query").min(), corpus.counts("candidate").min()) == 5
    corpus = load_amazon(real_data / "amazon-beauty")
    assert (len(corpus), len(corpus.queries), len(corpus.candidates)) == (198_502, 22_363, 12_101)
    assert not corpus.has_values
    categories = bags_of(corpus.candidates, "category").values()
    assert {bag[0] for bag in categories} == {"Beauty"}  # every product stands under the root
    assert len({key for bag in categories for key in bag}) == 248
    brands = bags_of(corpus.candidates, "brand")
    assert sum(not bag for bag in brands.values()) == 2_098
