"""The way step by step: affine ones together, residual_mlp by itself, others refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.support.lineages import DIMS, vectors_of
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import ResidualMLPTransform
from evergram.errors import DataError, ShapeError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.retrieval.portable.map_steps import AffineStep, ResidualStep, map_steps


def test_affine_transforms_are_one_step(lineage: Lineage) -> None:
    way = map_steps(lineage.view(0), "line")
    assert (way.name, way.source_dim, way.dim) == ("evergram_line_as_v0", DIMS[2], DIMS[0])
    (step,) = way.steps
    assert isinstance(step, AffineStep)
    z = vectors_of(2).numpy()
    read = lineage.view(0).transform(z)
    np.testing.assert_allclose(z @ step.weight.T + step.offset, read, rtol=1e-5, atol=1e-5)
    with pytest.raises(DataError, match="or of a graph"):
        map_steps(lineage.view(0), "line", "a b")


def test_a_residual_step_comes_before_those_of_older_versions(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    bent = ResidualMLPTransform(DIMS[2], 12, hidden=4)
    vectors = {"object": (lineage.embeddings("object")[0], torch.randn(300, 12))}
    metrics: dict[str, Any] = {"metrics": {"model": {}}}
    publish_next(lineage, Artefact(12, vectors, bent, metrics, {}))
    way = map_steps(lineage.view(0), "line")
    assert [type(step) for step in way.steps] == [ResidualStep, AffineStep]
    assert (way.source_dim, way.dim) == (12, DIMS[0])
    # A kind of the user's own has no nodes of ONNX.
    view = lineage.view(0)
    other = view.steps()[0]
    monkeypatch.setattr("evergram.retrieval.portable.map_steps.ResidualMLPTransform", Lineage)
    assert isinstance(other, ResidualMLPTransform)
    with pytest.raises(ShapeError, match="of kind residual_mlp, and an ONNX graph holds affine"):
        map_steps(view, "line")
