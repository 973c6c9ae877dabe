"""Files of interactions with types: Parquet and Arrow with columns of wrong types, damaged ones."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.bad_input.case import Case, Content
from tests.support.bad_input.good_files import clicks
from tests.support.bad_input.interactions_text import folder_of, of, zipped

N = 600
Q, C = clicks()["query"].to_pylist(), clicks()["candidate"].to_pylist()


def table(**columns: Any) -> pa.Table:
    """Return a good table of clicks with some columns replaced or added."""
    made = {"query": Q, "candidate": C, **columns}
    return pa.table({k: v for k, v in made.items() if v is not None})


def typed(name: str, content: Content, file: str = "bad.parquet", options: str = "") -> Case:
    """Return the case of training on a Parquet file of this content."""
    return of(name, content, file, options)


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(clicks(), sink)
    return bytes(sink.getvalue().to_pybytes())


def arrow() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, clicks().schema) as writer:
        writer.write_table(clicks())
    return bytes(sink.getvalue().to_pybytes())


def poked(content: bytes, at: int, with_: bytes) -> bytes:
    """Return bytes of which some are replaced, from a place on."""
    at %= len(content)
    return content[:at] + with_ + content[at + len(with_) :]


DAYS = [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=i) for i in range(N)]

CASES = [
    typed("a table of no rows", clicks().slice(0, 0)),
    typed("a table of no columns", pa.table({})),
    typed("ids of floats", table(query=pa.array(Q, pa.float64()))),
    typed("ids of lists", table(query=[[q] for q in Q])),
    typed("an id null", table(query=[None, *Q[1:]])),
    typed("an id past 64 bits", table(query=pa.array([2**63 + q for q in Q], pa.uint64()))),
    typed("values of text", table(value=["good"] * N)),
    typed("weights all zero in a table", table(weight=[0.0] * N)),
    typed("words for times", table(time=["yesterday"] * N)),
    typed("times of structures", table(time=[{"s": 1}] * N)),
    typed("a time null", table(time=[None, *DAYS[1:]])),
    typed(
        "times in the year 292 billion",
        table(time=pa.array([2**63 - 1] * N, pa.timestamp("s"))),
        "bad.arrow",
    ),
    typed("a Parquet cut short", parquet()[:-300]),
    typed("a Parquet with a spoiled footer", poked(parquet(), -60, b"\xff" * 40)),
    typed("an Arrow file named as a Parquet", arrow()),
    typed("a Parquet named as a CSV", parquet(), "bad.csv"),
    typed("an Arrow file cut short", arrow()[:-200], "bad.arrow"),
    typed("an Arrow file of no bytes", b"", "bad.feather"),
    typed("a folder of Parquet files that is empty", lambda p: p.mkdir(), "parts"),
    typed("a link to itself", lambda p: p.symlink_to(p)),
    typed("a link to nothing", lambda p: p.symlink_to("gone.parquet")),
    typed("a name of 300 letters", lambda p: None, "x" * 300 + ".parquet"),
    typed(
        "features without a column id",
        pa.table({"key": C, "age": [1.0] * N}),
        "f.parquet",
        "--set data.path=clicks.parquet --set data.candidate_features=f.parquet",
    ),
    typed(
        "features with an id twice",
        pa.table({"id": ["item1", "item1"], "age": [1.0, 2.0]}),
        "f.parquet",
        "--set data.path=clicks.parquet --set data.candidate_features=f.parquet",
    ),
    typed(
        "features of a type that is none",
        pa.table({"id": sorted(set(C)), "age": [{"a": 1}] * len(set(C))}),
        "f.parquet",
        "--set data.path=clicks.parquet --set data.candidate_features=f.parquet",
    ),
    typed(
        "features of other objects",
        pa.table({"id": ["x", "y"], "age": [1.0, 2.0]}),
        "f.parquet",
        "--set data.path=clicks.parquet --set data.candidate_features=f.parquet",
    ),
    typed(
        "a test file of no rows",
        clicks().slice(0, 0),
        "t.parquet",
        "--set data.path=clicks.parquet --set data.test=t.parquet --set split.kind=given",
    ),
    of(
        "a zip of something else, as movielens",
        zipped(["a.txt"]),
        "m.zip",
        "--set data.kind=movielens",
    ),
    of(
        "a zip cut short, as movielens",
        zipped(["ratings.dat"])[:-30],
        "m.zip",
        "--set data.kind=movielens",
    ),
    of(
        "a folder of something else, as amazon",
        folder_of(["a.txt"]),
        "m",
        "--set data.kind=amazon",
    ),
    of(
        "JSON lines with a wrong line, as amazon",
        '{"reviewerID": "a", "asin": "b"\n',
        "m.json",
        "--set data.kind=amazon",
    ),
    of(
        "a folder of something else, as wikispeedia",
        folder_of(["a.txt"]),
        "m",
        "--set data.kind=wikispeedia",
    ),
    of(
        "a folder of something else, as mediawiki",
        folder_of(["a.txt"]),
        "m",
        "--set data.kind=mediawiki",
    ),
    of(
        "a folder of something else, as prepared",
        folder_of(["a.txt"]),
        "m",
        "--set data.kind=prepared",
    ),
    of(
        "a CSV, as adjacency_list",
        "query,candidate\n1,2\n",
        "m.txt",
        "--set data.kind=adjacency_list",
    ),
    of(
        "bytes that are no text, as adjacency_list",
        b"\xff\xfe\x00",
        "m.txt",
        "--set data.kind=adjacency_list",
    ),
    of(
        "a movielens file with a wrong line",
        lambda p: (
            p.mkdir(),  # type: ignore[func-returns-value]
            (p / "ratings.dat").write_text("1::2\n"),
            (p / "movies.dat").write_text(""),
        ),
        "m",
        "--set data.kind=movielens",
    ),
]
