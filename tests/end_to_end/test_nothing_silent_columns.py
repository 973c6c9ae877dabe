"""A missing column is named beside those that are there: promise 10; and ids stay what they are."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.click_shop import RECIPE, click_pairs, train_on_csv
from tests.support.command import Command

from evergram.lineage.lineage import Lineage


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("userId;movieId;rating;timestamp", "userId, movieId, rating, timestamp"),
    ],
)
def test_10_the_files_real_columns_are_listed_and_the_line_to_write(
    evergram: Command, shop: Path, header: str, columns: str
) -> None:
    sign = next(s for s in ",;\t" if s in header)
    rows = [sign.join((f"u{q}", f"i{c}", "3", "7")) + "\n" for q, c in click_pairs()]
    arguments = train_on_csv(shop, header + "\n" + "".join(rows))
    sentence = evergram.refused(*arguments)
    assert f"clicks.csv has no column 'query'; its columns are: {columns}." in sentence
    assert "under [data]" in sentence
    line = re.search(r"columns = \{.*\}", sentence)
    assert line is not None
    # And what it says is right.
    (shop / "shop.toml").write_text(RECIPE.replace('kind = "table"', f'kind = "table"\n{line[0]}'))
    assert evergram(*arguments).code == 0
    recipe = Lineage.open("l").manifest(0).recipe["data"]["columns"]
    assert list(recipe) == ["query", "candidate", "value", "time"]
    assert list(recipe.values()) == columns.split(", ")


def test_10_a_file_without_a_header_is_refused_with_the_line_to_add(
    evergram: Command, shop: Path
) -> None:
    sentence = evergram.refused(*train_on_csv(shop, "1,31,2.5,1260759144\n1,32,3.0,1260759179\n"))
    assert "its first line (1, 31, 2.5, 1260759144) seems to be a row" in sentence
    assert "write a line above it that names its columns, such as query,candidate,value" in sentence
    same = evergram.refused(*train_on_csv(shop, "1,1,2.5\n1,32,3.0\n"))  # two columns of one name
    assert "its first line (1, 1, 2.5) seems to be a row" in same


def test_10_names_that_nobody_knows_are_asked_for(evergram: Command, shop: Path) -> None:
    sentence = evergram.refused(*train_on_csv(shop, "a,b\nx,y\n"))
    assert 'columns = {query = "…", candidate = "…"}' in sentence
    # Ids of text without a header look the same, so this is said, too.
    words = evergram.refused(*train_on_csv(shop, "Bede\tColumba\nBede\tIona\n"))
    assert "If that is a row, write a line above it" in words
    assert "query,candidate." in words


def test_10_a_rating_that_is_not_read_is_warned_of(evergram: Command, shop: Path) -> None:
    rows = "".join(f"u{q},i{c},4\n" for q, c in click_pairs())
    ran = evergram(*train_on_csv(shop, "query,candidate,stars\n" + rows))
    assert ran.code == 0, ran.err
    assert 'its column stars is not read; if it is the value, add value = "stars"' in ran.err


def test_also_ids_of_a_csv_stay_what_they_are(evergram: Command, shop: Path) -> None:
    rows = "".join(f"{q:05d},{c}\n" for q, c in click_pairs())
    (shop / "f.csv").write_text("id,zip\n00001,00017\n00002,17\n")
    arguments = train_on_csv(shop, "query,candidate\n" + rows)
    features = ("--set", "data.query_features=f.csv", "--set", "model.kind=two_tower")
    ran = evergram(*arguments, *features)
    assert ran.code == 0, ran.err
    ids, _ = Lineage.open("l").embeddings("query")
    assert "00017" in ids.to_pylist()
    assert "17" not in ids.to_pylist()
    assert Lineage.open("l").embeddings("candidate")[0].type == pa.int64()
    vocabularies = Lineage.open("l").encoder_parts(0)[2]
    assert vocabularies["feature.zip"].keys.to_pylist() == ["17", "00017"]


def test_also_words_for_nothing_are_no_users(evergram: Command, shop: Path) -> None:
    sentence = evergram.refused(*train_on_csv(shop, "query,candidate\nu1,i1\nNULL,i2\n"))
    assert "clicks.csv row 2: query is 'NULL'; it must be an id; in a file of text" in sentence
    empty = evergram.refused(*train_on_csv(shop, "query,candidate\nu1,i1\nu2,\n"))
    assert "clicks.csv row 2: candidate is empty" in empty
    floats = evergram.refused(*train_on_csv(shop, "query,candidate\n17.0,i1\n18.0,i2\n"))
    (shop / "clicks.csv").write_bytes("query,candidate\né1,i1\n".encode("latin-1"))
    assert "it is not in UTF-8; save the file as UTF-8" in evergram.refused(
        "train", "shop.toml", "--lineage", "l", "--set", "data.path=clicks.csv"
    )
    assert "column 'query' is of numbers with decimals (one is 17.0); ids must be" in floats


def test_also_a_text_null_in_parquet_is_a_text_and_a_null_is_not(
    evergram: Command, shop: Path
) -> None:
    queries: list[str | None] = ["NULL" if q == 3 else f"u{q}" for q, _ in click_pairs()]
    candidates = [c for _, c in click_pairs()]
    pq.write_table(pa.table({"query": queries, "candidate": candidates}), "clicks.parquet")
    assert evergram("train", "shop.toml", "--lineage", "l").code == 0
    assert "NULL" in Lineage.open("l").embeddings("query")[0].to_pylist()
    for nothing in ("", None):
        queries[4] = nothing
        pq.write_table(pa.table({"query": queries, "candidate": candidates}), "clicks.parquet")
        sentence = evergram.refused("train", "shop.toml", "--lineage", "k")
        assert "clicks.parquet row 5: query is empty" in sentence


def test_also_the_other_files_of_ids_are_read_likewise(evergram: Command, shop: Path) -> None:
    base = ("train", "shop.toml", "--lineage", "l", "--set")
    (shop / "w.csv").write_text("id,weight\n1,2.0\nNaN,1.0\n")
    assert "w.csv row 2: id is 'NaN'" in evergram(*base, "task.query_measure=w.csv").err
    (shop / "w.csv").write_text("id,weight\n1,2.0\n1,1.0\n")
    assert "w.csv names the id 1 twice" in evergram(*base, "task.query_measure=w.csv").err
    (shop / "f.csv").write_text("id,tag\nitem1,a\nNULL,b\n")
    features = ("data.candidate_features=f.csv", "--set", "model.kind=two_tower")
    assert "f.csv row 2: id is 'NULL'" in evergram.refused(*base, *features)
    (shop / "f.csv").write_text("id,tag\nx1,a\nx2,b\n")
    assert "have none of the ids of the interactions" in evergram.refused(*base, *features)


def test_also_ids_beside_vectors_are_read_likewise(evergram: Command, vector_files: Path) -> None:
    np.save("v.npy", np.ones((3, 2), np.float32))
    (vector_files / "v.ids.txt").write_text("a\nNULL\nc\n")
    sentence = evergram.refused("vectors", "import", "v.npy", "--lineage", "l")
    assert "v.ids.txt line 2: the id is 'NULL'" in sentence
    table = pq.read_table("old.parquet").to_pylist()
    table[6]["id"] = ""
    pq.write_table(pa.Table.from_pylist(table, pq.read_schema("old.parquet")), "bad.parquet")
    assert "bad.parquet row 7 has no id" in evergram.refused(
        "vectors", "import", "bad.parquet", "--lineage", "l"
    )
