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
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from evergram.errors import DataError, EvergramError
from evergram.evaluation.probes.probe_fisher import probe_fisher
from evergram.evaluation.probes.probe_metrics import measure
from evergram.evaluation.probes.probe_models import load_probe_model

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
            # Imported before the limits, as its own memory is not the model's. `OnnxModel` says so
            # if it is not installed.
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
