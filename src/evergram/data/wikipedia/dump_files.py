"""The files of a dump of Wikipedia, and the report of the rows that were read and left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from evergram.data.wikipedia.sql_dump import SqlTable, TableReport
from evergram.errors import DataError

BLOCK = 1 << 22  # rows to look up at once: each look-up builds a hash table of all titles
TEXT = ("_title", "_to", "_interwiki")  # how columns of text end; the others are whole numbers
NULLABLE = ("_interwiki", "_target_id")


@dataclass
class DumpReport:
    """Counts of the rows of a dump that were read and of those left out.

    The counts of links add up to the rows read of pagelinks, those of categories to the rows read
    of categorylinks.

    Args:
        tables: the report of each file, by the table's name.
        repeated_pages: rows of page with the id or the title of an earlier row, left out.
        pages: articles, pages of the namespace that are no redirects.
        pages_without_links: those without a link, to them or from them, left out.
        redirects: redirects of the namespace.
        dead_redirects: those that lead to no article, which is all where redirects are dropped.
        links: interactions of the corpus.
        links_not_from_articles: links from another namespace, a redirect or an unknown page.
        links_to_other_namespaces: links out of the namespace.
        links_to_missing_pages: links to titles without a page ("red links").
        links_to_dead_redirects: links to redirects that lead to no article, or to any redirect
            where redirects are dropped.
        links_to_unknown_targets: links whose target linktarget does not have.
        self_links: links from an article to itself, perhaps by a redirect.
        repeated_links: links beyond the first from one article to another.
        categories: rows of categorylinks that describe a page of the corpus.
        categories_not_of_articles: those of any other page.
        categories_unknown: those whose category linktarget does not have.
    """

    tables: dict[str, TableReport] = field(default_factory=dict)
    repeated_pages: int = 0
    pages: int = 0
    pages_without_links: int = 0
    redirects: int = 0
    dead_redirects: int = 0
    links: int = 0
    links_not_from_articles: int = 0
    links_to_other_namespaces: int = 0
    links_to_missing_pages: int = 0
    links_to_dead_redirects: int = 0
    links_to_unknown_targets: int = 0
    self_links: int = 0
    repeated_links: int = 0
    categories: int = 0
    categories_not_of_articles: int = 0
    categories_unknown: int = 0

    def warnings(self) -> list[str]:
        """Return a sentence for each fault of a file; empty if all were read whole."""
        sentences = []
        for table in self.tables.values():
            if table.truncated:
                sentences.append(f"{table.source} is cut: {table.truncated}.")
            if table.malformed:
                sentences.append(
                    f"{table.source}: malformed rows left out: {table.malformed:,}; the first is "
                    f"{table.first_malformed}."
                )
        if self.repeated_pages:
            source = self.tables["page"].source
            sentences.append(
                f"{source}: rows that repeat a page, left out: {self.repeated_pages:,}."
            )
        return sentences


class DumpFiles:
    """The files of one dump, and the report that grows as they are read."""

    def __init__(self, folder: Path, prefix: str | None) -> None:
        if prefix is None:
            names = [re.fullmatch(r"(.+)-page\.sql(\.gz)?", path.name) for path in folder.glob("*")]
            prefixes = sorted({name[1] for name in names if name})
            if len(prefixes) != 1:
                dumps = "the dumps " + ", ".join(prefixes)
                has = dumps if prefixes else "no file *-page.sql or .sql.gz"
                do = "name one of them as prefix" if prefixes else "put the dump's files there"
                raise DataError(f"{folder} has {has}; {do}.")
            prefix = prefixes[0]
        self.start: Path = folder / prefix
        self.report: DumpReport = DumpReport()

    def open(self, name: str) -> SqlTable:
        """Open a table. Raises: DataError: there is no such file, or it is not a dump of it."""
        for suffix in (".sql", ".sql.gz"):
            path = self.start.with_name(f"{self.start.name}-{name}{suffix}")
            if path.is_file():
                return SqlTable(path, name)
        hint = ', or load with redirects="drop"' if name == "redirect" else ""
        raise DataError(
            f"There is no file {self.start}-{name}.sql or {self.start.name}-{name}.sql.gz; fetch "
            f"it from where the others come from{hint}."
        )

    def blocks(self, table: SqlTable, *columns: str) -> Iterator[dict[str, pa.Array]]:
        """Yield columns, BLOCK rows or a few more at a time; titles are strings, the rest int64."""
        kinds = {c: pa.string() if c.endswith(TEXT) else pa.int64() for c in columns}
        required = [c for c in columns if not c.endswith(NULLABLE)]
        waiting: list[pa.RecordBatch] = []
        for batch in table.batches(kinds, required):
            waiting.append(batch)
            if sum(b.num_rows for b in waiting) >= BLOCK:
                yield together(waiting)
                waiting = []
        if waiting:
            yield together(waiting)
        self.report.tables[table.name] = table.report

    def refuse(self, table: SqlTable, why: str) -> DataError:
        """Return an error about a table, with the faults of the files so far."""
        return DataError(" ".join([f"{table.path} {why}", *self.report.warnings()]))


def together(batches: list[pa.RecordBatch]) -> dict[str, pa.Array]:
    """Return the columns of several batches, each as one array."""
    table = pa.Table.from_batches(batches)
    return {name: table[name].combine_chunks() for name in table.column_names}
