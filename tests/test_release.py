"""The wheel, the sdist, the Makefile and the Dockerfile."""

from __future__ import annotations

import json
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
from urllib.parse import urlparse

import pytest
import typer

import evergram
from evergram.cli import app

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


def planned(folder: Path, *arguments: str) -> str:
    """Return the commands that make would run in a fresh checkout, without running them."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    done = subprocess.run(
        ["make", "--dry-run", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_demo_installs_the_package_alone_and_torch_from_an_index_that_is_named(
    tmp_path: Path,
) -> None:
    commands = planned(tmp_path, "demo", "TORCH_INDEX=https://example.org/cpu")
    assert "--editable ." in commands
    assert "[dev]" not in commands
    assert ".venv-demo/bin/evergram demo" in commands
    assert commands.count("--extra-index-url https://example.org/cpu torch==") == 1


CONSTRAINTS = (ROOT / "constraints.txt").read_text().splitlines()


def instructions() -> list[tuple[str, str]]:
    """Return each instruction with its arguments; continued lines are joined."""
    text = (ROOT / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    split = [line.strip().split(maxsplit=1) for line in whole.splitlines() if line.strip()]
    return [(name, re.sub(r"\s+", " ", rest)) for name, rest in split]


def arguments(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def test_copied_files_exist_and_are_in_the_build_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    copies = arguments("COPY")
    assert len(copies) >= 3
    for copy in copies:
        *sources, _ = copy.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source
    kept = {name[1:] for name in ignored if name.startswith("!")}
    assert "*" in ignored
    assert kept == {source for copy in copies for source in copy.split()[:-1]}


def test_installed_packages_are_pinned() -> None:
    steps = [step for step in arguments("RUN") if "pip install" in step]
    assert len(steps) == 2
    for step in steps:
        assert "--constraint constraints.txt" in step
    assert re.findall(r"torch==\S+", steps[0]) == [
        c for c in CONSTRAINTS if c.startswith("torch==")
    ]
    [extras] = re.findall(r'"\.\[(.*)\]"', steps[1])
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert "PIP_NO_CACHE_DIR=1" in arguments("ENV")[0]


def test_command_exposed_port_and_health_check_agree() -> None:
    command = json.loads(arguments("CMD")[0])
    [port] = arguments("EXPOSE")
    assert command[command.index("--port") + 1] == port
    check = json.loads(arguments("HEALTHCHECK")[0].split(" CMD ")[1])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "HEALTHCHECK", "exec")
    [address] = re.findall(r"http://[^']+", check[2])
    assert urlparse(address)[1:3] == (f"127.0.0.1:{port}", "/healthz")


def test_the_container_runs_evergram_serve() -> None:
    name, *words = json.loads(arguments("CMD")[0])
    assert name in PROJECT["scripts"]
    group = typer.main.get_command(app)
    context = group.make_context(name, list(words), resilient_parsing=False)
    assert isinstance(group, typer.core.TyperGroup)
    subcommand, command, rest = group.resolve_command(context, words)
    assert (subcommand, command is None) == ("serve", False)
    assert command is not None
    [volume] = arguments("VOLUME")
    parsed = command.make_context("serve", rest, parent=context).params
    assert volume in map(str, parsed.values())
    assert "0.0.0.0" in parsed.values()
    with pytest.raises(Exception, match="no-such-option"):
        command.make_context("serve", [*rest, "--no-such-option"], parent=context)
