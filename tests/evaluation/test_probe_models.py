"""Models of consumers: what they answer, how it is measured, and what they are sensitive to."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from safetensors.numpy import save
from tests.support import onnx_graphs as graphs
from tests.support.onnx_graphs import DIM

from evergram.compatibility import input_fisher
from evergram.errors import DataError
from evergram.evaluation.probes import probe_models
from evergram.evaluation.probes.probe_models import (
    DATA_LOCATION,
    EXTERNAL_DATA,
    FIELDS,
    Answers,
    LinearModel,
    OnnxModel,
    ProbeModel,
    has_external_data,
    load_probe_model,
)
from evergram.evaluation.probes.probe_program import measure, probe_fisher

LINEAR, ONNX = Path("model.safetensors"), Path("model.onnx")
VECTORS = np.random.default_rng(0).normal(size=(40, DIM)).astype(np.float32)


def test_three_rows_of_weights_give_classes_and_no_score() -> None:
    random = np.random.default_rng(1)
    parts = {
        "weight": random.normal(size=(3, DIM)),
        "bias": random.normal(size=3),
        "mean": random.normal(size=DIM),
        "scale": random.uniform(0.5, 2, size=1),
    }
    answers = LinearModel(LINEAR, save(parts)).answers(VECTORS)
    expected = [
        max(range(3), key=lambda c: parts["weight"][c] @ (x - parts["mean"]) / parts["scale"][0]
            + parts["bias"][c])
        for x in VECTORS.astype(float)
    ]  # fmt: skip
    assert answers.score is None
    assert answers.predicted is not None
    assert answers.predicted.to_pylist() == expected


def test_tensors_that_are_no_linear_model_are_refused() -> None:
    cases: list[Any] = [
        ({"bias": np.ones(1)}, r"has no tensor 'weight' of .*; its tensors are: bias \[1\]"),
        ({"weight": np.ones((1, 1, 2))}, r"its tensors are: weight \[1, 1, 2\]"),
        ({"weight": np.ones(DIM), "what": np.ones(1)}, "the tensor 'what'; weight, bias, mean and"),
        ({"weight": np.ones(DIM), "mean": np.ones(3)}, f"'mean' has 3 numbers; {DIM} are needed"),
        ({"weight": np.ones(DIM, dtype=bool)}, "'weight' holds BOOL; it must be of F64, F32"),
    ]
    for tensors, message in cases:
        with pytest.raises(DataError, match=message):
            LinearModel(LINEAR, save(tensors))


def test_answers_that_are_not_finite_and_other_dims_are_refused() -> None:
    model = LinearModel(LINEAR, save({"weight": np.ones(DIM), "scale": np.zeros(1)}))
    with pytest.raises(DataError, match="gives a NaN or an infinity"):
        model.answers(VECTORS)
    with pytest.raises(DataError, match=f"reads embeddings of dim {DIM}, .* have 3"):
        model.answers(VECTORS[:, :3])


def test_an_onnx_model_is_run_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_models, "BLOCK", 7)
    model = OnnxModel(ONNX, graphs.plain().SerializeToString())
    answers = model.answers(VECTORS)
    assert answers.score is not None
    np.testing.assert_allclose(answers.score, VECTORS.sum(1), rtol=1e-4, atol=1e-4)
    # Numbers that are no probabilities have no place to be cut at.
    assert answers.predicted is None
    shares = np.abs(VECTORS) / np.abs(VECTORS).sum(1, keepdims=True) * np.float32(0.9)
    shares[::2] /= 2
    classes = model.answers(shares).predicted
    assert classes is not None
    assert classes.to_pylist() == (shares.sum(1) > 0.5).astype(int).tolist()


def test_outputs_are_what_a_model_computes_before_it_decides() -> None:
    weight = np.random.default_rng(1).normal(size=(3, DIM))
    logits = LinearModel(LINEAR, save({"weight": weight})).outputs(VECTORS)
    np.testing.assert_allclose(logits, VECTORS.astype(float) @ weight.T, atol=1e-12)
    values = OnnxModel(ONNX, graphs.plain().SerializeToString()).outputs(VECTORS)
    np.testing.assert_allclose(values[:, 0], VECTORS.sum(1), atol=1e-4)


def test_a_model_of_classes_alone_has_no_outputs() -> None:
    classes = graphs.model_of(
        [
            helper.make_node("MatMul", ["x", "w"], ["s"]),
            helper.make_node("Cast", ["s"], ["y"], to=TensorProto.INT64),
        ],
        graphs.weights(),
    )
    classes.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    model = OnnxModel(ONNX, classes.SerializeToString())
    assert model.answers(VECTORS).predicted is not None
    with pytest.raises(DataError, match="gives classes alone; export it with its probabilities"):
        model.outputs(VECTORS)


def test_all_ways_from_a_model_to_a_tensor_are_known() -> None:
    """Compared with the definition of ONNX itself."""
    leads = {"TensorProto"}
    kinds = vars(onnx)
    messages = {n: c.DESCRIPTOR for n, c in kinds.items() if n.endswith("Proto") and n != "Proto"}
    while True:
        more = {
            name
            for name, descriptor in messages.items()
            for field in descriptor.fields
            if field.message_type is not None and field.message_type.name in leads
        }
        if more <= leads:
            break
        leads |= more
    # A model is looked at from its beginning; a map or a sequence stands alone.
    for name in leads - {"TensorProto"}:
        wanted = {
            field.number: field.message_type.name
            for field in messages[name].fields
            if field.message_type is not None and field.message_type.name in leads
        }
        if name in FIELDS:
            assert FIELDS[name] == wanted, name
    reached = {"ModelProto"} | {kind for fields in FIELDS.values() for kind in fields.values()}
    assert reached == set(FIELDS) | {"TensorProto"}
    tensor = messages["TensorProto"].fields_by_name
    assert tensor["external_data"].number == EXTERNAL_DATA
    assert tensor["data_location"].number == DATA_LOCATION


@given(st.binary(max_size=200))
def test_bytes_that_are_no_model_end_the_looking(content: bytes) -> None:
    try:
        has_external_data(content)
    except ValueError:
        return
    assert not has_external_data(graphs.plain().SerializeToString())


def test_a_field_whose_number_some_readers_cut_off_is_refused() -> None:
    """The graph under the number 7 + 2²⁹, which is 7 in 32 bits: not looked at, but read."""
    content = graphs.external("initializer").SerializeToString()
    graph = onnx.load_from_string(content).graph.SerializeToString()
    tag = (7 << 3 | 2) + (1 << 32)
    head = bytes((tag >> shift & 0x7F) | (0x80 if shift < 28 else 0) for shift in range(0, 35, 7))
    size = len(graph)
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F])
    with pytest.raises(ValueError, match="too large"):
        has_external_data(head + length + graph)


SCORE = np.array([0.1, 0.4, 0.4, 0.9])
BINARY = Answers(SCORE, pa.array([0, 0, 1, 1]))


def test_the_error_of_values_is_the_root_of_the_mean_square() -> None:
    # (0.1 − 0.1)², (0.4 − 0)², (0.4 − 1)², (0.9 − 0.9)²
    error = measure("rmse", Answers(SCORE, None), pa.array([0.1, 0.0, 1.0, 0.9]))
    assert error == pytest.approx(((0.16 + 0.36) / 4) ** 0.5)


def test_labels_and_answers_of_another_kind_are_refused() -> None:
    for metric, answers, label, message in [
        ("auc", BINARY, [], "at least one object"),
        ("auc", BINARY, [0, 1, None, 1], "a label for each"),
        ("auc", BINARY, [0, 1, 2, 1], "labels are not 0 and 1; auc needs two classes"),
        ("auc", BINARY, ["a", "b", "a", "b"], "labels are string; auc needs numbers"),
        ("auc", Answers(None, pa.array([0])), [1], "more than two classes apart; auc needs one"),
        ("accuracy", Answers(SCORE, None), [0, 1, 0, 1], "so that accuracy cannot be measured"),
    ]:
        with pytest.raises(DataError, match=message):
            measure(metric, answers, pa.array(label))


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
OBJECTS, DIMS = 400, 5
DRAW = np.random.default_rng(0)
ROWS_OF_FIVE = DRAW.normal(size=(OBJECTS, DIMS)).astype(np.float32)
DIRECTION = np.array([2.0, -1.0, 0.5, 0.0, 0.0])
CLASSES = np.digitize(ROWS_OF_FIVE @ DIRECTION + 0.5 * DRAW.normal(size=OBJECTS), [-1, 1])


def linear(**tensors: np.ndarray) -> ProbeModel:
    content = save({name: np.asarray(t, dtype=np.float64) for name, t in tensors.items()})
    return load_probe_model(Path("m.safetensors"), content)


def exported(model: object) -> ProbeModel:
    from skl2onnx import to_onnx

    return load_probe_model(Path("m.onnx"), to_onnx(model, ROWS_OF_FIVE[:1]).SerializeToString())


def close(matrix: np.ndarray, expected: torch.Tensor, share: float) -> bool:
    wanted = expected.numpy()
    return bool(np.linalg.norm(matrix - wanted) <= share * np.linalg.norm(wanted))


@pytest.mark.parametrize("classes", [1, 3])
def test_of_a_linear_model_it_is_that_of_its_logits(classes: int) -> None:
    weight, bias = DRAW.normal(size=(classes, DIMS)), DRAW.normal(size=classes)
    matrix = probe_fisher(linear(weight=weight, bias=bias), ROWS_OF_FIVE, "accuracy")
    expected = input_fisher(
        lambda z: z @ torch.tensor(weight).T + torch.tensor(bias),
        torch.tensor(ROWS_OF_FIVE).double(),
    )
    # Differences of a linear function are exact up to the float32 of embeddings.
    assert close(matrix, expected, 1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_of_onnx_probabilities_it_is_that_of_their_logits(classes: int) -> None:
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=0.1).fit(ROWS_OF_FIVE, np.minimum(CLASSES, classes - 1))
    weight, bias = torch.tensor(fitted.coef_).double(), torch.tensor(fitted.intercept_).double()
    expected = input_fisher(lambda z: z @ weight.T + bias, torch.tensor(ROWS_OF_FIVE).double())
    # A step of a tenth of the deviation bends the probabilities by about a percent.
    assert close(probe_fisher(exported(fitted), ROWS_OF_FIVE, "auc"), expected, 0.03)


def test_of_a_network_it_is_that_of_its_gradients() -> None:
    from sklearn.neural_network import MLPClassifier

    fitted = MLPClassifier((8,), activation="tanh", max_iter=150, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it need not have converged
        fitted.fit(ROWS_OF_FIVE, CLASSES > 0)
    (first, second), (low, high) = fitted.coefs_, fitted.intercepts_

    def logit(z: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(z @ torch.tensor(first).to(z) + torch.tensor(low).to(z))
        return hidden @ torch.tensor(second).to(z) + torch.tensor(high).to(z)

    expected = input_fisher(logit, torch.tensor(ROWS_OF_FIVE).double())
    assert close(probe_fisher(exported(fitted), ROWS_OF_FIVE, "auc"), expected, 0.05)


def test_of_a_tree_it_is_in_the_directions_of_its_thresholds() -> None:
    from sklearn.tree import DecisionTreeClassifier

    fitted = DecisionTreeClassifier(max_depth=3, random_state=0).fit(
        ROWS_OF_FIVE[:, :5], CLASSES > 0
    )
    matrix = probe_fisher(exported(fitted), ROWS_OF_FIVE, "auc")
    used = fitted.feature_importances_ > 0
    assert (np.diag(matrix)[~used] == 0).all()
    assert matrix[0, 0] == np.diag(matrix).max() > 0


def test_it_does_not_depend_on_the_blocks_that_rows_are_read_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = linear(weight=DIRECTION)
    whole = probe_fisher(model, ROWS_OF_FIVE, "auc")
    monkeypatch.setattr("evergram.evaluation.probes.probe_program.BLOCK", 25)
    np.testing.assert_allclose(probe_fisher(model, ROWS_OF_FIVE, "auc"), whole, rtol=1e-12)
    assert np.linalg.eigvalsh(whole)[0] > -1e-12
