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
    of("only a line feed", "\n"),
    of("one query only", HEADER + rows(100, "1,item{1}\n")),
    of("columns in capitals", "Query,Candidate\n" + rows()),
    of("a column twice", "query,candidate,candidate\n" + rows(400, "{},i{},x\n")),
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
    of("UTF-16 without a mark", GOOD.encode("utf-16-le")),
    of("latin-1 in the header", "query,candidate,café\n1,2,3\n".encode("latin-1")),
    of("a row with too few cells", GOOD + "1\n"),
    of("a quotation mark that never ends", GOOD + '1,"item\n' + rows(50)),
    of(
        "a value with a decimal comma",
        "query;candidate;value\n" + rows(400, "{};i{};1\n") + "1;2;3,5\n",
    ),
    of(
        "an infinite value",
        "query,candidate,value\n" + rows(400, "{},i{},1\n") + "1,2,inf\n",
    ),
    of("no times, split by time", GOOD, options="--set split.kind=time"),
    of("a gzip named as a text", gzip.compress(GOOD.encode())),
    of("an unknown suffix", GOOD, "bad.xlsx"),
]
