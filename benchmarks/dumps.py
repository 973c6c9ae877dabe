"""How fast MediaWiki's dumps are parsed, in one thread, and that memory does not grow with them."""

from __future__ import annotations

import gc
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from evergram.data.sqldump import SqlTable

STATEMENT = 1 << 20  # bytes of one INSERT, as in Wikimedia's dumps
WORDS = [
    *("History", "List", "of_the", "in_the", "O\\'Brien", "Saint-Étienne", "2006年", "(film)"),
    *("(disambiguation)", "Category", "United_States", "County,_Ohio", "A.F.C.", '\\"Heroes\\"'),
    *("Straße", "Футбол", "Olympics", "Season", "Station", "River"),
]

# Columns as in the dumps, and those of them that load_mediawiki reads.
TABLES = {
    "pagelinks, by target": (
        "pagelinks pl_from pl_from_namespace pl_target_id",
        "pl_from pl_target_id",
    ),
    "pagelinks, by title": (
        "pagelinks pl_from pl_namespace pl_title pl_from_namespace",
        "pl_from pl_namespace pl_title",
    ),
    "page": (
        "page page_id page_namespace page_title page_is_redirect page_is_new page_random "
        "page_touched page_links_updated page_latest page_len page_content_model page_lang",
        "page_id page_title page_is_redirect page_namespace",
    ),
}


def rows_per_second(rows: int = 2_000_000) -> dict[str, float]:
    """Rows a second of each table, and under "peak memory growth, MiB" what parsing them all took.

    The growth is that of the process' peak over what it was when a tenth as many rows of each
    table had been parsed: near nothing where memory is flat.
    """
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{i}.sql" for i, name in enumerate(TABLES)}
        for count in (rows // 10, rows):
            before = _peak()
            for name, path in files.items():
                _write(path, name, count)
                gc.collect()
                table, read = TABLES[name][0].split()[0], TABLES[name][1].split()
                kinds = {c: pa.string() if c.endswith("title") else pa.int64() for c in read}
                start = time.perf_counter()
                parsed = sum(batch.num_rows for batch in SqlTable(path, table).batches(kinds))
                found[name] = parsed / (time.perf_counter() - start)
                assert parsed == count
            found["peak memory growth, MiB"] = (_peak() - before) / 2**20
    return found


def _write(path: Path, name: str, rows: int) -> None:
    """A dump of so many rows, of titles of one to three words with their escapes."""
    table, *columns = TABLES[name][0].split()
    row = _page if table == "page" else _link_by_title if "title" in name else _link
    random = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        fields = ",\n".join(f"  `{c}` varbinary(255) NOT NULL DEFAULT ''" for c in columns)
        file.write(f"CREATE TABLE `{table}` (\n{fields}\n) ENGINE=InnoDB;\n")
        size = 0
        for start in range(0, rows, 100_000):
            numbers = random.integers(1, 80_000_000, (min(100_000, rows - start), 4))
            for a, b, c, d in numbers.tolist():
                text = row(a, b, c, d)
                file.write("," if size else f"INSERT INTO `{table}` VALUES ")
                file.write(text)
                size += len(text)
                if size > STATEMENT:
                    file.write(";\n")
                    size = 0
        file.write(";\n" if size else "")


def _title(number: int) -> str:
    # Of Wikipedia's titles about one in twenty has something to escape; of these, one in ten.
    words = [WORDS[number // 7**k % len(WORDS)] for k in range(1 + number % 3)]
    return "_".join([*words, str(number % 1_000_003)])


def _link(a: int, b: int, c: int, d: int) -> str:
    return f"({a},0,{b})"


def _link_by_title(a: int, b: int, c: int, d: int) -> str:
    return f"({a},0,'{_title(b)}',0)"


def _page(a: int, b: int, c: int, d: int) -> str:
    return (
        f"({a},0,'{_title(b)}',{c % 2},0,0.{d},'20260901120458','20260901120939',{c},{d % 99_999},"
        "'wikitext',NULL)"
    )


def _peak() -> int:
    """The most memory that the process ever held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    for name, value in rows_per_second().items():
        print(f"{name:>26}: {value:,.0f}")
