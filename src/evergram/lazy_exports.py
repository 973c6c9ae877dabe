"""Packages whose exports are imported at their first use, so that `import evergram` does not wait
for torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package that imports each of its exports at the first use of it. A class and not the
    `__getattr__` of PEP 562, because the import system binds every submodule to its package: once
    `releasing/publish.py` was imported, `releasing.publish` would be that file. `__setattr__` binds
    the function."""

    _lazy_homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        home = vars(self).get("_lazy_homes", {}).get(name)
        if home is None:
            problem = f"module {self.__name__!r} has no attribute {name!r}"
            raise AttributeError(problem, name=name, obj=self)
        if home == self.__name__:  # a folder
            return import_module(f"{home}.{name}")
        value = getattr(import_module(home), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        home = vars(self).get("_lazy_homes", {}).get(name, self.__name__)
        if isinstance(value, ModuleType) and home != self.__name__:
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted(self._lazy_homes)


def export_lazily(package: str) -> None:
    """Export what a package imports under `if TYPE_CHECKING`, without importing it now.

    `__all__` becomes the list of these names, but for the folders among them.

    >>> import evergram.data
    >>> evergram.data.Vocabulary.__module__
    'evergram.data.corpus'

    Args:
        package: `__name__` of the package, from its `__init__.py`.
    """
    module: Any = sys.modules[package]
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    homes = {
        alias.name: str(statement.module)
        for block in tree.body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    module._lazy_homes = homes
    module.__all__ = sorted(name for name, home in homes.items() if home != package)
    module.__class__ = LazyPackage
