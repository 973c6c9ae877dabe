"""`DumpLinks`: the links between articles of a MediaWiki dump, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.wikipedia.dump_files import DumpFiles, DumpReport
from evergram.data.wikipedia.dump_pages import (
    MISSING,
    OUTSIDE,
    UNKNOWN,
    Pages,
    Places,
    Targets,
    at,
    read_pages,
    read_targets,
)
from evergram.data.wikipedia.page_features import page_features
from evergram.data.wikipedia.sql_dump import SqlTable
from evergram.errors import DataError


class DumpLinks:
    """The links of a dump, as pairs of places of articles: numbers below `size`.

    Pages, redirects and targets are in memory; links are read block by block.

    Args:
        folder, prefix, namespace, redirects: as of `load_mediawiki`.
    Attributes:
        report: grows as files are read.
    Raises: DataError: a file or a column is missing, or a gzip is cut or damaged.
    """

    def __init__(
        self,
        folder: Path,
        prefix: str | None = None,
        *,
        namespace: int = 0,
        redirects: Literal["resolve", "drop"] = "resolve",
    ) -> None:
        if redirects not in ("resolve", "drop"):
            raise DataError(f"redirects is {redirects!r}; it must be 'resolve' or 'drop'.")
        self._dump = dump = DumpFiles(folder, prefix)
        self._links, self._members = dump.open("pagelinks"), dump.open("categorylinks")
        redirect = dump.open("redirect") if redirects == "resolve" else None
        by_title = "pl_title" in self._links.columns and "cl_to" in self._members.columns
        linktarget = None if by_title else dump.open("linktarget")
        self._pages = read_pages(dump, dump.open("page"), redirect, namespace)
        self._targets = None
        if linktarget is not None:
            self._targets = read_targets(dump, linktarget, self._pages)

    @property
    def report(self) -> DumpReport:
        return self._dump.report

    @property
    def path(self) -> Path:
        """The file of links."""
        return self._links.path

    @property
    def size(self) -> int:
        return len(self._pages.article)

    def codes(self) -> Iterator[Places]:
        """Yield `source * size + target` of each link between two articles, int64, block by block
        in the order of the file, perhaps several times."""
        report, table, size = self.report, self._links, self.size
        titles = "pl_title" in table.columns
        columns = ("pl_namespace", "pl_title") if titles else ("pl_target_id",)
        for block in self._dump.blocks(table, "pl_from", *columns):
            source = self._pages.articles(block["pl_from"])
            report.links_not_from_articles += int((source < 0).sum())
            block = {name: values.filter(pa.array(source >= 0)) for name, values in block.items()}
            source = source[source >= 0]
            target = self._targets_of(block)
            end = at(self._pages.article, target, MISSING)
            report.links_to_other_namespaces += int((target == OUTSIDE).sum())
            report.links_to_missing_pages += int((target == MISSING).sum())
            report.links_to_unknown_targets += int((target == UNKNOWN).sum())
            report.links_to_dead_redirects += int(((target >= 0) & (end < 0)).sum())
            report.self_links += int((source == end).sum())
            good = (end >= 0) & (source != end)
            yield source[good] * size + end[good]

    def count(self, links: int, distinct: int) -> None:
        """Note in the report how many links `codes` gave, and how many of them are distinct.

        Raises: DataError: there is none.
        """
        if not links:
            raise self._dump.refuse(
                self._links,
                f"links no two pages of namespace {self._pages.namespace}; give page and pagelinks "
                "of one wiki and date, and a namespace that has links.",
            )
        self.report.links, self.report.repeated_links = distinct, links - distinct

    def ids(self, places: Places) -> pa.Array:
        """Return the page ids of articles, int64."""
        return self._pages.ids.keys.take(places)

    def features(self, linked: Places, min_pages: int = 1) -> pa.Table:
        """Return the features of articles, see `page_features`.

        Args:
            linked: places of the articles that have a link, ascending.
        """
        self.report.pages_without_links = self.report.pages - len(linked)
        entity, categories = _read_categories(
            self._dump, self._members, self._pages, self._targets, linked
        )
        titles = self._pages.titles.keys.take(linked)
        return page_features(self.ids(linked), titles, entity, categories, min_pages)

    def _targets_of(self, block: dict[str, pa.Array]) -> Places:
        """Return the pages that links lead to: places, MISSING, OUTSIDE or UNKNOWN."""
        if "pl_title" in block or self._targets is None:
            return self._pages.by_title(block["pl_namespace"], block["pl_title"])
        place = self._targets.ids.places(block["pl_target_id"])
        return at(self._targets.pages, place, UNKNOWN)


def _read_categories(
    dump: DumpFiles, table: SqlTable, pages: Pages, targets: Targets | None, linked: Places
) -> tuple[Places, pa.Array]:
    """Return memberships: places in `linked` (places of articles), and names of categories."""
    number = np.full(len(pages.article), MISSING)
    number[linked] = np.arange(len(linked))
    report = dump.report
    entities, names = [np.empty(0, np.int64)], [pa.array([], pa.string()).dictionary_encode()]
    column = "cl_to" if "cl_to" in table.columns else "cl_target_id"
    for block in dump.blocks(table, "cl_from", column):
        entity = at(number, pages.articles(block["cl_from"]), MISSING)
        report.categories_not_of_articles += int((entity < 0).sum())
        category = block[column].filter(pa.array(entity >= 0))
        entity = entity[entity >= 0]
        if targets is not None and column == "cl_target_id":
            place = targets.category_ids.places(category)
            category = targets.categories.take(pa.array(place, mask=place < 0))
        known = pc.is_valid(category)
        entity = entity[known.to_numpy(zero_copy_only=False)]
        report.categories_unknown += len(known) - len(entity)
        report.categories += len(entity)
        entities.append(entity)
        spaced = pc.replace_substring(category.filter(known), "_", " ")
        names.append(spaced.dictionary_encode())
    together = pa.chunked_array(names).unify_dictionaries().combine_chunks()
    return np.concatenate(entities), together
