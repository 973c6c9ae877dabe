"""A registered probe's sensitivity is of its own objects, as far as alignment sees them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.registered_consumers import register
from tests.support.tiny_training import tiny_lineage

from evergram.compatibility import input_fisher
from evergram.data.corpus import Vocabulary
from evergram.errors import DataError, IntegrityError
from evergram.lineage.lineage import Lineage
from evergram.releasing.known_consumers import probe_sensitivity as module
from evergram.releasing.known_consumers.probe_sensitivity import probe_sensitivity

WEIGHT = torch.tensor([3.0, -1.0, 0.0, 0.5])


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return tiny_lineage(tmp_path / "lineage")


def test_it_is_over_the_objects_of_the_probe_that_alignment_may_see(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, vectors = lineage.embeddings("candidate")
    asked = ids.take(pa.array(range(0, len(ids), 2)))
    registry = register(lineage, tmp_path, "ads", WEIGHT, metric="auc", ids=asked)
    probe = registry.get("ads").probe
    assert probe is not None
    used = torch.arange(len(ids)) % 3 != 0
    rows = [row for row in range(0, len(ids), 2) if row % 3]
    scaled = 20 * vectors  # to bend the logistic function
    for most, chosen in ((512, rows), (3, [rows[0], rows[(len(rows) - 1) // 2], rows[-1]])):
        monkeypatch.setattr(module, "ROWS", most)
        matrix = probe_sensitivity(registry, probe, Vocabulary(ids), scaled, used)
        expected = input_fisher(lambda z: z @ WEIGHT, scaled[chosen])
        np.testing.assert_allclose(matrix, expected, rtol=0.02, atol=1e-4)


def test_a_probe_without_any_of_the_objects_is_refused(lineage: Lineage, tmp_path: Path) -> None:
    ids, vectors = lineage.embeddings("candidate")
    registry = register(lineage, tmp_path, "ads", WEIGHT)
    probe = registry.get("ads").probe
    assert probe is not None
    with pytest.raises(DataError, match="None of the objects of its evaluation file"):
        probe_sensitivity(
            registry, probe, Vocabulary(ids), vectors, torch.zeros(len(ids), dtype=torch.bool)
        )


def test_a_damaged_probe_is_not_run(lineage: Lineage, tmp_path: Path) -> None:
    ids, vectors = lineage.embeddings("candidate")
    registry = register(lineage, tmp_path, "ads", WEIGHT)
    probe = registry.get("ads").probe
    assert probe is not None
    (lineage.path / probe.model).write_bytes(b"other")
    with pytest.raises(IntegrityError):
        probe_sensitivity(
            registry, probe, Vocabulary(ids), vectors, torch.ones(len(ids), dtype=torch.bool)
        )
