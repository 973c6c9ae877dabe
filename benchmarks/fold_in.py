"""New users folded in without training, compared with training on the same users: Recall@20.

One in ten users with at least five pairs is new, and a fifth of a new user's pairs are the test.
The trained model has seen the other four fifths; the model that folds new users in has seen none of
their pairs. Both choose the epoch on a random 1 % of their pairs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from benchmarks import gowalla
from benchmarks.defaults import one_thread
from benchmarks.tiny import recipes
from evergram.data.corpus import Corpus
from evergram.evaluation.ranking import Relevance, rank_metrics
from evergram.gramian import QueryForm
from evergram.lineage.artefact import Artefact
from evergram.lineage.view import fold_in, stored_lookup
from evergram.releasing.upgrade import train
from evergram.training.build import load_corpus
from evergram.training.recipe import Recipe

METRIC = "recall@20"
SHARE, LEAST_PAIRS, TESTED, SEED = 0.1, 5, 0.2, 0
SOFTMAX = {
    "model": {"dim": 64, "normalize": True, "start": "smooth"},
    "task": {"kind": "softmax_all", "temperature": 0.1, "push": 1.22},
    "training": {"optimizer": "adam", "decay": 0.95, "epochs": 24},
}
# Recipe, objective, and the tables that replace the recipe's.
RUNS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("movielens", "squared loss", {}),
    ("movielens", "softmax over all", SOFTMAX),
    ("gowalla-softmax", "softmax over all", {"training": {**SOFTMAX["training"], "epochs": 12}}),
)


@dataclass(frozen=True)
class Row:
    """One model: the metric over all new users, by how their vectors were computed."""

    data: str
    objective: str
    users: int
    trained: float
    folded: float
    mean: float


def measure() -> list[Row]:
    with one_thread():
        gowalla.convert()
        folder = gowalla.ROOT / "recipes"
        return [row_of(folder / f"{name}.toml", what, own) for name, what, own in RUNS]


def tiny() -> list[Row]:
    short = {"training": {"epochs": 1}}
    unit = {"model": {"dim": 4, "normalize": True}, "task": SOFTMAX["task"]}
    with recipes() as folder:
        return [
            row_of(folder / "random.toml", "squared loss", {**short, "model": {"dim": 4}}),
            row_of(folder / "random.toml", "softmax over all", {**short, **unit}),
        ]


def row_of(path: Path, objective: str, own: Mapping[str, Any]) -> Row:
    """Train both models of a recipe with tables replaced by `own`, and rank for the new users."""
    corpus = load_corpus(Recipe.load(path))
    query, candidate = corpus.column("query"), corpus.column("candidate")
    is_new, is_test = _drawn(query)
    values = {**tomllib.loads(path.read_text()), **own, "data": {"kind": "python"}}
    values |= {"split": {"kind": "random", "share": 0.01}, "metrics": [METRIC]}

    def trained(pairs: Tensor) -> Artefact:
        kept = {"query": query[pairs].numpy(), "candidate": candidate[pairs].numpy()}
        return train(Recipe.of(deepcopy(values)), Corpus.of(kept), progress=False)

    known, fresh = trained(~is_test), trained(~is_new)
    seen = is_new & ~is_test
    users, own_row, counts = torch.unique(query[seen], return_inverse=True, return_counts=True)
    ordered = candidate[seen][torch.argsort(own_row, stable=True)]
    met = torch.split_with_sizes(ordered, counts.tolist())
    is_test &= torch.isin(query, users)

    def recall(artefact: Artefact, vectors: Tensor) -> float:
        """Return the metric for the users' vectors [U, D], ranking a model's candidates."""
        rows = _rows(artefact, "candidate", candidate[seen])
        relevance = Relevance.of(
            torch.searchsorted(users, query[is_test]),
            _rows(artefact, "candidate", candidate[is_test]),
            own_row[rows >= 0],
            rows[rows >= 0],
        )
        return rank_metrics(vectors, artefact.block("candidate")[1], relevance, [METRIC])[METRIC]

    def folded(form: QueryForm) -> float:
        lookup = stored_lookup(lambda: fresh.block("candidate"))
        lists = [ids.tolist() for ids in met]
        return recall(fresh, fold_in(form, lookup, lists, missing="skip"))

    form = fresh.query_form
    assert form is not None
    return Row(
        path.stem,
        f"{objective} ({form.rule})",
        len(users),
        recall(known, known.block("query")[1][_rows(known, "query", users)]),
        folded(form),
        folded(QueryForm.mean(fresh.dim, normalize=form.length != "free")),
    )


def _drawn(query: Tensor) -> tuple[Tensor, Tensor]:
    """Return two masks [n]: pairs of new users, and those among them that are test pairs."""
    draw = torch.Generator().manual_seed(SEED)
    enough = (torch.bincount(query) >= LEAST_PAIRS).nonzero()[:, 0]
    chosen = enough[torch.randperm(len(enough), generator=draw)]
    is_new = torch.isin(query, chosen[: max(1, int(SHARE * len(enough)))])
    return is_new, is_new & (torch.rand(len(query), generator=draw) < TESTED)


def _rows(artefact: Artefact, side: str, ids: Tensor) -> Tensor:
    """Return the row of each id in an artefact's block, or -1 if the id is missing."""
    places = pc.index_in(pa.array(ids.numpy()), value_set=artefact.block(side)[0])
    return torch.tensor(places.fill_null(-1).to_numpy(), dtype=torch.long)


def table(rows: Sequence[Row]) -> str:
    """Return a table: new users trained, folded in, and represented by their candidates' mean."""
    lines = [
        "| data | objective | new users | trained on their pairs | folded in | / trained "
        "| mean of candidates |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.data} | {row.objective} | {row.users} | {row.trained:.4f} | "
            f"{row.folded:.4f} | {row.folded / row.trained:.3f} | {row.mean:.4f} |"
        )
    return "\n".join([*lines, "", "Recall@20 of a fifth of each new user's pairs; one seed."])
