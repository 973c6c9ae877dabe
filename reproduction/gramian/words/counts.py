"""How often words are near each other."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evergram.errors import DataError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
# Cells of a block of rows of the matrix of counts, which is never held whole: 128 MiB.
CELLS = 1 << 24
# Places in the text whose windows are counted at once.
PLACES = 1 << 20


@dataclass(frozen=True)
class Counts:
    """A vocabulary, and the pairs of its words that are near each other.

    Args:
        words: V words, the most frequent first.
        frequency: int64 [V], how often each is in the text.
        query, candidate: int64 [P], rows of words and of their context words, ordered by both; the
            pairs of two words are there in both orders.
        count: float64 [P], how often the pair is in a window, nearer words counting more.
        tokens: words of the text, those outside the vocabulary too.
    """

    words: tuple[str, ...]
    frequency: Ints
    query: Ints
    candidate: Ints
    count: Floats
    tokens: int


def count_words(paragraphs: Iterable[list[str]], *, vocabulary: int, window: int) -> Counts:
    """Return the counts of the pairs of words at most `window` words apart in one paragraph.

    A pair at distance d counts (window + 1 − d) / window, which is how often word2vec, that draws
    each window's size uniformly, would meet it. Words outside the vocabulary keep their places.

    Args:
        paragraphs: words, in order; windows end with them.
        vocabulary: V, how many of the most frequent words are kept; ties by first appearance.
        window: words to either side.
    Raises: DataError: there is no word, or no two of the vocabulary are near each other.
    """
    numbers: dict[str, int] = {}
    text, lengths = array("i"), array("i")
    for paragraph in paragraphs:
        lengths.append(len(paragraph))
        text.extend(numbers.setdefault(word, len(numbers)) for word in paragraph)
    if not text:
        raise DataError("The text has no word.")
    token = np.frombuffer(text, dtype=np.int32)
    frequency = np.bincount(token, minlength=len(numbers))
    order = np.argsort(-frequency, kind="stable")[:vocabulary]
    size = len(order)
    row = np.full(len(numbers), size, dtype=np.int32)  # the last stands for all other words
    row[order] = np.arange(size, dtype=np.int32)
    paragraph_of = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    query, candidate, count = _windows(row[token], paragraph_of, size, window)
    if not len(query):
        raise DataError("The text has no two words of the vocabulary near each other.")
    names = list(numbers)
    words = tuple(names[i] for i in order)
    return Counts(words, frequency[order], query, candidate, count / window, len(token))


def _windows(
    row: npt.NDArray[np.int32], paragraph: npt.NDArray[np.int32], size: int, window: int
) -> tuple[Ints, Ints, Floats]:
    """Return the pairs with their counts, of which a pair of neighbours is `window`.

    Args:
        row: of each word of the text; `size` for one outside the vocabulary.
        paragraph: of each word of the text.
    """
    places = np.argsort(row, kind="stable")
    first = np.searchsorted(row[places], np.arange(size + 1))
    rows = max(1, CELLS // max(1, size))
    parts = []
    for start in range(0, size, rows):
        end = min(start + rows, size)
        cells = np.zeros((end - start) * size)
        for at in range(first[start], first[end], PLACES):
            here = places[at : min(at + PLACES, first[end])]
            _add_windows(cells, here, row, paragraph, (start, size, window))
        cell = np.flatnonzero(cells)
        parts.append((cell // size + start, cell % size, cells[cell]))
    query, candidate, count = (np.concatenate(part) for part in zip(*parts, strict=True))
    return query, candidate, count


def _add_windows(
    cells: Floats,
    here: Ints,
    row: npt.NDArray[np.int32],
    paragraph: npt.NDArray[np.int32],
    block: tuple[int, int, int],
) -> None:
    """Count the windows around some places into `cells`.

    Args:
        cells: float64 [rows of the block × V], changed in place.
        here: places in the text, of words of the block.
        row, paragraph: of each word of the text.
        block: its first row, V, and the window.
    """
    start, size, window = block
    for distance in range(1, window + 1):
        for other in (here - distance, here + distance):
            inside = (other >= 0) & (other < len(row))
            near, word = other[inside], here[inside]
            kept = (paragraph[near] == paragraph[word]) & (row[near] < size)
            near, word = near[kept], word[kept]
            cell = (row[word].astype(np.int64) - start) * size + row[near]
            np.add.at(cells, cell, float(window + 1 - distance))
