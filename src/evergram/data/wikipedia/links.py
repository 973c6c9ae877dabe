"""Wikipedia's graph of links, from the SQL dumps of any wiki that MediaWiki serves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evergram.data.columnar.vocabulary import Vocabulary
from evergram.data.corpus import Corpus
from evergram.data.wikipedia.dump_files import DumpFiles, DumpReport, together
from evergram.data.wikipedia.page_features import distinct, page_features
from evergram.data.wikipedia.sql_dump import SqlTable
from evergram.errors import DataError

CATEGORIES = 14  # the namespace of category pages
MISSING, OUTSIDE, UNKNOWN = -1, -2, -3  # in place of the row of a page

Places = NDArray[np.int64]


def load_mediawiki(
    folder: Path,
    prefix: str | None = None,
    *,
    namespace: int = 0,
    redirects: Literal["resolve", "drop"] = "resolve",
    min_pages: int = 1,
) -> tuple[Corpus, DumpReport]:
    """Return the corpus of [G1] section 4.1, articles that link to articles, and a report.

    Articles are queries and candidates under one vocabulary of their page ids (int64). A redirect
    is no article: the paper counts 5.3M pages in English, which are its articles alone. Of links
    through redirects the paper says nothing; here they count as links to the article in the end,
    and the redirects' own links not at all. The paper's target is 1 or 0, so a pair comes once.
    Features, the same on both sides: `title` (see title_ngrams) and `category` (names, with
    blanks). An article without a link, to it or from it, is left out.

    Args:
        folder: with `<prefix>-page.sql`, `-pagelinks.sql`, `-categorylinks.sql`, where redirects
            are resolved `-redirect.sql`, and where links are by target id `-linktarget.sql`; each
            perhaps `.gz`, in today's schema or an older one.
        prefix: such as "simplewiki-20260901"; may be left out where the folder has one dump.
        namespace: of the pages; 0 holds the articles.
        redirects: "resolve", or "drop" the links to them.
        min_pages: leave out n-grams and categories of fewer pages than this.
    Returns: the corpus, with interactions in order of the page dump, and the report of rows left
        out: malformed rows do not stop the loading, so read `report.warnings()`.
    Raises: DataError: a file or a column is missing, a gzip is cut or damaged, or no page or no
        link is left.
    """
    if redirects not in ("resolve", "drop"):
        raise DataError(f"redirects is {redirects!r}; it must be 'resolve' or 'drop'.")
    dump = DumpFiles(folder, prefix)
    links, members = dump.open("pagelinks"), dump.open("categorylinks")
    redirect = dump.open("redirect") if redirects == "resolve" else None
    by_title = "pl_title" in links.columns and "cl_to" in members.columns
    linktarget = None if by_title else dump.open("linktarget")
    pages = _read_pages(dump, dump.open("page"), redirect, namespace)
    targets = None if linktarget is None else _read_targets(dump, linktarget, pages)
    source, target = _read_links(dump, links, pages, targets)
    if not len(source):
        raise dump.refuse(
            links,
            f"links no two pages of namespace {namespace}; give page and pagelinks of one wiki and "
            "date, and a namespace that has links.",
        )
    linked = np.unique(np.concatenate([source, target]))
    dump.report.pages_without_links = dump.report.pages - len(linked)
    entity, categories = _read_categories(dump, members, pages, targets, linked)
    ids, titles = (keys.take(linked) for keys in (pages.ids.keys, pages.titles.keys))
    features = page_features(ids, titles, entity, categories, min_pages)
    pairs = {"query": pages.ids.keys.take(source), "candidate": pages.ids.keys.take(target)}
    corpus = Corpus.from_tables(
        pa.table(pairs), features, features, shared_ids=True, source=str(links.path)
    )
    return corpus, dump.report


@dataclass
class _Keys:
    """Distinct keys, and for whole numbers an order to find them in without a hash table."""

    keys: pa.Array

    def __post_init__(self) -> None:
        if not pa.types.is_string(self.keys.type):
            numbers = self.keys.to_numpy()
            self.order = np.argsort(numbers, kind="stable")
            self.sorted = numbers[self.order]

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
class _Pages:
    """Pages of the namespace.

    `article[i]` is the place of the article that page i leads to: its own, for a redirect that of
    the end of its chain, or MISSING.
    """

    namespace: int
    ids: _Keys
    titles: _Keys
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
class _Targets:
    """The targets of linktarget's ids: `pages[k]` for id k of `ids`, and names of categories."""

    ids: _Keys
    pages: Places
    category_ids: _Keys
    categories: pa.Array


def _read_pages(
    dump: DumpFiles, table: SqlTable, redirect: SqlTable | None, namespace: int
) -> _Pages:
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
    pages = _Pages(
        namespace, _Keys(read["page_id"]), _Keys(read["page_title"]), is_redirect, article
    )
    if redirect is not None:
        _follow(dump, redirect, pages)
    report = dump.report
    report.redirects = int(is_redirect.sum())
    report.pages = len(article) - report.redirects
    report.dead_redirects = int((article == MISSING).sum())
    return pages


def _follow(dump: DumpFiles, table: SqlTable, pages: _Pages) -> None:
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


def _read_targets(dump: DumpFiles, table: SqlTable, pages: _Pages) -> _Targets:
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
    return _Targets(
        _Keys(pa.concat_arrays(ids)),
        np.concatenate(places),
        _Keys(pa.concat_arrays(category_ids)),
        pa.concat_arrays(categories),
    )


def _read_links(
    dump: DumpFiles, table: SqlTable, pages: _Pages, targets: _Targets | None
) -> tuple[Places, Places]:
    """Return the places of the articles at both ends of each link, distinct and in order."""
    report, size = dump.report, len(pages.article)
    kept = []
    titles = "pl_title" in table.columns
    columns = ("pl_namespace", "pl_title") if titles else ("pl_target_id",)
    for block in dump.blocks(table, "pl_from", *columns):
        source = pages.articles(block["pl_from"])
        block = {name: values.filter(pa.array(source >= 0)) for name, values in block.items()}
        report.links_not_from_articles += int((source < 0).sum())
        source = source[source >= 0]
        if titles or targets is None:
            target = pages.by_title(block["pl_namespace"], block["pl_title"])
        else:
            place = targets.ids.places(block["pl_target_id"])
            target = _at(targets.pages, place, UNKNOWN)
        end = _at(pages.article, target, MISSING)
        report.links_to_other_namespaces += int((target == OUTSIDE).sum())
        report.links_to_missing_pages += int((target == MISSING).sum())
        report.links_to_unknown_targets += int((target == UNKNOWN).sum())
        report.links_to_dead_redirects += int(((target >= 0) & (end < 0)).sum())
        report.self_links += int((source == end).sum())
        good = (end >= 0) & (source != end)
        kept.append(source[good] * size + end[good])
    codes = np.concatenate([np.empty(0, np.int64), *kept])
    del kept  # links are most of what a dump takes in memory
    pairs = distinct(codes)
    report.links, report.repeated_links = len(pairs), len(codes) - len(pairs)
    return pairs // size, pairs % size


def _read_categories(
    dump: DumpFiles, table: SqlTable, pages: _Pages, targets: _Targets | None, linked: Places
) -> tuple[Places, pa.Array]:
    """Return memberships: places in `linked` (places of articles), and names of categories."""
    number = np.full(len(pages.article), MISSING)
    number[linked] = np.arange(len(linked))
    report = dump.report
    entities, names = [np.empty(0, np.int64)], [pa.array([], pa.string()).dictionary_encode()]
    column = "cl_to" if "cl_to" in table.columns else "cl_target_id"
    for block in dump.blocks(table, "cl_from", column):
        entity = _at(number, pages.articles(block["cl_from"]), MISSING)
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


def _at(values: Places, places: Places, otherwise: int) -> Places:
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
