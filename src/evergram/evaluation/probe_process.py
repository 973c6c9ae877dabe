"""Run a consumer's probe in a separate process with limits on time and memory.

The model and the evaluation file come from another team, so the publisher's process opens neither.
It runs this module as a program, once per request:

    in   a line of JSON: `asks` ("ids" or "value"), the `metric`, `ProbeFiles`, the `folder` of
         relative paths, and `ProbeLimits`. For "value", two arrays in .npy format follow:
         bool [N], True for each id that has an embedding, and these embeddings, float32 [n, D]
    out  a line of JSON: `ids`, all ids of the evaluation file, or `value`, the value of the
         metric; or instead `error`, a sentence, or `memory`, true if memory ran out.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from evergram.errors import DataError, EvergramError
from evergram.evaluation.probes import load_probe_model, measure

SECONDS, MIB = "EVERGRAM_PROBE_SECONDS", "EVERGRAM_PROBE_MIB"
MOST_WRITTEN = 1 << 28  # maximum bytes of an answer, which may hold all ids of an evaluation file
# Environment variables that the program needs to start; none of them is secret.
_PASSED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "SYSTEMROOT", "TMPDIR", "TEMP")


@dataclass(frozen=True)
class ProbeLimits:
    """Limits for one probe: seconds for all its requests, not counting the lookup of embeddings,
    and MiB of memory on top of about 300 that every probe needs."""

    seconds: float = 60.0
    mib: int = 4096

    @classmethod
    def of_environment(cls) -> ProbeLimits:
        """Return the limits set by EVERGRAM_PROBE_SECONDS and EVERGRAM_PROBE_MIB, or defaults."""
        values = []
        for variable, default in ((SECONDS, cls.seconds), (MIB, cls.mib)):
            text = os.environ.get(variable) or str(default)
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not 0 < value < 1e9:
                raise DataError(
                    f"{variable} is {text!r}; it must be a number above 0 ({default:g} by default)."
                )
            values.append(value)
        return cls(values[0], math.ceil(values[1]))


@dataclass(frozen=True)
class ProbeFiles:
    """A consumer's model and evaluation file, with the hashes of their contents."""

    model: Path
    model_sha256: str
    data: Path
    data_sha256: str


class ProbeProcess:
    """Runs a probe: first `ids`, then `value`, with the metric "auc", "accuracy" or "rmse". Any
    failure of the model or its data raises DataError."""

    def __init__(self, files: ProbeFiles, metric: str, limits: ProbeLimits) -> None:
        self.files: ProbeFiles = files
        self.metric: str = metric
        self.limits: ProbeLimits = limits
        self._left = limits.seconds

    def ids(self) -> pa.Array:
        """Return the ids of the evaluation file, int64 or strings [N]."""
        ids = self._request("ids")
        try:
            return pa.array(ids, pa.string() if isinstance(ids[0], str) else pa.int64())
        except (TypeError, LookupError, ValueError, OverflowError) as error:
            raise self._failure("its ids are neither int64 nor strings") from error

    def value(self, has_vector: NDArray[np.bool_], vectors: NDArray[np.float32]) -> float:
        """Return the metric, given the embeddings [n, D] of the ids marked in `has_vector` [N]."""
        value = self._request("value", has_vector, vectors)
        if not isinstance(value, float) or not math.isfinite(value):
            text = _printable(repr(value), 40)
            raise self._failure(f"its {self.metric} is {text}, which is not a finite number")
        return value

    def _request(self, what: str, *arrays: NDArray[Any]) -> Any:
        """Run the program and return the entry `what` of its answer, or None if it is missing."""
        job: dict[str, Any] = {"asks": what, "metric": self.metric, "folder": str(Path.cwd())}
        job |= {name: str(value) for name, value in vars(self.files).items()}
        job |= vars(self.limits)
        try:
            code, line, stderr = self._run(job, arrays)
        except OSError as error:
            raise DataError(
                f"{self.files.model} cannot be run: no process can be started, or its input does "
                f"not fit into {tempfile.gettempdir()} ({error.strerror})."
            ) from error
        except subprocess.TimeoutExpired:
            raise self._failure(
                f"it did not answer within {self.limits.seconds:g} seconds ({SECONDS} allows more)"
            ) from None
        if not line.endswith(b"\n"):
            if code < 0:
                names = {-number: number.name for number in signal.Signals}
                raise self._failure(
                    f"its process was ended by {names.get(code, code)} without an answer; its "
                    f"memory limit is {self.limits.mib} MiB ({MIB} allows more)"
                )
            last = _printable(stderr.decode(errors="replace").strip().split("\n")[-1], 200)
            raise self._failure(
                f"its process ended with exit code {code} and no answer: {last or 'no message'}"
            )
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self._failure("its answer cannot be read")
        if answer.get("memory"):
            raise self._failure(
                f"it needs more than {self.limits.mib} MiB of memory ({MIB} allows more)"
            )
        if "error" in answer:
            # An error message of a library may quote content of the model.
            raise DataError(_printable(str(answer["error"]), 1000))
        return answer.get(what)

    def _run(self, job: dict[str, Any], arrays: Sequence[NDArray[Any]]) -> tuple[int, bytes, bytes]:
        """Run the program in an empty folder, so that a model cannot refer to a file by name.
        Return its exit code, the first line of its answer, and its stderr."""
        started = time.monotonic()
        with (
            tempfile.TemporaryDirectory(prefix="evergram-probe-") as folder,
            tempfile.TemporaryFile() as request,
            tempfile.TemporaryFile() as answer,
            tempfile.TemporaryFile() as stderr,
        ):
            request.write(json.dumps(job).encode() + b"\n")
            for array in arrays:
                np.save(request, np.ascontiguousarray(array), allow_pickle=False)
            request.seek(0)
            environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
            path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
            environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
            try:
                code = subprocess.run(
                    # -P: do not import modules from the current folder.
                    [sys.executable, "-P", "-m", "evergram.evaluation.probe_process"],
                    stdin=request,
                    stdout=answer,
                    stderr=stderr,
                    cwd=folder,
                    env=environment,
                    timeout=self._left,
                    check=False,
                ).returncode
            finally:
                self._left = max(0.0, self._left - (time.monotonic() - started))
            answer.seek(0)
            stderr.seek(0)
            return code, answer.readline(MOST_WRITTEN), stderr.read()

    def _failure(self, why: str) -> DataError:
        return DataError(f"{self.files.model} cannot be used as a probe: {why}.")


def _printable(text: str, most: int) -> str:
    """Return untrusted text for an error message: one printable line, at most `most` characters."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text[:most])
    return printable + "…" * (len(text) > most)


def main() -> None:
    """Answer one request."""
    # The answer goes to the original stdout; anything that libraries print goes to stderr.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        request = sys.stdin.buffer
        answer.write(json.dumps(_answer(json.loads(request.readline()), request)) + "\n")


def _answer(job: dict[str, Any], request: IO[bytes]) -> dict[str, Any]:
    try:
        if job["asks"] != "ids" and job["model"].lower().endswith(".onnx"):
            # Import before setting the limits, so that the library's memory does not count.
            # `OnnxModel` reports a missing library.
            with suppress(ImportError):
                import onnxruntime  # noqa: F401
        limit(job["seconds"], job["mib"])
        folder, data, path = job["folder"], job["data"], job["model"]
        ids, labels = evaluation(Path(data), _content(folder, data, job["data_sha256"]))
        if job["asks"] == "ids":
            return {"ids": ids.to_pylist()}
        model = load_probe_model(Path(path), _content(folder, path, job["model_sha256"]))
        has_vector, vectors = (np.load(request, allow_pickle=False) for _ in range(2))
        measured_labels = labels.filter(pa.array(has_vector))
        return {"value": measure(job["metric"], model.answers(vectors), measured_labels)}
    except MemoryError:
        return {"memory": True}
    except EvergramError as error:
        return {"error": str(error)}
    except Exception as error:
        # A model can raise any error.
        what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        return {"error": f"{job['model']} cannot be used as a probe ({what})."}


def limit(seconds: float, mib: int) -> None:
    """Limit processor time and memory of this process, if the system supports it."""
    pa.set_cpu_count(1)
    try:
        import resource
    except ImportError:
        return
    # The publisher normally ends this process earlier; this limit applies if it was killed.
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
        # An existing hard limit can only be lowered.
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def evaluation(path: Path, content: bytes) -> tuple[pa.Array, pa.Array]:
    """Return ids (int64 or strings) and labels of an evaluation file."""
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            missing = {"id", "label"} - set(file.schema_arrow.names)
            if missing or not file.metadata.num_rows:
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
            f"{path} has a row without an id or a label; give both, or leave the row out."
        )
    is_number = pa.types.is_integer(ids.type) or pa.types.is_floating(ids.type)
    kind = pa.int64() if is_number else pa.string()
    try:
        return ids.cast(kind), labels
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"The ids of the evaluation file are not {kind}: {error}.") from error


def _content(folder: str, name: str, published: str) -> bytes:
    """Return the bytes of a file, after checking its hash against the published one."""
    try:
        content = Path(folder, name).read_bytes()
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}.") from error
    if hashlib.sha256(content).hexdigest() != published:
        raise DataError(f"{name} was changed while the probe was running; run it again.")
    return content


if __name__ == "__main__":
    main()
