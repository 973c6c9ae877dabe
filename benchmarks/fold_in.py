"""New users folded in without training, next to other methods: nDCG@100 and recall of hidden pairs.

Strong generalisation (Liang et al. 2018, arXiv:1802.05814): models are trained on other users, and
get four fifths of a new user's pairs; the others are the test. Ratings are 4 or more, of candidates
and users with at least `LEAST`. The same validation users, never tested, choose the best of
`TRIALS` settings of each method; seeds have test users of their own. Results are saved in
benchmarks/kept/fold-in, so that an interrupted run can resume.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import gowalla, peers, which_loss
from benchmarks.defaults import interval, one_thread
from benchmarks.peers import Result, Tuned, matrix_of
from benchmarks.records import Kept
from benchmarks.tiny import recipes
from evergram.data.corpus import Corpus
from evergram.evaluation.ranking import Relevance, popularity, rank_metrics
from evergram.lineage.view import fold_in, stored_lookup
from evergram.releasing.upgrade import train
from evergram.training.build import load_corpus
from evergram.training.recipe import Recipe

Matrix = Any  # a SciPy CSR matrix of ones, [queries, candidates]
Settings = Mapping[str, float]
Ranges = Mapping[str, tuple[float, float, str | None]]
METRICS = (METRIC := "ndcg@100", "recall@20", "recall@50")
TRIALS, SEEDS, LEAST, HIDDEN = 10, 3, 5, 0.2
DATA = ("movielens-latest-small", "movielens-25m-head", "gowalla, a sixth of the queries")
KEPT = gowalla.ROOT / "benchmarks" / "kept" / "fold-in"
NONE = torch.empty(0)  # vectors of users that a method does not have
ALS = ["training.optimizer=als"]
UNIT = ["task.kind=softmax_all", "model.normalize=true", "model.start=smooth",
        "training.optimizer=adam", "training.batch_size=4096", "training.rescale_rows=true",
        "training.decay=0.95"]  # fmt: skip


def most_popular(pairs: Matrix, settings: Settings, *, factors: int, seed: int = 0) -> Result:
    _, candidate = popularity(torch.from_numpy(pairs.sum(0).A1))
    return Result(NONE, candidate, 0.0, lambda known: torch.ones(known.shape[0], 1))


def ease(pairs: Matrix, settings: Settings, *, factors: int, seed: int = 0) -> Result:
    """Solve EASE (Steck 2019). By Woodbury's identity with K = (l2 I + X Xᵀ)⁻¹, the score of a
    candidate j that a query x has not met is (x Xᵀ K X)_j / (1 − (Xᵀ K X)_jj)."""
    kernel = (pairs @ pairs.T).toarray().astype(np.float64)
    kernel[np.diag_indices_from(kernel)] += settings["l2"]
    smoothed = pairs.T @ np.linalg.inv(kernel)  # [N, U]
    itself = np.asarray(pairs.T.multiply(smoothed).sum(1))
    candidate = torch.from_numpy(smoothed / (1 - itself)).float()
    return Result(NONE, candidate, 0.0, lambda known: _dense(known @ pairs.T))


def elsa(pairs: Matrix, settings: Settings, *, factors: int, seed: int = 0) -> Result:
    """Train ELSA (Vančura et al. 2022): x A Aᵀ − x is to be parallel to x; rows of A are unit."""
    torch.manual_seed(seed)
    table = torch.nn.init.xavier_uniform_(torch.empty(pairs.shape[1], factors)).requires_grad_()
    optimizer = torch.optim.NAdam([table], settings["rate"])
    for _ in range(int(settings["epochs"])):
        for rows in torch.split(torch.randperm(pairs.shape[0]), int(settings["batch"])):
            met, unit = _dense(pairs[rows.numpy()]), functional.normalize(table)
            guess = functional.normalize(met @ unit @ unit.T - met)
            loss: Any = functional.mse_loss(guess, functional.normalize(met))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    unit = functional.normalize(table.detach())
    return Result(NONE, unit, 0.0, lambda known: _dense(known) @ unit)


def evergram(
    pairs: Matrix, settings: Settings, *, factors: int, seed: int = 0, fixed: Sequence[str] = ()
) -> Result:
    """Train a recipe of `settings` for a fixed number of epochs; without settings, the defaults."""
    own = ["split.share=0.05", "training.refit=true", f"seed={seed}", *fixed]
    if settings:
        epochs = settings["training.epochs"]
        own += ["split.share=0.01", "training.refit=false", f"training.evaluate_every={epochs}"]
        own += [f"{key}={value}" for key, value in settings.items()]
    values = {"data": {"kind": "python"}, "model": {"dim": factors}, "metrics": ["ndcg@100"]}
    artefact = train(Recipe.of(values, own), Corpus.of(pairs), progress=False)
    query, candidate = (torch.zeros(size, artefact.dim) for size in pairs.shape)
    for side, vectors in (("query", query), ("candidate", candidate)):
        ids, rows = artefact.block(side)  # all but the few whose every pair was held out
        vectors[torch.from_numpy(ids.to_numpy())] = rows
    stored = pa.array(range(len(candidate)), pa.int64()), candidate

    def fold(known: Matrix) -> Tensor:
        lists = [row.tolist() for row in np.split(known.indices, known.indptr[1:-1])]
        return fold_in(artefact.query_form, stored_lookup(lambda: stored), lists)

    return Result(query, candidate, 0.0, fold)


def _dense(rows: Matrix) -> Tensor:
    return torch.from_numpy(rows.toarray().astype(np.float32))


SOLVER: Ranges = {"task.penalty": (1, 100, "log"), "task.l2": (0.003, 1, "log"),
          "training.epochs": (2, 32, "whole")}  # fmt: skip
SOFTMAX: Ranges = {"task.temperature": (0.06, 0.4, "log"), "task.push": (1, 1.22, None),
           "task.neighbour_share": (0.1, 0.3, None), "training.table_rate": (0.01, 0.04, "log"),
           "training.epochs": (5, 40, "whole")}  # fmt: skip
ELSA: Ranges = {"rate": (0.003, 0.3, "log"), "epochs": (4, 64, "whole"),
                "batch": (64, 1024, "whole")}  # fmt: skip
# Each method, with the numbers of dims that it is measured with; 0 for a method without dims.
METHODS: dict[str, tuple[Tuned, Sequence[int]]] = {
    "popularity": (Tuned(most_popular, {}), [0]),
    "EASE": (Tuned(ease, {"l2": (10, 3000, "log")}), [0]),
    "ELSA": (Tuned(elsa, ELSA), [64, 256]),
    **{n: (tuned, [64]) for n, tuned in peers.PEERS.items() if not peers.wanting()},
    "Evergram, defaults": (Tuned(evergram, {}), [64]),
    "Evergram, solver": (Tuned(partial(evergram, fixed=ALS), SOLVER), [64, 256]),
    "Evergram, softmax with neighbours": (Tuned(partial(evergram, fixed=UNIT), SOFTMAX), [64, 256]),
}


@dataclass(frozen=True)
class Users:
    """Pairs to train on, [U, N], and those of Q new users, known and hidden, [Q, N]."""

    training: Matrix
    known: Matrix
    hidden: Matrix

    @classmethod
    def of(cls, pairs: Matrix, new: np.ndarray, seed: int) -> Users:
        """Return users of whom `new` has the new ones' rows; candidates are those trained on."""
        training = pairs[np.setdiff1d(np.arange(pairs.shape[0]), new)]
        trained = training.getnnz(0) > 0
        known, hidden = pairs[new][:, trained], pairs[new][:, trained]
        is_hidden = np.random.default_rng(seed).random(known.nnz) < HIDDEN
        for part, kept in ((known, ~is_hidden), (hidden, is_hidden)):
            part.data = part.data * kept
            part.eliminate_zeros()
        both = (known.getnnz(1) > 0) & (hidden.getnnz(1) > 0)
        return cls(training[:, trained], known[both], hidden[both])

    def judge(self, query: Tensor, candidate: Tensor) -> dict[str, float]:
        """Return the metrics of vectors of the new users [Q, D] and the candidates [N, D]."""
        rows = [torch.from_numpy(r).long() for m in (self.hidden, self.known) for r in m.nonzero()]
        return rank_metrics(query, candidate, Relevance.of(*rows), METRICS)

    def folded(self, model: Result) -> dict[str, float]:
        assert model.fold is not None
        return self.judge(model.fold(self.known), model.candidate)

    def compare(self, fit: Callable[..., Result], *, ours: bool) -> dict[str, dict[str, float]]:
        """Return the metrics of new users folded in; for `ours` also with the means of their
        candidates as vectors, and trained on their known pairs."""
        from scipy.sparse import vstack

        model = fit(self.training)
        found = {"folded": self.folded(model)}
        if ours:
            mean = torch.from_numpy(self.known @ model.candidate.numpy())
            again = fit(vstack([self.training, self.known], "csr"))
            found["mean"] = self.judge(mean, model.candidate)
            found["trained"] = self.judge(again.query[-len(mean) :], again.candidate)
        return found


Rows = dict[tuple[str, str], Any]  # `Users.compare` of each seed, by data and method


def measure() -> Rows:
    rows: Rows = {}
    with one_thread():
        for name in filter(which_loss.available, DATA):
            values = which_loss.values_of(name)
            if name.startswith("movielens"):
                values["data"]["minimum_value"] = 4
            pairs = matrix_of(load_corpus(Recipe.of(values)))
            pairs.data = np.minimum(pairs.data, 1)
            pairs = pairs[:, pairs.getnnz(0) >= LEAST]
            rows |= compare(name, pairs[pairs.getnnz(1) >= LEAST], KEPT)
    return rows


def tiny() -> Rows:
    with recipes() as folder:
        pairs = matrix_of(load_corpus(Recipe.load(folder / "random.toml")))
        return compare("tiny", pairs, folder / "kept", trials=1, seeds=2)


def compare(
    data: str, pairs: Matrix, folder: Path, trials: int = TRIALS, seeds: int = SEEDS
) -> Rows:
    """Tune each method on validation users, and test it on others."""
    order = np.random.default_rng(0).permutation(pairs.shape[0])
    fifth = len(order) // 5
    validation = Users.of(pairs, order[:fifth], 0)
    draws = [np.random.default_rng(seed + 1) for seed in range(seeds)]
    tests = [Users.of(pairs, draw.permutation(order[fifth:])[:fifth], 0) for draw in draws]

    def tested(name: str, tuned: Tuned, dim: int) -> dict[str, Any]:
        settings: Settings = {}
        if tuned.ranges:
            judged = lambda model: validation.folded(model)[METRIC]  # noqa: E731
            settings = peers.tune(tuned, validation.training, judged, dim, trials)
        runs = []
        for seed, users in enumerate(tests):
            fit = partial(tuned.fit, settings=settings, factors=dim, seed=seed)
            runs.append(users.compare(fit, ours=name.startswith("Evergram")))
        return {"settings": settings, "runs": runs}

    rows: Rows = {}
    for name, (tuned, dims) in METHODS.items():
        for dim in dims:
            about = f"{data} {name} {dim} {tuned.ranges} {trials} {seeds}"
            kept = Kept(folder).get(about, partial(tested, name, tuned, dim))
            rows[data, f"{name}, {dim}" if dim else name] = kept["runs"]
    return rows


def table(rows: Rows) -> str:
    """Return a table with a row per method, and its difference from EASE, paired by seed."""
    lines = [
        "| data | method, dims | nDCG@100 | − EASE | recall@20 | recall@50 "
        "| nDCG@100, trained on their pairs | mean of candidates |",
        "|---" * 8 + "|",
    ]
    for (data, method), runs in rows.items():
        ease = [run["folded"][METRIC] for run in rows[data, "EASE"]]
        first, *recalls = ([run["folded"][metric] for run in runs] for metric in METRICS)
        gains = [own - other for own, other in zip(first, ease, strict=True)]
        cells = [interval(values, 4) for values in (first, gains, *recalls)]
        for how in ("trained", "mean"):
            cells.append(f"{fmean(r[how][METRIC] for r in runs):.4f}" if how in runs[0] else "–")
        lines.append(f"| {data} | {method} | {' | '.join(cells)} |")
    lacking = set(DATA) - {data for data, _ in rows}
    note = "± is half of the 95 % interval of the mean over seeds, whose test users differ."
    note += f" Data that was not measured: {'; '.join(sorted(lacking)) or 'none'}."
    return "\n".join([*lines, "", note])
