"""Wikipedia's graph of links, from the SQL dumps of any wiki that MediaWiki serves."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from evergram.data.corpus import Corpus
from evergram.data.wikipedia.dump_files import DumpReport
from evergram.data.wikipedia.dump_links import DumpLinks
from evergram.data.wikipedia.page_features import distinct


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
    dump = DumpLinks(folder, prefix, namespace=namespace, redirects=redirects)
    codes = np.concatenate([np.empty(0, np.int64), *dump.codes()])
    pairs = distinct(codes)
    dump.count(len(codes), len(pairs))
    source, target = pairs // dump.size, pairs % dump.size
    del codes, pairs  # links are most of what a dump takes in memory
    features = dump.features(np.unique(np.concatenate([source, target])), min_pages)
    table = pa.table({"query": dump.ids(source), "candidate": dump.ids(target)})
    corpus = Corpus.from_tables(table, features, features, shared_ids=True, source=str(dump.path))
    return corpus, dump.report
