"""The page of help, unknown names, and the options before a command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from rich.text import Text
from tests.support.command import Command, every_command, run_process
from tests.support.lineages import lineage_of

import evergram as package
from evergram.cli import app
from evergram.cli.app import ORDER, PANELS

TOP = [
    *("demo", "init", "prepare", "train", "upgrade", "evaluate", "compare", "tune", "diagnose"),
    *("reproduce", "serve", "lineage", "consumer", "store", "vectors"),
]


def test_the_page_of_help_goes_from_first_use_to_operation(evergram: Command) -> None:
    page = evergram("--help").out
    shown = re.findall(r"^│ ([a-z][a-z-]*) ", page, re.MULTILINE)
    assert shown == TOP
    places = [page.index(f"─ {panel} ─") for panel in PANELS]
    assert places == sorted(places)


@pytest.mark.parametrize("group", ORDER)
def test_a_group_lists_its_commands_in_order(evergram: Command, group: str) -> None:
    shown = re.findall(r"^│ ([a-z][a-z-]*) ", evergram(group, "--help").out, re.MULTILINE)
    assert tuple(shown[: len(ORDER[group])]) == ORDER[group]
    there = {name.removeprefix(f"{group} ") for name in every_command() if name.startswith(group)}
    assert set(shown) == there


def test_every_command_has_its_place_on_the_page() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    assert sorted(group.commands) == sorted(TOP)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["trian"], "'train'"),
        (["lable"], "'lineage label'"),
        (["plan-migrations"], "'vectors plan-migration'"),
        (["list"], "'consumer list' or 'lineage list'"),
        (["consumer", "tokn"], "'token'"),
        (["vectors", "algin"], "'align'"),
    ],
)
def test_an_unknown_name_is_answered_with_what_can_be_meant(
    evergram: Command, words: list[str], meant: str
) -> None:
    sentence = evergram.refused(*words)
    assert f"No such command {words[-1]!r} (did you mean {meant}?);" in sentence


def test_a_name_that_is_like_no_other_is_refused_without_a_guess(evergram: Command) -> None:
    assert "did you mean" not in evergram.refused("xyzzy")


def test_the_version_is_that_of_the_package(evergram: Command) -> None:
    assert evergram("--version") == (0, f"evergram {package.__version__}\n", "")


def test_quiet_leaves_out_progress_and_nothing_else(evergram: Command, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("query,candidate\n1,2\n1,3\n")
    loud = evergram("prepare", tmp_path / "events.csv", tmp_path / "loud")
    assert "reading 1 source\n" in loud.err
    quiet = evergram("--quiet", "prepare", tmp_path / "events.csv", tmp_path / "quiet")
    assert (quiet.code, quiet.err) == (0, "")
    assert "2 interactions of 1 queries with 2 candidates." in quiet.out
    # It holds for one run alone.
    again = evergram("prepare", tmp_path / "events.csv", tmp_path / "again")
    assert again.err == loud.err


def test_quiet_also_fills_stores_without_progress(evergram: Command, tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    fill = ("store", "fill", tmp_path / "line", "--store")
    loud = evergram(*fill, f"object=snapshot:{tmp_path / 'loud'}")
    assert "of 300 rows of side object" in loud.err
    assert evergram("--quiet", *fill, f"object=snapshot:{tmp_path / 'quiet'}").err == ""


def test_help_ends_with_an_example_that_can_be_parsed(evergram: Command) -> None:
    for words, command in every_command().items():
        page = " ".join(evergram(*words.split(), "--help").out.split())
        name, *rest = page.split("Example: evergram ")[1].split()
        assert [name, *rest][: len(words.split())] == words.split()
        command.make_context(words, rest[len(words.split()) - 1 :])


def test_every_command_and_option_has_help() -> None:
    silent = [
        (words, parameter.opts)
        for words, command in every_command().items()
        for parameter in command.params
        if not command.help or not getattr(parameter, "help", None)
    ]
    assert silent == []


def test_help_does_not_load_torch() -> None:
    after = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    result = run_process("--help", before=after)
    assert result.out.endswith("False\n")


def test_every_bracket_of_help_is_shown(evergram: Command) -> None:
    """A bracket that is not escaped is markup of rich, which leaves it out."""
    for words, command in every_command().items():
        texts = [command.help, command.epilog, *(getattr(p, "help", None) for p in command.params)]
        for text in filter(None, texts):
            shown = Text.from_markup(text).plain
            assert shown == text.replace("\\[", "["), f"{words}: {text}"
    page = " ".join(evergram("train", "--help").out.replace("│", " ").split())
    assert "pip install 'evergram[tensorboard]'" in page
