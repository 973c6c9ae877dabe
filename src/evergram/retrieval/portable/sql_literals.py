"""Rows of a map as literals of SQL, one line each."""

from __future__ import annotations

from collections.abc import Iterator

from evergram.retrieval.portable.affine_map import AffineMap


def literal_rows(way: AffineMap) -> Iterator[tuple[int, str, str]]:
    """Yield each coordinate's number from 1, its row of W as "[…]", and its offset.

    The numbers are those that read back as the same float32.
    """
    for number, (row, offset) in enumerate(zip(way.weight, way.offset, strict=True), 1):
        yield number, f"[{','.join(map(_number, row))}]", _number(offset)


def comment(way: AffineMap) -> str:
    """Return what the file is, as lines of comments, whatever the lineage is called."""
    about = " ".join(way.about.split()).rstrip(".")
    return "\n".join(f"-- {sentence}." for sentence in about.split(". "))


def _number(value: object) -> str:
    return str(value)
