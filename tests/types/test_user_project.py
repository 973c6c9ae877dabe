"""The types that users see: mypy --strict on a program that only imports the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.long
def test_a_users_program_has_complete_types_and_mistakes_are_found(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROJECT.read_text())
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    # Without the settings of this repository. Libraries without types are for the user to silence.
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
    command += ["--disable-error-code=import-untyped", f"--cache-dir={CACHE}"]
    done = subprocess.run(
        [*command, "program.py", "mistakes.py"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=600,
    )
    assert not done.stderr
    errors = [line.split(":") for line in done.stdout.splitlines()]
    assert [line for line in errors if line[0] == "program.py"] == []
    expected = set(range(3, MISTAKES.count("\n") + 1))
    assert {int(line[1]) for line in errors if line[0] == "mistakes.py"} == expected
