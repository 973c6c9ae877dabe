"""The pages of a MediaWiki dump, the articles that redirects lead to, and the targets of links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evergram.data.columnar.vocabulary import Vocabulary
from evergram.data.wikipedia.dump_files import DumpFiles, together
from evergram.data.wikipedia.sql_dump import SqlTable

CATEGORIES = 14  # the namespace of category pages
MISSING, OUTSIDE, UNKNOWN = -1, -2, -3  # in place of the row of a page

Places = NDArray[np.int64]


@dataclass
class Keys:
    """Distinct keys, and for whole numbers an order to find them in without a hash table."""

    keys: pa.Array

    def __post_init__(self) -> None:
        if not pa.types.is_string(self.keys.type):
            numbers = self.keys.to_numpy()
            self.order: NDArray[np.intp] = np.argsort(numbers, kind="stable")
            self.sorted: NDArray[np.int64] = numbers[self.order]

    def places(self, asked: pa.Array) -> Places:
        """Return the place of each among the keys; -1 for one that is no key."""
        if pa.types.is_string(self.keys.type):
            return Vocabulary(self.keys).rows(asked).numpy()
        if not len(self.sorted):
            return np.full(len(asked), -1, np.int64)
        numbers = _numbers(asked)
        near = np.minimum(np.searchsorted(self.sorted, numbers), len(self.sorted) - 1)
        return np.where(self.sorted[near] == numbers, self.order[near], -1)


@dataclass
class Pages:
    """Pages of the namespace.

    `article[i]` is the place of the article that page i leads to: its own, for a redirect that of
    the end of its chain, or MISSING.
    """

    namespace: int
    ids: Keys
    titles: Keys
    is_redirect: NDArray[np.bool_]
    article: Places

    def by_title(self, namespaces: pa.Array, titles: pa.Array) -> Places:
        """Return the pages of these names: a place, MISSING or OUTSIDE."""
        inside = _numbers(namespaces) == self.namespace
        return np.where(inside, self.titles.places(titles), OUTSIDE)

    def articles(self, ids: pa.Array) -> Places:
        """Return the articles of these ids; MISSING for a redirect and an unknown page."""
        places = self.ids.places(ids)
        return np.where((places >= 0) & ~self.is_redirect[places], places, MISSING)


@dataclass
class Targets:
    """The targets of linktarget's ids: `pages[k]` for id k of `ids`, and names of categories."""

    ids: Keys
    pages: Places
    category_ids: Keys
    categories: pa.Array


def read_pages(
    dump: DumpFiles, table: SqlTable, redirect: SqlTable | None, namespace: int
) -> Pages:
    columns = ("page_id", "page_title", "page_is_redirect", "page_namespace")
    kept: list[pa.RecordBatch] = []
    namespaces: set[int] = set()
    for block in dump.blocks(table, *columns):
        namespaces.update(pc.unique(block["page_namespace"]).to_pylist())
        inside = pc.equal(block["page_namespace"], namespace)
        kept.append(pa.record_batch({c: block[c] for c in columns[:3]}).filter(inside))
    if namespace not in namespaces:
        has = ", ".join(map(str, sorted(namespaces)))
        do = f"it has pages of {has}" if has else "no row of it could be read, so fetch it again"
        raise dump.refuse(table, f"has no page of namespace {namespace}; {do}.")
    read = together(kept)
    first = _first(read["page_id"]) & _first(read["page_title"])
    dump.report.repeated_pages = len(first) - int(first.sum())
    read = {name: values.filter(pa.array(first)) for name, values in read.items()}
    is_redirect = _numbers(read["page_is_redirect"]) == 1
    article = np.where(is_redirect, MISSING, np.arange(len(is_redirect)))
    pages = Pages(namespace, Keys(read["page_id"]), Keys(read["page_title"]), is_redirect, article)
    if redirect is not None:
        _follow(dump, redirect, pages)
    report = dump.report
    report.redirects = int(is_redirect.sum())
    report.pages = len(article) - report.redirects
    report.dead_redirects = int((article == MISSING).sum())
    return pages


def _follow(dump: DumpFiles, table: SqlTable, pages: Pages) -> None:
    """Write into `pages.article` the articles that redirects lead to."""
    wiki = ("rd_interwiki",) if "rd_interwiki" in table.columns else ()
    for block in dump.blocks(table, "rd_from", "rd_namespace", "rd_title", *wiki):
        origin = pages.ids.places(block["rd_from"])
        target = pages.by_title(block["rd_namespace"], block["rd_title"])
        leads = (origin >= 0) & (target >= 0) & pages.is_redirect[origin]
        for name in wiki:  # a redirect to another wiki names that wiki, and a title of its own
            here = pc.fill_null(pc.equal(block[name], ""), True)
            leads &= here.to_numpy(zero_copy_only=False)
        pages.article[origin[leads]] = target[leads]
    for _ in range(6):  # each round doubles the length of chains that are followed, up to 64
        known = pages.article >= 0
        pages.article[known] = pages.article[pages.article[known]]
    loops = (pages.article >= 0) & pages.is_redirect[pages.article]
    pages.article[loops] = MISSING


def read_targets(dump: DumpFiles, table: SqlTable, pages: Pages) -> Targets:
    ids, places, category_ids, categories = [], [], [], []
    for block in dump.blocks(table, "lt_id", "lt_namespace", "lt_title"):
        ids.append(block["lt_id"])
        places.append(pages.by_title(block["lt_namespace"], block["lt_title"]))
        inside = pc.equal(block["lt_namespace"], CATEGORIES)
        category_ids.append(block["lt_id"].filter(inside))
        categories.append(block["lt_title"].filter(inside))
    if not sum(map(len, ids)):
        raise dump.refuse(
            table, "gave no row, and pagelinks or categorylinks needs them; fetch it again."
        )
    return Targets(
        Keys(pa.concat_arrays(ids)),
        np.concatenate(places),
        Keys(pa.concat_arrays(category_ids)),
        pa.concat_arrays(categories),
    )


def at(values: Places, places: Places, otherwise: int) -> Places:
    """Return the values at those places; `otherwise` for a negative place, which is none."""
    taken: Places = np.where(places >= 0, values[np.maximum(places, 0)], otherwise)
    return taken


def _first(values: pa.Array) -> NDArray[np.bool_]:
    """Return which values do not stand earlier in the array."""
    first = np.zeros(len(values), np.bool_)
    first[np.unique(values.dictionary_encode().indices.to_numpy(), return_index=True)[1]] = True
    return first


def _numbers(values: pa.Array) -> Places:
    """Return int64 numbers; a null is -1, which is no id and no namespace of pages."""
    numbers: Places = pc.fill_null(values, -1).to_numpy(zero_copy_only=False)
    return numbers
