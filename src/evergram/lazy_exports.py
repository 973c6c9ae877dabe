"""Packages whose exports are imported at their first use.

`import evergram.serving` loads none of the room's files, so a program that only wants the HTTP
client does not wait for torch.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from evergram.did_you_mean import instead


class LazyPackage(ModuleType):
    """A package that imports each of its exports at the first use of it. A class and not the
    `__getattr__` of PEP 562, because the import system binds every submodule to its package: once
    `releasing/publish.py` was imported, `releasing.publish` would be that file. `__setattr__` binds
    the function."""

    _lazy_homes: Mapping[str, str]
    _lazy_guesses: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        homes: Mapping[str, str] = vars(self).get("_lazy_homes", {})
        if name not in homes:
            raise AttributeError(
                f"module {self.__name__!r} has no attribute {name!r}{self._instead(name)}",
                name=name,
                obj=self,
            )
        if homes[name] == self.__name__:  # a folder
            return import_module(f"{self.__name__}.{name}")
        value = getattr(import_module(homes[name]), name)
        setattr(self, name, value)
        return value

    def _instead(self, name: str) -> str:
        """Return the end of a sentence: where the name is, or which one was probably meant."""
        if name.startswith("_"):
            return ""
        for folder in (n for n, home in self._lazy_homes.items() if home == self.__name__):
            package = import_module(f"{self.__name__}.{folder}")
            if name in vars(package).get("_lazy_homes", {}):
                return f"; use {package.__name__}.{name}"
        return instead(name, self._lazy_guesses, list(self._lazy_homes))

    def __setattr__(self, name: str, value: Any) -> None:
        home = vars(self).get("_lazy_homes", {}).get(name, self.__name__)
        if isinstance(value, ModuleType) and home != self.__name__:
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted(self._lazy_homes)


def export_lazily(package: str, guesses: Mapping[str, str] = MappingProxyType({})) -> None:
    """Export what a package imports under `if TYPE_CHECKING`, without importing it now.

    `__all__` becomes the list of these names, but for the folders among them.

    >>> import evergram.data
    >>> evergram.data.Vocabulary.__module__
    'evergram.data.corpus'

    Args:
        package: `__name__` of the package, from its `__init__.py`.
        guesses: by the pattern of a name that other libraries have, what to use in place of it.
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
    module._lazy_homes, module._lazy_guesses = homes, guesses
    module.__all__ = sorted(name for name, home in homes.items() if home != package)
    module.__class__ = LazyPackage
