"""Probes that loop, take memory, die or lie end in one sentence, and the publisher goes on."""

from __future__ import annotations

import hashlib
import io
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file
from tests.support import onnx_graphs as graphs
from tests.support.onnx_graphs import DIM

from evergram.errors import DataError
from evergram.evaluation.probes import probe_process as module
from evergram.evaluation.probes import probe_program
from evergram.evaluation.probes.probe_process import ProbeFiles, ProbeLimits, ProbeProcess
from evergram.evaluation.probes.probe_program import Job, evaluation

ROWS = 40
VECTORS = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
LABEL = VECTORS.sum(axis=1) > 0
LIMITS = ProbeLimits()


def files_of(folder: Path, model: bytes, suffix: str = ".onnx") -> ProbeFiles:
    path, data = folder / f"model{suffix}", folder / "data.parquet"
    path.write_bytes(model)
    pq.write_table(pa.table({"id": range(ROWS), "label": LABEL}), data)
    digests = [hashlib.sha256(p.read_bytes()).hexdigest() for p in (path, data)]
    return ProbeFiles(path, digests[0], data, digests[1])


def value_of(files: ProbeFiles, limits: ProbeLimits = LIMITS, metric: str = "auc") -> float:
    with ProbeProcess(files, metric, limits) as process:
        assert process.ids().to_pylist() == list(range(ROWS))
        return process.value(np.ones(ROWS, dtype=bool), VECTORS)


def replaced(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> ProbeFiles:
    """Good files, and another program in the place of the one that runs them: a model has taken
    that one over."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return files_of(folder, graphs.plain().SerializeToString())


@pytest.mark.long
def test_a_model_that_never_ends_is_ended(tmp_path: Path) -> None:
    files = files_of(tmp_path, graphs.looping().SerializeToString())
    process = ProbeProcess(files, "auc", LIMITS)
    with process:
        process.ids()
        process._left = 1.0
        with pytest.raises(DataError, match="did not answer within 60 seconds"):
            process.value(np.ones(ROWS, dtype=bool), VECTORS)
    assert process._process.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="the system keeps no limit of memory")
def test_a_model_that_takes_too_much_memory_is_refused_it(tmp_path: Path) -> None:
    files = files_of(tmp_path, graphs.hungry().SerializeToString())
    with pytest.raises(DataError, match=r"it needs more than 200 MiB of memory \(EVERGRAM_PROBE_M"):
        value_of(files, ProbeLimits(mib=200))


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the system keeps no limit of memory")
def test_an_evaluation_file_that_takes_too_much_memory_is_refused_it(tmp_path: Path) -> None:
    """A few kilobytes of Parquet may say the same text a million times."""
    files = files_of(tmp_path, graphs.plain().SerializeToString())
    text = pa.array(["x" * 10_000]).take(pa.array(np.zeros(50_000, np.int64)))
    pq.write_table(pa.table({"id": text, "label": np.zeros(50_000)}), files.data)
    assert files.data.stat().st_size < 100_000
    digest = hashlib.sha256(files.data.read_bytes()).hexdigest()
    files = ProbeFiles(files.model, files.model_sha256, files.data, digest)
    with pytest.raises(DataError, match=r"it needs more than 200 MiB of memory"):
        value_of(files, ProbeLimits(mib=200))


def test_a_process_that_dies_is_a_sentence(tmp_path: Path) -> None:
    files = files_of(tmp_path, graphs.plain().SerializeToString())
    with ProbeProcess(files, "auc", LIMITS) as process:
        process.ids()
        os.kill(process._process.pid, signal.SIGSEGV)
        with pytest.raises(DataError, match="SIGSEGV"):
            process.value(np.ones(ROWS, dtype=bool), VECTORS)


def test_a_process_that_ends_by_itself_says_its_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = replaced(tmp_path, monkeypatch, "echo it is broken >&2\nexit 3")
    with pytest.raises(DataError, match="ended with exit code 3 and no answer: it is broken"):
        value_of(files)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    with pytest.raises(DataError, match="no process can be started"):
        value_of(files)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("[" * 100_000, "no answer that can be read"),
        ('{"value": "' + "x" * 10_000 + '"}', "which is no finite number"),
        ('{"error": "a\\u001b[31m\\nb' + "x" * 10_000 + '"}', r"^a \[31m bx+…$"),
    ],
    ids=["deep", "text", "colour"],
)
def test_an_answer_that_is_none_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, message: str
) -> None:
    (tmp_path / "answer").write_text(answer + "\n")
    files = replaced(tmp_path, monkeypatch, f"read job\ncat {tmp_path / 'answer'}\nread more")
    with (
        ProbeProcess(files, "auc", LIMITS) as process,
        pytest.raises(DataError, match=message) as caught,
    ):
        process.value(np.ones(ROWS, dtype=bool), VECTORS)
    assert len(str(caught.value)) < 1100
    assert str(caught.value).isprintable()


def test_a_program_that_closes_its_pipes_and_goes_on_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = replaced(tmp_path, monkeypatch, "exec <&- >&-\nwhile :; do :; done")
    process = ProbeProcess(files, "auc", LIMITS)
    with process:
        process._left = 0.5
        with pytest.raises(DataError, match="did not answer within 60 seconds"):
            process.ids()
    assert process._process.returncode == -signal.SIGKILL


def test_an_answer_that_is_longer_than_it_may_be_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(tmp_path, graphs.plain().SerializeToString())
    monkeypatch.setattr(module, "LONGEST_LINE", 20)
    with pytest.raises(DataError, match="its ids are more than"):
        value_of(files)


def test_a_program_sees_no_secrets_and_no_files_of_the_publisher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    files = files_of(tmp_path, graphs.plain().SerializeToString())
    with ProbeProcess(files, "auc", LIMITS) as process:
        process.ids()
        about = Path(f"/proc/{process._process.pid}")
        if not about.exists():
            pytest.skip("the system does not tell of a process")
        assert b"hush" not in (about / "environ").read_bytes()
        assert list((about / "cwd").iterdir()) == []
        folder = (about / "cwd").readlink()
    assert not folder.exists()


@pytest.mark.parametrize("place", [52, 156])
def test_a_damaged_model_is_a_sentence(tmp_path: Path, place: int) -> None:
    content = bytearray(graphs.plain().SerializeToString())
    content[place % len(content)] ^= 0xFF
    files = files_of(tmp_path, bytes(content))
    # Whatever it has become: a value, or a sentence.
    with suppress(DataError):
        assert 0 <= value_of(files) <= 1


def test_a_file_that_is_changed_meanwhile_is_not_read(tmp_path: Path) -> None:
    files = files_of(tmp_path, graphs.plain().SerializeToString())
    for path in (files.model, files.data):
        content = path.read_bytes()
        path.write_bytes(content + b"\0")
        with pytest.raises(DataError, match=f"{path.name} was changed while"):
            value_of(files)
        path.write_bytes(content)


PUBLISHER = """
import sys
from pathlib import Path
import numpy as np
from evergram.evaluation.probes.probe_process import ProbeLimits, ProbeFiles, ProbeProcess
assert not {"onnxruntime", "torch"} & set(sys.modules)
model, model_sha256, data, data_sha256 = sys.argv[1:]
files = ProbeFiles(Path(model), model_sha256, Path(data), data_sha256)
with ProbeProcess(files, "auc", ProbeLimits(seconds=1)) as process:
    # The limit that counts here is that of processor time, which the probe keeps by itself.
    process._left = 1e6
    process.ids()
    print(process._process.pid, flush=True)
    process.value(np.ones(40, dtype=bool), np.ones((40, 64), np.float32))
"""


@pytest.mark.long
def test_a_probe_outlives_its_publisher_by_its_time_at_most(tmp_path: Path) -> None:
    """The publisher, which needs no onnxruntime, is killed, so that nobody ends the probe."""
    files = files_of(tmp_path, graphs.looping().SerializeToString())
    arguments = (files.model, files.model_sha256, files.data, files.data_sha256)
    publisher = subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    assert publisher.stdout is not None
    probe = int(publisher.stdout.readline())
    publisher.kill()
    publisher.communicate()
    ended = os.pidfd_open(probe) if hasattr(os, "pidfd_open") else None
    if ended is None:
        pytest.skip("the system does not tell when another process ends")
    # Processor time: beside busy processes it takes longer.
    assert select.select([ended], [], [], 300)[0], "the probe goes on for ever"
    os.close(ended)


Ask = Callable[[Job, bytes], Iterator[dict[str, Any]]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """The answers of the program, without limits on this process."""
    monkeypatch.setattr(probe_program, "limit", lambda seconds, mib: None)
    return lambda job, requests: probe_program._answers(job, io.BytesIO(requests))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A linear model of two dims, and three objects."""
    model, data = tmp_path / "m.safetensors", tmp_path / "d.parquet"
    save_file({"weight": np.array([1.0, 0.0])}, model)
    pq.write_table(pa.table({"id": ["a", "b", "c"], "label": [1, 0, 1]}), data)
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (model, data)]
    return {
        "model": str(model),
        "model_name": "their-model.safetensors",
        "model_sha256": digests[0],
        "data": str(data),
        "data_name": "their-data.parquet",
        "data_sha256": digests[1],
        "metric": "auc",
        "seconds": 1.0,
        "mib": 100,
    }


def test_it_answers_with_ids_and_then_with_the_value(ask: Ask, job: Job) -> None:
    vectors = np.array([[0.5, 9], [-1, 9]], dtype="<f4")  # of a and b
    request = json.dumps({"shape": [2, 2]}).encode() + b"\n" + bytes([1, 1, 0])
    answers = list(ask(job, request + vectors.tobytes()))
    assert answers == [{"ids": ["a", "b", "c"]}, {"value": 1.0}]


def parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def test_ids_of_an_evaluation_file_are_int64_or_texts() -> None:
    for ids, kind in (([3, 1], pa.int64()), ([3.0, 1.0], pa.int64()), (["x", "y"], pa.string())):
        read, labels = evaluation(Path("d"), parquet(id=ids, label=[0.5, 1.5], other=[1, 2]))
        assert read.type == kind
        assert read.to_pylist() == ids
        assert labels.to_pylist() == [0.5, 1.5]


def test_an_evaluation_file_that_cannot_be_used_is_refused() -> None:
    for content, message in [
        (b"x", "d cannot be read as Parquet"),
        (parquet(id=[1]), "with the columns id and label"),
        (parquet(id=pa.array([], pa.int64()), label=pa.array([], pa.int64())), "at least one row"),
        (parquet(id=[1, None], label=[1, 1]), "a row without an id or without a label"),
        (parquet(id=[1, 2], label=[1.0, float("nan")]), "a row without an id or without a label"),
        (parquet(id=[1.5], label=[1]), "ids of the evaluation file are not int64"),
    ]:
        with pytest.raises(DataError, match=message):
            evaluation(Path("d"), content)
