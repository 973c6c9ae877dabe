"""How fast MediaWiki's dumps are read, in one thread, and whether parsing longer ones takes more
memory."""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from evergram.data.wikipedia.dump import load_mediawiki
from evergram.data.wikipedia.sql_dump import SqlTable

STATEMENT = 1 << 20  # bytes of one INSERT, as in Wikimedia's dumps
WORDS = [
    *("History", "List", "of_the", "in_the", "O\\'Brien", "Saint-Étienne", "2006年", "(film)"),
    *("(disambiguation)", "Category", "United_States", "County,_Ohio", "A.F.C.", '\\"Heroes\\"'),
    *("Straße", "Футбол", "Olympics", "Season", "Station", "River"),
]


def rows_per_second(rows: int) -> dict[str, float]:
    """Return rows a second of processor time of each table, from a gzip.

    The last value is by how many MiB the process' peak grew after tables a tenth as long had been
    parsed: near zero if memory is constant.
    """
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in (rows // 10, rows):
            before = _peak()
            for name, (table, columns, _) in TABLES.items():
                path = write(Path(folder), name, count, rows // 10)
                # Columns that are read have capitals.
                read = [c.lower() for c in columns.split() if c != c.lower()]
                text = ("title", "_to", "interwiki")
                kinds = {c: pa.string() if c.endswith(text) else pa.int64() for c in read}
                gc.collect()
                start = time.process_time()
                parsed = sum(batch.num_rows for batch in SqlTable(path, table).batches(kinds))
                figures[name] = parsed / (time.process_time() - start)
                if parsed != count:
                    raise RuntimeError(f"{name}: {parsed} of {count} rows were read.")
            figures["growth of peak memory, MiB"] = (_peak() - before) / 2**20
    return figures


def whole_dump(rows: int) -> dict[str, float]:
    """Measure a dump of so many links, with a tenth as many pages and the other tables, read as
    a corpus."""
    pages = rows // 10
    with tempfile.TemporaryDirectory() as folder:
        for name, count in (
            ("page", pages),
            ("redirect", pages // 4),
            ("linktarget", pages * 5 // 4),
            ("pagelinks", rows),
            ("categorylinks", pages * 3),
        ):
            write(Path(folder), name, count, pages)
        gc.collect()
        before, start = _peak(), time.process_time()
        _, report = load_mediawiki(Path(folder))
        seconds = time.process_time() - start
    read = sum(table.rows for table in report.tables.values())
    if report.warnings():
        raise RuntimeError("; ".join(report.warnings()))
    return {
        "whole dump": read / seconds,
        "growth of peak memory, bytes a row": (_peak() - before) / read,
    }


def write(folder: Path, name: str, rows: int, pages: int) -> Path:
    """Write the dump of one table of a wiki of so many pages."""
    table, columns, row = TABLES[name]
    path = folder / f"wiki-{table}.sql.gz"
    random = np.random.default_rng(0)
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        fields = ",\n".join(f"  `{c.lower()}` varbinary(255) NOT NULL" for c in columns.split())
        file.write(f"CREATE TABLE `{table}` (\n{fields}\n) ENGINE=InnoDB;\n")
        size = 0
        for start in range(0, rows, 100_000):
            some = min(100_000, rows - start)
            one, other = random.integers(1, pages + 1, (2, some)).tolist()
            for i, a, b in zip(range(start + 1, start + some + 1), one, other, strict=True):
                text = row(i, a, b)
                file.write("," if size else f"INSERT INTO `{table}` VALUES ")
                file.write(text)
                size += len(text)
                if size > STATEMENT:
                    file.write(";\n")
                    size = 0
        file.write(";\n" if size else "")
    return path


def _title(number: int) -> str:
    """Return a title of one to three words and the number; it has escapes more often than
    Wikipedia's."""
    words = [WORDS[number // 7**k % len(WORDS)] for k in range(1 + number % 3)]
    return "_".join([*words, str(number)])


def _page(i: int, a: int, b: int) -> str:
    return (
        f"({i},0,'{_title(i)}',{int(i % 4 == 0)},0,0.{a}{b},'20260901120458','20260901120939',{b},"
        f"{a % 99_999},'wikitext',NULL)"
    )


def _redirect(i: int, a: int, b: int) -> str:
    return f"({4 * i},0,'{_title(4 * i - 1)}','',NULL)"


def _target(i: int, a: int, b: int) -> str:
    return f"({i},{0 if i % 5 else 14},'{_title(i)}')"


def _link(i: int, a: int, b: int) -> str:
    return f"({a},0,{b})"


def _link_by_title(i: int, a: int, b: int) -> str:
    return f"({a},0,'{_title(b)}',0)"


def _member(i: int, a: int, b: int) -> str:
    key = _title(b).upper()
    return f"({a},'{key}\\n{key}','2025-02-17 13:31:43','{key}','page',1,{b // 5 * 5})"


def _member_by_title(i: int, a: int, b: int) -> str:
    key = _title(b).upper()
    title = _title(b // 5 * 5)
    return f"({a},'{title}','{key}\\n{key}','2025-02-17 13:31:43','{key}','uca-de-u-kn','page')"


# The table, its columns as in the dumps (with capitals where load_mediawiki reads them), a row.
TABLES: dict[str, tuple[str, str, Callable[[int, int, int], str]]] = {
    "page": (
        "page",
        "Page_id Page_namespace Page_title Page_is_redirect page_is_new page_random page_touched "
        "page_links_updated page_latest page_len page_content_model page_lang",
        _page,
    ),
    "redirect": (
        "redirect",
        "Rd_from Rd_namespace Rd_title Rd_interwiki rd_fragment",
        _redirect,
    ),
    "linktarget": ("linktarget", "Lt_id Lt_namespace Lt_title", _target),
    "pagelinks": ("pagelinks", "Pl_from pl_from_namespace Pl_target_id", _link),
    "pagelinks, older": (
        "pagelinks",
        "Pl_from Pl_namespace Pl_title pl_from_namespace",
        _link_by_title,
    ),
    "categorylinks": (
        "categorylinks",
        "Cl_from cl_sortkey cl_timestamp cl_sortkey_prefix cl_type cl_collation_id Cl_target_id",
        _member,
    ),
    "categorylinks, older": (
        "categorylinks",
        "Cl_from Cl_to cl_sortkey cl_timestamp cl_sortkey_prefix cl_collation cl_type",
        _member_by_title,
    ),
}


def _peak() -> int:
    """Return the most memory that the process ever used, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure(rows: int = 1_000_000) -> dict[str, float]:
    """Measure in a process of its own, because the peak is that of a process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.dumps", "--json", "--rows", str(rows)],
        cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def tiny() -> dict[str, float]:
    return measure(2_000)


def table(figures: dict[str, float]) -> str:
    lines = ["| table | rows a second of processor time |", "|---|---|"]
    return "\n".join(lines + [f"| {name} | {value:,.0f} |" for name, value in figures.items()])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dumps", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    measured = rows_per_second(chosen.rows) | whole_dump(chosen.rows)
    if chosen.json:
        print(json.dumps(measured))
    else:
        for name, value in measured.items():
            print(f"{name:>34}: {value:,.0f}")
