"""What the room says is public is there, at hand without torch, and its examples run."""

from __future__ import annotations

import doctest
import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

from evergram import compatibility

MODULES = [
    "evergram.compatibility",
    *(m.name for m in pkgutil.walk_packages(compatibility.__path__, "evergram.compatibility.")),
]


def test_every_public_name_is_there_and_documented() -> None:
    assert sorted(compatibility.__all__) == compatibility.__all__
    assert dir(compatibility) == compatibility.__all__
    assert set(compatibility._HOME) == set(compatibility.__all__)
    for name in compatibility.__all__:
        assert getattr(compatibility, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'Procrustes'"):
        compatibility.Procrustes  # noqa: B018


def test_its_docstring_names_every_file_that_a_reader_begins_with() -> None:
    said = compatibility.__doc__ or ""
    for name in {home.split(".")[0] for home in compatibility._HOME.values()} - {"gradient_fit"}:
        assert f"`{name}`" in said, name


def test_the_kinds_are_at_hand_without_torch() -> None:
    code = "import sys, evergram.compatibility.kinds; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    for name in ("Aligner", "BackwardAlignment"):
        examples = [e for t in finder.find(getattr(compatibility, name)) for e in t.examples]
        assert examples, name
