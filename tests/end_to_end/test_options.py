"""No option of the command and no key of a recipe is accepted and ignored."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.click_shop import RECIPE
from tests.support.command import Command, every_command
from tests.support.golden import TRAINED
from tests.support.lineages import lineage_of

from evergram.lineage.lineage import Lineage

# Commands of a recipe, or of the one that a lineage was trained by, and the limits of a service.
SETTING = {"train", "upgrade", "evaluate", "diagnose", "compare", "demo", "tune", "serve"}


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


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("lineage list l --device cpu", "evergram lineage list --help"),
        ("vectors align old.parquet new.parquet --transform affine --scaled", "scaled"),
        ("vectors align old.npy new.npy --column id=key", "--column"),
        ("vectors align 0 new.parquet --old-ids x.txt", "--old-ids"),
        ("consumer add l ads --pin v0 --metric rmse", "--metric"),
        ("consumer pin l ads v0 --drop-probe --probe m.onnx --data d.parquet", "--drop-probe"),
        ("reproduce --seeds 2", "--seeds"),
        ("reproduce report --device cpu", "--device"),
        ("serve l --set max_text=9", "max_text"),
        ("serve l --set sidecar_depth=9", "sidecar_depth"),
        ("prepare a.csv o --prefix en", "--prefix"),
        ("prepare a.txt o --kind adjacency_list --column query=a", "--column"),
        ("init a.txt --column query=a", "--column"),
        ("lineage label l x 0 --remove", "--remove"),
        ("train shop.toml --set model.hidden=[8]", "model.hidden"),
        ("train shop.toml --set upgrade.method=non-bc", "upgrade.method"),
        ("upgrade shop.toml --set compare.seeds=3", "compare.seeds"),
        ("compare shop.toml --out o --set upgrade.method=non-bc", "upgrade.method"),
        ("tune shop.toml --out o --set upgrade.method=non-bc", "upgrade.method"),
        (f"evaluate {TRAINED} --set model.dim=3", "model.dim"),
        (f"diagnose {TRAINED} --set upgrade.rank=3", "upgrade.rank"),
    ],
)
def test_an_option_without_effect_is_refused(
    evergram: Command, shop: Path, vector_files: Path, command: str, option: str
) -> None:
    (shop / "a.txt").write_text("1 2 3\n")
    (shop / "a.csv").write_text("query,candidate\n1,2\n")
    lineage_of(shop / "l")
    assert evergram("consumer add l ads --pin v0").code == 0
    if command.startswith(("train", "upgrade", "vectors align")):
        command += " --lineage new"
    assert option in evergram.refused(command)
    assert not {"o", "new"} & {path.name for path in shop.iterdir()}


def test_an_override_of_a_kind_leaves_out_the_keys_of_the_other_and_says_so(
    evergram: Command, shop: Path
) -> None:
    text = RECIPE.replace("dim = 4", "dim = 4\nkind = 'two_tower'\nhidden = [4]")
    (shop / "shop.toml").write_text(text)
    ran = evergram("train shop.toml --lineage l --set model.kind=factorization")
    assert ran.code == 0, ran.err
    assert "model.hidden" in ran.err
    assert "hidden" not in Lineage.open("l").manifest(0).recipe["model"]
