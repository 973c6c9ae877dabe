"""Packages whose exports are imported at their first use.

`import evergram.serving` loads none of the room's files, so a program that only wants the HTTP
client does not wait for torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any

from evergram.did_you_mean import instead


class LazyPackage(ModuleType):
    """A package that imports each of its exports at the first use of it.

    A class and not the `__getattr__` of PEP 562 in each package, for two reasons:

    - The import system binds every submodule to its package: once `releasing/publish.py` was
      imported, `releasing.publish` would be that file and no longer the function in it.
      `__setattr__` binds the function.
    - A type checker assumes that a package which defines `__getattr__` has every name.
    """

    def __getattr__(self, name: str) -> Any:
        if name in vars(self).get("_lazy_folders", ()):
            return import_module(f"{self.__name__}.{name}")
        homes: Mapping[str, str] = vars(self).get("_lazy_homes", {})
        if name not in homes:
            raise AttributeError(
                f"module {self.__name__!r} has no attribute {name!r}{self._instead(name)}",
                name=name,
                obj=self,
            )
        value = getattr(import_module(homes[name]), name)
        setattr(self, name, value)
        return value

    def _instead(self, name: str) -> str:
        """Return the end of a sentence: where the name is, or which one was probably meant."""
        if name.startswith("_"):
            return ""
        homes, folders = vars(self).get("_lazy_homes", {}), vars(self).get("_lazy_folders", ())
        for folder in folders:
            package = import_module(f"{self.__name__}.{folder}")
            if name in vars(package).get("_lazy_homes", {}):
                return f"; use {package.__name__}.{name}"
        return instead(name, vars(self).get("_lazy_guesses", {}), [*folders, *homes])

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in vars(self).get("_lazy_homes", {}):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted([*vars(self)["_lazy_homes"], *vars(self)["_lazy_folders"]])


def export_lazily(
    package: str,
    files: Mapping[str, str],
    folders: str = "",
    guesses: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Let a package export names of its files without importing these files.

    The package also lists the names in `__all__`, and imports them under `if TYPE_CHECKING` so that
    type checkers see them; `tests/test_package.py` proves that the three lists agree.

    >>> import evergram.data
    >>> evergram.data.Vocabulary.__module__
    'evergram.data.vocabulary'

    Args:
        package: `__name__` of the package, from its `__init__.py`.
        files: by a file's dotted name below the package, the names that the package exports from
            it, separated by spaces.
        folders: names of packages inside the package, which are imported at their first use too.
        guesses: by the pattern of a name that other libraries have, what to use in place of it.
    """
    module = sys.modules[package]
    homes = {name: f"{package}.{file}" for file, names in files.items() for name in names.split()}
    vars(module).update(_lazy_homes=homes, _lazy_folders=tuple(folders.split()))
    vars(module)["_lazy_guesses"] = guesses
    module.__class__ = LazyPackage
