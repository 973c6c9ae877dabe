"""Load a consumer's model (ONNX or safetensors), apply it to embeddings, and measure its metric.

The model is another team's code, so `probe_process` runs this module in a separate process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from safetensors.numpy import load

from evergram.errors import DataError, clause_of

SUFFIXES = (".onnx", ".safetensors")
BLOCK = 8_192  # rows passed to a model at once

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Answers:
    """A model's scores and predicted classes for N objects."""

    # float64 [N], higher for the positive class, or the output of a regressor; None for more than
    # two classes.
    score: Floats | None
    predicted: pa.Array | None  # the predicted class of each object; None for a regressor

    def checked(self, path: Path) -> Answers:
        """Return self. Raises: DataError: a score is not finite."""
        if self.score is not None and not np.isfinite(self.score).all():
            raise DataError(f"{path} outputs NaN or infinity.")
        return self


def load_probe_model(path: Path, content: bytes | None = None) -> ProbeModel:
    """Load the model from a file, or from its content if given."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path} cannot be used as a probe: export the model as ONNX (.onnx), or save the "
            "weights of a linear model (.safetensors)."
        )
    if content is None:
        if not path.is_file():
            raise DataError(f"There is no file {path}.")
        content = path.read_bytes()
    kind = OnnxModel if path.suffix.lower() == ".onnx" else LinearModel
    return kind(path, content)


class LinearModel:
    """x ↦ W (x − mean) / scale + bias, with W [C, D] or [D]: one logit, or one per class. The
    safetensors file has `weight` and optionally `bias`, `mean` and `scale`."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        try:
            tensors = {name: t.astype(np.float64) for name, t in load(content).items()}
        except Exception as error:
            _refuse_memory(error)
            raise DataError(
                f"{path} cannot be read: {clause_of(error)}; save the weights again, as float32."
            ) from error
        weight = tensors.get("weight", np.empty(0))
        if weight.ndim not in (1, 2) or not weight.size:
            shapes = ", ".join(f"{k} {list(v.shape)}" for k, v in tensors.items()) or "none"
            raise DataError(
                f"{path} has no tensor 'weight' of shape [C, D] or [D]; its tensors are: {shapes}."
            )
        self.weight: NDArray[np.float64] = weight.reshape(-1, weight.shape[-1])
        classes, dim = self.weight.shape
        optional = {"bias": (classes, 0.0), "mean": (dim, 0.0), "scale": (dim, 1.0)}
        unknown = set(tensors) - {"weight", *optional}
        if unknown:
            raise DataError(
                f"{path} has a tensor {min(unknown)!r}; allowed are weight, bias, mean and scale."
            )
        self._tensors = {}
        for name, (size, default) in optional.items():
            values = tensors.get(name, np.array(default)).reshape(-1)
            if len(values) not in (1, size):
                raise DataError(
                    f"{path}: tensor {name!r} has {len(values)} numbers; it must have {size}."
                )
            self._tensors[name] = values

    def answers(self, embeddings: NDArray[np.float32]) -> Answers:
        logits = self.outputs(embeddings)
        if logits.shape[1] == 1:
            above = pa.array((logits[:, 0] > 0).astype(np.int64))
            return Answers(logits[:, 0], above).checked(self.path)
        score = logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else None
        return Answers(score, pa.array(logits.argmax(axis=1))).checked(self.path)

    def outputs(self, embeddings: NDArray[np.float32]) -> Floats:
        _check_dim(self.path, self.weight.shape[1], embeddings)
        mean, scale, bias = (self._tensors[name] for name in ("mean", "scale", "bias"))
        # A scale of zero gives logits that are not finite, which `checked` refuses.
        with np.errstate(all="ignore"):
            standard = (embeddings.astype(np.float64) - mean) / scale
            logits: Floats = standard @ self.weight.T + bias
        return logits


class OnnxModel:
    """A classifier or regressor with one input [N, D], such as skl2onnx exports from scikit-learn.
    For a classifier, the float output has the probability of the last of two classes, and the other
    output has the class; `zipmap` may be on or off."""

    def __init__(self, path: Path, content: bytes) -> None:
        try:
            import onnx
            import onnxruntime
        except ImportError:
            raise DataError(
                f"The probe {path} needs onnx and onnxruntime: pip install 'evergram[onnx]'."
            ) from None
        self.path = path
        options = onnxruntime.SessionOptions()
        # With one thread, results, time and memory do not depend on the number of processors.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.load_model_format", "ONNX")
        try:
            model = onnx.load_from_string(content)
            if has_external_data(model):
                raise DataError(
                    f"{path} stores tensors in other files (external data), which a probe must not "
                    "use; save the model as one file."
                )
            # `has_external_data` cannot check unknown fields, so hide them from onnxruntime.
            model.DiscardUnknownFields()
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except DataError:
            raise
        except Exception as error:
            _refuse_memory(error)
            raise DataError(
                f"{path} cannot be read as ONNX: {clause_of(error)}; export the model again."
            ) from error
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in ("tensor(float)", "tensor(double)"):
            found = ", ".join(f"{i.name} {i.type}" for i in inputs)
            raise DataError(f"{path} takes {found}; it must take one input of floats [N, D].")
        self._input = inputs[0].name
        self._dtype = np.float32 if inputs[0].type == "tensor(float)" else np.float64
        self._dim = inputs[0].shape[-1] if len(inputs[0].shape) == 2 else None

    def answers(self, embeddings: NDArray[np.float32]) -> Answers:
        score: Floats | None = None
        predicted: pa.Array | None = None
        outputs = self._run(embeddings)
        for blocks in outputs:
            floats = _floats(blocks)
            if floats is None:
                predicted = pa.array(np.concatenate([np.asarray(b).reshape(-1) for b in blocks]))
            elif floats.shape[1] == 1:
                score = floats[:, 0]
            else:
                if predicted is None:
                    predicted = pa.array(floats.argmax(axis=1))
                score = floats[:, 1] if floats.shape[1] == 2 else None
        if score is None and predicted is None:
            raise DataError(f"{self.path} outputs neither a score nor a class.")
        # The threshold for probabilities is 0.5; other scores have no natural threshold.
        if (
            score is not None
            and predicted is None
            and len(outputs) == 1
            and ((score >= 0) & (score <= 1)).all()
        ):
            predicted = pa.array((score > 0.5).astype(np.int64))
        return Answers(score, predicted).checked(self.path)

    def _run(self, embeddings: NDArray[np.float32]) -> list[tuple[Any, ...]]:
        """Return each output as a tuple of blocks."""
        if isinstance(self._dim, int):
            _check_dim(self.path, self._dim, embeddings)
        answers = []
        for start in range(0, len(embeddings), BLOCK):
            block = embeddings[start : start + BLOCK].astype(self._dtype)
            try:
                outputs = self._session.run(None, {self._input: block})
            except Exception as error:
                _refuse_memory(error)
                raise DataError(
                    f"{self.path} does not run on embeddings of dim {embeddings.shape[1]}: "
                    f"{clause_of(error)}."
                ) from error
            for output in outputs:
                is_array = isinstance(output, list) or np.ndim(output) > 0
                if not is_array or len(output) != len(block):
                    found = f"{len(output)} answers" if is_array else "a single value"
                    raise DataError(
                        f"{self.path} gives {found} for {len(block)} objects, not one per object."
                    )
            answers.append(outputs)
        return list(zip(*answers, strict=True))


ProbeModel: TypeAlias = LinearModel | OnnxModel


def has_external_data(model: Any) -> bool:
    """Return True if a graph, attribute or function of a model stores a tensor in another file."""
    stack = [model]
    while stack:
        message = stack.pop()
        for field, value in message.ListFields():
            if message.DESCRIPTOR.name == "TensorProto":
                if field.name == "external_data" or (field.name == "data_location" and value):
                    return True
            elif field.message_type is not None:
                stack += [value] if hasattr(value, "ListFields") else list(value)
    return False


def _floats(blocks: Sequence[Any]) -> Floats | None:
    """Return an output as float64 [N, C], or None if it contains classes. The dicts of `zipmap`
    become one column per class, in sorted order."""
    if isinstance(blocks[0], list):
        names = sorted(blocks[0][0])
        return np.array([[row[n] for n in names] for b in blocks for row in b], dtype=np.float64)
    if not np.issubdtype(blocks[0].dtype, np.floating):
        return None
    return np.concatenate([b.reshape(len(b), -1).astype(np.float64) for b in blocks])


def _check_dim(path: Path, wanted: int, embeddings: NDArray[np.float32]) -> None:
    if embeddings.shape[1] != wanted:
        raise DataError(
            f"{path} takes embeddings of dim {wanted}, but the version it is pinned to has dim "
            f"{embeddings.shape[1]}."
        )


def _refuse_memory(error: Exception) -> None:
    """Raise MemoryError if an error of onnxruntime means that memory ran out."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or "bad_alloc" in text or "failed to allocate" in text:
        raise MemoryError from error


def roc_auc(score: NDArray[np.floating], label: NDArray[np.bool_]) -> float:
    """Return the probability that a positive scores above a negative; a tie counts half.

    Args:
        score: [N].
        label: bool [N], True for positives.
    Raises: DataError: there are no positives or no negatives.
    """
    positives = int(label.sum())
    negatives = len(label) - positives
    if not positives or not negatives:
        raise DataError("An AUC needs positive and negative examples; one of them is missing.")
    _, inverse, count = np.unique(score, return_inverse=True, return_counts=True)
    # Mean rank of each distinct score.
    rank = count.cumsum() - (count - 1) / 2
    total = rank[inverse][label].sum()
    return float((total - positives * (positives + 1) / 2) / (positives * negatives))


def measure(metric: str, answers: Answers, label: pa.Array) -> float:
    """Return the metric "auc" or "accuracy" (higher is better) or "rmse" (root mean squared error,
    lower is better) of a model's answers for N objects with labels [N]."""
    if label.null_count or not len(label):
        raise DataError("A probe needs at least one object, and a label for each object.")
    if metric == "accuracy":
        if answers.predicted is None:
            raise DataError(
                "The model outputs neither classes nor a probability from 0 to 1, so accuracy "
                "cannot be measured; export it with its classes."
            )
        arrays = answers.predicted, label
        is_text = any(pa.types.is_string(array.type) for array in arrays)
        kind = pa.string() if is_text else pa.float64()
        predicted, expected = (array.cast(kind).to_pylist() for array in arrays)
        return float(np.mean([a == b for a, b in zip(predicted, expected, strict=True)]))
    if answers.score is None:
        raise DataError(f"The model has more than two classes; {metric} needs a single score.")
    try:
        numbers = label.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise DataError(f"The labels are {label.type}; {metric} needs numbers.") from None
    if metric == "rmse":
        return float(np.sqrt(np.square(answers.score - numbers).mean()))
    if not ((numbers == 0) | (numbers == 1)).all():
        raise DataError("The labels are not 0 and 1; auc needs two classes.")
    return roc_auc(answers.score, numbers == 1)
