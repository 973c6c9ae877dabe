"""Running text as paragraphs, and paragraphs as words."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from evergram.data import existing
from evergram.errors import DataError

ARTICLES = "plaintext_articles.tar.xz"
# Runs of lower-case Latin letters, with or without diacritics; all else separates words.
WORD = re.compile("[a-z\u00df-\u00f6\u00f8-\u024f]+")
BLANK = re.compile(r"\n\s*\n")
# The frame of every article: its category, which is a label, and its licence.
FRAME = ("#copyright", "Related subjects:", "Retrieved from")
# Each opens a file of its suffix to read bytes.
OPENERS: dict[str, Callable[[Path], Any]] = {
    ".txt": partial(open, mode="rb"),
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
DAMAGED = (OSError, EOFError, lzma.LZMAError, tarfile.TarError, UnicodeDecodeError)


def words_of(paragraph: str) -> list[str]:
    """Return the words of a text, lower-case, in its order."""
    return WORD.findall(paragraph.lower())


def paragraphs(folder: Path) -> Iterator[str]:
    """Yield the paragraphs of a folder of text.

    Args:
        folder: Wikispeedia's, with `plaintext_articles.tar.xz`; or one of files `*.txt`, perhaps
            `.gz`, `.bz2` or `.xz`, in UTF-8, whose lines are paragraphs.
    Raises: DataError: there is no text, or a file is damaged.
    """
    existing(folder)
    files = sorted(path for path in folder.glob("*.txt*") if path.suffix in OPENERS)
    try:
        if files:
            yield from _lines(files)
        else:
            yield from _articles(existing(folder / ARTICLES))
    except DAMAGED as error:
        raise DataError(f"The text in {folder} cannot be read: {error}; fetch it again.") from error


def running_text(article: str) -> list[str]:
    """Return the paragraphs of an article of Wikispeedia without those of its frame.

    The paragraph "Related subjects: …" is the category label.
    """
    return [part for part in BLANK.split(article) if not any(mark in part for mark in FRAME)]


def _articles(archive: Path) -> Iterator[str]:
    with tarfile.open(archive, "r:xz") as members:
        for member in members:
            file = members.extractfile(member)
            if file is not None and member.name.endswith(".txt"):
                yield from running_text(file.read().decode())


def _lines(files: list[Path]) -> Iterator[str]:
    for path in files:
        with OPENERS[path.suffix](path) as file:
            for line in file:
                yield line.decode()
