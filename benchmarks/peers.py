"""Other libraries' models on our splits: `python -m benchmarks.peers test gowalla`.

The extra `peers` installs them. `tune` chooses their settings by the selection pairs. Like our own
models, they train without the selection pairs while settings are chosen, and on a published split
the last fit is to its whole training part.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from benchmarks import gowalla
from benchmarks.peer_models import Result, implicit_als, implicit_bpr, irspack_ials, irspack_rp3beta
from evergram.data.split import RowPairs, Split
from evergram.evaluation.ranking import Relevance, rank_metrics, relevance_of
from evergram.training.corpora import final_split, load_corpus, split_for
from evergram.training.recipe import Recipe

METRICS = ("recall@20", "ndcg@20")
Settings = dict[str, float]


@dataclass(frozen=True)
class Peer:
    """A model of another library: its title in tables, how to fit it, and the grids to tune over.

    Each grid is a product of values; settings that it does not name keep the best values so far.
    """

    title: str
    fit: Callable[..., Result]
    grids: Sequence[Mapping[str, Sequence[float]]]


PEERS = {
    "implicit-als": Peer(
        "implicit, ALS, 64-d",
        implicit_als,
        (
            {"alpha": (1, 3, 10, 30, 100), "regularization": (1, 10, 100), "iterations": (16,)},
            {"regularization": (0.3, 3, 30)},
            {"alpha": (2, 5, 20, 50)},
            {"iterations": (4, 8, 32)},
            {"alpha": (1, 3, 10, 20, 50, 100), "regularization": (3, 30)},
            {"iterations": (2, 6)},
        ),
    ),
    "irspack-ials": Peer(
        "irspack, iALS, 64-d",
        irspack_ials,
        (
            {"alpha0": (0.01, 0.03, 0.1, 0.3, 1), "reg": (0.0003, 0.001, 0.003)}
            | {"nu": (0, 1), "epochs": (16,)},
            {"reg": (0.0001, 0.01), "nu": (0, 0.5, 1)},
            {"alpha0": (0.02, 0.05, 0.2, 0.5)},
            {"epochs": (4, 8, 32, 64)},
            {"alpha0": (0.01, 0.02, 0.05, 0.5, 2), "reg": (0.0003, 0.003)},
            {"epochs": (2, 6)},
        ),
    ),
    "irspack-rp3beta": Peer(
        "irspack, RP3beta, no embedding",
        irspack_rp3beta,
        (
            {"beta": (0, 0.2, 0.4, 0.6), "top_k": (100, 1000), "normalize": (0, 1)},
            {"top_k": (30, 300, 3000)},
        ),
    ),
    "implicit-bpr": Peer(
        "implicit, BPR (sampled negatives), 64-d",
        implicit_bpr,
        (
            {"learning_rate": (0.02, 0.05, 0.1), "regularization": (0.003, 0.01, 0.03)}
            | {"iterations": (50,)},
            {"iterations": (25, 100, 200)},
            {"regularization": (0.0003, 0.001)},
            {"learning_rate": (0.005, 0.01), "iterations": (50, 100, 200)},
        ),
    ),
}
# Found by `python -m benchmarks.peers tune gowalla` and `… tune movielens`, their grids in pieces.
SETTINGS: dict[str, dict[str, Settings]] = {
    "gowalla": {
        "implicit-als": {"alpha": 50, "regularization": 3, "iterations": 4},
        "irspack-ials": {"alpha0": 0.02, "reg": 0.0001, "nu": 0, "epochs": 8},
        "irspack-rp3beta": {"beta": 0.2, "top_k": 1000, "normalize": 1},
        "implicit-bpr": {"learning_rate": 0.005, "regularization": 0.0003, "iterations": 200},
    },
    "movielens": {
        "implicit-als": {"alpha": 2, "regularization": 3, "iterations": 32},
        "irspack-ials": {"alpha0": 1, "reg": 0.0001, "nu": 1, "epochs": 16},
        "irspack-rp3beta": {"beta": 0.4, "top_k": 1000, "normalize": 1},
        "implicit-bpr": {"learning_rate": 0.005, "regularization": 0.01, "iterations": 100},
    },
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


def judge(result: Result, split: Split, pairs: RowPairs, rows: int = 256) -> dict[str, float]:
    """Return `METRICS` of a fitted model on held-out pairs; SciPy matrices are scored `rows` at
    a time."""
    corpus = split.training
    if isinstance(result.query, Tensor):
        relevance = relevance_of(corpus, pairs)
        return rank_metrics(result.query, result.candidate, relevance, METRICS)
    seen = RowPairs(corpus.column("query"), corpus.column("candidate"))
    totals, judged = dict.fromkeys(METRICS, 0.0), 0
    for start in range(0, len(corpus.queries), rows):
        # A query of its own dimension in each row: its products are the scores themselves.
        scores = torch.from_numpy(
            (result.query[start : start + rows] @ result.candidate.T).toarray()
        )
        targets, masked = (_from(p, start, len(scores)) for p in (pairs, seen))
        relevance = Relevance.of(targets.query, targets.candidate, masked.query, masked.candidate)
        if len(relevance):
            metrics = rank_metrics(torch.eye(len(scores)), scores.T, relevance, METRICS)
            totals = {name: totals[name] + len(relevance) * metrics[name] for name in METRICS}
            judged += len(relevance)
    return {name: total / judged for name, total in totals.items()}


def _from(pairs: RowPairs, start: int, rows: int) -> RowPairs:
    """Return the pairs of the queries `start` to `start + rows`, counted from `start`."""
    inside = (pairs.query >= start) & (pairs.query < start + rows)
    return RowPairs(pairs.query[inside] - start, pairs.candidate[inside])


def tune(name: str, split: Split, show: Callable[[str], None] = print) -> Settings:
    """Return the settings of the peer `name` with the best Recall@20 on the selection pairs."""
    peer, best, highest = PEERS[name], Settings(), -1.0
    for grid in peer.grids:
        start = best
        for values in itertools.product(*grid.values()):
            settings = start | dict(zip(grid, values, strict=True))
            result = peer.fit(split, **settings)
            metrics = judge(result, split, split.selection)
            figures = " | ".join(f"{metrics[metric]:.4f}" for metric in METRICS)
            show(f"| {name} | {_words(settings)} | {figures} | {result.seconds:.1f} |")
            if metrics[METRICS[0]] > highest:
                best, highest = settings, metrics[METRICS[0]]
    return best


def rows(name: str, peers: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Return the test metrics of the peers (all, by default) with their `SETTINGS` on the data
    `name`.

    Returns: for each the method's title, `METRICS`, the seconds of training, and `selection`: the
        first of `METRICS` on the selection pairs.
    """
    recipe, split = load(name)
    final, measured = final_split(split, refits=recipe.refits), []
    for peer in peers or PEERS:
        result = PEERS[peer].fit(split, **SETTINGS[name][peer])
        selection = judge(result, split, split.selection)[METRICS[0]]
        if final is not split:
            result = PEERS[peer].fit(final, **SETTINGS[name][peer])
        figures = judge(result, final, final.test)
        about = {"method": PEERS[peer].title, "seconds": result.seconds, "selection": selection}
        measured.append(about | figures)
    return measured


def table(measured: Iterable[Mapping[str, Any]]) -> str:
    """Return `rows` as Markdown."""
    lines = ["| method | Recall@20 | NDCG@20 | seconds |", "|---|---|---|---|"]
    for row in measured:
        figures = " | ".join(f"{row[metric]:.4f}" for metric in METRICS)
        lines.append(f"| {row['method']} | {figures} | {row['seconds']:.1f} |")
    return "\n".join(lines)


def _words(settings: Settings) -> str:
    return ", ".join(f"{key} {value:g}" for key, value in settings.items())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("command", choices=["tune", "test"])
    parser.add_argument("data", choices=["gowalla", "movielens"])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=", ".join(PEERS))
    chosen = parser.parse_args()
    unknown = set(chosen.peers) - set(PEERS)
    if unknown:
        parser.error(f"unknown peer {sorted(unknown)[0]}; there are {', '.join(PEERS)}")
    if wanting():
        sys.exit(wanting())
    if chosen.command == "test":
        print(table(rows(chosen.data, chosen.peers)))
        return
    _, split = load(chosen.data)
    print("| peer | settings | selection Recall@20 | NDCG@20 | seconds |\n|---|---|---|---|---|")
    for name in chosen.peers or PEERS:
        best = tune(name, split, partial(print, flush=True))
        print(f"\n{chosen.data}, {name}: {best}\n", flush=True)


if __name__ == "__main__":
    main()
