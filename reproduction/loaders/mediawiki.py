"""Wikipedia's graph of links, from the SQL dumps of any wiki that MediaWiki serves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evergram.data.corpus import Corpus, Vocabulary
from evergram.errors import DataError
from reproduction.loaders.page_features import distinct, page_features
from reproduction.loaders.sql_dump import SqlTable, TableReport

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
        dead_redirects: those that lead to no article.
        links: interactions of the corpus.
        links_not_from_articles: links from another namespace, a redirect or an unknown page.
        links_to_other_namespaces: links out of the namespace.
        links_to_missing_pages: links to titles without a page ("red links").
        links_to_dead_redirects: links to redirects that lead to no article.
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
    """The files of the one dump in a folder, and the report that grows as they are read."""

    def __init__(self, folder: Path) -> None:
        names = [re.fullmatch(r"(.+)-page\.sql(\.gz)?", path.name) for path in folder.glob("*")]
        prefixes = sorted({name[1] for name in names if name})
        if len(prefixes) != 1:
            has = (
                "the dumps " + ", ".join(prefixes) if prefixes else "no file *-page.sql or .sql.gz"
            )
            raise DataError(f"{folder} has {has}; put the files of one dump there.")
        self.start: Path = folder / prefixes[0]
        self.report: DumpReport = DumpReport()

    def open(self, name: str) -> SqlTable:
        """Open a table. Raises: DataError: there is no such file, or it is not a dump of it."""
        for suffix in (".sql", ".sql.gz"):
            path = self.start.with_name(f"{self.start.name}-{name}{suffix}")
            if path.is_file():
                return SqlTable(path, name)
        raise DataError(
            f"There is no file {self.start}-{name}.sql or {self.start.name}-{name}.sql.gz; fetch "
            "it from where the others come from."
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


ARTICLES, CATEGORIES = 0, 14  # namespaces
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
    """Pages of the namespace of articles.

    `article[i]` is the place of the article that page i leads to: its own, for a redirect that of
    the end of its chain, or MISSING.
    """

    ids: Keys
    titles: Keys
    is_redirect: NDArray[np.bool_]
    article: Places

    def by_title(self, namespaces: pa.Array, titles: pa.Array) -> Places:
        """Return the pages of these names: a place, MISSING or OUTSIDE."""
        inside = _numbers(namespaces) == ARTICLES
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


def read_pages(dump: DumpFiles, table: SqlTable, redirect: SqlTable) -> Pages:
    columns = ("page_id", "page_title", "page_is_redirect", "page_namespace")
    kept: list[pa.RecordBatch] = []
    namespaces: set[int] = set()
    for block in dump.blocks(table, *columns):
        namespaces.update(pc.unique(block["page_namespace"]).to_pylist())
        inside = pc.equal(block["page_namespace"], ARTICLES)
        kept.append(pa.record_batch({c: block[c] for c in columns[:3]}).filter(inside))
    if ARTICLES not in namespaces:
        has = ", ".join(map(str, sorted(namespaces)))
        do = f"it has pages of {has}" if has else "no row of it could be read, so fetch it again"
        raise dump.refuse(table, f"has no page of namespace {ARTICLES}; {do}.")
    read = together(kept)
    first = _first(read["page_id"]) & _first(read["page_title"])
    dump.report.repeated_pages = len(first) - int(first.sum())
    read = {name: values.filter(pa.array(first)) for name, values in read.items()}
    is_redirect = _numbers(read["page_is_redirect"]) == 1
    article = np.where(is_redirect, MISSING, np.arange(len(is_redirect)))
    pages = Pages(Keys(read["page_id"]), Keys(read["page_title"]), is_redirect, article)
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


def _links(
    dump: DumpFiles, table: SqlTable, pages: Pages, targets: Targets | None
) -> Iterator[Places]:
    """Yield `source * N + target` of each link between two of N pages, int64, block by block in
    the order of the file, perhaps several times."""
    report = dump.report
    titles = "pl_title" in table.columns
    columns = ("pl_namespace", "pl_title") if titles else ("pl_target_id",)
    for block in dump.blocks(table, "pl_from", *columns):
        source = pages.articles(block["pl_from"])
        report.links_not_from_articles += int((source < 0).sum())
        block = {name: values.filter(pa.array(source >= 0)) for name, values in block.items()}
        source = source[source >= 0]
        if titles or targets is None:
            target = pages.by_title(block["pl_namespace"], block["pl_title"])
        else:
            target = at(targets.pages, targets.ids.places(block["pl_target_id"]), UNKNOWN)
        end = at(pages.article, target, MISSING)
        report.links_to_other_namespaces += int((target == OUTSIDE).sum())
        report.links_to_missing_pages += int((target == MISSING).sum())
        report.links_to_unknown_targets += int((target == UNKNOWN).sum())
        report.links_to_dead_redirects += int(((target >= 0) & (end < 0)).sum())
        report.self_links += int((source == end).sum())
        good = (end >= 0) & (source != end)
        yield source[good] * len(pages.article) + end[good]


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


def load_mediawiki(folder: Path) -> tuple[Corpus, DumpReport]:
    """Return the corpus of [G1] section 4.1, articles that link to articles, and a report.

    Articles are queries and candidates under one vocabulary of their page ids (int64). A redirect
    is no article: the paper counts 5.3M pages in English, which are its articles alone. Of links
    through redirects the paper says nothing; here they count as links to the article in the end,
    and the redirects' own links not at all. The paper's target is 1 or 0, so a pair comes once.
    Features, the same on both sides: `title` (see title_ngrams) and `category` (names, with
    blanks). An article without a link, to it or from it, is left out.

    Args:
        folder: with the files `<prefix>-page.sql`, `-pagelinks.sql`, `-categorylinks.sql`,
            `-redirect.sql` and, where links are by target id, `-linktarget.sql` of one dump, such
            as https://dumps.wikimedia.org/simplewiki/; each perhaps `.gz`, in today's schema or an
            older one.
    Returns: the corpus, with interactions in order of the page dump, and the report of rows left
        out: malformed rows do not stop the loading, so read `report.warnings()`.
    Raises: DataError: a file or a column is missing, a gzip is cut or damaged, or no page or no
        link is left.
    """
    dump = DumpFiles(folder)
    links, members, redirect = (dump.open(n) for n in ("pagelinks", "categorylinks", "redirect"))
    by_title = "pl_title" in links.columns and "cl_to" in members.columns
    linktarget = None if by_title else dump.open("linktarget")
    pages = read_pages(dump, dump.open("page"), redirect)
    targets = None if linktarget is None else read_targets(dump, linktarget, pages)
    codes = np.concatenate([np.empty(0, np.int64), *_links(dump, links, pages, targets)])
    pairs, report = distinct(codes), dump.report
    if not len(pairs):
        raise dump.refuse(
            links,
            f"links no two pages of namespace {ARTICLES}; give page and pagelinks of one wiki and "
            "date.",
        )
    report.links, report.repeated_links = len(pairs), len(codes) - len(pairs)
    source, target = np.divmod(pairs, len(pages.article))
    del codes, pairs  # links are most of what a dump takes in memory
    linked = np.unique(np.concatenate([source, target]))
    report.pages_without_links = report.pages - len(linked)
    entity, categories = _read_categories(dump, members, pages, targets, linked)
    ids, titles = pages.ids.keys, pages.titles.keys.take(linked)
    features = page_features(ids.take(linked), titles, entity, categories)
    table = pa.table({"query": ids.take(source), "candidate": ids.take(target)})
    corpus = Corpus.from_tables(table, features, features, shared_ids=True, source=str(links.path))
    return corpus, report
