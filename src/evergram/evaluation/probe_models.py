"""A consumer's own model, ONNX or safetensors, and how good it is on labelled embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from evergram.errors import DataError
from evergram.evaluation.consumers import roc_auc

SUFFIXES = (".onnx", ".safetensors")
# Rows that a model is given at once.
BLOCK = 8_192


@dataclass(frozen=True)
class Answers:
    """What a model says of N objects.

    Args:
        score: float64 [N], higher for the positive class, or the value that a regressor gives; None
            where there are more than two classes.
        predicted: the class of each; None for a regressor.
    """

    score: Tensor | None
    predicted: pa.Array | None


class ProbeModel(ABC):
    """A model that reads embeddings."""

    @abstractmethod
    def answers(self, embeddings: Tensor) -> Answers:
        """Of float32 [N, D]. Raises: DataError: it reads another dim, or gives no answer."""


def load_probe_model(path: Path) -> ProbeModel:
    """Raises: DataError: it cannot be read, is of no known kind, or its reader is not installed."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path} is no model that can be a probe: export it as ONNX (.onnx) or save the "
            "weights of a linear one (.safetensors)."
        )
    if not path.is_file():
        raise DataError(f"{path} is not there.")
    return OnnxModel(path) if path.suffix.lower() == ".onnx" else LinearModel(path)


class LinearModel(ProbeModel):
    """x ↦ W (x − mean) / scale + bias, with W [C, D] or [D]: one logit, or one a class.

    Args:
        path: safetensors with `weight`, and where they are needed `bias`, `mean` and `scale`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            tensors = {k: v.double() for k, v in load_file(path).items()}
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path} cannot be read: {error}.") from error
        shapes = ", ".join(f"{k} {list(v.shape)}" for k, v in tensors.items()) or "none"
        weight = tensors.get("weight")
        if weight is None or weight.dim() not in (1, 2):
            raise DataError(
                f"{path} has no tensor 'weight' of shape [C, D] or [D]; its tensors are: {shapes}."
            )
        self.weight = weight.reshape(-1, weight.shape[-1])
        classes, dim = self.weight.shape
        wanted = {"bias": (classes, 0.0), "mean": (dim, 0.0), "scale": (dim, 1.0)}
        unknown = set(tensors) - {"weight", *wanted}
        if unknown:
            raise DataError(
                f"{path} has the tensor {min(unknown)!r}; weight, bias, mean and scale are known."
            )
        self._parts = {}
        for name, (size, default) in wanted.items():
            found = tensors.get(name, torch.tensor(default, dtype=torch.float64)).reshape(-1)
            if len(found) not in (1, size):
                raise DataError(
                    f"{path}: tensor {name!r} has {len(found)} numbers; {size} are needed."
                )
            self._parts[name] = found

    def answers(self, embeddings: Tensor) -> Answers:
        dim = self.weight.shape[1]
        if embeddings.shape[1] != dim:
            raise _other_dim(self.path, dim, embeddings.shape[1])
        centred = (embeddings.double() - self._parts["mean"]) / self._parts["scale"]
        logits = centred @ self.weight.T + self._parts["bias"]
        if logits.shape[1] == 1:
            return _checked(self.path, logits[:, 0], pa.array((logits[:, 0] > 0).long().numpy()))
        best = pa.array(logits.argmax(1).numpy())
        two = logits.shape[1] == 2
        return _checked(self.path, logits[:, 1] - logits[:, 0] if two else None, best)


class OnnxModel(ProbeModel):
    """A classifier or a regressor with one input [N, D], such as skl2onnx makes of scikit-learn's.

    Of a classifier, the output of floats gives the probability of the last of two classes, and the
    other output the class. `zipmap` may be on or off.
    """

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise DataError(
                f"The probe {path} needs onnxruntime: pip install 'evergram[onnx]'."
            ) from None
        self.path = path
        try:
            self._session = onnxruntime.InferenceSession(
                path.read_bytes(), providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise DataError(f"{path} cannot be read as ONNX: {_sentence(error)}.") from error
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in ("tensor(float)", "tensor(double)"):
            has = ", ".join(f"{i.name} {i.type}" for i in inputs)
            raise DataError(f"{path} takes {has}; one input of floats [N, D] is needed.")
        self._input = inputs[0].name
        self._dtype = np.float32 if inputs[0].type == "tensor(float)" else np.float64
        self._dim = inputs[0].shape[-1] if len(inputs[0].shape) == 2 else None

    def answers(self, embeddings: Tensor) -> Answers:
        given = embeddings.shape[1]
        if isinstance(self._dim, int) and self._dim != given:
            raise _other_dim(self.path, self._dim, given)
        found: list[list[Any]] = []
        for part in torch.split(embeddings, BLOCK):
            try:
                found.append(
                    self._session.run(None, {self._input: part.numpy().astype(self._dtype)})
                )
            except Exception as error:
                raise DataError(
                    f"{self.path} does not run on embeddings of dim {given}: {_sentence(error)}."
                ) from error
        score: Tensor | None = None
        predicted: pa.Array | None = None
        for blocks in zip(*found, strict=True):
            floats = _floats(blocks)
            if floats is None:
                predicted = pa.array(np.concatenate([np.asarray(b).reshape(-1) for b in blocks]))
            elif floats.shape[1] == 1:
                score = floats[:, 0]
            else:
                if predicted is None:
                    predicted = pa.array(floats.argmax(1).numpy())
                score = floats[:, 1] if floats.shape[1] == 2 else None
        if score is None and predicted is None:
            raise DataError(f"{self.path} gives nothing that is a score or a class.")
        if score is not None and predicted is None and len(found[0]) == 1:
            # One number: a value, or a probability.
            predicted = pa.array((score > 0.5).long().numpy())
        return _checked(self.path, score, predicted)


def measure(metric: str, answers: Answers, label: pa.Array) -> float:
    """AUC or accuracy (higher is better), or root mean squared error (lower is).

    Args:
        label: [N]; two classes (0 and 1, or booleans) for auc, numbers for rmse.
    Raises: DataError: the labels, or what the model gives, are not of the kind that it needs.
    """
    if label.null_count or not len(label):
        raise DataError("A probe needs at least one object, and a label for each.")
    if metric == "accuracy":
        if answers.predicted is None:
            raise DataError("The model gives no classes; accuracy cannot be measured.")
        return float(
            np.mean([a == b for a, b in zip(*_alike(answers.predicted, label), strict=True)])
        )
    if answers.score is None:
        raise DataError(f"The model tells more than two classes apart; {metric} needs one score.")
    try:
        numbers = torch.from_numpy(label.cast(pa.float64()).to_numpy(zero_copy_only=False).copy())
    except pa.ArrowInvalid:
        raise DataError(f"The labels are {label.type}; {metric} needs numbers.") from None
    if metric == "rmse":
        return float((answers.score - numbers).square().mean().sqrt())
    if not bool(((numbers == 0) | (numbers == 1)).all()):
        raise DataError("The labels are not 0 and 1; auc needs two classes.")
    return roc_auc(answers.score, numbers == 1)


def _alike(predicted: pa.Array, label: pa.Array) -> tuple[list[Any], list[Any]]:
    """Both as text where one of them is, else as numbers."""
    if pa.types.is_string(label.type) or pa.types.is_string(predicted.type):
        both = predicted.cast(pa.string()), label.cast(pa.string())
    else:
        both = predicted.cast(pa.float64()), label.cast(pa.float64())
    return both[0].to_pylist(), both[1].to_pylist()


def _floats(blocks: Sequence[Any]) -> Tensor | None:
    """One output as float64 [N, C]; None where it holds classes. A list of dictionaries is what
    `zipmap` makes: a column for each class, in order."""
    if isinstance(blocks[0], list):
        names = sorted(blocks[0][0])
        return torch.tensor([[row[n] for n in names] for b in blocks for row in b]).double()
    if not np.issubdtype(blocks[0].dtype, np.floating):
        return None
    return torch.cat([torch.from_numpy(b.reshape(len(b), -1)).double() for b in blocks])


def _checked(path: Path, score: Tensor | None, predicted: pa.Array | None) -> Answers:
    if score is not None and not bool(score.isfinite().all()):
        raise DataError(f"{path} gives a NaN or an infinity.")
    return Answers(score, predicted)


def _other_dim(path: Path, wanted: int, given: int) -> DataError:
    return DataError(
        f"{path} reads embeddings of dim {wanted}, and those that it is pinned to have {given}."
    )


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
