"""Examples in docstrings as code: mkdocstrings takes `>>>` for a quotation."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import griffe


class FencedExamples(griffe.Extension):
    """Puts each run of `>>>` lines, with the output below it, between fences."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return a docstring whose examples, up to the next empty line, are fenced."""
    return "\n".join(_lines(textwrap.dedent(text)))


def _lines(text: str) -> Iterator[str]:
    inside: str | None = None  # the indentation of the example that is open
    for line in text.splitlines():
        if inside is None and line.lstrip().startswith(">>> "):
            inside = line[: len(line) - len(line.lstrip())]
            yield f"{inside}```pycon"
        elif inside is not None and not line.strip():
            yield f"{inside}```"
            inside = None
        yield line
    if inside is not None:
        yield f"{inside}```"
