"""The Makefile: what each target installs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def planned(folder: Path, *arguments: str) -> str:
    """Return the commands that make would run in a fresh checkout, without running them."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    done = subprocess.run(
        ["make", "--dry-run", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
class TestMakefile:
    def test_the_demo_installs_the_package_alone(self, tmp_path: Path) -> None:
        commands = planned(tmp_path, "demo")
        assert "--editable ." in commands
        assert "[dev]" not in commands
        assert ".venv-demo/bin/evergram demo" in commands

    def test_the_demo_uses_the_environment_of_a_developer(self, tmp_path: Path) -> None:
        (tmp_path / ".venv").mkdir()
        (tmp_path / ".venv" / "ready").touch()
        assert ".venv/bin/evergram demo" in planned(tmp_path, "demo")

    def test_tests_install_what_they_need(self, tmp_path: Path) -> None:
        assert '".[dev]"' in planned(tmp_path, "test")

    def test_torch_is_looked_for_in_one_more_index_where_it_is_named(self, tmp_path: Path) -> None:
        assert "--extra-index-url" not in planned(tmp_path, "demo")
        for target in ("demo", "test"):
            commands = planned(tmp_path, target, "TORCH_INDEX=https://example.org/cpu")
            assert commands.count("--extra-index-url https://example.org/cpu torch==") == 1
