"""Quality against training time: our models, sampled negatives, and other libraries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from benchmarks import gowalla, peers
from benchmarks.tiny import recipes
from evergram.training.corpora import final_split, load_corpus, split_for
from evergram.training.fit import Refit, RunContext, fit_encoder
from evergram.training.recipe import Recipe

METRICS = ("recall@20", "ndcg@20")
# Seconds of training after which a method's last epoch ends.
BUDGET = 90
SAMPLED = ["gramian.kind=sampled", "gramian.sampler=linear"]
LONG = [
    *("task.penalty=0", "task.l2=0.01", "task.l2_measure=examples"),
    *("training.epochs=60", "training.evaluate_every=4"),
]
# On top of the data's own recipe. Chosen by the selection pairs, as the peers' settings are, but
# among few.
METHODS = {
    "Evergram, SOGram": [],
    "Evergram, SOGram, independent batch": ["gramian.sampler=linear"],
    "Evergram, storm": ["gramian.kind=storm"],
    "Evergram, SOGram, 256-d": ["model.dim=256", "training.epochs=8"],
    "the batch's Gramian, uniform sampler": [*SAMPLED, "gramian.sampler=uniform"],
    "the batch's Gramian, sqrt sampler": [*SAMPLED, "gramian.sampler=sqrt"],
    "the batch's Gramian, linear sampler": [*SAMPLED, "gramian.sampler=linear"],
    "in-batch softmax, logQ": [*LONG, "task.kind=softmax", "training.batch_size=1024"],
    "BPR, rejected negatives": [*LONG, "task.kind=bpr"],
}
# On exactly this split of Gowalla, by their authors; docs/data-sets.md.
PUBLISHED = {
    "gowalla": {
        "NGCF, published": (0.1570, 0.1327),
        "LightGCN, published": (0.1830, 0.1554),
        "UltraGCN, published": (0.1862, 0.1580),
        "SimpleX, published": (0.1872, 0.1557),
    }
}


@dataclass
class Row:
    """A method: test metrics, seconds to the epoch that was kept, and the curve of training.

    Args:
        seconds: None for published figures.
        curve: (seconds, Recall@20 on the selection pairs) of each evaluation; one point for a
            library, which reports no more.
    """

    method: str
    metrics: Mapping[str, float]
    seconds: float | None = None
    curve: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Quality:
    """All methods on one data set."""

    name: str
    rows: list[Row]


def quality(name: str) -> Quality:
    """Run every method on "gowalla" or "movielens", on one split and this machine, one by one."""
    if name == "gowalla":
        gowalla.convert()
    path = gowalla.ROOT / "recipes" / f"{name}.toml"
    base = Recipe.load(path, [f"training.budget={BUDGET}", "training.evaluate_every=1"])
    rows = list(_rows(base))
    if not peers.wanting():
        for peer in peers.rows(name):
            point = (peer["seconds"], peer["selection"])
            rows.append(Row(peer["method"], peer, peer["seconds"], [point]))
    for method, values in PUBLISHED.get(name, {}).items():
        rows.append(Row(method, dict(zip(METRICS, values, strict=True))))
    return Quality(name, rows)


def tiny(kind: str) -> Quality:
    """Run our methods on the tiny corpus, each for an instant; no peers."""
    with recipes() as folder:
        settings = ["training.budget=0.01", 'metrics=["recall@20", "ndcg@20"]']
        return Quality("tiny", list(_rows(Recipe.load(folder / f"{kind}.toml", settings))))


def _rows(base: Recipe) -> Iterator[Row]:
    split = split_for(base, load_corpus(base), 0)
    final = final_split(split, refits=base.refits)
    refit = None if final is split else Refit(final)
    popular: Mapping[str, float] | None = None
    for method, overrides in METHODS.items():
        recipe = Recipe.of(base.model_dump(), overrides)
        fitted = fit_encoder(recipe, split, 0, RunContext(torch.device("cpu")), refit=refit)
        curve = [(h["seconds"], h[recipe.training.metric]) for h in fitted.history]
        best = max(curve, key=lambda point: point[1])
        popular = fitted.metrics["popularity"]
        yield Row(method, fitted.metrics["model"], best[0], curve)
    if popular is not None:
        yield Row("popularity", popular)


def table(quality: Quality) -> str:
    """Return a table of the methods, best first by Recall@20 on the test pairs."""
    lines = ["| method | Recall@20 | NDCG@20 | seconds |", "|---|---|---|---|"]
    for row in sorted(quality.rows, key=lambda r: -r.metrics[METRICS[0]]):
        seconds = "–" if row.seconds is None else f"{row.seconds:.1f}"
        figures = " | ".join(f"{row.metrics[m]:.4f}" for m in METRICS)
        lines.append(f"| {row.method} | {figures} | {seconds} |")
    if reason := peers.wanting():
        lines += ["", f"Without the peers: {reason}"]
    return "\n".join(lines)
