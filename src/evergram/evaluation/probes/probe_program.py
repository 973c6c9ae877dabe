"""The program that runs one probe: `python -m evergram.evaluation.probes.probe_program`.

A consumer's model is somebody else's program, and its evaluation file somebody else's data: the
publisher's process opens neither. `probe_process.ProbeProcess` starts this program and talks to it:

    in   a line of JSON, `Job`
    out  a line of JSON with `ids`, those of the evaluation file
    in   a line of JSON with the `shape` of their embeddings; a byte for each id, 1 where it has an
         embedding; the embeddings, float32
    out  a line of JSON with `value`, what was measured

In place of either answer there may be a line with `error`, a sentence, or with `memory`.
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
import pyarrow.parquet as pq

from evergram.errors import DataError, EvergramError
from evergram.evaluation.probes.probe_metrics import measure
from evergram.evaluation.probes.probe_models import load_probe_model

# What may be written to a file, which is what it says on stderr.
MOST_WRITTEN = 1 << 20


class Job(TypedDict):
    """One probe to run.

    Keys:
        model, data: whole paths; model_name, data_name: what to call them.
        model_sha256, data_sha256: of their contents.
        metric: "auc", "accuracy" or "rmse".
        seconds, mib: of processor time, and of memory beside what this program itself takes.
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
    # What a library prints is no answer.
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
            # What it takes itself is not what the model takes. Where it is not there, that is said
            # when it is needed.
            with suppress(ImportError):
                import onnxruntime  # noqa: F401
        limit(job["seconds"], job["mib"])
        name = Path(job["data_name"])
        ids, labels = evaluation(name, _read(job["data"], name, job["data_sha256"]))
        name = Path(job["model_name"])
        model = load_probe_model(name, _read(job["model"], name, job["model_sha256"]))
        yield {"ids": ids.to_pylist()}
        has_vector, vectors = _embeddings(asked, len(ids))
        value = measure(job["metric"], model.answers(vectors), labels.filter(has_vector))
        yield {"value": value}
    except MemoryError:
        yield {"memory": True}
    except EvergramError as error:
        yield {"error": str(error)}
    except Exception as error:
        # A model can answer anything at all.
        what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        yield {"error": f"{job['model_name']} cannot be used as a probe ({what})."}


def limit(seconds: float, mib: int) -> None:
    """Limit this process's processor time and memory by the system's means; on a system without
    them, such as Windows, do nothing."""
    pa.set_cpu_count(1)
    try:
        import resource
    except ImportError:
        return
    # Who started it ends it before; this is for where that one was killed.
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
        # There may be a limit already, which can be lowered alone.
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def evaluation(path: Path, content: bytes) -> tuple[pa.Array, pa.Array]:
    """Return ids (int64 or strings) and labels of an evaluation file. Raises: DataError."""
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            lacking = {"id", "label"} - set(file.schema_arrow.names)
            if lacking or not file.metadata.num_rows:
                raise DataError(f"{path} needs at least one row, with the columns id and label.")
            table = file.read(columns=["id", "label"], use_threads=False)
    except pa.ArrowMemoryError:
        raise
    except (OSError, pa.ArrowException, KeyError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}.") from error
    ids, labels = table["id"].combine_chunks(), table["label"].combine_chunks()
    if ids.null_count or labels.null_count:
        raise DataError(f"{path} has a row without an id or without a label.")
    number = pa.types.is_integer(ids.type) or pa.types.is_floating(ids.type)
    kind = pa.int64() if number else pa.string()
    try:
        return ids.cast(kind), labels
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"The ids of the evaluation file are not {kind}: {error}.") from error


def _read(path: str, name: Path, published: str) -> bytes:
    """Return the bytes of a file that have the hash. Raises: DataError: they are others."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}.") from error
    if hashlib.sha256(content).hexdigest() != published:
        raise DataError(f"{name} was changed while the probe was being run; run it again.")
    return content


def _embeddings(asked: IO[bytes], objects: int) -> tuple[pa.Array, Any]:
    """Return which objects have an embedding, bool [N], and those embeddings [n, D]."""
    line = asked.readline()
    if not line:
        # Nobody waits for the answer any more.
        sys.exit(1)
    rows, dim = json.loads(line)["shape"]
    has_vector = np.frombuffer(asked.read(objects), dtype=np.uint8).astype(bool)
    vectors = np.frombuffer(asked.read(4 * rows * dim), dtype="<f4").reshape(rows, dim)
    return pa.array(has_vector), vectors


if __name__ == "__main__":
    main()
