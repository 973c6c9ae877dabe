"""The package as a whole: exports, errors, and how fast it is at hand."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from tests.support.artefacts import artefact
from tests.support.encoders import lineage_with_encoder

import evergram
from evergram import errors, lineage, retrieval


def test_every_export_is_there_and_listed() -> None:
    for name in evergram.__all__:
        assert getattr(evergram, name) is not None
    assert sorted(evergram.__all__) == evergram.__all__
    assert dir(evergram) == evergram.__all__


def test_the_version_is_that_of_the_package() -> None:
    assert evergram.__version__ == version("evergram")


@pytest.mark.parametrize("room", [lineage, retrieval])
def test_every_export_of_a_room_is_there_and_listed(room: ModuleType) -> None:
    assert sorted(room.__all__) == room.__all__ == dir(room)
    for name in room.__all__:
        assert getattr(room, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = room.nothing


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
            repr(made.encoder()): "PretrainedEncoder(two_tower, dim 4, films@v0)",
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
    code = "import sys, evergram, evergram.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
