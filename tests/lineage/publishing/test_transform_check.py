"""A transform is tried on the canaries of the version before, as it is published."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from evergram.compatibility import Aligner
from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import LinearTransform, Transform
from evergram.errors import DataError
from evergram.lineage import Artefact, Lineage
from evergram.lineage.publishing.transform_check import check_transform_on_canaries

OBJECTS = 300
DRAW = np.random.default_rng(0)
PAST = DRAW.normal(size=(OBJECTS, 3)).astype(np.float32)
NOW = (PAST @ DRAW.normal(size=(3, 4)) + 0.01 * DRAW.normal(size=(OBJECTS, 4))).astype(np.float32)
FITTED = Aligner().fit(NOW, PAST)


def block(vectors: np.ndarray, size: int = OBJECTS) -> tuple[pa.Array, torch.Tensor]:
    return pa.array(range(size)), torch.from_numpy(vectors[:size].copy())


def opened(folder: Path, canaries: int = 100) -> Lineage:
    lineage = Lineage.create(folder)
    kept = {"object": block(PAST, canaries)}
    lineage.publish(Artefact(3, {"object": block(PAST)}, None, {"metrics": {}}, {}, canaries=kept))
    return lineage


def following(
    lineage: Lineage, transform: Transform, error: StepError | None, canaries: int = 100
) -> Artefact:
    kept = {"object": block(NOW, canaries)}
    follows = lineage.manifest(lineage.newest).fingerprint
    whole = {"object": block(NOW)}
    metrics: dict[str, dict[str, float]] = {"metrics": {}}
    return Artefact(4, whole, transform, metrics, {}, canaries=kept, error=error, follows=follows)


def garbage() -> LinearTransform:
    return LinearTransform.from_matrix(10 * torch.randn(3, 4, generator=torch.manual_seed(0)))


@pytest.mark.parametrize("stated", [True, False])
def test_the_fitted_transform_is_published(tmp_path: Path, stated: bool) -> None:
    lineage = opened(tmp_path / "lineage")
    error = FITTED.step_error() if stated else None
    assert lineage.publish(following(lineage, FITTED.as_transform(), error)) == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FITTED.step_error(), r"comes with an error of 0\.0\d+, and on 100 objects that version 0"),
        (None, "comes with no error, and on 100 objects"),
        (StepError(torch.zeros(3, 3), 0, float("nan")), "comes with an error of 0, and on 100"),
    ],
)
def test_another_transform_is_refused(
    tmp_path: Path, error: StepError | None, message: str
) -> None:
    lineage = opened(tmp_path / "lineage")
    artefact = following(lineage, garbage(), error)
    past = lineage.canaries(0)
    with pytest.raises(DataError, match=message):
        check_transform_on_canaries(artefact, past, 0)
    if error is None or error.objects:
        with pytest.raises(DataError, match="Nothing was published; give the transform"):
            lineage.publish(artefact)
        assert lineage.newest == 0


def test_too_few_canaries_belie_nothing(tmp_path: Path) -> None:
    lineage = opened(tmp_path / "lineage", canaries=19)
    assert lineage.publish(following(lineage, garbage(), FITTED.step_error())) == 1


def test_a_trained_model_is_not_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lineage = opened(tmp_path / "lineage")
    artefact = following(lineage, garbage(), FITTED.step_error())
    trained = replace(artefact, encoder=object())  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        check_transform_on_canaries(trained, lineage.canaries(0), 0)
    assert "does not lead from these vectors" in caplog.text
