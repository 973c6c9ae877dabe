"""A consumer's own model, ONNX or safetensors: read, applied to embeddings, and measured.

Such a model is another team's program: `probe_process` runs this module in a process of its own.
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

from evergram.errors import DataError

SUFFIXES = (".onnx", ".safetensors")
# Rows that a model is given at once.
BLOCK = 8_192

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Answers:
    """A model's scores and classes of N objects.

    Args:
        score: float64 [N], higher for the positive class, or the value of a regressor; None for
            more than two classes.
        predicted: the class of each; None for a regressor.
    """

    score: Floats | None
    predicted: pa.Array | None

    def checked(self, path: Path) -> Answers:
        """Return the same. Raises: DataError: a score is not finite."""
        if self.score is not None and not np.isfinite(self.score).all():
            raise DataError(f"{path} gives a NaN or an infinity.")
        return self


def load_probe_model(path: Path, content: bytes | None = None) -> ProbeModel:
    """Return the model of a file, whose content is read if it is None."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path} cannot be a probe: export it as ONNX (.onnx), or save the weights of a linear "
            "model (.safetensors)."
        )
    if content is None:
        if not path.is_file():
            raise DataError(f"There is no file {path}.")
        content = path.read_bytes()
    kind = OnnxModel if path.suffix.lower() == ".onnx" else LinearModel
    return kind(path, content)


class LinearModel:
    """x ↦ W (x − mean) / scale + bias, with W [C, D] or [D], of safetensors with `weight`, and
    perhaps `bias`, `mean` and `scale`: one logit, or one a class."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        try:
            tensors = {name: t.astype(np.float64) for name, t in load(content).items()}
        except Exception as error:
            _refuse_memory(error)
            raise DataError(
                f"{path} cannot be read: {_sentence(error)}; save the weights again, as float32."
            ) from error
        weight = tensors.get("weight", np.empty(0))
        if weight.ndim not in (1, 2) or not weight.size:
            shapes = ", ".join(f"{k} {list(v.shape)}" for k, v in tensors.items()) or "none"
            raise DataError(
                f"{path} has no tensor 'weight' of shape [C, D] or [D]; its tensors are: {shapes}."
            )
        self.weight: NDArray[np.float64] = weight.reshape(-1, weight.shape[-1])
        classes, dim = self.weight.shape
        wanted = {"bias": (classes, 0.0), "mean": (dim, 0.0), "scale": (dim, 1.0)}
        unknown = set(tensors) - {"weight", *wanted}
        if unknown:
            raise DataError(
                f"{path} has the tensor {min(unknown)!r}; weight, bias, mean and scale are known."
            )
        self._parts = {}
        for name, (size, default) in wanted.items():
            values = tensors.get(name, np.array(default)).reshape(-1)
            if len(values) not in (1, size):
                raise DataError(
                    f"{path}: tensor {name!r} has {len(values)} numbers; {size} are needed."
                )
            self._parts[name] = values

    def answers(self, embeddings: NDArray[np.float32]) -> Answers:
        logits = self.outputs(embeddings)
        if logits.shape[1] == 1:
            above = pa.array((logits[:, 0] > 0).astype(np.int64))
            return Answers(logits[:, 0], above).checked(self.path)
        score = logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else None
        return Answers(score, pa.array(logits.argmax(axis=1))).checked(self.path)

    def outputs(self, embeddings: NDArray[np.float32]) -> Floats:
        _check_dim(self.path, self.weight.shape[1], embeddings)
        # A scale of zero makes logits that are not finite, which `checked` refuses.
        with np.errstate(all="ignore"):
            centred = (embeddings.astype(np.float64) - self._parts["mean"]) / self._parts["scale"]
            logits: Floats = centred @ self.weight.T + self._parts["bias"]
        return logits


class OnnxModel:
    """A classifier or a regressor with one input [N, D], such as skl2onnx makes of scikit-learn's.
    Of a classifier, the output of floats gives the probability of the last of two classes, and the
    other output the class; `zipmap` may be on or off."""

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
        # One thread: results, time and memory do not depend on the number of processors.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.load_model_format", "ONNX")
        try:
            model = onnx.load_from_string(content)
            if has_external_data(model):
                raise DataError(
                    f"{path} keeps numbers in other files (external data), which are not part of "
                    "a probe; save the model as one file."
                )
            # What `onnx` does not know it has not looked at, so onnxruntime may not see it.
            model.DiscardUnknownFields()
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except DataError:
            raise
        except Exception as error:
            _refuse_memory(error)
            raise DataError(
                f"{path} cannot be read as ONNX: {_sentence(error)}; export the model again."
            ) from error
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in ("tensor(float)", "tensor(double)"):
            has = ", ".join(f"{i.name} {i.type}" for i in inputs)
            raise DataError(f"{path} takes {has}; one input of floats [N, D] is needed.")
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
            raise DataError(f"{self.path} gives nothing that is a score or a class.")
        # Probabilities are cut at a half; other numbers have no place to be cut at.
        if (
            score is not None
            and predicted is None
            and len(outputs) == 1
            and ((score >= 0) & (score <= 1)).all()
        ):
            predicted = pa.array((score > 0.5).astype(np.int64))
        return Answers(score, predicted).checked(self.path)

    def _run(self, embeddings: NDArray[np.float32]) -> list[tuple[Any, ...]]:
        """Return the blocks of each output."""
        if isinstance(self._dim, int):
            _check_dim(self.path, self._dim, embeddings)
        answers = []
        for start in range(0, len(embeddings), BLOCK):
            part = embeddings[start : start + BLOCK].astype(self._dtype)
            try:
                outputs = self._session.run(None, {self._input: part})
            except Exception as error:
                _refuse_memory(error)
                raise DataError(
                    f"{self.path} does not run on embeddings of dim {embeddings.shape[1]}: "
                    f"{_sentence(error)}."
                ) from error
            for output in outputs:
                several = isinstance(output, list) or np.ndim(output) > 0
                if not several or len(output) != len(part):
                    what = f"{len(output)} answers" if several else "a single value"
                    raise DataError(
                        f"{self.path} gives {what} for {len(part)} objects; one for each is needed."
                    )
            answers.append(outputs)
        return list(zip(*answers, strict=True))


ProbeModel: TypeAlias = LinearModel | OnnxModel


def has_external_data(model: Any) -> bool:
    """Return True if a tensor in any graph, attribute or function of a model is in another file."""
    waiting = [model]
    while waiting:
        message = waiting.pop()
        for field, value in message.ListFields():
            if message.DESCRIPTOR.name == "TensorProto":
                if field.name == "external_data" or (field.name == "data_location" and value):
                    return True
            elif field.message_type is not None:
                waiting += [value] if hasattr(value, "ListFields") else list(value)
    return False


def _floats(blocks: Sequence[Any]) -> Floats | None:
    """Return one output as float64 [N, C], of `zipmap` one column for each class in order; None if
    it holds classes."""
    if isinstance(blocks[0], list):
        names = sorted(blocks[0][0])
        return np.array([[row[n] for n in names] for b in blocks for row in b], dtype=np.float64)
    if not np.issubdtype(blocks[0].dtype, np.floating):
        return None
    return np.concatenate([b.reshape(len(b), -1).astype(np.float64) for b in blocks])


def _check_dim(path: Path, wanted: int, embeddings: NDArray[np.float32]) -> None:
    if embeddings.shape[1] != wanted:
        raise DataError(
            f"{path} reads embeddings of dim {wanted}, and those that it is pinned to have "
            f"{embeddings.shape[1]}."
        )


def _refuse_memory(error: Exception) -> None:
    """Raise MemoryError if this error of onnxruntime says that memory ran out."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or "bad_alloc" in text or "failed to allocate" in text:
        raise MemoryError from error


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def roc_auc(score: NDArray[np.floating], label: NDArray[np.bool_]) -> float:
    """Return the chance that a positive scores above a negative; a tie counts half.

    Args:
        score: [N].
        label: bool [N], True for positives.
    Raises: DataError: one of the classes is missing.
    """
    positives = int(label.sum())
    negatives = len(label) - positives
    if not positives or not negatives:
        raise DataError("An AUC needs positive and negative examples; one of them is missing.")
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    # Mean rank of each distinct score.
    rank = count.cumsum() - (count - 1) / 2
    total = rank[place][label].sum()
    return float((total - positives * (positives + 1) / 2) / (positives * negatives))


def measure(metric: str, answers: Answers, label: pa.Array) -> float:
    """Return AUC or accuracy (higher is better), or root mean squared error (lower is better),
    "auc", "accuracy" or "rmse", of a model's answers for N objects with labels [N]."""
    if label.null_count or not len(label):
        raise DataError("A probe needs at least one object, and a label for each.")
    if metric == "accuracy":
        if answers.predicted is None:
            raise DataError(
                "The model gives neither classes nor a probability from 0 to 1, so that accuracy "
                "cannot be measured; export it with its classes."
            )
        both = answers.predicted, label
        text = any(pa.types.is_string(part.type) for part in both)
        kind = pa.string() if text else pa.float64()
        predicted, expected = (part.cast(kind).to_pylist() for part in both)
        return float(np.mean([a == b for a, b in zip(predicted, expected, strict=True)]))
    if answers.score is None:
        raise DataError(f"The model tells more than two classes apart; {metric} needs one score.")
    try:
        numbers = label.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise DataError(f"The labels are {label.type}; {metric} needs numbers.") from None
    if metric == "rmse":
        return float(np.sqrt(np.square(answers.score - numbers).mean()))
    if not ((numbers == 0) | (numbers == 1)).all():
        raise DataError("The labels are not 0 and 1; auc needs two classes.")
    return roc_auc(answers.score, numbers == 1)
