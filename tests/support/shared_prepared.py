"""`python -m tests.support.shared_prepared PREPARED OUT`: a lineage from prepared data.

The processes that are there train version 0 and a joint upgrade of it in the lineage OUT, from a
prepared corpus that is streamed. The first of them publishes, and prints the streamed blocks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import evergram
from evergram.data.prepared.block_sampler import BlockSampler
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.lineage.lineage import Lineage
from evergram.training.build import build_sampler
from evergram.training.corpora import load_corpus, split_for
from evergram.training.distributed.process_group import join_processes
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings


def recipe_of(folder: Path) -> Recipe:
    return Recipe.of(
        {
            "name": "streamed",
            "data": {"kind": "prepared", "path": str(folder)},
            "split": {"kind": "time", "versions": [0.6, 0.8]},
            "model": {"dim": [4, 6]},
            "task": {"penalty": 5.0, "l2": 0.1},
            "training": {"epochs": 2, "batch_size": 128},
            "upgrade": {"fit": "joint"},
        }
    )


def main() -> None:
    # Corpora of some thousands of interactions are streamed, as large ones are.
    BlockSampler.least, BlockSampler.block, BlockSampler.pairs = 1000, 8, 1024
    recipe, out = recipe_of(Path(sys.argv[1])), Path(sys.argv[2])
    together = join_processes(torch.device("cpu"))
    artefact = evergram.train(recipe, progress=False)
    if together.is_first:
        evergram.publish(Lineage.create(out, recipe.name), artefact)
    together.sum(torch.zeros(()), "published")
    lineage = Lineage.open(out)
    artefact = evergram.upgrade(recipe, lineage, progress=False)
    if not together.is_first:
        return
    evergram.publish(lineage, artefact)
    training = split_for(recipe, load_corpus(recipe), 0).training
    assert isinstance(training, MappedCorpus)
    sampler = build_sampler(FitSettings.of(recipe, training, 0), training)
    sys.stdout.write(f"{type(sampler).__name__}\n")


if __name__ == "__main__":
    main()
