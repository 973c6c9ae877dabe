"""Sentences and tables of the documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
Rows = Mapping[str, Mapping[str, str]]
# A page, a part of a sentence in it, and what makes the sentence true.
Claim = tuple[str, str, Callable[[], bool]]
# Words by which a sentence says that one thing is measured to be more or less than another.
COMPARATIVE = re.compile(
    r"\b(better|best|worse|worst|faster|fastest|slower|slowest|ahead|behind|beats?|halves|doubles"
    r"|outperforms?|lower|lowest|higher|highest|closer|closest|nearest|no worse|as (good|well|much"
    r"|far) as|as well|hardly differ|costs? nothing|comes close|does well|reaches|gains?|loses"
    r"|helps|stuck|equals?|collapses|survives|falls|vanish|no more than|most of)\b",
    re.IGNORECASE,
)


def prose(text: str) -> str:
    """Return a page without code, generated parts and tables."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"<!-- ([\w-]+) -->.*?<!-- end \1 -->", "", text, flags=re.DOTALL)
    return re.sub(r"^(\||#|!|    ).*$", "", text, flags=re.MULTILINE)


def comments(text: str) -> str:
    """Return the comments of a recipe, each block of lines as a paragraph."""
    lines = (re.search(r"(?:^|\s)#\s?(.*)$", line) for line in text.splitlines())
    return "\n".join(f"{m[1]}" if m else "" for m in lines)


def sentences(text: str) -> Iterator[str]:
    """Iterate over the sentences of paragraphs and of items of lists, on one line each."""
    for part in re.split(r"\n\s*\n|\n(?=- )", text):
        whole = " ".join(part.removeprefix("- ").split())
        yield from (s for s in re.split(r"(?<=[.:;!?])\s+(?=[A-Z`*\[(\"|-])", whole) if s)


def comparative_sentences(page: str) -> list[str]:
    """Return the sentences of a page or of a recipe's comments that compare."""
    text = (ROOT / page).read_text()
    text = comments(text) if page.endswith(".toml") else prose(text)
    return [s for s in sentences(text) if COMPARATIVE.search(s)]


def table(page: str, name: str, place: int = 0) -> list[Mapping[str, str]]:
    """Return the rows of a generated table, by the heads of its columns.

    Args:
        place: of the table, where a section has several.
    """
    text = (ROOT / page).read_text()
    start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    block = text.split(start)[1].split(end)[0]
    tables = re.findall(r"(?:^\|.*\n)+", block, re.MULTILINE)
    lines = tables[place].strip().splitlines()
    heads, *rows = (
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
    )
    return [dict(zip(heads, row, strict=True)) for row in rows[1:]]


def by_first(page: str, name: str, place: int = 0) -> Rows:
    """Return the rows of a table by their first cell."""
    return {next(iter(row.values())): row for row in table(page, name, place)}


def number(cell: str) -> float:
    """Return the first number of a cell, "1.2 ± 0.1" or "0.1 / 0.2" included."""
    match = re.match(r"[+-]?\d[\d,]*\.?\d*", cell.removeprefix("×"))
    assert match is not None, cell
    return float(match[0].replace(",", ""))
