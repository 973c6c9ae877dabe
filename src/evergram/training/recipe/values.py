"""The values of a recipe before they are checked: which were written, overrides, whole paths."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from evergram.data.data_sets import whole_path
from evergram.errors import RecipeError

# The keys that are paths, by table.
_PATHS = {
    "data": ("path", "metadata", "test", "query_features", "candidate_features"),
    "task": ("query_measure", "candidate_measure"),
    "prior": ("query", "candidate"),
}


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same tables, to be changed without changing what was given."""
    return {k: dict(v) if isinstance(v, dict) else v for k, v in values.items()}


def overridden(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The values with each `key.path=value` set; a path in one is relative to where the process
    stands. Raises: RecipeError: one is not of that form."""
    chosen = copied(values)
    for override in overrides:
        _set(chosen, override)
    if overrides:
        resolve_paths(chosen, Path.cwd())
    return chosen


def override_keys(overrides: Sequence[str]) -> set[str]:
    """The keys that overrides set, "table.key" each."""
    return {
        f"{name}.{key}"
        for override in overrides
        for name, table in overridden({}, [override]).items()
        for key in (table if isinstance(table, dict) else ())
    }


def written_keys(values: Mapping[str, Any], model: type[BaseModel]) -> set[str]:
    """The keys of all tables, "table.key" each.

    A table in which no key is lacking was written by `model_dump`, not by a person, if [data] was,
    in which nobody writes them all; its keys are left out.

    Args:
        model: whose fields are the tables.
    """
    tables = {name: table for name, table in values.items() if isinstance(table, dict)}
    every = {name: set(_keys_of(model, name)) for name in tables}
    dumped = "data" in tables and every["data"] <= set(tables["data"])
    return {
        f"{name}.{key}"
        for name, table in tables.items()
        for key in table
        if not (dumped and every[name] <= set(table))
    }


def resolve_paths(values: dict[str, Any], folder: Path) -> None:
    """Make the paths absolute: relative ones from `folder`, and `$EVERGRAM_DATA/…` ones."""
    for name, keys in _PATHS.items():
        table = values.get(name)
        if not isinstance(table, dict):
            continue
        for key in keys:
            if isinstance(table.get(key), str):
                table[key] = str(whole_path(table[key], folder))
            elif isinstance(table.get(key), list):
                table[key] = [
                    str(whole_path(v, folder)) if isinstance(v, str) else v for v in table[key]
                ]


def _keys_of(model: type[BaseModel], table: str) -> Sequence[str]:
    kind = model.model_fields[table].annotation
    assert isinstance(kind, type)
    assert issubclass(kind, BaseModel)
    return list(kind.model_fields)


def _set(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise RecipeError(f"--set {override!r} is not of the form key.path=value.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    table = values
    for name in names[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise RecipeError(f"--set {override!r}: {name} is a value, not a table.")
    table[names[-1]] = value
