"""Sensitivities by differences of a probe's answers, against gradients of the same model."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from skl2onnx import to_onnx
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier

from evergram.compatibility import input_fisher
from evergram.errors import DataError
from evergram.evaluation.probes.probe_fisher import probe_fisher
from evergram.evaluation.probes.probe_models import ProbeModel, load_probe_model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ROWS, DIM = 400, 5
DRAW = np.random.default_rng(0)
VECTORS = DRAW.normal(size=(ROWS, DIM)).astype(np.float32)
DIRECTION = np.array([2.0, -1.0, 0.5, 0.0, 0.0])
CLASSES = np.digitize(VECTORS @ DIRECTION + 0.5 * DRAW.normal(size=ROWS), [-1, 1])


def linear(**tensors: np.ndarray) -> ProbeModel:
    content = save({name: np.asarray(t, dtype=np.float64) for name, t in tensors.items()})
    return load_probe_model(Path("m.safetensors"), content)


def exported(model: object) -> ProbeModel:
    return load_probe_model(Path("m.onnx"), to_onnx(model, VECTORS[:1]).SerializeToString())


def close(matrix: np.ndarray, expected: torch.Tensor, share: float) -> bool:
    wanted = expected.numpy()
    return bool(np.linalg.norm(matrix - wanted) <= share * np.linalg.norm(wanted))


@pytest.mark.parametrize("classes", [1, 3])
def test_of_a_linear_model_it_is_that_of_its_logits(classes: int) -> None:
    weight, bias = DRAW.normal(size=(classes, DIM)), DRAW.normal(size=classes)
    matrix = probe_fisher(linear(weight=weight, bias=bias), VECTORS, "accuracy")
    expected = input_fisher(
        lambda z: z @ torch.tensor(weight).T + torch.tensor(bias), torch.tensor(VECTORS).double()
    )
    # Differences of a linear function are exact up to the float32 of embeddings.
    assert close(matrix, expected, 1e-5)


def test_of_a_value_it_is_the_slope_squared() -> None:
    matrix = probe_fisher(linear(weight=DIRECTION), VECTORS, "rmse")
    np.testing.assert_allclose(matrix, np.outer(DIRECTION, DIRECTION), rtol=1e-4, atol=1e-4)


def test_of_an_onnx_regression_it_is_the_slope_squared() -> None:
    fitted = LinearRegression().fit(VECTORS, VECTORS @ DIRECTION)
    matrix = probe_fisher(exported(fitted), VECTORS, "rmse")
    np.testing.assert_allclose(matrix, np.outer(DIRECTION, DIRECTION), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("classes", [2, 3])
def test_of_onnx_probabilities_it_is_that_of_their_logits(classes: int) -> None:
    fitted = LogisticRegression(C=0.1).fit(VECTORS, np.minimum(CLASSES, classes - 1))
    weight, bias = torch.tensor(fitted.coef_).double(), torch.tensor(fitted.intercept_).double()
    expected = input_fisher(lambda z: z @ weight.T + bias, torch.tensor(VECTORS).double())
    # A step of a tenth of the deviation bends the probabilities by about a percent.
    assert close(probe_fisher(exported(fitted), VECTORS, "auc"), expected, 0.03)


def test_of_a_network_it_is_that_of_its_gradients() -> None:
    fitted = MLPClassifier((8,), activation="tanh", max_iter=150, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it need not have converged
        fitted.fit(VECTORS, CLASSES > 0)
    (first, second), (low, high) = fitted.coefs_, fitted.intercepts_

    def logit(z: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(z @ torch.tensor(first).to(z) + torch.tensor(low).to(z))
        return hidden @ torch.tensor(second).to(z) + torch.tensor(high).to(z)

    expected = input_fisher(logit, torch.tensor(VECTORS).double())
    assert close(probe_fisher(exported(fitted), VECTORS, "auc"), expected, 0.05)


def test_of_a_tree_it_is_in_the_directions_of_its_thresholds() -> None:
    fitted = DecisionTreeClassifier(max_depth=3, random_state=0).fit(VECTORS[:, :5], CLASSES > 0)
    matrix = probe_fisher(exported(fitted), VECTORS, "auc")
    used = fitted.feature_importances_ > 0
    assert (np.diag(matrix)[~used] == 0).all()
    assert matrix[0, 0] == np.diag(matrix).max() > 0


def test_it_does_not_depend_on_the_blocks_that_rows_are_read_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = linear(weight=DIRECTION)
    whole = probe_fisher(model, VECTORS, "auc")
    monkeypatch.setattr("evergram.evaluation.probes.probe_fisher.BLOCK", 25)
    np.testing.assert_allclose(probe_fisher(model, VECTORS, "auc"), whole, rtol=1e-12)
    assert np.linalg.eigvalsh(whole)[0] > -1e-12


@pytest.mark.parametrize("vectors", [VECTORS[:0], np.ones((4, DIM), dtype=np.float32)])
def test_embeddings_that_do_not_differ_are_refused(vectors: np.ndarray) -> None:
    with pytest.raises(DataError, match="that do not differ say nothing"):
        probe_fisher(linear(weight=DIRECTION), vectors, "auc")
