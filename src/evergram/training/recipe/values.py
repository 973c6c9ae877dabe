"""The values of a recipe before they are checked: overrides, whole paths, and TOML of them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evergram.data.data_sets import whole_path
from evergram.errors import RecipeError

# The keys that are paths, by table.
_PATHS = {
    "data": ("path", "test", "query_features", "candidate_features"),
    "task": ("query_measure", "candidate_measure"),
    "prior": ("query", "candidate"),
}


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the tables, to be changed."""
    return {k: dict(v) if isinstance(v, dict) else v for k, v in values.items()}


def overridden(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values with each `key.path=value` set; paths in overrides are relative to the
    working directory. Raises: RecipeError: an override is not of that form."""
    chosen = copied(values)
    for override in overrides:
        key, equals, text = override.partition("=")
        names = key.strip().split(".")
        if not equals or not all(names):
            raise RecipeError(
                f"--set {override!r} is not of the form key.path=value; write such as model.dim=64."
            )
        table = chosen
        for name in names[:-1]:
            if table.get(name) is None:
                table[name] = {}
            elif isinstance(table[name], str):
                table[name] = {"kind": table[name]}  # upgrade.transform = "affine" is short for it
            table = table[name]
            if not isinstance(table, dict):
                raise RecipeError(f"--set {override!r}: {name} is a value, not a table.")
        table[names[-1]] = value_of(text)
    if overrides:
        resolve_paths(chosen, Path.cwd())
    return chosen


def override_keys(overrides: Sequence[str]) -> set[str]:
    """Return the keys that overrides set, "table.key" each."""
    return {
        f"{name}.{key}"
        for override in overrides
        for name, table in overridden({}, [override]).items()
        for key in (table if isinstance(table, dict) else ())
    }


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one table, by dotted keys."""
    flattened: dict[str, Any] = {}
    for key, value in values.items():
        flattened |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flattened


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


def value_of(text: str) -> Any:
    """Return the value that a text is in TOML; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


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
