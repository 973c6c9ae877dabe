"""Write the report: Markdown, HTML and the pictures of the Markdown."""

from __future__ import annotations

from pathlib import Path

from reproduction.report import html, markdown
from reproduction.report.content import content
from reproduction.results import write_text


def write_report(results: Path, folder: Path) -> list[Path]:
    """Write `reproduction.md`, `reproduction.html` and `reproduction/*.svg` into a folder.

    Args:
        results: the folder of results that it is made of.
    Returns: the paths, the page first. Raises: DataError: a result cannot be read.
    """
    made = content(results)
    files = {"reproduction.md": markdown.page(made), "reproduction.html": html.page(made)}
    for section in made.sections:
        if section.svg:
            files[f"reproduction/{markdown.picture_name(section)}"] = section.svg
    for name, text in files.items():
        write_text(folder / name, text.rstrip("\n"))
    return [folder / name for name in files]
