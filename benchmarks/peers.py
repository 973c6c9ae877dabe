"""implicit's least squares on our splits, tuned: `python -m benchmarks.peers gowalla`.

The extra `peers` installs other libraries. Like our own models, it trains without the selection
pairs while settings are chosen by them.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from benchmarks import gowalla
from benchmarks.peer_models import Result, implicit_als
from evergram.data.split import RowPairs, Split
from evergram.evaluation.ranking import rank_metrics, relevance_of
from evergram.training.corpora import load_corpus, split_for
from evergram.training.recipe import Recipe

METRICS = ("recall@20", "ndcg@20")
Settings = dict[str, float]

# Each grid is a product of values; settings that it does not name keep the best values so far.
GRIDS: Sequence[Mapping[str, Sequence[float]]] = (
    {"alpha": (1, 3, 10, 30, 100), "regularization": (1, 10, 100), "iterations": (16,)},
    {"regularization": (0.3, 3, 30)},
    {"alpha": (2, 5, 20, 50)},
    {"iterations": (4, 8, 32)},
    {"alpha": (1, 3, 10, 20, 50, 100), "regularization": (3, 30)},
    {"iterations": (2, 6)},
)
# Found by `python -m benchmarks.peers gowalla` and `… movielens`.
SETTINGS: dict[str, Settings] = {
    "gowalla": {"alpha": 50, "regularization": 3, "iterations": 4},
    "movielens": {"alpha": 2, "regularization": 3, "iterations": 32},
}


def wanting() -> str:
    """Return why the peers cannot run, as a sentence; empty if they can."""
    absent = [name for name in ("implicit", "irspack") if find_spec(name) is None]
    if not absent:
        return ""
    return f"{' and '.join(absent)} not installed; `pip install '.[peers]'` brings the peers."


def load(name: str) -> tuple[Recipe, Split]:
    """Return `recipes/<name>.toml` and the split of its version 0."""
    if name == "gowalla":
        gowalla.convert()
    recipe = Recipe.load(gowalla.ROOT / "recipes" / f"{name}.toml")
    return recipe, split_for(recipe, load_corpus(recipe), 0)


def judge(result: Result, split: Split, pairs: RowPairs) -> dict[str, float]:
    """Return `METRICS` of a fitted model on held-out pairs."""
    relevance = relevance_of(split.training, pairs)
    return rank_metrics(result.query, result.candidate, relevance, METRICS)


def tune(split: Split) -> Settings:
    """Return the settings with the best Recall@20 on the selection pairs; prints each."""
    fit: Callable[..., Result] = implicit_als
    best, highest = Settings(), -1.0
    for grid in GRIDS:
        start = best
        for values in itertools.product(*grid.values()):
            settings = start | dict(zip(grid, values, strict=True))
            result = fit(split, **settings)
            recall = judge(result, split, split.selection)[METRICS[0]]
            print(f"{settings}: {recall:.4f}, {result.seconds:.1f} s", flush=True)
            if recall > highest:
                best, highest = settings, recall
    return best


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("data", choices=list(SETTINGS))
    if wanting():
        sys.exit(wanting())
    print(tune(load(parser.parse_args().data)[1]))


if __name__ == "__main__":
    main()
