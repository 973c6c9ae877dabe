"""A shell is offered commands, options and values; bash by its own script in a process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.lineages import lineage_of

from evergram.cli.words import choices, recipe_settings
from evergram.gramian.kinds import ESTIMATORS
from evergram.lineage.consumers.registry import ConsumerRegistry

BASH = shutil.which("bash")


def offered(line: str, folder: Path, shell: str = "bash", before: str = "") -> list[str]:
    """Return what the command offers for the last word of a line, by the shell's protocol."""
    words = line.replace("=", " = ").split(" ") if shell == "bash" else line.split(" ")
    words = [word for word in words[:-1] if word] + [words[-1]]
    environment = {
        "bash": {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    asked = {**os.environ, "_EVERGRAM_COMPLETE": f"complete_{shell}", **environment}
    program = f"{before}import sys; sys.argv = ['evergram']; from evergram.cli import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shell")
    lineage = lineage_of(folder / "l")
    lineage.label("stable", 2)
    registry = ConsumerRegistry.open(folder / "l")
    for name in ("ads", "search"):
        registry.add(name, "0", lineage.resolve)
    return folder


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("evergram lineage wi", ["withdraw"]),
        ("evergram train x.toml --resu", ["--resume"]),
        ("evergram lineage promote l ", ["stable", "newest", "2", "1", "0"]),
        ("evergram consumer token l s", ["search"]),
        ("evergram train x.toml --set gramian.ki", [*ESTIMATORS]),
        ("evergram train x.toml --set gramian.kind=so", ["sogram"]),
    ],
)
def test_bash_is_offered(place: Path, line: str, words: list[str]) -> None:
    prefix = "gramian.kind=" if line.endswith("gramian.ki") else ""
    assert offered(line, place) == [f"{prefix}{word}" for word in words]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_are_offered_the_same(place: Path, shell: str) -> None:
    text = " ".join(offered("evergram train x.toml --set gramian.kind=so", place, shell))
    assert "gramian.kind=sogram" in text


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_the_script_of_bash_completes_in_bash(place: Path) -> None:
    wrapper = place / "evergram"
    wrapper.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c \'import sys; sys.argv[0] = "evergram"; '
        'from evergram.cli import main; main()\' "$@"\n'
    )
    wrapper.chmod(0o755)
    script = (
        'eval "$(evergram --show-completion)"\n'
        "COMP_WORDS=(evergram train x.toml --set gramian.kind = so); COMP_CWORD=6\n"
        '"$(complete -p evergram | sed "s/.*-F \\([^ ]*\\) .*/\\1/")" evergram\n'
        'echo "${COMPREPLY[@]}"\n'
    )
    ran = subprocess.run(
        [BASH or "", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{place}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["sogram"]


def test_settings_are_keys_until_one_is_left_and_then_its_choices() -> None:
    assert {"seed=", "model.kind=", "upgrade.weight="} <= set(recipe_settings(""))
    assert not any(each.partition("=")[2] for each in recipe_settings("model."))
    assert recipe_settings("model.normalize=") == ["model.normalize=true", "model.normalize=false"]
    assert "upgrade.method=bc-aligner" in recipe_settings("upgrade.meth")
    assert "data.kind=table" in recipe_settings("data.kind=t")
    assert recipe_settings("task.l2=") == ["task.l2=auto"]
    assert recipe_settings("model.dim=64") == []
    assert choices("ab", "cd")("a") == ["ab"]


def test_offering_does_not_load_torch(place: Path) -> None:
    after = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    assert offered("evergram consumer pin l ads ", place, before=after)[-1] == "False"
