"""Is the last epoch of a softmax's training as good as any, on Gowalla and Yelp2018?

The recipes of `published_splits`, without neighbours, are trained on nine tenths of the training
pairs, and Recall@20 on the tenth that was held out is measured as training goes on; the test part
is not kept. Results are kept in benchmarks/kept/last-epochs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import gowalla
from benchmarks.published_splits import ALONE, KEPT, NAMES, Kept
from benchmarks.tiny import recipes
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.recipe import Recipe

METRIC = "recall@20"
OVERRIDES = (*ALONE, "split.share=0.1", "training.evaluate_every=4", f"metrics=['{METRIC}']")
# Epochs that have a column; all that are evaluated are kept.
SHOWN = (4, 12, 20, 28, 36, 44, 52, 56, 60)


@dataclass(frozen=True)
class Row:
    """Recall@20 of the held-out pairs of a data set, by epoch."""

    data: str
    recalls: dict[int, float]


def last_epochs(names: Sequence[str] = NAMES, *, trains: bool = True) -> list[Row]:
    """Return a row a data set, trained where its result is not kept, if `trains`."""
    rows = []
    kept = Kept(KEPT.parent / "last-epochs", trains)
    for name in names:
        if gowalla.available(name):
            gowalla.convert(name=name)
            rows += _rows(name, gowalla.ROOT / "recipes" / f"{name}-softmax.toml", OVERRIDES, kept)
    return rows


def tiny() -> list[Row]:
    """Train on the tiny corpus for an instant."""
    short = ("training.epochs=4", f"metrics=['{METRIC}']", "model.dim=4")
    with recipes() as folder:
        return _rows("tiny", folder / "given.toml", short, Kept(folder))


def _rows(name: str, path: Path, overrides: Sequence[str], kept: Kept) -> list[Row]:
    recipe = Recipe.load(path, overrides)
    about = recipe.model_dump_json(exclude={"upgrade"})
    made = kept.get(about.replace(str(gowalla.ROOT), ""), lambda: _train(recipe))
    if made is None:
        return []
    return [Row(name, {int(entry["epoch"]): entry[METRIC] for entry in made["history"]})]


def _train(recipe: Recipe) -> dict[str, Any]:
    split = split_for(recipe, load_corpus(recipe), 0)
    fitted = fit_encoder(recipe, split, 0, RunContext(torch.device("cpu")))
    return {"history": fitted.history, "seconds": fitted.seconds}


def table(rows: Sequence[Row]) -> str:
    """Return Recall@20 by epoch, and the best epoch of all that were evaluated."""
    head = "| data | " + " | ".join(f"epoch {epoch}" for epoch in SHOWN) + " | best |"
    lines = [head, "|---" * (len(SHOWN) + 2) + "|"]
    for row in rows:
        shown = (f"{row.recalls[e]:.4f}" if e in row.recalls else "–" for e in SHOWN)
        best = max(row.recalls, key=lambda epoch: row.recalls[epoch])
        cells = " | ".join(shown)
        lines.append(f"| {row.data} | {cells} | {row.recalls[best]:.4f}, epoch {best} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.last_epochs")
    parser.add_argument("--data", choices=NAMES, nargs="+", default=NAMES)
    parser.add_argument("--kept", action="store_true", help="train nothing")
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    chosen = parser.parse_args()
    shown = table(last_epochs(chosen.data, trains=not chosen.kept))
    print(shown)
    if chosen.write:
        from benchmarks.__main__ import put

        put("last-epochs", shown)


if __name__ == "__main__":
    main()
