"""Write a recipe with the best values as a TOML file that `evergram train` takes."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evergram.atomic_files import write_text
from evergram.errors import RecipeError
from evergram.training.recipe import Recipe
from evergram.training.recipe.values import copied, overridden, resolve_paths

FIRST_LINE = "# Written by evergram tune: the comments of {} are not kept, its paths are absolute."


def write_best(path: Path, source: Path, overrides: Sequence[str]) -> None:
    """Write the recipe in `source` with overrides set in it; comments are lost, paths absolute.

    Raises: RecipeError: the file that was written would not be the same recipe; it is not kept.
    """
    values = copied(tomllib.loads(source.read_text()))
    resolve_paths(values, source.parent)
    wanted = Recipe.load(source, overrides)
    values = wanted.written_of(overridden(values, overrides))
    text = f"{FIRST_LINE.format(source.name)}\n{toml_of(values)}"
    if Recipe.of(tomllib.loads(text), source=str(path)) != wanted:
        raise RecipeError(f"The best values cannot be written to {path} as a recipe.")
    write_text(path, text.rstrip("\n"))


def toml_of(tables: Mapping[str, Any]) -> str:
    """Return tables, with keys before them, as TOML."""
    plain = {k: v for k, v in tables.items() if not isinstance(v, dict)}
    lines = [f"{_key(k)} = {toml_value(v)}" for k, v in plain.items()]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += [
                "",
                f"[{_key(name)}]",
                *(f"{_key(k)} = {toml_value(v)}" for k, v in table.items()),
            ]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "_").isidentifier()
    return name if bare else toml_value(name)


def toml_value(value: Any) -> str:
    """Return a value of a key as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):
        # DEL is the one character that JSON leaves as it is and TOML does not allow.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, (int, float)) else str(value)
