"""Recipes: TOML that cannot be read, unknown keys, wrong values, and values that do not fit."""

from __future__ import annotations

from tests.support.bad_input.case import Case, Content, nothing, put
from tests.support.bad_input.good_files import RECIPE

TRAIN = "train {} --lineage new"


def text(name: str, content: Content, names: str = "bad.toml", file: str = "bad.toml") -> Case:
    """Return the case of training by a recipe of this content."""
    return Case(name, TRAIN.format(f"'{file}'"), names, put(content, file))


def key(name: str, value: str, names: str = "") -> Case:
    """Return the case of a value given by --set."""
    first = value.partition("=")[0]
    return Case(name, f"train shop.toml --lineage new --set '{value}'", names or first)


CASES = [
    text("no such recipe", lambda p: None),
    text("an empty recipe", "", ""),
    text("a folder as recipe", lambda p: p.mkdir()),
    text("a recipe that is no TOML", "name: shop\n"),
    text("a recipe in UTF-16", RECIPE.encode("utf-16")),
    text("a table twice", RECIPE + "[model]\ndim = 3\n"),
    text("an unknown key", RECIPE + "batchsize = 3\n"),
    text("a circle of links as recipe", lambda p: p.symlink_to(p)),
    text("a recipe nested too deep", "a = " + "[" * 5000 + "]" * 5000),
    text("a number past 64 bits", RECIPE.replace("dim = 4", f"dim = {10**30}"), "model.dim"),
    key("an override without a value", "model.dim"),
    key("a text where a number is wanted", "model.dim=four"),
    key("a negative dim", "model.dim=-4"),
    key("no epochs", "training.epochs=0"),
    key("a batch of zero", "training.batch_size=0"),
    key("no metrics", "metrics=[]"),
    key("an unknown kind of model", "model.kind=two_towers"),
    key("shares that fall", "split.versions=[0.7, 0.5]"),
    key("a negative seed", "seed=-1"),
    key("a name with a slash", "name=a/b"),
    key("a minimum value without values", "data.minimum_value=3"),
    key("an override of what training does not read", "upgrade.method=non-bc"),
    Case("no lineage named", "train shop.toml", "--lineage"),
    Case("an unknown option", "train shop.toml --lineage new --epoch 3", "--epoch"),
    Case("an unknown command", "trian shop.toml", "trian"),
    Case("one argument too many", "train shop.toml other --lineage new", "other"),
    Case("an option without a value", "train shop.toml --lineage", "--lineage"),
    Case("a seed that is no number", "train shop.toml --lineage new --seed one", "one"),
    Case("a device that there is not", "train shop.toml --lineage new --device gpu", "gpu"),
    Case(
        "a checkpoint every word",
        "train shop.toml --lineage new --checkpoint-every often",
        "often",
    ),
    Case("no checkpoint kept", "train shop.toml --lineage new --keep-checkpoints 0", "0"),
    Case("a resume of another word", "train shop.toml --lineage new --resume maybe", "maybe"),
    Case("a comparison without methods", "compare shop.toml --out c", "split.kind", nothing),
    Case(
        "a tuning over an unknown key",
        "tune shop.toml --out c --over model.dims=2,4",
        "model.dims",
    ),
    Case("a tuning over no values", "tune shop.toml --out c --over model.dim=", "model.dim"),
    Case(
        "a tuning from high to low",
        "tune shop.toml --out c --over task.penalty=5..1",
        "task.penalty",
    ),
    Case("a tuning of no trials", "tune shop.toml --out c --trials 0", "0"),
]
