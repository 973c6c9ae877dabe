"""Packages that import their exports at first use; so `import evergram` does not load torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package that imports each of its exports at first use.

    This is a class instead of a module-level `__getattr__` (PEP 562), because the import system
    sets every submodule as an attribute of its package: after importing `releasing/publish.py`,
    `releasing.publish` would be the module. `__setattr__` sets the function instead."""

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
    """Export the names that a package imports under `if TYPE_CHECKING`, without importing them now.

    Sets `__all__` to these names, except subpackages.

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
