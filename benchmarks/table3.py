"""[BC]'s Table 3 and figures on MovieLens, by the command itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gowalla import ROOT
from benchmarks.tiny import recipes
from evergram.training.recipe import Recipe

# What is there is gone on with: a table of an hour need not be made twice.
OUT = ROOT / "comparison"
FIGURES = ("over-time", "by-task", "by-lambda")


def section(recipe: str) -> str:
    return table(ROOT / "recipes" / f"{recipe}.toml", OUT / recipe)


def tiny(recipe: str) -> str:
    """Compare the recipe's methods on the tiny corpus, without tasks that need more ratings than
    it has."""
    methods = Recipe.load(ROOT / "recipes" / f"{recipe}.toml").compare.methods
    settings = [
        f"compare.methods={json.dumps(methods)}", "compare.hidden=[8]", "compare.dropout=[0]",
        "compare.consumers=1", "compare.epochs=2", "model.dim=4",
    ]  # fmt: skip
    with recipes() as folder:
        return table(folder / "growing.toml", folder / "out", settings)


def table(path: Path, out: Path, settings: Sequence[str] = ()) -> str:
    """Run `evergram compare`; return its table, and the sum of its seconds."""
    code = "from evergram.cli import main; main()"
    overrides = [part for setting in settings for part in ("--set", setting)]
    subprocess.run(
        [sys.executable, "-c", code, "compare", str(path), "--out", str(out), *overrides],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    results = json.loads((out / "results.json").read_text())
    trained = 0.0
    for seed in results["runs"].values():
        own = seed["keep-all"]["seconds"]
        trained += own
        for name, run in seed.items():
            shares = run["method"] in ("non-bc", "post-lin-sloss", "post-lin-mloss", "post-closed")
            trained += run["seconds"] - own * shares if name != "keep-all" else 0.0
    minutes = f"All training after M_0, summed over methods and seeds: {trained / 60:.0f} minutes."
    return (out / "table.md").read_text().rstrip() + f"\n{minutes}"


def figures(recipe: str) -> dict[str, bytes]:
    """Return the figures that the command has drawn, by their names in the documents."""
    pictures = {}
    for name in FIGURES:
        path: Path = OUT / recipe / f"{name}.png"
        if path.exists():
            pictures[f"{recipe}-{name}.png"] = path.read_bytes()
    return pictures
