"""Whether pairs held out of a published training part rank models as its test part does.

Every model is trained once a protocol, on what the protocol leaves; the pairs that it holds out and
the test part then rank the same embeddings. The test part is looked at here to judge protocols, and
no recipe's settings come from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import pyarrow.compute as pc
import torch
from torch import Tensor

from benchmarks import gowalla
from benchmarks.tiny import recipes
from evergram.data.corpus import Corpus, PairRule
from evergram.data.split import RowPairs, Split
from evergram.evaluation.ranking import rank_metrics, relevance_of
from evergram.training.corpora import final_split, load_corpus, split_for
from evergram.training.fit import RunContext, Trained, fit_encoder
from evergram.training.recipe import Recipe

METRIC = "recall@20"
NAMES = ("gowalla", "yelp2018")
LAST = [
    *("upgrade.method=non-bc", "training.patience=0", "training.refit=false"),
    "metrics=['recall@20']",
]
SOFTMAX = [
    # Without the limit on shares, which came later.
    "task={kind='softmax_all', temperature=0.12, push=1.22}",
    "training.precision='bfloat16'",
    *("training.epochs=5", "training.evaluate_every=5", "training.decay=0.6"),
]
SQUARED = [
    *(
        "model.normalize=false",
        "model.start='random'",
        "task={kind='pointwise', penalty=10.0, l2=0.03}",
    ),
    *("training.optimizer='adaptive'", "training.table_rate=0.05", "training.decay=1.0"),
]
# Overrides of recipes/<data>-softmax.toml; short trainings, as the order is what counts.
MODELS: dict[str, list[str]] = {
    "smooth start": ["training.epochs=0"],
    "svd start": ["training.epochs=0", "model.start='svd'", "model.normalize=false"],
    "squared loss, 4 epochs": [*SQUARED, "training.epochs=4", "training.evaluate_every=4"],
    "squared loss, 10 epochs": [*SQUARED, "training.epochs=10", "training.evaluate_every=10"],
    "softmax, τ .08": [*SOFTMAX, "task.temperature=0.08"],
    "softmax, τ .12": SOFTMAX,
    "softmax, τ .2": [*SOFTMAX, "task.temperature=0.2"],
    "softmax, τ .12, popularity .05": [*SOFTMAX, "model.popularity=0.05"],
    "softmax, τ .12, popularity .1": [*SOFTMAX, "model.popularity=0.1"],
}


@dataclass(frozen=True)
class Measured:
    """Recall@20 of the models, [M] each: on a protocol's held-out pairs, and on the test part."""

    data: str
    protocol: str
    held_out: list[float]
    test: list[float]

    @property
    def kendall(self) -> float:
        """Kendall's τ of the two orders of the models."""
        signs = [
            (a - b) * (c - d)
            for (a, c), (b, d) in combinations(zip(self.held_out, self.test, strict=True), 2)
        ]
        return sum((s > 0) - (s < 0) for s in signs) / len(signs)

    @property
    def regret(self) -> float:
        """What the best model by the held-out pairs lacks to the best on the test part."""
        return max(self.test) - self.test[self.held_out.index(max(self.held_out))]


def random_pairs(corpus: Corpus, draw: torch.Generator) -> Tensor:
    """Return a tenth of all pairs, bool [interactions]."""
    return torch.rand(len(corpus), generator=draw) < 0.1


def of_some_queries(corpus: Corpus, draw: torch.Generator) -> Tensor:
    """Return a fifth of the pairs of a fifth of the queries; all others keep theirs."""
    chosen = torch.rand(len(corpus.queries), generator=draw) < 0.2
    return chosen[corpus.column("query")] & (torch.rand(len(corpus), generator=draw) < 0.2)


def newest_candidates(corpus: Corpus, draw: torch.Generator) -> Tensor:
    """Return each query's tenth of pairs with the candidates of the highest published numbers.

    Numbers follow the order in which candidates first appeared, so it is near a split by time.
    """
    rank = torch.from_numpy(pc.rank(corpus.candidates.vocabulary.keys).to_numpy().astype("int64"))
    query, own = corpus.column("query"), rank[corpus.column("candidate")]
    order = torch.argsort(query * (len(rank) + 1) + own)
    counts = torch.bincount(query, minlength=len(corpus.queries))
    ends = counts.cumsum(0)
    place = torch.empty(len(corpus), dtype=torch.int64)
    place[order] = torch.arange(len(corpus))
    left = ends[query] - place  # 1 for the highest
    return left <= (counts[query] * 0.1).floor()


PROTOCOLS: dict[str, Callable[[Corpus, torch.Generator], Tensor]] = {
    "random pairs": random_pairs,
    "pairs of some queries": of_some_queries,
    "each query's newest candidates": newest_candidates,
}


def selection_protocols(names: Sequence[str] = NAMES) -> list[Measured]:
    """Measure every protocol on the published splits that are here."""
    rows: list[Measured] = []
    for name in names:
        if gowalla.available(name):
            gowalla.convert(name=name)
            rows += _measured(name, gowalla.ROOT / "recipes" / f"{name}-softmax.toml", MODELS, [])
    return rows


def tiny() -> list[Measured]:
    """Measure two models on the tiny corpus, each after an instant."""
    models = {"one": ["training.epochs=1"], "three": ["training.epochs=3"]}
    with recipes() as folder:
        return list(_measured("tiny", folder / "given.toml", models, ["model.dim=4"]))


def _measured(
    name: str, path: Path, models: Mapping[str, list[str]], first: Sequence[str]
) -> Iterator[Measured]:
    base = Recipe.load(path, [*first, *LAST])
    published = final_split(split_for(base, load_corpus(base), 0), refits=True)
    for protocol, marks in PROTOCOLS.items():
        held = marks(published.training, torch.Generator().manual_seed(0))
        split = _held_out(published, held)
        recalls = []
        for own in models.values():
            recipe = Recipe.load(path, [*first, *LAST, *own])
            fitted = fit_encoder(recipe, split, 0, RunContext(torch.device("cpu")))
            recalls.append(_recalls(fitted, split))
        test = [by["test"] for by in recalls]
        yield Measured(name, protocol, [by["all"] for by in recalls], test)
        if marks is random_pairs:
            title = f"{protocol}, mean over thirds by popularity"
            yield Measured(name, title, [by["thirds"] for by in recalls], test)


def _held_out(published: Split, held: Tensor) -> Split:
    """Return the split whose selection pairs are those that `held`, bool [interactions], marks."""
    corpus = published.training
    training = corpus.where(PairRule("protocol", lambda block: ~held[block.places]))
    queries = training.queries.vocabulary.rows(corpus.queries.vocabulary.keys)
    candidates = training.candidates.vocabulary.rows(corpus.candidates.vocabulary.keys)

    def moved(query: Tensor, candidate: Tensor) -> RowPairs:
        of_known = torch.where(candidate >= 0, candidates[candidate], -1)
        return RowPairs(queries[query], of_known).where(queries[query] >= 0)

    selection = moved(corpus.column("query")[held], corpus.column("candidate")[held])
    test = moved(published.test.query, published.test.candidate)
    return replace(published, training=training, selection=selection, test=test, final=None)


def _recalls(fitted: Trained, split: Split) -> dict[str, float]:
    """Return Recall@20 on the selection pairs, its mean over those of candidates that are popular,
    between and rare (a third of the training pairs each), and Recall@20 on the test pairs."""
    corpus, pairs = split.training, split.selection

    def recall(pairs: RowPairs) -> float:
        relevance = relevance_of(corpus, pairs)
        return rank_metrics(fitted.query, fitted.candidate, relevance, [METRIC])[METRIC]

    counts = corpus.counts("candidate")
    order = torch.argsort(counts, descending=True)
    third = torch.empty_like(counts)
    third[order] = counts[order].cumsum(0) * 3 // (counts.sum() + 1)
    of_pair = torch.where(pairs.candidate >= 0, third[pairs.candidate], 2)
    parts = [recall(pairs.where(of_pair == n)) for n in range(3)]
    return {
        "all": recall(pairs),
        "thirds": sum(parts) / len(parts),
        "test": fitted.metrics["model"][METRIC],
    }


def table(rows: list[Measured]) -> str:
    """Return what each protocol says of the models, and how near that is to the test part."""
    lines = [
        "| data | held out | its best model's Recall@20 | on the test part | the best there | "
        "Kendall's τ of the orders |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.data} | {row.protocol} | {max(row.held_out):.4f} | "
            f"{max(row.test) - row.regret:.4f} | {max(row.test):.4f} | {row.kendall:.2f} |"
        )
    lines += ["", f"Models: {'; '.join(MODELS)}."]
    return "\n".join(lines)
