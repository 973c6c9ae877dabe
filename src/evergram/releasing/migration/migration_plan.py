"""From two models' vectors, and judgements where there are some, to a report and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from evergram.compatibility.degenerate import MOST_ZEROS, LengthCount
from evergram.evaluation.judged.beir_files import Judgements
from evergram.evaluation.judged.judged_metrics import JudgedQueries, judged_metrics
from evergram.evaluation.judged.paired_bootstrap import bootstrap, paired_bootstrap
from evergram.releasing.migration.migration_vectors import MigrationVectors
from evergram.releasing.migration.verdict import Situation, Verdict, decide
from evergram.releasing.migration.ways import Way, WaySettings, measure_ways

DEFAULT, ORDINARY = WaySettings(), Situation()
AGREEMENT_DEPTH = 10


def plan_migration(
    vectors: MigrationVectors,
    judgements: Judgements | None = None,
    settings: WaySettings = DEFAULT,
    situation: Situation = ORDINARY,
) -> dict[str, Any]:
    """Measure every way to a new model, and choose one where judgements allow it.

    Without judgements there is no verdict: which of two rankings is better cannot be seen from the
    rankings. What is then measured is the share of the first ten hits that each way has in common
    with reindexing, and the costs.

    Returns: JSON: `texts`, `queries` (of which `judged`), `absent` judged pairs, `lengths_ignored`
        (searches must be by cosine to have these figures), `zeros` (how many vectors of each file
        that was measured are zeros), `ways` by name (`encoded`,
        `bytes_a_text`, `milliseconds`, `agreement@10` with reindexing; with judgements `ndcg@10`,
        `recall@100` and `beside_stay` and `beside_reindex`, paired differences of nDCG@10; each an
        interval `mean`, `low`, `high`), `verdict` and `reasons`.
    Raises: DataError: no query is judged; or as of `measure_ways`.
    """
    judged = None
    if judgements is not None:
        judged = JudgedQueries.of(judgements, vectors.queries, vectors.texts)
        vectors = _of_queries(vectors, judged.rows)
    zeros = {
        "old texts": _zeros(vectors.old),
        "new texts": _zeros(vectors.new),
        "old queries": _zeros(vectors.old_queries),
        "new queries": _zeros(vectors.new_queries),
    }
    ways = measure_ways(vectors, settings)
    best = ways["reindex"].ranked
    report = {name: _costs(way, best, settings.seed) for name, way in ways.items()}
    verdict = Verdict(None, ["There are no judgements, so that no way is known to be better."])
    if judged is not None:
        metrics = {name: judged_metrics(way.ranked, judged) for name, way in ways.items()}
        ndcg = {name: values["ndcg@10"] for name, values in metrics.items()}
        for name, values in metrics.items():
            report[name] |= {k: asdict(bootstrap(v, settings.seed)) for k, v in values.items()}
            for other in ("stay", "reindex"):
                difference = paired_bootstrap(ndcg[name], ndcg[other], settings.seed)
                report[name][f"beside_{other}"] = asdict(difference)
        verdict = decide(ndcg, situation, settings.seed, judged.with_text)
        if unmeasured := _unmeasured(zeros, len(vectors.texts), len(vectors.queries)):
            verdict = Verdict(None, [unmeasured])
    return {
        "texts": len(vectors.texts),
        "queries": len(vectors.queries),
        "judged": judged is not None,
        "absent": 0 if judged is None else judged.absent,
        "dims": {"old": vectors.old.shape[1], "new": vectors.new.shape[1]},
        "lengths_ignored": vectors.lengths_ignored,
        "zeros": zeros,
        "settings": {**asdict(settings), **asdict(situation)},
        "ways": report,
        "verdict": verdict.way,
        "reasons": verdict.reasons,
    }


def _of_queries(vectors: MigrationVectors, rows: Tensor) -> MigrationVectors:
    return replace(
        vectors,
        queries=[vectors.queries[row] for row in rows.tolist()],
        old_queries=vectors.old_queries[rows],
        new_queries=vectors.new_queries[rows],
    )


def _unmeasured(zeros: Mapping[str, int], texts: int, queries: int) -> str | None:
    """Return a sentence if so many vectors are zeros that a model was not measured by them."""
    for name, count in zeros.items():
        rows = texts if name.endswith("texts") else queries
        if count > MOST_ZEROS * rows:
            return (
                f"{count} of the {rows} vectors of {name} are zeros, as failed calls of an encoder "
                "leave them: its model is not measured. Encode them again, or leave them out."
            )
    return None


def _zeros(vectors: Tensor) -> int:
    lengths = LengthCount()
    lengths.add(vectors)
    return lengths.zeros


def _costs(way: Way, best: Tensor, seed: int) -> dict[str, Any]:
    agreement = bootstrap(_agreement(way.ranked, best), seed)
    return {
        "encoded": way.encoded,
        "bytes_a_text": way.bytes_a_text,
        "milliseconds": way.milliseconds,
        f"agreement@{AGREEMENT_DEPTH}": asdict(agreement),
        **way.facts,
    }


def _agreement(ranked: Tensor, best: Tensor) -> Tensor:
    """Return the share of the first ten rows of two rankings that are in both, [Q]."""
    one, other = ranked[:, :AGREEMENT_DEPTH], best[:, :AGREEMENT_DEPTH]
    shared: Sequence[int] = [int(torch.isin(a, b).sum()) for a, b in zip(one, other, strict=True)]
    return torch.tensor(shared, dtype=torch.float64) / other.shape[1]
