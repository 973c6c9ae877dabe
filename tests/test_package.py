"""The package as a whole: exports, errors, and what importing it loads."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
import torch
from tests.support.artefacts import artefact
from tests.support.encoders import lineage_with_encoder

import evergram
from evergram import GramianPenalty, PretrainedEncoder, errors
from evergram.lazy_exports import LazyPackage

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evergram"
ROOMS = [path.parent.name for path in sorted(SOURCE.glob("*/__init__.py"))]
PACKAGES = ["evergram", *(f"evergram.{room}" for room in ROOMS)]
# What no import of a room may load: each takes long, or is not installed everywhere.
HEAVY = ("torch", "pyarrow", "numpy", "pydantic", "httpx", "fastapi")


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
    corpus = evergram.Corpus.of(pa.table({"query": [1, 2, 2], "candidate": ["a", "b", "c"]}))
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
    run_python("import sys, evergram.evaluation.probe_process\nassert 'torch' not in sys.modules")
    run_python("import sys\nfrom evergram import Client\nassert 'torch' not in sys.modules")
    run_python(
        "import sys\nfrom evergram.evaluation import load_probe_model\n"
        "assert 'torch' not in sys.modules"
    )


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


def test_exports_and_folders_are_listed(bakery: ModuleType) -> None:
    assert dir(bakery) == ["Knife", "Loaf", "bake", "tools"]
    assert bakery.__all__ == ["Knife", "Loaf", "bake"]


def test_a_name_that_is_not_exported_is_refused(bakery: ModuleType) -> None:
    with pytest.raises(AttributeError, match="module 'bakery' has no attribute 'rolls'"):
        _ = bakery.rolls
    with pytest.raises(ImportError, match="cannot import name 'rolls' from 'bakery'"):
        exec("from bakery import rolls")


@pytest.mark.parametrize("estimator", ["sogram", "sampled"])
def test_the_penaltys_weight_multiplies_value_and_gradient(estimator: str) -> None:
    outcomes = []
    for weight in (1.0, 2.5):
        penalty = GramianPenalty(4, estimator, weight=weight)
        draw = torch.Generator().manual_seed(0)
        for _ in range(3):
            query, candidate = torch.randn(2, 8, 4, generator=draw).requires_grad_().unbind()
            value = penalty(query, candidate)
            (gradient,) = torch.autograd.grad(value, query)
        outcomes.append((value, gradient))
    torch.testing.assert_close(outcomes[1][0], 2.5 * outcomes[0][0])
    torch.testing.assert_close(outcomes[1][1], 2.5 * outcomes[0][1])
