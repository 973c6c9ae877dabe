"""The package `reproduction` of a checkout of the repository, which no wheel has."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import evergram
from evergram.errors import DataError


def checkout() -> Path:
    """Return the folder of the repository: the one that this Evergram was installed from, or the
    working directory.

    Raises: DataError: neither has `reproduction/`.
    """
    installed_from = Path(evergram.__file__).parents[2]
    for folder in (installed_from, Path.cwd()):
        if (folder / "reproduction" / "catalogue.py").is_file():
            return folder
    raise DataError(
        "reproduction/ is not part of the installed package, and it is not in this folder either; "
        "run the command in a checkout of Evergram's repository, which has it beside src/."
    )


def reproduction(module: str) -> ModuleType:
    """Return a module of the package `reproduction`, imported from the checkout."""
    folder = str(checkout())
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module(f"reproduction.{module}")
