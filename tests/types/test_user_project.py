"""The types that users see: mypy --strict on a program that only imports the package."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import evergram

PROJECT = Path(__file__).with_name("user_project.py")
# Beside the cache of `make lint`, whose settings are others.
CACHE = Path(__file__).parents[2] / ".mypy_cache" / "users"
# A mistake a line: each must be an error, or a type is Any.
MISTAKES = """\
import evergram
from evergram.data import Corpus
from evergram.stores import nothing
evergram.nothing
evergram.train("recipe.toml")
evergram.Lineage.open("films").view(version=1.5)
evergram.Client("http://127.0.0.1").embed([1]).vektors
evergram.data.Corpus.of_nothing()
"""


def mypy(folder: Path, *files: str) -> list[list[str]]:
    """Return what `mypy --strict` prints of files: lines, divided at their colons."""
    # Without the settings of this repository. Libraries without types are for the user to silence.
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
    command += ["--disable-error-code=import-untyped", f"--cache-dir={CACHE}"]
    done = subprocess.run(
        [*command, *files], check=False, capture_output=True, text=True, cwd=folder, timeout=600
    )
    assert not done.stderr
    return [line.split(":") for line in done.stdout.splitlines()]


@pytest.mark.long
def test_every_public_name_of_the_package_and_of_its_rooms_has_a_type(tmp_path: Path) -> None:
    rooms = [p.parent.name for p in sorted(Path(evergram.__file__).parent.glob("*/__init__.py"))]
    modules = ["evergram", *(f"evergram.{room}" for room in rooms)]
    public = [(m, name) for m in modules for name in getattr(import_module(m), "__all__", ())]
    assert ("evergram", "train") in public
    assert ("evergram.gramian", "GramianPenalty") in public
    lines = [f"import {m}" for m in modules]
    lines += [f"reveal_type({m}.{name})" for m, name in public]
    (tmp_path / "every.py").write_text("\n".join(lines) + "\n")
    revealed = mypy(tmp_path, "every.py")
    assert [line for line in revealed if line[2].strip() != "note"] == []
    # `def (...) -> Any` is a type; a name that is Any itself has none.
    untyped = [int(line[1]) for line in revealed if line[3:] == [' Revealed type is "Any"']]
    assert [lines[number - 1] for number in untyped] == []
    assert len(revealed) == len(public)


@pytest.mark.long
def test_a_users_program_has_complete_types_and_mistakes_are_found(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROJECT.read_text())
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    errors = mypy(tmp_path, "program.py", "mistakes.py")
    assert [line for line in errors if line[0] == "program.py"] == []
    expected = set(range(3, MISTAKES.count("\n") + 1))
    assert {int(line[1]) for line in errors if line[0] == "mistakes.py"} == expected
