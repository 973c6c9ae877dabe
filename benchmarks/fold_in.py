"""New users folded in without training, beside the same users trained: Recall@20 of their pairs.

One user in ten, of those with at least five pairs, is new: a fifth of their pairs are the test. The
model beside has trained on the other four fifths; the model that folds them in has seen none of
their pairs. Both have one random percent of their pairs to choose the epoch by.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import gowalla
from benchmarks.tiny import recipes
from evergram.data.corpus import Corpus
from evergram.evaluation.ranking import Relevance, rank_metrics
from evergram.gramian import Interactions, QueryForm
from evergram.lineage.artefact import Artefact
from evergram.releasing.upgrade import train
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe

METRIC = "recall@20"
SHARE, LEAST_PAIRS, TESTED, SEED = 0.1, 5, 0.2, 0
SOFTMAX = {
    "model": {"dim": 64, "normalize": True, "start": "smooth"},
    "task": {"kind": "softmax_all", "temperature": 0.1, "push": 1.22},
    "training": {"optimizer": "adam", "decay": 0.95, "epochs": 24},
}
# Recipe, objective, and what is other than in the recipe.
RUNS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("movielens", "squared loss", {}),
    ("movielens", "softmax over all", SOFTMAX),
    ("gowalla-softmax", "softmax over all", {"training": {**SOFTMAX["training"], "epochs": 12}}),
)


@dataclass(frozen=True)
class Row:
    """One model: the metric of new users, over all of them, by how they got their vectors."""

    data: str
    objective: str
    users: int
    rule: str
    trained: float
    folded: float
    mean: float


@dataclass(frozen=True)
class NewUsers:
    """Pairs [n] of a corpus, by which users are new and which pairs are their test.

    Args:
        is_new: bool [n], of a new user.
        is_test: bool [n], of a new user and held out from both models.
    """

    query: Tensor
    candidate: Tensor
    is_new: Tensor
    is_test: Tensor

    @classmethod
    def of(cls, corpus: Corpus) -> NewUsers:
        query, candidate = corpus.column("query"), corpus.column("candidate")
        draw = torch.Generator().manual_seed(SEED)
        enough = (torch.bincount(query) >= LEAST_PAIRS).nonzero()[:, 0]
        chosen = enough[torch.randperm(len(enough), generator=draw)]
        is_new = torch.isin(query, chosen[: max(1, int(SHARE * len(enough)))])
        is_test = is_new & (torch.rand(len(query), generator=draw) < TESTED)
        return cls(query, candidate, is_new, is_test)

    def kept(self, pairs: Tensor) -> Corpus:
        """Return the corpus of some pairs, bool [n], with the rows' numbers as ids."""
        columns = {"query": self.query[pairs], "candidate": self.candidate[pairs]}
        return Corpus.of({name: column.numpy() for name, column in columns.items()})


def measure() -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        gowalla.convert()
        folder = gowalla.ROOT / "recipes"
        return [_kept(folder / f"{name}.toml", what, own) for name, what, own in RUNS]
    finally:
        torch.set_num_threads(threads)


def tiny() -> list[Row]:
    with recipes() as folder:
        short = {"training": {"epochs": 1}}
        return [
            row_of(folder / "random.toml", "squared loss", {**short, "model": {"dim": 4}}),
            row_of(
                folder / "random.toml",
                "softmax over all",
                {**short, "model": {"dim": 4, "normalize": True}, "task": SOFTMAX["task"]},
            ),
        ]


def _kept(path: Path, objective: str, own: Mapping[str, Any]) -> Row:
    """Return a run's row: from build/fold-in where the same one was measured before."""
    text = json.dumps([path.read_text(), objective, own])
    name = f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    kept = gowalla.ROOT / "build" / "fold-in" / name
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(asdict(row_of(path, objective, own))))
    return Row(**json.loads(kept.read_text()))


def row_of(path: Path, objective: str, own: Mapping[str, Any]) -> Row:
    """Train both models of a recipe, whose tables `own` replaces, and rank for the new users."""
    users = NewUsers.of(load_corpus(Recipe.load(path)))
    values = {**tomllib.loads(path.read_text()), **own, "data": {"kind": "python"}}
    values |= {"split": {"kind": "random", "share": 0.01}, "metrics": [METRIC]}
    known, fresh = (
        train(Recipe.of(deepcopy(values)), users.kept(pairs), progress=False)
        for pairs in (~users.is_test, ~users.is_new)
    )
    return compared(path.stem, objective, users, known, fresh)


def compared(data: str, objective: str, users: NewUsers, known: Artefact, fresh: Artefact) -> Row:
    """Return the row of a model that has trained on the new users, and of one that has not."""
    form = fresh.query_form
    assert form is not None
    mean = QueryForm.mean(fresh.dim, normalize=form.length != "free")
    queries, seen = _rows(known, "query"), users.is_new & ~users.is_test
    own_rows = queries[torch.unique(users.query[seen])]
    trained = known.block("query")[1][own_rows]
    return Row(
        data,
        objective,
        len(own_rows),
        form.rule,
        _recall(users, known, trained),
        *(_recall(users, fresh, _folded(users, fresh, f)) for f in (form, mean)),
    )


def _rows(artefact: Artefact, side: str) -> Tensor:
    """Return the row of each id in an artefact's block, [largest id + 1]; -1 of others."""
    ids = torch.tensor(artefact.block(side)[0].to_pylist())
    rows = torch.full((int(ids.max()) + 1,), -1)
    rows[ids] = torch.arange(len(ids))
    return rows


def _looked_up(rows: Tensor, ids: Tensor) -> Tensor:
    return torch.where(ids < len(rows), rows[ids.clamp(max=len(rows) - 1)], -1)


def _folded(users: NewUsers, artefact: Artefact, form: QueryForm) -> Tensor:
    """Return the vectors of the new users, [U, D], from their pairs that are not the test."""
    seen = users.is_new & ~users.is_test
    _, query = torch.unique(users.query[seen], return_inverse=True)
    candidate = _looked_up(_rows(artefact, "candidate"), users.candidate[seen])
    order = torch.argsort(query, stable=True)
    order = order[candidate[order] >= 0]
    vectors = artefact.block("candidate")[1][candidate[order]]
    ones = torch.ones(len(order))
    return form.minimise(Interactions(query[order], vectors, ones, ones)).float()


def _recall(users: NewUsers, artefact: Artefact, queries: Tensor) -> float:
    """Return the metric of queries [U, D] on the test pairs, over the candidates of a model."""
    seen = users.is_new & ~users.is_test
    rows = _rows(artefact, "candidate")
    ids = torch.unique(users.query[seen])
    tested = users.is_test & torch.isin(users.query, ids)
    candidate = _looked_up(rows, users.candidate[seen])
    query = torch.searchsorted(ids, users.query[seen])
    relevance = Relevance.of(
        torch.searchsorted(ids, users.query[tested]),
        _looked_up(rows, users.candidate[tested]),
        query[candidate >= 0],
        candidate[candidate >= 0],
    )
    return rank_metrics(queries, artefact.block("candidate")[1], relevance, [METRIC])[METRIC]


def table(rows: Sequence[Row]) -> str:
    """Return a table: new users trained, folded in, and as the mean of their candidates."""
    lines = [
        "| data | objective | new users | trained on their pairs | folded in | / trained "
        "| mean of candidates |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratio = row.folded / row.trained if row.trained else float("nan")
        lines.append(
            f"| {row.data} | {row.objective} ({row.rule}) | {row.users} | {row.trained:.4f} | "
            f"{row.folded:.4f} | {ratio:.3f} | {row.mean:.4f} |"
        )
    lines += ["", "Recall@20 of a fifth of each new user's pairs; one seed."]
    return "\n".join(lines)
