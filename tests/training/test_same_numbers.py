"""A small training and its upgrades give the numbers that they gave when they were recorded.

`python -m tests.training.test_same_numbers` records them anew, which a change of the house must
never need; `tests.replay` compares bits on one machine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from reproduction.recipe import PaperRecipe
from safetensors.torch import load_file, save_file
from torch import Tensor

from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import load_corpus

GOLDEN = Path(__file__).parents[1] / "golden" / "training-1.safetensors"
BASE: dict[str, Any] = {
    "name": "same-numbers",
    "data": {"kind": "synthetic", "queries": 200, "candidates": 120, "interactions": 5000},
    "split": {"kind": "time", "versions": [0.5, 0.6, 0.7]},
    "model": {"dim": [8, 12, 10]},
    "training": {"epochs": 4, "batch_size": 256},
}
# The default when these were recorded.
GRADIENT = "upgrade.method=bc-aligner"
CASES = {
    "joint": ["upgrade.alone=true", "upgrade.objects=batch", GRADIENT],
    "patience": ["training.epochs=40", "training.patience=2", "upgrade.alone=false", GRADIENT],
    "refit": ["training.refit=true", "gramian.rate=0.1", "upgrade.alone=true", GRADIENT],
    "posthoc": ["upgrade.method=post-lin-sloss", "gramian.sampler=linear"],
    "previous": ["upgrade.method=finetune-m0"],
    "tower": ["model.kind=two_tower", "upgrade.select_after=2", GRADIENT],
    "bpr": [
        GRADIENT,
        "task.kind=bpr",
        "upgrade.objects=paper-code",
        "training.evaluate_every=3",
    ],
}


def numbers(name: str) -> dict[str, Tensor]:
    """Train version 0 and two upgrades. Return the first rows of embeddings and transforms."""
    recipe = PaperRecipe.of(BASE, CASES[name])
    corpus = load_corpus(recipe)
    tensors: dict[str, Tensor] = {}
    # Pilots would take longer than all the rest.
    without_pilots = patch("evergram.training.pilots.MOST_PAIRS", 0)
    with tempfile.TemporaryDirectory() as folder, without_pilots:
        lineage = Lineage.create(Path(folder) / "lineage")
        for version in range(3):
            artefact = upgrade(recipe, lineage, corpus) if version else train(recipe, corpus)
            lineage.publish(artefact)
            parts = {side: artefact.block(side)[1] for side in ("query", "candidate")}
            if artefact.transform is not None:
                parts |= artefact.transform.state_dict()
            tensors |= {f"{name}.{version}.{k}": v[:8].clone() for k, v in parts.items()}
    return tensors


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_that_were_recorded(name: str) -> None:
    tensors, rows = numbers(name), load_file(GOLDEN)
    assert {key for key in rows if key.startswith(f"{name}.")} == tensors.keys()
    for key, value in tensors.items():
        near = 1e-3 * float(rows[key].abs().max())
        torch.testing.assert_close(value, rows[key], rtol=0, atol=near)


if __name__ == "__main__":
    save_file({key: value for name in CASES for key, value in numbers(name).items()}, GOLDEN)
