"""The page of help, unknown names, and the options before and of a command."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.text import Text
from tests.support.click_shop import RECIPE
from tests.support.command import Command, every_command, run_process

from evergram.cli.app import PANELS, log_format_of
from evergram.cli.options import columns_by_role, columns_of, stores_by_side
from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.log_lines import LogFormat

TOP = [
    *("demo", "init", "prepare", "train", "upgrade", "evaluate", "tune", "diagnose"),
    *("serve", "lineage", "consumer", "store", "vectors"),
]


def test_the_page_of_help_goes_from_first_use_to_operation(evergram: Command) -> None:
    page = evergram("--help").out
    shown = re.findall(r"^│ ([a-z][a-z-]*) ", page, re.MULTILINE)
    assert shown == TOP
    places = [page.index(f"─ {panel} ─") for panel in PANELS]
    assert places == sorted(places)


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


def test_help_does_not_load_torch() -> None:
    after = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    result = run_process("--help", before=after)
    assert result.out.endswith("False\n")


def test_an_unknown_name_is_answered_with_what_can_be_meant(evergram: Command) -> None:
    for words, meant in ((["trian"], "'train'"), (["vectors", "algin"], "'align'")):
        assert f"{words[-1]!r}. Did you mean {meant}?" in evergram.refused(*words)
    assert "Did you mean" not in evergram.refused("xyzzy")


def test_every_command_has_help_and_an_example_that_can_be_parsed() -> None:
    for words, command in every_command().items():
        texts = [command.help, *(getattr(each, "help", None) for each in command.params)]
        assert all(texts), words
        for text in (*texts, command.epilog):
            # A bracket that is not escaped is markup of rich, which leaves it out.
            assert Text.from_markup(text).plain == text.replace("\\[", "["), f"{words}: {text}"
        shown = " ".join(Text.from_markup(command.epilog).plain.split())
        name, *rest = shown.split("Example: evergram ")[1].split()
        assert [name, *rest][: len(words.split())] == words.split()
        command.make_context(words, rest[len(words.split()) - 1 :])


def lines_of(err: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in err.splitlines()]
    assert all({"time", "level", "event", "message"} <= line.keys() for line in lines)
    return lines


def test_a_training_as_json_has_the_figures_of_its_lines(evergram: Command, shop: Path) -> None:
    training = ("train", "shop.toml", "--lineage")
    plain = evergram(*training, "a", "--json")
    ran = evergram("--log-format", "json", *training, "b", "--json")
    assert ran.code == 0
    epochs = [line for line in lines_of(ran.err) if line["event"] == "progress"]
    history = ran.json["training"]["history"]
    metric = next(key for key in history[0] if "@" in key)
    measured = [line for line in epochs if metric in line]
    assert [line["epoch"] for line in measured] == [point["epoch"] for point in history]
    assert [line[metric] for line in measured] == [point[metric] for point in history]
    assert [line["loss"] for line in measured] == [point["objective"] for point in history]
    assert epochs[0]["total"]
    assert all(line["seconds_left"] is not None for line in epochs)
    # Each line for people is the message of one for programs, but for its time and speed.
    titles = [line.split(",")[0] for line in plain.err.splitlines()]
    assert [line for line in titles if not line.startswith("warning")] == [
        str(line["message"]).split(",")[0]
        for line in lines_of(ran.err)
        if line["event"] != "warning"
    ]


def test_every_line_of_a_process_is_json(tmp_path: Path) -> None:
    before = "import warnings, logging, evergram.cli as cli; old = cli.parser\n"
    before += "def app(**options):\n warnings.warn('w'); logging.getLogger('other').warning('o')\n"
    before += " return old()(**options)\ncli.parser = lambda: app\n"
    ran = run_process("--log-format=json", "lineage", "lisst", tmp_path / "x", before=before)
    lines = lines_of(ran.err)
    assert (ran.code, ran.out) == (2, "")
    assert [line["event"] for line in lines] == ["warning", "warning", "error"]
    assert "No such command 'lisst'" in str(lines[-1]["message"])
    assert lines[-1]["exit_code"] == 2


def test_the_format_of_lines_is_known_before_the_command_line_is_parsed(evergram: Command) -> None:
    for words, chosen in (
        ("--quiet", "text"),
        ("--quiet --log-format json train x", "json"),
        ("--log-format=json --quiet train", "json"),
        ("--log-format json --log-format text train", "text"),
        ("--log-format", "text"),
        ("--log-format jsonl train", "text"),
    ):
        assert log_format_of(words.split()) is LogFormat(chosen)
    assert "'text', 'json'" in evergram.refused("--log-format", "yaml", "demo")


def test_stores_and_columns_are_named_once_and_passwords_never() -> None:
    address = "postgresql://db/films?sslmode=require#q"
    assert stores_by_side([f"query={address}", "candidate=lance:v#films"]) == {
        "query": address,
        "candidate": "lance:v#films",
    }
    for option in ("secret", "=secret", "query=", "postgresql://a:secret@db?x=1", "a b=secret"):
        with pytest.raises(DataError, match="--store must be SIDE=ADDRESS") as refusal:
            stores_by_side(["query=here", option])
        assert "secret" not in str(refusal.value)
    with pytest.raises(DataError, match="'query'"):
        stores_by_side(["query=a", "query=b"])
    assert columns_by_role(["query=a=b", "time=when"]) == {"query": "a=b", "time": "when"}
    for options in (["query"], ["time=a", "time=b"]):
        with pytest.raises(DataError, match=options[0].partition("=")[0]):
            columns_by_role(options)
    files = [Path("a.npy"), Path("b.parquet")]
    assert columns_of(files, ["id=key"]) == {"id_column": "key", "vector_column": "vector"}
    with pytest.raises(DataError, match=r"\.npy"):
        columns_of(files[:1], ["vector=v"])


# Commands of a recipe, or of the one that a lineage was trained by, and the limits of a service.
SETTING = {"train", "upgrade", "evaluate", "diagnose", "demo", "tune", "serve", "lineage skew"}


def unread(function: Callable[..., object]) -> set[str]:
    """The parameters that a function never reads."""
    (tree,) = ast.parse(inspect.getsource(function)).body
    assert isinstance(tree, ast.FunctionDef)
    names = {n.id for part in tree.body for n in ast.walk(part) if isinstance(n, ast.Name)}
    return set(inspect.signature(function).parameters) - names


def test_every_command_reads_every_option_that_it_has() -> None:
    commands = every_command()
    assert {n: u for n, c in commands.items() if (u := unread(inspect.unwrap(c.callback)))} == {}
    for name, command in commands.items():
        known = {option for parameter in command.params for option in parameter.opts}
        assert ("--set" in known) == (name in SETTING), name


def test_an_override_of_a_kind_leaves_out_the_keys_of_the_other_and_says_so(
    evergram: Command, shop: Path
) -> None:
    text = RECIPE.replace("dim = 4", "dim = 4\nkind = 'two_tower'\nhidden = [4]")
    (shop / "shop.toml").write_text(text)
    ran = evergram("train shop.toml --lineage l --set model.kind=factorization")
    assert ran.code == 0, ran.err
    assert "model.hidden" in ran.err
    assert "hidden" not in Lineage.open("l").manifest(0).recipe["model"]
