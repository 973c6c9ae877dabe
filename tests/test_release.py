"""The wheel and the sdist: built, whole, and installed into an empty environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest

import evergram

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_PYTHON = "Programming Language :: Python :: "
PYTHONS = [c.removeprefix(_PYTHON) for c in PROJECT["classifiers"] if c.startswith(_PYTHON)]
# Bytes of an environment with the package, torch's CPU build and pip.
LARGEST = 1.3e9
# All files of the package: code, py.typed, and what the dashboard and the reports show.
FILES = {
    path.relative_to(SOURCE).as_posix()
    for path in (SOURCE / "evergram").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and an sdist of the tree as it is."""
    if find_spec("hatchling") is None:
        pytest.skip("the build backend is not installed: pip install hatchling")
    folder = tmp_path_factory.mktemp("release")
    tree = folder / "tree"
    tree.mkdir()
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tree)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("src", "recipes", "tests", "docs"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder / "dist")]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    return folder / "dist"


def wheel(built: Path) -> Path:
    [path] = built.glob("*.whl")
    return path


@pytest.mark.long
def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    assert wheel(built).name == f"evergram-{evergram.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel(built)) as archive:
        names = set(archive.namelist())
    information = f"evergram-{evergram.__version__}.dist-info"
    ours = {name for name in names if PurePosixPath(name).parts[0] != information}
    assert ours == FILES
    assert "evergram/py.typed" in ours
    assert f"{information}/licenses/LICENSE" in names


@pytest.mark.long
def test_the_sdist_has_what_building_and_testing_need(built: Path) -> None:
    [path] = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in FILES} <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "docs/index.md"} <= names
    assert "src/evergram/py.typed" in names
    assert not [name for name in names if name.startswith((".venv", "build", ".git/"))]


@pytest.mark.long
def test_the_wheel_is_installed_and_starts_in_an_empty_environment(
    built: Path, tmp_path: Path
) -> None:
    """Its dependencies are those of this environment, by path: nothing is downloaded."""
    place = tmp_path / "environment"
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    subprocess.run([python, "-m", "pip", "install", *options, wheel(built)], check=True)
    # Without any dependency the package itself is imported.
    alone = "import evergram; print(evergram.__version__, evergram.__file__)"
    done = subprocess.run(
        [python, "-I", "-c", alone], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    version, file = done.stdout.split()
    assert version == evergram.__version__
    assert Path(file).is_relative_to(place)
    libraries = os.pathsep.join(p for p in sys.path if p.endswith("site-packages"))
    command = subprocess.run(
        [place / "bin" / "evergram", "--version"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": libraries},
    )
    assert evergram.__version__ in command.stdout


def interpreter(minor: str) -> Path | None:
    """Return the Python of a minor version such as "3.12": on PATH, or one of pyenv's."""
    if (there := shutil.which(f"python{minor}")) is not None and _answers(there, minor):
        return Path(there)
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for python in sorted(versions.glob(f"{minor}.*/bin/python"), reverse=True):
        if _answers(python, minor):
            return python
    return None


def _answers(python: str | Path, minor: str) -> bool:
    # One of pyenv's shims is on PATH for each version, and fails where that is not chosen.
    program = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", program], check=False, capture_output=True, text=True)
    return done.returncode == 0 and done.stdout.strip() == minor


@pytest.mark.long
@pytest.mark.skipif("EVERGRAM_RELEASE" not in os.environ, reason="make release-check downloads")
@pytest.mark.parametrize("minor", PYTHONS)
def test_wheel_and_sdist_are_installed_without_constraints(
    built: Path, tmp_path: Path, minor: str
) -> None:
    """With the newest of all dependencies; torch is the requirement that the variable names."""
    python = interpreter(minor)
    if python is None:
        pytest.skip(f"this machine has no Python {minor}, neither on PATH nor of pyenv")
    place = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", place], check=True)
    pip: list[str | Path] = [place / "bin" / "python", "-m", "pip", "install", "--quiet"]
    torch = os.environ["EVERGRAM_RELEASE"]
    subprocess.run([*pip, torch, wheel(built)], check=True, timeout=1800)
    small = ["--set", "data.interactions=8000", "--set", "training.epochs=2"]
    command = place / "bin" / "evergram"
    subprocess.run([command, "demo", "--out", tmp_path / "wheel", *small], check=True, timeout=600)
    site = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    size = sum(path.stat().st_size for path in site)
    if any(path.name.startswith("nvidia_") for path in place.glob("lib/*/site-packages/*")):
        print(f"Python {minor}: {size / 1e9:.2f} GB with CUDA's libraries")  # noqa: T201
    else:
        print(f"Python {minor}: {size / 1e9:.2f} GB with torch's CPU build")  # noqa: T201
        assert size <= LARGEST, f"{size / 1e9:.2f} GB; docs/production.md says at most 1.3"
    [sdist] = built.glob("*.tar.gz")
    again = ["--force-reinstall", "--no-deps"]
    subprocess.run([*pip, *again, sdist], check=True, timeout=600)
    subprocess.run([command, "demo", "--out", tmp_path / "sdist", *small], check=True, timeout=600)


def test_the_page_of_supported_pythons_has_those_of_the_package() -> None:
    page = (ROOT / "docs" / "production.md").read_text()
    rows = re.findall(r"^\| (3\.\d+) \|", page, re.MULTILINE)
    assert rows == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert f"at most {LARGEST / 1e9:.1f} GB" in page


def test_the_command_for_a_release_runs_this_file() -> None:
    assert "pytest -s -rs tests/test_release.py" in (ROOT / "Makefile").read_text()
