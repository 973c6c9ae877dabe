"""Exports that are imported at their first use, in a package that is written for each test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

INIT = """
from typing import TYPE_CHECKING
from evergram.lazy_exports import export_lazily
if TYPE_CHECKING:
    from bakery import tools as tools
    from bakery.bake import Loaf as Loaf, bake as bake
    from bakery.tools.knife import Knife as Knife
export_lazily(__name__)
"""
FILES = {
    "__init__.py": INIT,
    "bake.py": "class Loaf: pass\ndef bake(): return Loaf()",
    "oven.py": "from bakery.bake import bake",
    "tools/__init__.py": "",
    "tools/knife.py": "class Knife: pass",
}


@pytest.fixture
def bakery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name, text in FILES.items():
        path = tmp_path / "bakery" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("bakery")
    for name in [n for n in sys.modules if n.split(".")[0] == "bakery"]:
        del sys.modules[name]


def test_a_file_is_imported_at_the_first_use_of_its_export(bakery: ModuleType) -> None:
    assert not {"bakery.bake", "bakery.tools"} & sys.modules.keys()
    assert isinstance(bakery.bake(), bakery.Loaf)
    assert "bakery.bake" in sys.modules
    assert "bakery.tools" not in sys.modules
    assert bakery.Knife is sys.modules["bakery.tools.knife"].Knife


@pytest.mark.parametrize("first", ["bakery.bake", "bakery.oven"])
def test_a_function_named_like_its_file_stays_the_function(bakery: ModuleType, first: str) -> None:
    """However the file was imported: the import system binds it to the package under its name."""
    importlib.import_module(first)
    file = importlib.import_module("bakery.bake")
    assert isinstance(file, ModuleType)
    assert bakery.bake is file.bake


def test_a_folder_is_reached_without_being_imported_by_hand(bakery: ModuleType) -> None:
    assert bakery.tools.__name__ == "bakery.tools"


def test_exports_and_folders_are_listed(bakery: ModuleType) -> None:
    assert dir(bakery) == ["Knife", "Loaf", "bake", "tools"]
    assert bakery.__all__ == ["Knife", "Loaf", "bake"]


def test_a_name_that_is_not_exported_is_refused(bakery: ModuleType) -> None:
    with pytest.raises(AttributeError, match="module 'bakery' has no attribute 'rolls'"):
        _ = bakery.rolls
    with pytest.raises(ImportError, match="cannot import name 'rolls' from 'bakery'"):
        exec("from bakery import rolls")


def test_what_is_bound_to_the_package_otherwise_is_left_as_it_is(bakery: ModuleType) -> None:
    setattr(bakery, "bake", print)  # noqa: B010
    assert bakery.bake is print
    setattr(bakery, "flour", sys)  # noqa: B010
    assert bakery.flour is sys
