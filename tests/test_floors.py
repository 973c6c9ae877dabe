"""A room imports only from floors below it, never sideways and never up; its folders likewise."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "evergram"
FLOORS = {
    "did_you_mean": -2,
    "validation": -1,
    # Below the other single files, which may raise them, and put their files in place by it.
    "errors": 0,
    "atomic_files": 0,
    "lazy_exports": 1,
    "ids": 1,
    "kinds": 1,
    "file_content": 1,
    "collectives": 1,
    "tracing": 1,
    "log_lines": 1,
    "mapped_tensors": 1,
    "reopening": 0,
    "process_settings": 0,
    "data": 2,
    "vector_files": 2,
    "texts": 2,
    "stores": 2,
    "gramian": 2,
    "compatibility": 2,
    "encoders": 3,
    "tasks": 3,
    "evaluation": 3,
    "lineage": 3,
    "training": 4,
    "retrieval": 4,
    "releasing": 5,
    "migration": 6,
    "exporting": 6,
    "serving": 7,
    "cli": 8,
    "__main__": 9,
}
FILES = sorted(p for p in SOURCE.rglob("*.py") if p.parent != SOURCE or p.name != "__init__.py")

# A folder that was removed may still have compiled files.
FOLDERS = {path.parent for path in FILES}


def module_of(path: Path) -> str:
    """Return a file's dotted name below the package, such as "lineage.consumers"; for an
    __init__.py that of its folder."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}


def imports_of(source: str, modules: Iterable[str] = frozenset(MODULES)) -> set[str]:
    """Return the modules of the package that a file imports anywhere, except for type checkers
    only."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    inside = {name.removeprefix("evergram.") for name in names if name.startswith("evergram.")}
    # `from evergram.data.corpus import Corpus` names the module `data.corpus`.
    return {name if name in modules else name.rpartition(".")[0] or name for name in inside}


@cache
def all_imports() -> Mapping[str, set[str]]:
    return {module_of(path): imports_of(path.read_text()) for path in FILES}


def room_of(module: str) -> str:
    return module.split(".")[0]


def allowed(room: str, other: str) -> bool:
    return other == room or FLOORS[other] < FLOORS[room]


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names in a circle of imports; empty if there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_a_room_imports_only_from_below() -> None:
    assert {room_of(module) for module in all_imports()} <= {*FLOORS}, "a room that has no floor"
    upward = [
        f"{module} imports {other}"
        for module, others in all_imports().items()
        for other in others
        if not allowed(room_of(module), room_of(other))
    ]
    assert upward == []


def test_no_files_import_each_other() -> None:
    # What a room exports, it imports from its own files: its __init__.py stands above them.
    files = {m: {o for o in others if o != m} for m, others in all_imports().items()}
    assert circle(files) == []


def folder_graph(
    imports: Mapping[str, Iterable[str]], folder: str, own: bool = False
) -> dict[str, set[str]]:
    """Return the imports between the folders inside a folder ("serving"); its own files are left
    out, or named "" with `own`."""

    def part(module: str) -> str | None:
        parts = module.removeprefix(f"{folder}.").split(".")
        if (
            module.startswith(f"{folder}.")
            and SOURCE.joinpath(*folder.split("."), parts[0]) in FOLDERS
        ):
            return parts[0]
        return "" if own and module.startswith(f"{folder}.") else None

    graph: dict[str, set[str]] = {}
    for module, others in imports.items():
        here = part(module)
        if here is not None:
            named = {part(other) for other in others}
            graph.setdefault(here, set()).update(x for x in named if x not in (None, here))
    return graph


def test_folders_do_not_import_each_other_and_a_nested_one_is_imported_in_one_direction() -> None:
    rooms = [(room, False) for room in FLOORS if SOURCE / room in FOLDERS]
    nested = [folder for folder in sorted(FOLDERS) if folder.parent.parent == SOURCE]
    folders = [*rooms, *((module_of(folder / "__init__.py"), True) for folder in nested)]
    graphs = [folder_graph(all_imports(), folder, own) for folder, own in folders]
    assert [found for graph in graphs if (found := circle(graph))] == []


def test_the_rule_refuses_sideways_and_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not allowed("gramian", "compatibility")
    assert not allowed("data", "training")
    assert imports_of("def f():\n    from evergram.cli import main") == {"cli"}
    assert imports_of("from evergram.data import corpus") == {"data.corpus"}
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import evergram.cli"
    assert imports_of(hidden) == set()
    assert circle({"a": {"b"}, "b": {"a"}})
    monkeypatch.setitem(globals(), "FOLDERS", {SOURCE / "r" / "a", SOURCE / "r" / "b"})
    assert circle(folder_graph({"r.a.one": {"r.b.two"}, "r.b.two": {"r.a.one"}}, "r"))
    graph = {"r.one": {"r.a.two"}, "r.a.two": {"r.three"}}
    assert circle(folder_graph(graph, "r", own=True))


def test_there_are_no_catch_all_files() -> None:
    assert not {"utils.py", "helpers.py", "common.py"} & {p.name for p in FILES}
