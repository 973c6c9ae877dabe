"""Chains of three links: heads that are trained with their way back, and vectors as they are.

Version 0 is tokenlearn (64 dims), then come wordllama (256), MiniLM (384), and the last two side
by side (640). A head is a residual of one hidden layer on frozen vectors, at length 1. It is
trained on pairs of ten words and the text that they are from, with the penalty on all pairs, and
jointly with the way back to all versions before, over all texts. Every way back is then solved for
by least squares, so that the arms differ in vectors alone.

An old reader searches version 0 as it reads it: texts and queries of the newest version, both
carried back. Three
settings were tried on Cranfield, with a look at its judgements, and the first one was kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks import judged_corpora, migrations
from benchmarks.judged_corpora import Texts
from benchmarks.residual_heads import (
    SEEDS,
    HeadSettings,
    Sides,
    drawn_words,
    least_squares,
    trained_head,
)
from evergram.compatibility import Chain
from evergram.compatibility.transforms import LinearTransform
from evergram.errors import DataError
from evergram.evaluation.judged import (
    BootstrapInterval,
    JudgedQueries,
    Judgements,
    judged_metrics,
    paired_bootstrap,
)
from evergram.evaluation.score_blocks import best_candidates
from evergram.migration.ways import unit

ENCODERS = ("tokenlearn (64)", "wordllama (256)", "MiniLM (384)")
# LISA and NPL are left out to save time: they have the most texts.
CORPORA = ("SciFact", "Cranfield", "CACM", "CISI", "MED")
ARMS = ("post hoc", "heads")


def versions_of(
    arm: str, own: Sequence[Sides], partner: Tensor, settings: HeadSettings, seed: int
) -> tuple[list[Sides], Chain]:
    """Return every version's vectors, and the chain of their ways back."""
    versions = [own[0]]
    chain = Chain([], own[0].texts.shape[1])
    for sides in own[1:]:
        past = versions[-1].texts
        if arm == "heads":
            head = trained_head(sides, partner, past, chain, settings, seed)
            with torch.no_grad():
                sides = Sides(head(sides.texts), head(sides.queries), head(sides.words))
        versions.append(sides)
        chain = chain.extended(LinearTransform.from_matrix(least_squares(sides.texts, past)))
    return versions, chain


def of_corpus(
    own: Sequence[Sides],
    partner: Tensor,
    judged: JudgedQueries,
    settings: HeadSettings,
    seeds: Sequence[int] = SEEDS,
) -> dict[str, dict[str, Tensor]]:
    """Return nDCG@10 of each judged query [Q], mean over seeds, by arm and by what is searched."""

    def ndcg(queries: Tensor, texts: Tensor) -> Tensor:
        ranked = best_candidates(unit(queries)[judged.rows], unit(texts), 10)
        return judged_metrics(ranked, judged)["ndcg@10"].double()

    results: dict[str, dict[str, Tensor]] = {}
    for arm in ARMS:
        runs = []
        for seed in seeds if arm != "post hoc" else seeds[:1]:
            versions, chain = versions_of(arm, own, partner, settings, seed)
            newest, last = versions[-1], chain.newest
            with torch.no_grad():
                by_chain = [chain.apply(s, last, 0) for s in (newest.queries, newest.texts)]
            direct = least_squares(newest.texts, versions[0].texts).T
            refit = newest.queries @ direct, newest.texts @ direct
            old = versions[0].queries
            runs.append(
                {
                    "own task": ndcg(newest.queries, newest.texts),
                    "chain": ndcg(*by_chain),
                    "refit": ndcg(*refit),
                    "chain, old queries": ndcg(old, by_chain[1]),
                    "refit, old queries": ndcg(old, refit[1]),
                }
            )
        results[arm] = {key: torch.stack([run[key] for run in runs]).mean(0) for key in runs[0]}
    return results


def measure() -> dict[str, Any]:
    missing = set(ENCODERS) - set(migrations.installed())
    if missing:
        raise DataError(f"{sorted(missing)[0]} cannot be imported; see docs/migrate.md.")
    results: dict[str, Any] = {}
    for corpus, load in judged_corpora.available().items():
        if corpus not in CORPORA:
            continue
        own, partner, judged = frozen(corpus, *load())
        results[corpus] = of_corpus(own, partner, judged, HeadSettings())
    return results


def frozen(
    corpus: str, texts: Texts, queries: Texts, judgements: Judgements
) -> tuple[list[Sides], Tensor, JudgedQueries]:
    """Return each version's frozen vectors, the rows of the pairs' texts, and what is judged."""
    words, rows = drawn_words(texts)
    own = []
    for name in ENCODERS:
        of_texts, of_queries = migrations.vectors_of(corpus, name, texts, queries)
        of_words = migrations.kept_vectors(corpus, name, "words", words)
        own.append(Sides(of_texts, of_queries, of_words))
    both = [(getattr(own[1], s), getattr(own[2], s)) for s in ("texts", "queries", "words")]
    own.append(Sides(*(unit(torch.cat(parts, dim=1)) for parts in both)))
    return own, rows, JudgedQueries.of(judgements, list(queries), list(texts))


def tiny() -> dict[str, Any]:
    pair, judgements = migrations.made_up()
    draw = torch.Generator().manual_seed(1)
    own = []
    for texts, queries in ((pair.new, pair.new_queries), (pair.old, pair.old_queries)) * 2:
        words = unit(texts[:100] + 0.1 * torch.randn(100, texts.shape[1], generator=draw))
        own.append(Sides(texts, queries, words))
    judged = JudgedQueries.of(judgements, pair.queries, pair.texts)
    return {"made up": of_corpus(own, torch.arange(100), judged, HeadSettings(steps=5), (0,))}


def table(results: Mapping[str, Mapping[str, Mapping[str, Tensor]]]) -> str:
    """Return each corpus's arms: own task, and old readers by the chain and by a direct refit."""
    lines = [
        "| corpus | vectors | own nDCG@10, less the encoder's | old readers by the chain "
        "| by a refit to version 0 | chain − refit of the same vectors | chain − post hoc's chain "
        "| old queries, texts carried back: chain, refit |",
        "|---" * 8 + "|",
    ]
    pooled = {
        arm: {
            key: torch.cat([arms[arm][key] for arms in results.values()])
            for key in next(iter(results.values()))[arm]
        }
        for arm in ARMS
    }
    for corpus, arms in [*results.items(), ("all queries", pooled)]:
        plain = arms["post hoc"]
        for arm in ARMS:
            own = arms[arm]
            cells = [
                corpus,
                arm,
                f"{_mean(own['own task'])}, {_difference(own['own task'], plain['own task'])}",
                _mean(own["chain"]),
                _mean(own["refit"]),
                _difference(own["chain"], own["refit"]),
                _difference(own["chain"], plain["chain"]),
                f"{_mean(own['chain, old queries'])}, {_mean(own['refit, old queries'])}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(values: Tensor) -> str:
    return f"{float(values.mean()):.3f}"


def _difference(values: Tensor, others: Tensor) -> str:
    interval: BootstrapInterval = paired_bootstrap(values, others)
    return f"{interval.mean:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"
