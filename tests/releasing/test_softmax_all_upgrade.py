"""Versions trained by the softmax over all candidates lead back to each other like all others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe


@pytest.mark.long
@pytest.mark.parametrize("method", ["bc-aligner", "evergram"])
def test_a_joint_upgrade_on_unit_rows_reads_the_version_before(
    small: Recipe, tmp_path: Path, method: str
) -> None:
    recipe = Recipe.of(
        {
            **small.model_dump(include={"name", "data", "split"}),
            "model": {"dim": [8, 10], "normalize": True},
            "task": {"kind": "softmax_all", "temperature": 0.2},
            "training": {
                **{"optimizer": "adam", "table_rate": 0.03, "decay": 0.95},
                **{"epochs": 12, "patience": 0},
            },
            "upgrade": {"method": method, "alone": False},
        }
    )
    corpus = load_corpus(recipe)
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(recipe, corpus))
    artefact = upgrade(recipe, lineage, corpus)
    lineage.publish(artefact)
    report = lineage.metrics(1)
    reading = report["compatibility"]["0"]
    ranking = {k: v["recall@20"] for k, v in reading["ranking"].items()}
    assert ranking["chain"] > 0.75 * ranking["past"]
    assert ranking["raw_candidates"] < ranking["chain_candidates"]
    assert 0 < reading["drift"]["held_out"]["relative"] < 1
    assert report["certificate"]["0"]
    for side in ("query", "candidate"):
        rows = torch.as_tensor(artefact.block(side)[1])
        norms = rows.norm(dim=1)
        torch.testing.assert_close(norms[norms > 0], torch.ones_like(norms[norms > 0]))
