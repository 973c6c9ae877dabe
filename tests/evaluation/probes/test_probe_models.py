"""Models of consumers: linear ones of tensors, and ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.numpy import save
from safetensors.torch import save as save_tensors
from tests.support import onnx_graphs as graphs
from tests.support.onnx_graphs import DIM

from evergram.errors import DataError
from evergram.evaluation.probes import probe_models
from evergram.evaluation.probes.probe_models import LinearModel, OnnxModel, load_probe_model

LINEAR, ONNX = Path("model.safetensors"), Path("model.onnx")
VECTORS = np.random.default_rng(0).normal(size=(40, DIM)).astype(np.float32)


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "int64", "int32"])
def test_weights_of_any_kind_of_number_are_read(kind: str) -> None:
    model = LinearModel(LINEAR, save({"weight": np.ones((1, DIM), dtype=kind)}))
    answers = model.answers(VECTORS)
    assert answers.score is not None
    np.testing.assert_allclose(answers.score, VECTORS.astype(float).sum(1), atol=1e-9)


def test_weights_of_bfloat16_are_read() -> None:
    weight = torch.full((1, DIM), 1.5, dtype=torch.bfloat16)
    assert (LinearModel(LINEAR, save_tensors({"weight": weight})).weight == 1.5).all()


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


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"bias": np.ones(1)}, r"has no tensor 'weight' of .*; its tensors are: bias \[1\]"),
        ({"weight": np.ones((1, 1, 2))}, r"its tensors are: weight \[1, 1, 2\]"),
        ({"weight": np.ones(DIM), "what": np.ones(1)}, "the tensor 'what'; weight, bias, mean and"),
        ({"weight": np.ones(DIM), "mean": np.ones(3)}, f"'mean' has 3 numbers; {DIM} are needed"),
        ({"weight": np.ones(DIM, dtype=bool)}, "'weight' holds BOOL; it must be of F64, F32"),
    ],
)
def test_tensors_that_are_no_linear_model_are_refused(
    tensors: dict[str, np.ndarray], message: str
) -> None:
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


def test_an_onnx_model_that_gives_one_number_for_all_rows_is_refused() -> None:
    model = OnnxModel(ONNX, graphs.single().SerializeToString())
    with pytest.raises(DataError, match="gives 1 answers for 40 objects; one for each is needed"):
        model.answers(VECTORS)


def test_an_onnx_model_with_numbers_in_other_files_is_refused() -> None:
    with pytest.raises(DataError, match=r"keeps numbers in other files \(external data\)"):
        OnnxModel(ONNX, graphs.external("initializer").SerializeToString())


def test_the_suffix_tells_the_kind_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "MODEL.SAFETENSORS"
    path.write_bytes(save({"weight": np.ones(DIM)}))
    assert isinstance(load_probe_model(path), LinearModel)
    with pytest.raises(DataError, match=r"There is no file .*gone\.onnx"):
        load_probe_model(tmp_path / "gone.onnx")
    with pytest.raises(DataError, match=r"m\.pkl cannot be a probe: export it as ONNX"):
        load_probe_model(tmp_path / "m.pkl")


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
