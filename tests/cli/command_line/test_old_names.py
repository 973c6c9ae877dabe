"""A command's old name works, and says the new one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command import Command, every_command
from tests.support.lineages import lineage_of

from evergram.cli.command_line.old_names import RENAMED, with_new_names


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_prints_the_help_of_the_new_one(evergram: Command, old: str, new: str) -> None:
    assert any(name == new or name.startswith(f"{new} ") for name in every_command())
    code, out, err = evergram(old, "--help")
    assert code == 0
    assert (out, "") == evergram(*new.split(), "--help")[1:]
    assert err == (
        f"note: 'evergram {old}' is now 'evergram {new}'; the old name works in this release, and "
        "not in the next.\n"
    )


def test_an_old_name_answers_as_the_new_one_does(evergram: Command, tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    old = evergram("versions", tmp_path / "line", "--json")
    assert json.loads(old.out) == evergram.json("lineage", "list", tmp_path / "line")
    assert old.err.count("\n") == 1
    limit = (tmp_path / "line", "--max-amplification", 0)
    old, new = evergram("check", *limit), evergram("lineage", "check", *limit)
    assert (old.code, old.out) == (new.code, new.out) == (1, new.out)
    assert old.err.endswith(new.err)
    refused = evergram("probe", tmp_path / "none")
    assert refused.code == 2
    assert refused.err.splitlines()[1:] == [
        evergram.refused("consumer", "probe", tmp_path / "none").rstrip()
    ]


def test_an_old_name_is_on_no_page_of_help(evergram: Command) -> None:
    assert not set(RENAMED) & set(every_command())
    assert "consumer-add" not in evergram("--help").out


@pytest.mark.parametrize(
    ("line", "replaced"),
    [
        ("align old new --lineage check", "vectors align old new --lineage check"),
        ("--quiet backfill plan l", "--quiet store backfill plan l"),
        ("train versions", "train versions"),
        ("lineage check l", "lineage check l"),
        ("--help", "--help"),
        ("", ""),
    ],
)
def test_the_name_of_the_command_alone_is_replaced(line: str, replaced: str) -> None:
    words, sentence = with_new_names(line.split())
    assert words == replaced.split()
    assert (sentence is None) == (line == replaced)
