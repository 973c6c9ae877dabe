"""Run a consumer's probe in a process of its own, with limits of time and memory.

A consumer's model is another team's program, and its evaluation file another team's data: the
publisher's process opens neither. It starts this module as a program for each question:

    in   a line of JSON: what it `asks`, the `metric`, `ProbeFiles` with the `folder` of relative
         paths, and `ProbeLimits`; behind it, unless ids are asked for, two arrays as of `.npy`:
         bool [N], True for each id that has an embedding, and these embeddings, float32 [n, D]
    out  a line of JSON with what is asked for: `ids`, those of the evaluation file; or
         `value`, that of the metric. In its place there may be `error`, a sentence, or `memory`.
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
# The most bytes of an answer, which may hold all ids of an evaluation file.
MOST_WRITTEN = 1 << 28
# Variables that a program needs to start; none of them is secret.
_KEPT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "SYSTEMROOT", "TMPDIR", "TEMP")


@dataclass(frozen=True)
class ProbeLimits:
    """The most time and memory that one probe may use: seconds to answer all that it is asked,
    without the time to look embeddings up, and MiB beside some 300 that every probe takes."""

    seconds: float = 60.0
    mib: int = 4096

    @classmethod
    def of_environment(cls) -> ProbeLimits:
        """Return the limits of EVERGRAM_PROBE_SECONDS and EVERGRAM_PROBE_MIB, or the defaults."""
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
    """A probe that is asked for the ids of its data, and then for its value ("auc", "accuracy" or
    "rmse"); any fault of the model or its data is a DataError."""

    def __init__(self, files: ProbeFiles, metric: str, limits: ProbeLimits) -> None:
        self.files: ProbeFiles = files
        self.metric: str = metric
        self.limits: ProbeLimits = limits
        self._left = limits.seconds

    def ids(self) -> pa.Array:
        """Return the ids of the evaluation file, int64 or strings [N]."""
        ids = self._asked("ids")
        try:
            return pa.array(ids, pa.string() if isinstance(ids[0], str) else pa.int64())
        except (TypeError, LookupError, ValueError, OverflowError) as error:
            raise self._failure("it gave ids that are not int64 or strings") from error

    def value(self, has_vector: NDArray[np.bool_], vectors: NDArray[np.float32]) -> float:
        """Return the value of the metric of the embeddings [n, D] of the ids that `has_vector`,
        bool [N], marks."""
        value = self._asked("value", has_vector, vectors)
        if not isinstance(value, float) or not math.isfinite(value):
            text = _shown(repr(value), 40)
            raise self._failure(f"its {self.metric} is {text}, which is no finite number")
        return value

    def _asked(self, what: str, *arrays: NDArray[Any]) -> Any:
        """Return the entry `what` of the program's answer; None if there is none."""
        job: dict[str, Any] = {"asks": what, "metric": self.metric, "folder": str(Path.cwd())}
        job |= {name: str(value) for name, value in vars(self.files).items()}
        job |= vars(self.limits)
        try:
            code, line, said = self._run(job, arrays)
        except OSError as error:
            raise DataError(
                f"{self.files.model} cannot be run: no process can be started, or its question "
                f"does not fit into {tempfile.gettempdir()} ({error.strerror})."
            ) from error
        except subprocess.TimeoutExpired:
            raise self._failure(
                f"it did not answer within {self.limits.seconds:g} seconds ({SECONDS} allows more)"
            ) from None
        if not line.endswith(b"\n"):
            if code < 0:
                names = {-number: number.name for number in signal.Signals}
                raise self._failure(
                    f"its process was ended by {names.get(code, code)}, without an answer; it may "
                    f"take {self.limits.mib} MiB of memory ({MIB} allows more)"
                )
            last = _shown(said.decode(errors="replace").strip().split("\n")[-1], 200)
            raise self._failure(
                f"its process ended with exit code {code} and no answer: {last or 'no message'}"
            )
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self._failure("it gave no answer that can be read")
        if answer.get("memory"):
            raise self._failure(
                f"it needs more than {self.limits.mib} MiB of memory ({MIB} allows more)"
            )
        if "error" in answer:
            # An error of a library may quote the model.
            raise DataError(_shown(str(answer["error"]), 1000))
        return answer.get(what)

    def _run(self, job: dict[str, Any], arrays: Sequence[NDArray[Any]]) -> tuple[int, bytes, bytes]:
        """Run the program in an empty folder, so that a model can name no file, and return its exit
        code, the first line of its answer, and what it wrote to stderr."""
        started = time.monotonic()
        with (
            tempfile.TemporaryDirectory(prefix="evergram-probe-") as folder,
            tempfile.TemporaryFile() as asked,
            tempfile.TemporaryFile() as answer,
            tempfile.TemporaryFile() as said,
        ):
            asked.write(json.dumps(job).encode() + b"\n")
            for array in arrays:
                np.save(asked, np.ascontiguousarray(array), allow_pickle=False)
            asked.seek(0)
            environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
            path = os.pathsep.join(str(Path(place).absolute()) for place in sys.path)
            environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
            try:
                code = subprocess.run(
                    # -P: import no module from the current folder.
                    [sys.executable, "-P", "-m", "evergram.evaluation.probe_process"],
                    stdin=asked,
                    stdout=answer,
                    stderr=said,
                    cwd=folder,
                    env=environment,
                    timeout=self._left,
                    check=False,
                ).returncode
            finally:
                self._left = max(0.0, self._left - (time.monotonic() - started))
            answer.seek(0)
            said.seek(0)
            return code, answer.readline(MOST_WRITTEN), said.read()

    def _failure(self, why: str) -> DataError:
        return DataError(f"{self.files.model} cannot be used as a probe: {why}.")


def _shown(text: str, most: int) -> str:
    """Return a foreign text for an error: one printable line of `most` characters at most."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text[:most])
    return printable + "…" * (len(text) > most)


def main() -> None:
    """Answer one question."""
    # The answer goes to the old stdout; what a library prints goes to stderr.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        asked = sys.stdin.buffer
        answer.write(json.dumps(_answer(json.loads(asked.readline()), asked)) + "\n")


def _answer(job: dict[str, Any], asked: IO[bytes]) -> dict[str, Any]:
    try:
        if job["asks"] != "ids" and job["model"].lower().endswith(".onnx"):
            # Imported before the limits, as their own memory is not the model's. `OnnxModel` says
            # so if one is not installed.
            with suppress(ImportError):
                import onnxruntime  # noqa: F401
        limit(job["seconds"], job["mib"])
        folder, data, path = job["folder"], job["data"], job["model"]
        ids, labels = evaluation(Path(data), _content(folder, data, job["data_sha256"]))
        if job["asks"] == "ids":
            return {"ids": ids.to_pylist()}
        model = load_probe_model(Path(path), _content(folder, path, job["model_sha256"]))
        has_vector, vectors = (np.load(asked, allow_pickle=False) for _ in range(2))
        known = labels.filter(pa.array(has_vector))
        return {"value": measure(job["metric"], model.answers(vectors), known)}
    except MemoryError:
        return {"memory": True}
    except EvergramError as error:
        return {"error": str(error)}
    except Exception as error:
        # A model can raise any error.
        what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        return {"error": f"{job['model']} cannot be used as a probe ({what})."}


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
    """Return ids (int64 or strings) and labels of an evaluation file."""
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


def _content(folder: str, name: str, published: str) -> bytes:
    """Return the bytes of a file, whose hash must be the published one."""
    try:
        content = Path(folder, name).read_bytes()
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}.") from error
    if hashlib.sha256(content).hexdigest() != published:
        raise DataError(f"{name} was changed while the probe was being run; run it again.")
    return content


if __name__ == "__main__":
    main()
