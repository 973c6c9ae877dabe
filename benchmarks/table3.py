"""[BC]'s Table 3 and figures on MovieLens, by the command itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.gowalla import ROOT

# What is there is gone on with: a table of an hour need not be made twice.
OUT = ROOT / "comparison"
FIGURES = ("over-time", "by-task", "by-lambda")


def section(recipe: str) -> str:
    """Run `evergram compare`; its table, and the sum of its seconds."""
    out = OUT / recipe
    code = "from evergram.cli import main; main()"
    path = ROOT / "recipes" / f"{recipe}.toml"
    subprocess.run(
        [sys.executable, "-c", code, "compare", str(path), "--out", str(out)],
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
    """The figures that the command has drawn, by the name they have in the documents."""
    found = {}
    for name in FIGURES:
        path: Path = OUT / recipe / f"{name}.png"
        if path.exists():
            found[f"{recipe}-{name}.png"] = path.read_bytes()
    return found
