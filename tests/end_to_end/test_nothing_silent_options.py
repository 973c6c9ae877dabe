"""No option of the command and no key of a recipe is accepted and ignored: promise 8."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path

from tests.support.click_shop import RECIPE
from tests.support.command import Command, every_command
from tests.support.golden import TRAINED
from tests.support.lineages import lineage_of

from evergram.lineage.lineage import Lineage

WITHOUT_A_RECIPE = {
    "lineage list": ("l",),
    "lineage check": ("l",),
    "vectors export": ("l", "o.parquet", "--side", "query"),
    "vectors export-transform": ("l", "o.sql", "--format", "duckdb"),
    "vectors import": ("old.parquet", "--lineage", "l"),
    "vectors transform": ("old.parquet", "--lineage", "l", "--as", "0", "--out", "o.parquet"),
    "lineage label": ("l", "x", "0"),
    "lineage promote": ("l",),
    "lineage withdraw": ("l", "--reason", "x"),
    "lineage retire": ("l", "0"),
    "consumer list": ("l",),
    "consumer add": ("l", "x", "--pin", "v0"),
    "consumer pin": ("l", "x", "v0"),
    "consumer token": ("l", "x"),
    "consumer remove": ("l", "x"),
    "consumer probe": ("l",),
    "store fill": ("l", "--store", "query=s"),
    "store index": ("s",),
    "serve": ("l",),
    "store backfill plan": ("l", "--store", "query=s"),
    "store backfill apply": ("l", "--store", "query=s"),
    "store backfill status": ("l", "--store", "query=s"),
    "store backfill rollback": ("l", "--store", "query=s"),
}


def test_8_options_that_would_do_nothing_are_not_there(evergram: Command) -> None:
    options = [("--seed", "3"), ("--device", "cpu"), ("--set", "seed=3")]
    for n, (command, arguments) in enumerate(WITHOUT_A_RECIPE.items()):
        option = options[n % 3]
        known = {name for p in every_command()[command].params for name in p.opts}
        assert known.isdisjoint(name for name, _ in options)
        sentence = evergram.refused(*command.split(), *arguments, *option)
        assert f"No such option: {option[0]}" in sentence
        assert f"evergram {command} --help" in sentence


def test_8_every_other_command_says_what_its_options_do(evergram: Command) -> None:
    names = set(every_command())
    rest = names - set(WITHOUT_A_RECIPE) - {"reproduce"}  # it has recipes of its own
    bare = {"init", "prepare", "vectors align", "vectors encode", "vectors plan-migration"}
    bare |= {"vectors finish-migration", "vectors sidecar", "store check"}
    trained = {"train", "upgrade", "evaluate", "diagnose", "compare", "demo", "tune"}
    assert rest - bare == trained
    for name in sorted(names - {"reproduce"}):
        help_text = evergram(*name.split(), "--help").out
        assert "change nothing" not in " ".join(help_text.split())
        assert all((o in help_text) == (name in rest - bare) for o in ("--device", "--set"))


def test_8_an_option_of_align_that_would_do_nothing_is_refused(
    evergram: Command, vector_files: Path
) -> None:
    for arguments, option in (
        (("old.parquet", "new.parquet", "--transform", "affine", "--scaled"), "scaled"),
        (("old.npy", "new.npy", "--id-column", "key"), "--id-column"),
        (("0", "new.parquet", "--old-ids", "x.txt"), "--old-ids"),
    ):
        assert option in evergram.refused("vectors", "align", *arguments, "--lineage", "l")
    assert not (vector_files / "l").exists()


def test_8_the_options_of_a_probe_are_of_a_probe(evergram: Command, vector_files: Path) -> None:
    assert evergram("vectors", "import", "old.parquet", "--lineage", "l").code == 0
    sentence = evergram.refused("consumer", "add", "l", "ads", "--pin", "v0", "--metric", "rmse")
    assert "--metric was given without a probe; give --probe and --data" in sentence
    assert evergram("consumer", "add", "l", "ads", "--pin", "v0").code == 0
    both = ("--drop-probe", "--probe", "m.onnx", "--data", "d.parquet")
    assert "--drop-probe leaves it without" in evergram.refused(
        "consumer", "pin", "l", "ads", "v0", *both
    )


def unread(function: Callable[..., object]) -> set[str]:
    """The parameters that a function never reads."""
    (tree,) = ast.parse(inspect.getsource(function)).body
    assert isinstance(tree, ast.FunctionDef)
    names = {n.id for part in tree.body for n in ast.walk(part) if isinstance(n, ast.Name)}
    return set(inspect.signature(function).parameters) - names


def test_8_every_command_reads_every_option_that_it_has() -> None:
    callbacks = {n: inspect.unwrap(c.callback) for n, c in every_command().items()}
    ignored = {name: unread(callback) for name, callback in callbacks.items()}
    assert {name: options for name, options in ignored.items() if options} == {}


def test_8_an_option_beside_which_another_is_missing_is_refused(
    evergram: Command, shop: Path
) -> None:
    lineage_of(shop / "l")
    (shop / "a.txt").write_text("1 2 3\n")
    (shop / "a.csv").write_text("query,candidate\n1,2\n")
    for words, option in (
        ("reproduce --seeds 2", "--seeds"),
        ("reproduce report --device cpu", "--device"),
        ("serve l --max-text 9", "--max-text"),
        ("serve l --canary-every 9", "--canary-every"),
        ("prepare a.csv o --prefix en", "--prefix"),
        ("prepare a.txt o --kind adjacency_list --column query=a", "--column"),
        ("init a.txt --column query=a", "--column"),
        ("lineage label l x 0 --remove", "--remove"),
    ):
        assert option in evergram.refused(*words.split())
    assert not (shop / "o").exists()


def test_8_so_is_one_on_the_command_line(evergram: Command, shop: Path) -> None:
    sentence = evergram.refused("train", "shop.toml", "--lineage", "l", "--set", "model.hidden=[8]")
    assert "model.hidden is used with model.kind = 'two_tower' only" in sentence
    for command, override in (
        (("train", "shop.toml", "--lineage", "l"), "upgrade.method=non-bc"),
        (("upgrade", "shop.toml", "--lineage", "l"), "compare.seeds=3"),
        (("compare", "shop.toml", "--out", "o"), "upgrade.method=non-bc"),
        (("tune", "shop.toml", "--out", "o"), "upgrade.method=non-bc"),
        (("evaluate", TRAINED), "model.dim=3"),
        (("diagnose", TRAINED), "upgrade.rank=3"),
    ):
        sentence = evergram.refused(*command, "--set", override)
        assert f"--set {override} changes nothing here" in sentence


def test_8_an_override_of_a_kind_leaves_out_the_keys_of_the_other_and_says_so(
    evergram: Command, shop: Path
) -> None:
    text = RECIPE.replace("dim = 4", "dim = 4\nkind = 'two_tower'\nhidden = [4]")
    (shop / "shop.toml").write_text(text)
    ran = evergram("train", "shop.toml", "--lineage", "l", "--set", "model.kind=factorization")
    assert ran.code == 0, ran.err
    assert "shop.toml: left out, as what was set in its place does not use it: model.hid" in ran.err
    assert Lineage.open("l").manifest(0).recipe["model"]["hidden"] == [64]
