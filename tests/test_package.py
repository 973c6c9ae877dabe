"""The package as a whole: exports, errors, and how fast it is at hand."""

from __future__ import annotations

import subprocess
import sys

import evergram
from evergram import errors


def test_every_export_is_there_and_listed() -> None:
    for name in evergram.__all__:
        assert getattr(evergram, name) is not None
    assert sorted(evergram.__all__) == evergram.__all__
    assert dir(evergram) == evergram.__all__


def test_every_error_is_drawn_in_the_tree_with_its_builtin() -> None:
    drawing = errors.__doc__ or ""
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.EvergramError):
            assert name in drawing
            builtins = [b for b in kind.__mro__ if b.__module__ == "builtins"]
            assert builtins[0] is not object


def test_import_and_command_do_not_load_torch() -> None:
    code = "import sys, evergram, evergram.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
