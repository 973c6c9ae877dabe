"""The package as a whole: exports, errors, and what importing it loads."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from tests.support.artefacts import artefact
from tests.support.encoders import lineage_with_encoder

import evergram
from evergram import PretrainedEncoder, errors
from evergram.lazy_exports import LazyPackage

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evergram"
ROOMS = [path.parent.name for path in sorted(SOURCE.glob("*/__init__.py"))]
PACKAGES = ["evergram", *(f"evergram.{room}" for room in ROOMS)]
# What no import of a room may load: each takes long, or is not installed everywhere.
HEAVY = ("torch", "pyarrow", "numpy", "pydantic", "httpx", "fastapi", "matplotlib")


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def lazy_packages() -> list[str]:
    return [name for name in PACKAGES if isinstance(importlib.import_module(name), LazyPackage)]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_export_is_there_documented_and_no_module(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__doc__, "the package does not say what it is for"
    assert len(set(package.__all__)) == len(package.__all__)
    for export in package.__all__:
        value = getattr(package, export)
        assert not export.startswith("_")
        assert not isinstance(value, ModuleType), f"{export} is a file"
        assert inspect.getdoc(value), f"{export} has no docstring"
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__.startswith("evergram."), f"{export} is not ours"


@pytest.mark.long
def test_each_room_can_be_the_first_that_a_program_imports() -> None:
    """In one process, which unloads the package, but not torch, before each room."""
    run_python(
        f"""
import importlib, sys
from types import ModuleType
for name in {PACKAGES!r}:
    for module in [m for m in sys.modules if m.split(".")[0] == "evergram"]:
        del sys.modules[module]
    package = importlib.import_module(name)
    space = {{}}
    exec(f"from {{name}} import " + ", ".join(package.__all__), space)
    assert not [n for n in package.__all__ if isinstance(space[n], ModuleType)], name
"""
    )


def test_importing_rooms_loads_none_of_their_files_and_no_library() -> None:
    imports = "\n".join(f"import {name}" for name in lazy_packages())
    loaded = run_python(f"import sys\n{imports}\nprint([n for n in {HEAVY!r} if n in sys.modules])")
    assert loaded == "[]"


def test_every_public_object_has_a_short_repr(tmp_path: Path) -> None:
    """One line, with the name, and without tensors, rows or a token."""
    made = lineage_with_encoder(tmp_path / "films")
    corpus = evergram.Corpus.from_tables(
        pa.table({"query": [1, 2, 2], "candidate": ["a", "b", "c"]})
    )
    recipe = evergram.Recipe.of({"name": "films", "data": {"kind": "synthetic"}})
    with closing(evergram.Reader.open(made)) as reader:
        shown = {
            repr(made): f"Lineage('films' at {made.path}, versions 0, production 0)",
            repr(made.view(0)): "View(version 0 read as 0, dim 4)",
            repr(
                PretrainedEncoder.of_version(made)
            ): "PretrainedEncoder(two_tower, dim 4, films@v0)",
            repr(corpus): "Corpus(3 interactions of 2 queries with 3 candidates)",
            repr(recipe): "Recipe('films', factorization, data synthetic)",
            repr(artefact(3, 2)): (
                "Artefact(dim 3, factorization, linear transform, sides query, candidate)"
            ),
            repr(evergram.Client("http://films:8000", token="secret")): (
                "Client('http://films:8000')"
            ),
            repr(reader)[:28]: "Reader('films' version 0; qu",
        }
    assert list(shown) == list(shown.values())
    empty = evergram.Lineage.create(tmp_path / "new")
    assert repr(empty) == f"Lineage('embeddings' at {tmp_path / 'new'}, versions none)"


def test_every_error_is_drawn_in_the_tree_with_its_builtin() -> None:
    drawing = errors.__doc__ or ""
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.EvergramError):
            assert name in drawing
            builtins = [b for b in kind.__mro__ if b.__module__ == "builtins"]
            assert builtins[0] is not object


def test_import_and_command_do_not_load_torch() -> None:
    run_python("import sys, evergram, evergram.cli; assert 'torch' not in sys.modules")


def test_the_probe_program_and_the_client_do_not_load_torch() -> None:
    run_python(
        "import sys, evergram.evaluation.probes.probe_program\nassert 'torch' not in sys.modules"
    )
    run_python("import sys\nfrom evergram import Client\nassert 'torch' not in sys.modules")
    run_python(
        "import sys\nfrom evergram.evaluation import load_probe_model\n"
        "assert 'torch' not in sys.modules"
    )
