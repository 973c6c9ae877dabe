"""The concrete classes that a room has, whether or not its table of kinds names them."""

from __future__ import annotations

import inspect
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any


def concrete_subclasses(room: ModuleType, base: Any) -> set[type[Any]]:
    """Return every class below `base` that can be made and that a file of `room` holds."""
    for module in iter_modules(room.__path__, f"{room.__name__}."):
        import_module(module.name)

    def below(kind: type[Any]) -> set[type[Any]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    return {
        kind
        for kind in below(base)
        if kind.__module__.startswith(f"{room.__name__}.") and not inspect.isabstract(kind)
    }
