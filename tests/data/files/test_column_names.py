"""The roles of a file's columns are guessed from their names."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from evergram.data.files.column_names import guess, has_no_header, lacking, suggestions


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        ("user,item,rating,timestamp", "user,item,rating,timestamp"),
        ("userId,movieId,rating,timestamp", "userId,movieId,rating,timestamp"),
        ("User ID,Item ID,Score,Date", "User ID,Item ID,Score,Date"),
        ("reviewerID,asin,overall,unixReviewTime", "reviewerID,asin,overall,unixReviewTime"),
        ("session_id,sku,ts", "session_id,sku,,ts"),
        ("visitor,product_name,clicks", "visitor,product_name,clicks,"),
        ("query,movie", "query,movie,,"),
        ("a,b,c", ",,,"),
        ("id,when", ",,,"),
    ],
)
def test_usual_names_are_known(names: str, roles: str) -> None:
    expected = zip(("query", "candidate", "value", "time"), roles.split(","), strict=True)
    assert guess(names.split(",")) == {role: name for role, name in expected if name}


@pytest.mark.parametrize(
    ("names", "is_row"),
    [("1,31,2.5,1260759144", True), ("u1,17,4.0", True), ("user,17", False), ("a,b", False)],
)
def test_a_row_is_no_header(names: str, is_row: bool) -> None:
    assert has_no_header(names.split(",")) == is_row


def test_the_line_to_write_is_toml() -> None:
    sentence = lacking("x.csv", {"query", "candidate"}, ["User ID", '"item"', "stars"], {})
    assert 'its columns are: User ID, "item", stars.' in sentence
    line = re.search(r"columns = .*$", sentence)
    assert line is not None
    columns = tomllib.loads(line[0])["columns"]
    assert columns == {"query": "User ID", "candidate": '"item"', "value": "stars"}
    unknown = lacking("x.csv", {"query", "candidate"}, ["a", "b"], {})
    assert 'columns = {query = "…", candidate = "…"}' in unknown
    assert "in place of …" in unknown
    # What is written already stays.
    some = lacking("x.csv", {"candidate"}, ["a", "item"], {"query": "a"})
    assert f'columns = {{query = {json.dumps("a")}, candidate = "item"}}' in some


def test_the_error_about_a_missing_header_gives_the_line_to_write() -> None:
    sentence = lacking("x.csv", {"query", "candidate"}, ["1", "31", "2.5"], {})
    assert "its first line (1, 31, 2.5) seems to be a row" in sentence
    assert "query,candidate,value." in sentence


def test_a_first_line_of_words_may_be_a_row() -> None:
    both = {"query", "candidate"}
    sentence = lacking("x.tsv", both, ["Aruba", "Ant%C3%A9"], {})
    assert "columns are: Aruba, Ant%C3%A9. If that is a row, write a line above it" in sentence
    assert "such as query,candidate. Say" in sentence
    assert "columns = {" in sentence
    for chosen, names, header_line in (
        ({"query": "Aruba"}, ["Aruba", "Ant"], True),  # a person named one of them
        ({}, ["user", "thing"], True),  # one is a usual name
        ({}, ["Aruba", "Ant"], False),  # Parquet always has names
        ({}, ["0", "1"], False),
    ):
        assert "row" not in lacking("x", both, names, chosen, header_line=header_line)


def test_every_column_that_may_have_a_role_is_suggested() -> None:
    assert suggestions(["User ID", "artist", "track_id", "plays", "country"]) == {
        "query": ["User ID"],
        "candidate": ["artist", "track_id"],
        "value": ["plays"],
        "time": [],
    }
