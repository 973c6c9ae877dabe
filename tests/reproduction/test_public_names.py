"""The reproduction uses Evergram's public names only, as a reader's own program would."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "reproduction").rglob("*.py"))
ROOMS = {path.parent.name for path in (ROOT / "src" / "evergram").glob("*/__init__.py")}
# The tree of errors is public as a whole; docs and messages name it. The other is one function,
# which ends their sentences.
PUBLIC_FILES = {"evergram.errors", "evergram.did_you_mean"}


def private_imports(source: str) -> Iterator[str]:
    """Yield what a file imports of Evergram beside the exports of the package and its rooms."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "evergram")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "evergram":
            module = node.module or ""
            parts = module.split(".")
            is_room = parts == ["evergram"] or (len(parts) == 2 and parts[1] in ROOMS)
            if module in PUBLIC_FILES:
                continue
            exports = set(importlib.import_module(module).__all__) if is_room else set()
            yield from (f"{module}.{a.name}" for a in node.names if a.name not in exports)


def test_files_import_public_names_only() -> None:
    private = {str(p.relative_to(ROOT)): list(private_imports(p.read_text())) for p in FILES}
    assert {path: names for path, names in private.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("from evergram import Recipe", []),
        ("from evergram.training import fit_encoder", []),
        ("from evergram.training import FitSettings", ["evergram.training.FitSettings"]),
        ("from evergram.training.fit import fit_encoder", ["evergram.training.fit.fit_encoder"]),
        ("import evergram.training.fit", ["evergram.training.fit"]),
        ("from evergram.errors import DataError", []),
        ("def f():\n    from evergram.data.split import Split", ["evergram.data.split.Split"]),
    ],
)
def test_private_names_are_seen(source: str, private: list[str]) -> None:
    assert list(private_imports(source)) == private


def test_the_wheel_does_not_have_it() -> None:
    import tomllib

    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["packages"] == ["src/evergram"]
