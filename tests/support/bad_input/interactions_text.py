"""Files of interactions in text: encodings, separators, ragged rows, empty cells, damaged gzips."""

from __future__ import annotations

import gzip
import io
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests.support.bad_input.case import Case, Content, put

TRAIN = "train shop.toml --lineage new --set data.path={} {}"
HEADER = "query,candidate\n"


def rows(number: int = 400, form: str = "{},item{}\n") -> str:
    """Return lines of interactions, enough to train on."""
    draw = random.Random(0)
    return "".join(form.format(draw.randrange(40), draw.randrange(30)) for _ in range(number))


def of(
    name: str,
    content: Content,
    file: str = "bad.csv",
    options: str = "",
) -> Case:
    """Return the case of training on a file of this content."""
    return Case(name, TRAIN.format(f"'{file}'", options), "", put(content, file))


def zipped(names: list[str]) -> bytes:
    """Return a zip of small files of these names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "nothing of the kind")
    return buffer.getvalue()


def folder_of(names: list[str]) -> Callable[[Path], None]:
    """Return a function that makes a folder of small text files."""

    def make(path: Path) -> None:
        path.mkdir()
        for name in names:
            (path / name).write_text("nothing of the kind")

    return make


GOOD = HEADER + rows()
TIMED = "query,candidate,time\n"

CASES = [
    of("no such file", lambda p: None, "gone.csv"),
    of("an empty file", ""),
    of("only a line feed", "\n"),
    of("only blanks", "  \n   \n"),
    of("a header and no rows", HEADER),
    of("rows without a header", rows()),
    of("one row", HEADER + "1,2\n"),
    of("thirty pairs", HEADER + rows(30)),
    of("one query only", HEADER + rows(100, "1,item{1}\n")),
    of("one candidate only", HEADER + rows(100, "{},item\n")),
    of("one pair again and again", HEADER + "1,2\n" * 400),
    of("every query once", HEADER + "".join(f"{i},item{i % 7}\n" for i in range(100))),
    of("no column candidate", "query,item\n" + rows()),
    of("no column query", "user,candidate\n" + rows()),
    of("columns in capitals", "Query,Candidate\n" + rows()),
    of("blanks around the names of columns", " query , candidate \n" + rows()),
    of("a column twice", "query,candidate,candidate\n" + rows(400, "{},i{},x\n")),
    of("one column", "query\n" + rows(400, "{}\n")),
    of(
        "another column by name than there is",
        GOOD,
        options="--set data.columns.query=user",
    ),
    of("both sides the same column", GOOD, options="--set data.columns.candidate=query"),
    of(
        "a role of a column that there is not",
        GOOD,
        options="--set data.columns.rating=value",
    ),
    of("UTF-16", ("\ufeff" + GOOD).encode("utf-16")),
    of("UTF-16 without a mark", GOOD.encode("utf-16-le")),
    of("UTF-32", GOOD.encode("utf-32")),
    of("latin-1 in ids", (GOOD + "1,café\n").encode("latin-1")),
    of("latin-1 in the header", "query,candidate,café\n1,2,3\n".encode("latin-1")),
    of("a NUL byte in an id", GOOD + "1,it\0em\n"),
    of("a file of NUL bytes", b"\0" * 5000),
    of("random bytes", random.Random(0).randbytes(5000)),
    of("a row with too many cells", GOOD + "1,2,3\n"),
    of("a row with too few cells", GOOD + "1\n"),
    of("two separators mixed", GOOD + rows(5, "{};item{}\n")),
    of("a separator of two signs", "query::candidate\n" + rows(400, "{}::item{}\n")),
    of("blanks as separator", "query candidate\n" + rows(400, "{} item{}\n")),
    of("a quotation mark that never ends", GOOD + '1,"item\n' + rows(50)),
    of("an empty id", GOOD + "1,\n"),
    of("an id of blanks", GOOD + "1,   \n"),
    of("an id NULL", GOOD + "1,NULL\n"),
    of("an id NaN", GOOD + "NaN,item1\n"),
    of(
        "a value that is a word",
        "query,candidate,value\n" + rows(400, "{},i{},1\n") + "1,2,good\n",
    ),
    of(
        "a value with a decimal comma",
        "query;candidate;value\n" + rows(400, "{};i{};1\n") + "1;2;3,5\n",
    ),
    of("an empty value", "query,candidate,value\n" + rows(400, "{},i{},1\n") + "1,2,\n"),
    of("a value NaN", "query,candidate,value\n" + rows(400, "{},i{},1\n") + "1,2,nan\n"),
    of(
        "an infinite value",
        "query,candidate,value\n" + rows(400, "{},i{},1\n") + "1,2,inf\n",
    ),
    of(
        "a value past float32",
        "query,candidate,value\n" + rows(400, "{},i{},1\n") + "1,2,1e300\n",
    ),
    of(
        "a negative weight",
        "query,candidate,weight\n" + rows(400, "{},i{},1\n") + "1,2,-1\n",
    ),
    of("all weights zero", "query,candidate,weight\n" + rows(400, "{},i{},0\n")),
    of(
        "an infinite weight",
        "query,candidate,weight\n" + rows(400, "{},i{},1\n") + "1,2,inf\n",
    ),
    of("a time that is a word", TIMED + rows(400, "{},i{},17\n") + "1,2,yesterday\n"),
    of("an empty time", TIMED + rows(400, "{},i{},17\n") + "1,2,\n"),
    of("times of day without a date", TIMED + rows(400, "{},i{},12:30\n")),
    of("a date by day, month, year", TIMED + rows(400, "{},i{},31/12/2024\n")),
    of("a date that there is not", TIMED + rows(400, "{},i{},2024-02-30\n")),
    of("two forms of dates", TIMED + rows(400, "{},i{},2024-01-01\n") + "1,2,17\n"),
    of("a time past 64 bits", TIMED + rows(400, "{},i{},17\n") + "1,2,99999999999999999999\n"),
    of("a time in the year 292 billion", TIMED + rows(400, "{},i{},17\n") + f"1,2,{2**63 - 1}\n"),
    of("a time that stands for none", TIMED + rows(400, "{},i{},17\n") + f"1,2,{-(2**63)}\n"),
    of("a time NaT", TIMED + rows(400, "{},i{},2024-01-01\n") + "1,2,NaT\n"),
    of(
        "constant times, split by time",
        TIMED + rows(400, "{},i{},17\n"),
        options="--set split.kind=time --set split.last=1d",
    ),
    of(
        "times in milliseconds, split by a window",
        TIMED + "".join(f"{i % 40},i{i % 30},{1_700_000_000_000 + i}\n" for i in range(400)),
        options="--set split.kind=time --set split.last=3d",
    ),
    of("no times, split by time", GOOD, options="--set split.kind=time"),
    of("a gzip cut short", gzip.compress(GOOD.encode())[:-200], "bad.csv.gz"),
    of(
        "a gzip with a changed byte",
        gzip.compress(GOOD.encode())[:60] + b"\0\0\0\0" + gzip.compress(GOOD.encode())[64:],
        "bad.csv.gz",
    ),
    of("a text named as a gzip", GOOD, "bad.csv.gz"),
    of("a gzip named as a text", gzip.compress(GOOD.encode())),
    of("an empty gzip", gzip.compress(b""), "bad.csv.gz"),
    of("a gzip of no bytes", b"", "bad.csv.gz"),
    of("a zip named as a text", zipped(["clicks.csv"])),
    of("an unknown suffix", GOOD, "bad.xlsx"),
    of("no suffix", GOOD, "bad"),
    of("a zip", zipped(["clicks.csv"]), "bad.zip"),
    of("a folder named as a CSV", folder_of(["a.csv"]), "bad.csv"),
    of(
        "an HTML page of a failed download",
        "<!DOCTYPE html><html><body>404 Not Found</body></html>\n",
    ),
    of("JSON named as a CSV", '[{"query": 1, "candidate": 2}]\n'),
    of(
        "a Git LFS pointer",
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    ),
    of("a header of a million bytes", "x" * 1_000_000 + "\n1,2\n"),
    of("an id of ten megabytes", GOOD + "1," + "x" * 10_000_000 + "\n"),
]
