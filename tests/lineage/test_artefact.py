"""The contents of a version before it is published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.artefacts import artefact

from evergram.lineage.artefact import are_metrics


def test_a_side_that_comes_block_by_block_is_joined_in_order() -> None:
    blocks = [(pa.array([1, 2]), torch.ones(2, 3)), (pa.array([3]), torch.zeros(1, 3))]
    version = replace(artefact(3), embeddings={"candidate": lambda: iter(blocks)})
    for _ in range(2):
        ids, vectors = version.block("candidate")
        assert ids.to_pylist() == [1, 2, 3]
        assert torch.equal(vectors, torch.tensor([[1.0] * 3, [1.0] * 3, [0.0] * 3]))


def test_its_text_is_one_line_without_vectors() -> None:
    first, second = artefact(2), artefact(3, 2)
    sides = "sides query, candidate)"
    assert repr(first) == f"Artefact(dim 2, factorization, no transform, {sides}"
    assert repr(second) == f"Artefact(dim 3, factorization, linear transform, {sides}"
    of_file = replace(first, encoder=None)
    assert repr(of_file) == f"Artefact(dim 2, no encoder, no transform, {sides}"


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"metrics": {}},
        {"metrics": {"model": {"recall": 0.5, "map": None, "n": 3}}, "more": "x"},
        {"probes": [{"consumer": "ads"}]},
    ],
)
def test_metrics_are_numbers_by_name_and_probes_of_consumers(metrics: dict[str, Any]) -> None:
    assert are_metrics(metrics)


@pytest.mark.parametrize(
    "value",
    [
        [],
        None,
        {"metrics": None},
        {"metrics": {"model": [0.5]}},
        {"metrics": {"model": {"recall": "0.5"}}},
        {"probes": {"consumer": "ads"}},
        {"probes": [{}]},
        {"probes": [{"consumer": 1}]},
    ],
)
def test_another_form_of_metrics_is_refused(value: Any) -> None:
    assert not are_metrics(value)
