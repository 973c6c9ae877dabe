"""`python -m tests.support.shared_evaluation OUT`: evaluations by the processes that are there.

Of one process or of several, the first writes to OUT the metrics of fixed embeddings, and those of
trainings, with all that was measured on the way.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tests.support.tiny_training import tiny_recipe

from evergram.collectives import Collectives
from evergram.data.split import Split
from evergram.encoders.features import SIDES
from evergram.evaluation import score_blocks
from evergram.training.build import pick_device
from evergram.training.corpora import load_corpus, split_for
from evergram.training.distributed.process_group import join_processes
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.monitors import evaluation_work
from evergram.training.monitors.evaluation_work import final_metrics

NAMES = ["recall@20", "ndcg@5", "map@10"]
MORE = ("data.queries=200", "data.interactions=3000", "training.metric=ndcg@20")
TRAININGS = {
    "all queries": ("training.evaluate_share=full",),
    "a sample, patience": ("training.patience=1",),
    "towers, patience": ("model.kind=two_tower", "model.hidden=[6]", "training.patience=1"),
    "refit": ("training.refit=true", "training.evaluate_share=full"),
}


def fixed(together: Collectives, split: Split) -> dict[str, Any]:
    """Return the metrics of embeddings that are the same in every run."""
    draw = torch.Generator().manual_seed(3)
    sizes = len(split.training.queries), len(split.training.candidates)
    vectors = {s: torch.randn(n, 5, generator=draw) for s, n in zip(SIDES, sizes, strict=True)}
    whole = final_metrics(vectors, split, NAMES, together=together)
    part = final_metrics(vectors, split, NAMES, 17, 5, together)
    assert part.sample is not None
    return {"whole": whole.metrics, "part": part.metrics, "sample": part.sample.as_json()}


def trained(together: Collectives, *overrides: str) -> dict[str, Any]:
    """Return what a training measures."""
    recipe = tiny_recipe(*MORE, "training.epochs=4", *overrides)
    split = split_for(recipe, load_corpus(recipe), 0)
    context = RunContext(pick_device("cpu"), collectives=together, warns=False)
    model = fit_encoder(recipe, split, 0, context)
    history = [{k: v for k, v in record.items() if k != "seconds"} for record in model.history]
    return {
        "history": history,
        "metrics": model.metrics,
        "best": model.best_epoch,
        "ended": model.ended,
        "sample": None if model.sample is None else model.sample.as_json(),
    }


def main() -> None:
    # Small blocks and samples, so that each process has some of a tiny corpus's queries.
    score_blocks.SCORE_BYTES = 40 * 4 * 4
    evaluation_work.FREE, evaluation_work.LEAST = 1, 20
    together = join_processes(torch.device("cpu"))
    recipe = tiny_recipe(*MORE)
    split = split_for(recipe, load_corpus(recipe), 0)
    results = {"fixed": fixed(together, split)}
    results |= {name: trained(together, *options) for name, options in TRAININGS.items()}
    if together.is_first:
        Path(sys.argv[1]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
