"""Run a probe in a process of its own, with limits of time and memory."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from evergram.errors import DataError

SECONDS, MIB = "EVERGRAM_PROBE_SECONDS", "EVERGRAM_PROBE_MIB"
# The most bytes of a line of an answer, which may hold all ids of an evaluation file.
LONGEST_LINE = 1 << 28
# Variables that a program needs to start; none of them is secret.
_KEPT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "SYSTEMROOT", "TMPDIR", "TEMP")


@dataclass(frozen=True)
class ProbeLimits:
    """The most time and memory that one probe may use.

    Args:
        seconds: from its start to its answer, without the time to look embeddings up.
        mib: MiB of memory, beside some 300 that every probe takes.
    """

    seconds: float = 60.0
    mib: int = 4096

    @classmethod
    def of_environment(cls) -> ProbeLimits:
        """Return the limits of EVERGRAM_PROBE_SECONDS and EVERGRAM_PROBE_MIB, or the defaults.

        Raises: DataError: one is not a number above 0.
        """
        seconds, mib = _number(SECONDS, cls.seconds), _number(MIB, cls.mib)
        return cls(seconds, math.ceil(mib))


@dataclass(frozen=True)
class ProbeFiles:
    """A consumer's model and evaluation file, with the hashes of their contents."""

    model: Path
    model_sha256: str
    data: Path
    data_sha256: str


class ProbeProcess:
    """A probe in a process of its own: ask for its ids first, then for its value or its matrix.

    Args:
        files: read by the other process alone.
        metric: "auc", "accuracy" or "rmse".
    Raises: DataError: from entering on, any fault of the model or its data; the process is ended.
    """

    def __init__(self, files: ProbeFiles, metric: str, limits: ProbeLimits) -> None:
        self.files: ProbeFiles = files
        self.metric: str = metric
        self.limits: ProbeLimits = limits
        self._left = limits.seconds

    def __enter__(self) -> Self:
        # An empty folder, so that a model can name no file.
        self._folder = tempfile.TemporaryDirectory(prefix="evergram-probe-")
        self._stderr = tempfile.TemporaryFile()
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        path = os.pathsep.join(str(Path(place).absolute()) for place in sys.path)
        try:
            self._process = subprocess.Popen(
                # -P: import no module from the current folder.
                [sys.executable, "-P", "-m", "evergram.evaluation.probes.probe_program"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                cwd=self._folder.name,
                env=kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
            )
        except OSError as error:
            self._folder.cleanup()
            self._stderr.close()
            raise DataError(
                f"{self.files.model} cannot be run: no process can be started ({error.strerror})."
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                _open(pipe).close()
            except OSError:
                # It ended before it had read all.
                continue
        self._process.wait()
        self._stderr.close()
        self._folder.cleanup()

    def ids(self) -> pa.Array:
        """Return the ids of the evaluation file, int64 or strings [N]; call it once and first."""
        files = self.files
        job = {
            "model": str(files.model.absolute()),
            "model_name": str(files.model),
            "model_sha256": files.model_sha256,
            "data": str(files.data.absolute()),
            "data_name": str(files.data),
            "data_sha256": files.data_sha256,
            "metric": self.metric,
            **asdict(self.limits),
        }
        ids = self._exchange([json.dumps(job).encode() + b"\n"]).get("ids")
        kinds = {type(key) for key in ids} if isinstance(ids, list) else set()
        if kinds not in ({int}, {str}):
            raise self._failure("it gave no ids")
        try:
            return pa.array(ids, pa.int64() if kinds == {int} else pa.string())
        except (ValueError, OverflowError) as error:
            raise self._failure("it gave ids that are not int64 or strings") from error

    def value(self, has_vector: NDArray[np.bool_], vectors: NDArray[np.float32]) -> float:
        """Return the value of the metric.

        Args:
            has_vector: bool [N], True for ids that have an embedding.
            vectors: their embeddings [n, D], as the consumer reads them.
        """
        value = self._asked("value", has_vector, vectors)
        if not isinstance(value, float) or not math.isfinite(value):
            shown = _shown(repr(value), 40)
            raise self._failure(f"its {self.metric} is {shown}, which is no finite number")
        return value

    def fisher(
        self, has_vector: NDArray[np.bool_], vectors: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Return the model's mean input Fisher matrix [D, D], see `probe_fisher`.

        Args:
            has_vector, vectors: as of `value`.
        """
        rows, dim = self._asked("fisher", has_vector, vectors), vectors.shape[1]
        try:
            matrix = np.array(rows, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            matrix = np.empty(0)
        if matrix.shape != (dim, dim) or not np.isfinite(matrix).all():
            raise self._failure(f"it gave no matrix of {dim} by {dim} finite numbers")
        return matrix

    def _asked(self, what: str, has_vector: NDArray[np.bool_], vectors: NDArray[np.float32]) -> Any:
        """Return the entry `what` of the answer to embeddings; None if there is none."""
        request = {"shape": vectors.shape, "asks": what}
        rows = np.ascontiguousarray(vectors, dtype="<f4")
        line = json.dumps(request).encode() + b"\n"
        return self._exchange([line, has_vector.astype(np.uint8).data, rows.data]).get(what)

    def _exchange(self, parts: Iterable[bytes | memoryview]) -> dict[str, Any]:
        """Send a request and return the answer."""
        started = time.monotonic()
        # Ending the process closes its pipes, so that reading and writing end as well.
        timer = threading.Timer(max(0.0, self._left), self._process.kill)
        timer.start()
        try:
            try:
                for part in parts:
                    _open(self._process.stdin).write(part)
                _open(self._process.stdin).flush()
            except OSError:
                # It ended meanwhile; its last answer tells why.
                pass
            line = _open(self._process.stdout).readline(LONGEST_LINE)
        finally:
            timer.cancel()
            self._left -= time.monotonic() - started
        return self._answer(line)

    def _answer(self, line: bytes) -> dict[str, Any]:
        if not line.endswith(b"\n"):
            if len(line) == LONGEST_LINE:
                raise self._failure(f"its ids are more than {LONGEST_LINE >> 20} MiB")
            raise self._failure(self._end())
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
        return answer

    def _end(self) -> str:
        """Return the reason why there is no answer."""
        late = self._left <= 0
        try:
            # It may have closed its pipes and still run.
            code = self._process.wait(None if late else self._left)
        except subprocess.TimeoutExpired:
            late = True
        if late:
            return (
                f"it did not answer within {self.limits.seconds:g} seconds ({SECONDS} allows more)"
            )
        if code >= 0:
            self._stderr.seek(0)
            last = self._stderr.read().decode(errors="replace").strip().split("\n")[-1]
            text = _shown(last, 200) or "no message"
            return f"its process ended with exit code {code} and no answer: {text}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return (
            f"its process was ended by {name}, without an answer; it may take {self.limits.mib} "
            f"MiB of memory ({MIB} allows more)"
        )

    def _failure(self, why: str) -> DataError:
        return DataError(f"{self.files.model} cannot be used as a probe: {why}.")


def _shown(text: str, most: int) -> str:
    """Return a foreign text for an error: one printable line of `most` characters at most."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text[:most])
    return printable + "…" * (len(text) > most)


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _number(variable: str, default: float) -> float:
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e9:
        raise DataError(
            f"{variable} is {text!r}; it must be a number above 0 ({default:g} by default)."
        )
    return value
