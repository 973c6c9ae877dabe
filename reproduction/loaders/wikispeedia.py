"""A loader for Wikispeedia, SNAP's links between the articles of Wikipedia for Schools, 2007."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evergram.data.corpus import Corpus, Vocabulary
from evergram.data.reading.files import DAMAGED, SourceFile, TableStream, unpacked
from evergram.errors import DataError


def load_wikispeedia(folder: Path) -> Corpus:
    """Load articles as queries and candidates, with a shared vocabulary of names, and links as
    pairs.

    Names are percent-decoded and keep their underscores. Both sides have the features `title` (see
    `page_features`) and `category` (the whole path, such as "subject.Science.Physics"). Articles
    without links are left out.

    Args:
        folder: contains `links.tsv`, `articles.tsv` and `categories.tsv`, optionally gzipped
            (`.gz`); lines that start with # are comments.
    Raises: DataError: a file is missing or damaged, or a row has wrong columns or an article that
        is missing in articles.tsv; the error gives the row.
    Source: West, Pineau and Precup, "Wikispeedia", IJCAI 2009.
    """
    articles, _ = _read(folder, "articles", ["name"])
    names = Vocabulary(pc.unique(articles["name"]))

    def known(column: pa.Array, source: str) -> pa.Array:
        lost = pc.index(pa.array(names.rows(column).numpy()), -1).as_py()
        if lost >= 0:
            raise DataError(
                f"{source} row {lost + 1}: {column[lost].as_py()!r} is not in articles.tsv; add it "
                "there or remove the row."
            )
        return column

    links, source = _read(folder, "links", ["query", "candidate"])
    for column in links.values():
        known(column, source)
    categories, where = _read(folder, "categories", ["name", "category"])
    entity = names.rows(known(categories["name"], where)).numpy().astype(np.int64)
    features = page_features(names.keys, entity, categories["category"])
    return Corpus.of(
        pa.table(links), query_features=features, candidate_features=features, shared_ids=True
    )


def _read(folder: Path, stem: str, columns: list[str]) -> tuple[dict[str, pa.Array], str]:
    """Return the decoded columns of one file, without comments, and its path."""
    paths = [folder / f"{stem}.tsv", folder / f"{stem}.tsv.gz"]
    path = next((p for p in paths if p.is_file()), None)
    if path is None:
        raise DataError(f"{folder} has no {stem}.tsv or {stem}.tsv.gz; is it Wikispeedia?")
    try:
        with unpacked(path) as file:
            content = file.read()
    except DAMAGED as error:
        raise DataError(f"{path} cannot be read: {error}; fetch it again.") from error
    lines = [line for line in content.splitlines() if line.strip() and not line.startswith(b"#")]
    if not lines:
        raise DataError(f"{path} has no rows.")
    content = b"\n".join(["\t".join(columns).encode(), *lines]) + b"\n"
    stream = TableStream(SourceFile(str(path), f"{stem}.tsv", content=content))
    table = pa.Table.from_batches(list(stream.batches(columns)))
    decoded = {}
    for name in columns:
        encoded = table[name].combine_chunks().dictionary_encode()
        try:
            plain = [unquote(v, errors="strict") for v in encoded.dictionary.to_pylist()]
        except UnicodeDecodeError as error:
            text = error.object.decode("latin-1")
            raise DataError(f"{path}: a name decodes to {text!r}, which is not UTF-8.") from error
        decoded[name] = pa.array(plain, pa.string()).take(encoded.indices)
    return decoded, str(path)


def page_features(titles: pa.Array, entity: NDArray[np.int64], categories: pa.Array) -> pa.Table:
    """Return the features of [G1] section 4.1: ids (titles), the words and bigrams of the title,
    and the categories, as lists of distinct strings.

    The paper says "a bag-of-words representation of the set of n-grams of the page's title" without
    their length; here n is 1 and 2. A word is a run of letters, marks and digits of any script, in
    lower case (a phrase, in scripts without spaces between words).

    Args:
        titles: strings, [N]; underscores stand for spaces.
        entity, categories: page `entity[k]` (an index into `titles`) is in `categories[k]`.
    """
    spaced = pc.replace_substring_regex(pc.utf8_lower(titles), r"[^\pL\pM\pN]+", " ")
    words = pc.split_pattern(pc.utf8_trim(spaced, " "), " ")
    page = pc.list_parent_indices(words).to_numpy().astype(np.int64)
    flat = pc.list_flatten(words)
    some = pc.not_equal(flat, "")  # splitting a title without words gives one empty string
    flat, page = flat.filter(some), page[some.to_numpy(zero_copy_only=False)]
    neighbours = page[:-1] == page[1:]
    pairs = pc.binary_join_element_wise(flat[:-1], flat[1:], " ").filter(pa.array(neighbours))
    pages, ngrams = np.concatenate([page, page[:-1][neighbours]]), pa.concat_arrays([flat, pairs])
    count = len(titles)
    columns = (titles, _bags(pages, ngrams, count), _bags(entity, categories, count))
    return pa.table(dict(zip(("id", "title", "category"), columns, strict=True)))


def _bags(entity: NDArray[np.int64], keys: pa.Array, count: int) -> pa.ListArray:
    """Return a list of distinct keys per entity, [count], ordered by their first appearance."""
    encoded = keys if pa.types.is_dictionary(keys.type) else keys.dictionary_encode()
    names = encoded.dictionary
    size = max(len(names), 1)
    codes = encoded.indices.to_numpy().astype(np.int64)
    entity, codes = np.divmod(np.unique(entity * size + codes), size)
    offsets = np.searchsorted(entity, np.arange(count + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(codes)))
