"""A room imports only from floors below it, never sideways and never up."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "evergram"
FLOORS = {
    "errors": 1,
    "ids": 1,
    "validation": 1,
    "data": 2,
    "gramian": 2,
    "compatibility": 2,
    "stores": 2,
    "encoders": 3,
    "tasks": 3,
    "evaluation": 3,
    "lineage": 3,
    "training": 4,
    "serving": 4,
    "cli": 5,
}
FILES = sorted(p for p in SOURCE.rglob("*.py") if p.parent != SOURCE or p.name != "__init__.py")


def room_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports_of(source: str) -> list[str]:
    """Rooms that a file imports, wherever in it."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            names = [node.module or ""]
            if node.module == "evergram":
                names = [f"evergram.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found += [n.split(".")[1] for n in names if n.startswith("evergram.")]
    return found


def allowed(room: str, other: str) -> bool:
    return other == room or FLOORS[other] < FLOORS[room]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_room_imports_only_from_below(path: Path) -> None:
    room = room_of(path)
    assert room in FLOORS, f"{room} is a room that the house does not have"
    for other in imports_of(path.read_text()):
        assert allowed(room, other), f"{room} may not import {other}"


def test_the_rule_refuses_sideways_and_up() -> None:
    assert not allowed("gramian", "compatibility")
    assert not allowed("data", "training")
    assert imports_of("def f():\n    from evergram.cli import main") == ["cli"]


def test_there_are_no_catch_all_files() -> None:
    assert not {"utils.py", "helpers.py", "common.py"} & {p.name for p in FILES}
