"""The program that runs one probe: `python -m evergram.evaluation.probes.probe_program`.

A consumer's model is another team's program, and its evaluation file another team's data: the
publisher's process opens neither. `probe_process.ProbeProcess` starts this program and exchanges
these messages with it:

    in   a line of JSON, `Job`
    out  a line of JSON with `ids`, those of the evaluation file
    in   a line of JSON with the `shape` of their embeddings; a byte for each id, 1 if it has an
         embedding; the embeddings, float32
    out  a line of JSON with `value`, the value of the metric; or with `fisher`, the rows of the
         model's mean input Fisher matrix [D, D], if the line before had `"asks": "fisher"`

Instead of either answer there may be a line with `error`, a sentence, or with `memory`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from evergram.errors import DataError, EvergramError
from evergram.evaluation.auc import roc_auc
from evergram.evaluation.probes.probe_models import (
    BLOCK,
    Answers,
    Floats,
    ProbeModel,
    load_probe_model,
)


def measure(metric: str, answers: Answers, label: pa.Array) -> float:
    """Return AUC or accuracy (higher is better), or root mean squared error (lower is better).

    Args:
        metric: "auc", "accuracy" or "rmse".
        answers: of the model, for N objects.
        label: [N]; two classes (0 and 1, or booleans) for auc, numbers for rmse.
    Raises: DataError: the labels or the answers are not of the kind that the metric needs.
    """
    if label.null_count or not len(label):
        raise DataError("A probe needs at least one object, and a label for each.")
    if metric == "accuracy":
        if answers.predicted is None:
            raise DataError(
                "The model gives neither classes nor a probability from 0 to 1, so that accuracy "
                "cannot be measured; export it with its classes."
            )
        return float(
            np.mean([a == b for a, b in zip(*_alike(answers.predicted, label), strict=True)])
        )
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


def _alike(predicted: pa.Array, label: pa.Array) -> tuple[list[Any], list[Any]]:
    """Return both as texts if one of them is text, else as numbers."""
    if pa.types.is_string(label.type) or pa.types.is_string(predicted.type):
        both = predicted.cast(pa.string()), label.cast(pa.string())
    else:
        both = predicted.cast(pa.float64()), label.cast(pa.float64())
    return both[0].to_pylist(), both[1].to_pylist()


# Steps of the differences, as a share of the root mean variance of the embeddings: wide enough for
# models that compute in float32, and for trees, which are flat between their thresholds.
STEP = 0.1
# A probability and what is left to 1 count as at least so much: below, a difference of a model in
# float32 is rounding.
LEAST_CHANCE = 0.01


def probe_fisher(model: ProbeModel, embeddings: NDArray[np.float32], metric: str) -> Floats:
    """Return the mean input Fisher matrix of a probe, float64 [D, D]; see `input_fisher`.

    Args:
        embeddings: [N, D].
        metric: of the probe; with "rmse" its output is a value, otherwise probabilities (numbers
            in [0, 1] that add up to 1, or one alone) or logits.
    Raises: DataError: there are no embeddings, they are all alike, or the model does not answer
        with numbers.
    """
    rows, dim = embeddings.shape
    step = STEP * float(np.sqrt(embeddings.var(axis=0).mean())) if rows else 0.0
    if not step > 0:
        raise DataError(
            f"{rows} embeddings that do not differ say nothing of what a probe is sensitive to; "
            "leave the consumer out."
        )
    centres = model.outputs(embeddings)
    factor = _factor(centres, metric, never_chances=model.gives_logits)
    total: Floats = np.zeros((dim, dim))
    moves = step * np.concatenate([np.eye(dim), -np.eye(dim)])
    size = max(1, BLOCK // (2 * dim))
    for start in range(0, rows, size):
        block: Floats = embeddings[start : start + size].astype(np.float64)
        moved = (block[:, None] + moves).reshape(-1, dim)
        ends = model.outputs(moved.astype(np.float32)).reshape(len(block), 2, dim, -1)
        slope = (ends[:, 0] - ends[:, 1]) / (2 * step)  # [b, D, C]
        weighed = factor(slope, centres[start : start + size])
        flat = weighed.transpose(0, 2, 1).reshape(-1, dim)
        total += flat.T @ flat
    total /= rows
    return total


def _factor(centres: Floats, metric: str, *, never_chances: bool) -> Callable[..., Floats]:
    """Return the function that makes slopes [b, D, C] at outputs [b, C] such that their products
    are the rows' Fisher matrices."""
    if metric == "rmse":
        return lambda slope, _: slope
    one = centres.shape[1] == 1
    inside = bool(((centres >= 0) & (centres <= 1)).all()) and not never_chances
    if inside and (one or np.allclose(centres.sum(axis=1), 1, atol=1e-3)):
        return _of_chances
    return _of_logits


def _of_chances(slope: Floats, chance: Floats) -> Floats:
    # Σ_c ∇p_c ∇p_cᵀ / p_c; of one probability, ∇p ∇pᵀ / (p (1 − p)).
    spread = chance * (1 - chance) if chance.shape[1] == 1 else chance
    weighed: Floats = slope / np.sqrt(np.maximum(spread, LEAST_CHANCE))[:, None]
    return weighed


def _of_logits(slope: Floats, logits: Floats) -> Floats:
    if logits.shape[1] == 1:
        chance = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
        return slope * np.sqrt(chance * (1 - chance))[:, None]
    # Σ_c p_c (∇h_c − Σ_c p_c ∇h_c)(…)ᵀ.
    chance = np.exp(logits - logits.max(axis=1, keepdims=True))
    chance = (chance / chance.sum(axis=1, keepdims=True))[:, None]
    weighed: Floats = np.sqrt(chance) * (slope - (chance * slope).sum(axis=2, keepdims=True))
    return weighed


# Bytes that may be written to a file; the only file is that of stderr.
MOST_WRITTEN = 1 << 20


class Job(TypedDict):
    """One probe to run.

    Keys:
        model, data: absolute paths; model_name, data_name: their names for errors.
        model_sha256, data_sha256: of their contents.
        metric: "auc", "accuracy" or "rmse".
        seconds, mib: limits of processor time, and of memory beside that of this program itself.
    """

    model: str
    model_name: str
    model_sha256: str
    data: str
    data_name: str
    data_sha256: str
    metric: str
    seconds: float
    mib: int


def main() -> None:
    # Answers go to the old stdout; what a library prints goes to stderr.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        asked = sys.stdin.buffer
        for answer in _answers(json.loads(asked.readline()), asked):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def _answers(job: Job, asked: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the lines to write; none follows an error."""
    try:
        if job["model"].lower().endswith(".onnx"):
            # Imported before the limits, as their own memory is not the model's. `OnnxModel` says
            # so if one is not installed.
            with suppress(ImportError):
                import onnxruntime  # noqa: F401
        limit(job["seconds"], job["mib"])
        name = Path(job["data_name"])
        ids, labels = evaluation(name, _read(job["data"], name, job["data_sha256"]))
        name = Path(job["model_name"])
        model = load_probe_model(name, _read(job["model"], name, job["model_sha256"]))
        yield {"ids": ids.to_pylist()}
        asks, has_vector, vectors = _embeddings(asked, len(ids))
        if asks == "fisher":
            yield {"fisher": probe_fisher(model, vectors, job["metric"]).tolist()}
            return
        value = measure(job["metric"], model.answers(vectors), labels.filter(has_vector))
        yield {"value": value}
    except MemoryError:
        yield {"memory": True}
    except EvergramError as error:
        yield {"error": str(error)}
    except Exception as error:
        # A model can raise any error.
        what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        yield {"error": f"{job['model_name']} cannot be used as a probe ({what})."}


def limit(seconds: float, mib: int) -> None:
    """Limit processor time and memory of this process; do nothing on a system without limits."""
    pa.set_cpu_count(1)
    try:
        import resource
    except ImportError:
        return
    # The publisher ends this process earlier; the limit is for a publisher that was killed.
    processor = int(seconds) + 5
    limits = {
        resource.RLIMIT_CPU: processor,
        resource.RLIMIT_FSIZE: MOST_WRITTEN,
        resource.RLIMIT_CORE: 0,
    }
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + mib * 2**20
    for kind, most in limits.items():
        # A limit that exists already can only be lowered.
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def evaluation(path: Path, content: bytes) -> tuple[pa.Array, pa.Array]:
    """Return ids (int64 or strings) and labels of an evaluation file.

    Raises: DataError: it is damaged, or a column, an id or a label is missing.
    """
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            lacking = {"id", "label"} - set(file.schema_arrow.names)
            if lacking or not file.metadata.num_rows:
                raise DataError(f"{path} needs at least one row, with the columns id and label.")
            table = file.read(columns=["id", "label"], use_threads=False)
    except pa.ArrowMemoryError:
        raise
    except (OSError, pa.ArrowException, KeyError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}; write it again.") from error
    ids, labels = table["id"].combine_chunks(), table["label"].combine_chunks()
    nan = pa.types.is_floating(labels.type) and pc.any(pc.is_nan(labels)).as_py()
    if ids.null_count or labels.null_count or nan:
        raise DataError(
            f"{path} has a row without an id or without a label; give both, or leave the row out."
        )
    number = pa.types.is_integer(ids.type) or pa.types.is_floating(ids.type)
    kind = pa.int64() if number else pa.string()
    try:
        return ids.cast(kind), labels
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"The ids of the evaluation file are not {kind}: {error}.") from error


def _read(path: str, name: Path, published: str) -> bytes:
    """Return the bytes of a file. Raises: DataError: their hash is not the published one."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}.") from error
    if hashlib.sha256(content).hexdigest() != published:
        raise DataError(f"{name} was changed while the probe was being run; run it again.")
    return content


def _embeddings(asked: IO[bytes], objects: int) -> tuple[str, pa.Array, Any]:
    """Return the question, bool [N], True for objects that have an embedding, and those embeddings
    [n, D]."""
    line = asked.readline()
    if not line:
        # The publisher has ended and waits for no answer.
        sys.exit(1)
    request = json.loads(line)
    rows, dim = request["shape"]
    has_vector = np.frombuffer(asked.read(objects), dtype=np.uint8).astype(bool)
    vectors = np.frombuffer(asked.read(4 * rows * dim), dtype="<f4").reshape(rows, dim)
    return request.get("asks", "value"), pa.array(has_vector), vectors


if __name__ == "__main__":
    main()
