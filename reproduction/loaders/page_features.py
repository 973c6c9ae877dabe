"""Features of pages: the n-grams of their titles, and their categories."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def page_features(
    ids: pa.Array,
    titles: pa.Array,
    entity: NDArray[np.int64],
    categories: pa.Array,
) -> pa.Table:
    """Return the features of [G1] section 4.1, for either side of `Corpus.from_tables`.

    Args:
        ids: the page's ids, [N].
        titles: strings, [N].
        entity, categories: page `entity[k]` (a place in `ids`) is in category `categories[k]`.
    Returns: columns `id`, `title` (see title_ngrams) and `category`, both lists of distinct
        strings.
    """
    return pa.table(
        {
            "id": ids,
            "title": title_ngrams(titles),
            "category": _bags(entity, categories, len(ids)),
        }
    )


def title_ngrams(titles: pa.Array) -> pa.ListArray:
    """Return the set of words, and of pairs of neighbouring words, of each title.

    The paper says "a bag-of-words representation of the set of n-grams of the page's title" and
    not how long they are; these are n = 1 and 2. A word is a run of letters, marks and digits of
    any script, in lower case; where a script puts no blanks between words that is a phrase.

    Args:
        titles: strings, [N]; underscores stand for blanks.
    Returns: lists of distinct strings, [N].
    """
    spaced = pc.replace_substring_regex(pc.utf8_lower(titles), r"[^\pL\pM\pN]+", " ")
    words = pc.split_pattern(pc.utf8_trim(spaced, " "), " ")
    entity = pc.list_parent_indices(words).to_numpy().astype(np.int64)
    flat = pc.list_flatten(words)
    some = pc.not_equal(flat, "")  # a title without a word is split into one empty string
    flat, entity = flat.filter(some), entity[some.to_numpy(zero_copy_only=False)]
    first, second = flat[:-1], flat[1:]
    neighbours = entity[:-1] == entity[1:]
    pairs = pc.binary_join_element_wise(first, second, " ").filter(pa.array(neighbours))
    return _bags(
        np.concatenate([entity, entity[:-1][neighbours]]),
        pa.concat_arrays([flat, pairs]),
        len(titles),
    )


def distinct(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct codes in order; sorts `codes` [N] in place, as they may be many."""
    codes.sort()
    new = np.ones(len(codes), np.bool_)
    new[1:] = codes[1:] != codes[:-1]
    return codes[new]


def _bags(entity: NDArray[np.int64], keys: pa.Array, count: int) -> pa.ListArray:
    """Return lists [count] of each entity's distinct keys, in order of their first appearance."""
    encoded = keys if pa.types.is_dictionary(keys.type) else keys.dictionary_encode()
    names = encoded.dictionary
    size = max(len(names), 1)
    codes = encoded.indices.to_numpy().astype(np.int64)
    entity, codes = np.divmod(distinct(entity * size + codes), size)
    offsets = np.searchsorted(entity, np.arange(count + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(codes)))
