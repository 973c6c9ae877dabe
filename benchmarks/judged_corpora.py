"""Texts, queries and human judgements for measuring retrieval: SciFact, Cranfield, and five
collections from the University of Glasgow's archive.

The data folder contains `scifact`, see docs/data-sets.md; `cranfield`, a clone of
github.com/oussbenk/cranfield-trec-dataset (its queries are numbered by position, as in the
judgements); and `glasgow` in SMART's format, with `cisi`, `lisa`, `med` and `npl` from `datasets`
in github.com/ericlabouve/Term-Proximity-Research, and `cacm` from `data/cacm` in
github.com/lucene4ir/lucene4ir. Texts written only in capitals are lower-cased.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import DATA
from evergram.errors import DataError
from evergram.evaluation.judged import Judgements, read_judgements

Texts = dict[str, str]
# Texts, queries and judgements.
Judged = tuple[Texts, Texts, Judgements]


def available() -> dict[str, Callable[[], Judged]]:
    """Return a function that reads each available corpus, by name."""
    return {n: partial(read, folder) for n, (folder, read) in CORPORA.items() if folder.is_dir()}


def _beir_texts(path: Path) -> Texts:
    """Return texts by id, each preceded by its title."""
    records = [json.loads(line) for line in _read(path).splitlines() if line.strip()]
    return {r["_id"]: f"{r.get('title') or ''} {r['text']}".strip() for r in records}


def _scifact(folder: Path) -> Judged:
    return (
        _beir_texts(folder / "corpus.jsonl"),
        _beir_texts(folder / "queries.jsonl"),
        read_judgements(folder),
    )


def _cranfield(folder: Path) -> Judged:
    texts = {}
    for part in re.findall(r"<doc>(.*?)</doc>", _read(folder / "cran.all.1400.xml"), re.DOTALL):
        # The text begins with its title.
        name, text = (
            " ".join(re.findall(rf"<{tag}>(.*?)</{tag}>", part, re.DOTALL)[0].split())
            for tag in ("docno", "text")
        )
        texts[name] = text
    titles = re.findall(r"<title>(.*?)</title>", _read(folder / "cran.qry.xml"), re.DOTALL)
    queries = {str(place): " ".join(title.split()) for place, title in enumerate(titles, 1)}
    # The last line of the file is truncated.
    lines = _read(folder / "cranqrel.trec.txt").splitlines()
    judgements: Judgements = {}
    for columns in map(str.split, lines):
        if len(columns) == 4:
            judgements.setdefault(columns[0], {})[columns[2]] = int(columns[3])
    return texts, queries, judgements


def _smart(folder: Path, files: tuple[str, str, str, int | None]) -> Judged:
    """Read a collection in SMART's format: `.I` starts an entry; `.T` and `.W` are title and text.

    Args:
        files: the files of texts (a glob pattern), queries and judgements, and the column of the
            judged text in the last; None if all columns after the query are judged texts.
    """
    texts, queries, judged, column = files
    entries: Texts = {}
    for path in sorted(folder.glob(texts)):
        entries |= smart_entries(_read(path))
    judgements: Judgements = {}
    for columns in map(str.split, _read(folder / judged).splitlines()):
        if columns:
            names = columns[1:] if column is None else [columns[column]]
            of_query = judgements.setdefault(str(int(columns[0])), {})
            of_query |= {str(int(name)): 1 for name in names}
    return entries, smart_entries(_read(folder / queries)), judgements


def smart_entries(text: str) -> Texts:
    """Return the titles and texts by number, from a file in SMART's format."""
    entries = {}
    parts = re.split(r"^\.I[ \t]+(\d+)[ \t]*$", text, flags=re.MULTILINE)
    for number, rest in zip(parts[1::2], parts[2::2], strict=True):
        fields = re.split(r"^\.([A-Z])[ \t]*$", rest, flags=re.MULTILINE)
        words = [v for k, v in zip(fields[1::2], fields[2::2], strict=True) if k in "TW"]
        entry = " ".join(" ".join(words).split())
        # Encoders have rarely seen words in capitals.
        entries[str(int(number))] = entry.lower() if entry.isupper() else entry
    return entries


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; see benchmarks/judged_corpora.py."
        ) from error


# By name (in lower case, the folder): files of texts, queries and judgements, and the column.
SMART: dict[str, tuple[str, str, str, int | None]] = {
    "CACM": ("cacm.all", "query.text", "qrels.text", 1),
    "CISI": ("CISI.ALL", "CISI.QRY", "CISI.REL", 1),
    "LISA": ("LISA[0-5].???", "LISA.QUE", "LISARJ.NUM", None),
    "MED": ("MED.ALL", "MED.QRY", "MED.REL", 2),
    "NPL": ("doc-text", "query-text", "rlv-ass", None),
}
# By name: the folder, and the function that reads it.
CORPORA: dict[str, tuple[Path, Callable[[Path], Judged]]] = {
    "SciFact": (DATA / "scifact", _scifact),
    "Cranfield": (DATA / "cranfield", _cranfield),
    **{n: (DATA / "glasgow" / n.lower(), partial(_smart, files=f)) for n, f in SMART.items()},
}
