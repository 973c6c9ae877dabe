"""Each exit code of docs/commands.md is that of a command, and commands have no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.command import run_process
from tests.support.lineages import lineage_of

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "evergram"
FAIL = "import evergram.cli as cli\ndef fail(**_): raise {}\ncli.app = fail\n"
# By code: a command line that ends with it, and Python that its process runs before.
ENDINGS = {
    0: (("lineage", "list", "l"), ""),
    1: (("lineage", "check", "l", "--max-error", "0"), ""),
    2: (("lineage", "list", "none"), ""),
    70: (("lineage", "list", "l"), FAIL.format("ZeroDivisionError")),
    130: (("lineage", "list", "l"), FAIL.format("KeyboardInterrupt")),
}


def documented() -> set[int]:
    text = (ROOT / "docs" / "commands.md").read_text()
    table = text.split("| exit code | meaning |")[1].split("\n\n")[0]
    return {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}


def test_the_documented_codes_are_those_that_are_tried() -> None:
    assert documented() == ENDINGS.keys()


@pytest.mark.parametrize("code", ENDINGS)
def test_a_command_ends_with_each_code(tmp_path: Path, code: int) -> None:
    lineage_of(tmp_path / "l")
    words, before = ENDINGS[code]
    ran = run_process(*words, folder=tmp_path, before=before, TMPDIR=str(tmp_path))
    assert ran.code == code, ran.err
    # Each but success says on stderr why.
    assert bool(ran.err) == bool(code)
