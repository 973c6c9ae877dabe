"""Consumers' models: what they answer, how it is measured, and that those which loop or lie end."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save
from safetensors.torch import save as torch_save
from tests.support import onnx_graphs as graphs
from tests.support.onnx_graphs import DIM

from evergram.errors import DataError
from evergram.evaluation import probes
from evergram.evaluation.probe_process import (
    ProbeFiles,
    ProbeLimits,
    ProbeProcess,
    evaluation,
)
from evergram.evaluation.probes import (
    Answers,
    LinearModel,
    OnnxModel,
    ProbeModel,
    load_probe_model,
    measure,
)

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
    process = ProbeProcess(files, metric, limits)
    assert process.ids().to_pylist() == list(range(ROWS))
    return process.value(np.ones(ROWS, dtype=bool), VECTORS)


def replaced(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> ProbeProcess:
    """A probe of good files, with another program in the place of the one that runs them: a model
    has taken that one over."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    files = files_of(folder, graphs.plain().SerializeToString())
    return ProbeProcess(files, "auc", ProbeLimits(seconds=20))


@pytest.mark.long
def test_a_model_that_never_ends_is_ended(tmp_path: Path) -> None:
    files = files_of(tmp_path, graphs.looping().SerializeToString())
    process = ProbeProcess(files, "auc", LIMITS)
    process.ids()
    process._left = 5.0
    with pytest.raises(DataError, match="did not answer within 60 seconds"):
        process.value(np.ones(ROWS, dtype=bool), VECTORS)


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


@pytest.mark.skipif(sys.platform != "linux", reason="the system keeps no limit of memory")
def test_a_model_that_takes_too_much_memory_is_refused_it(tmp_path: Path) -> None:
    files = files_of(tmp_path, graphs.hungry().SerializeToString())
    with pytest.raises(DataError, match=r"it needs more than 200 MiB of memory"):
        value_of(files, ProbeLimits(mib=200))


@pytest.mark.parametrize("place", [52, 156])
def test_a_damaged_model_is_a_value_or_a_sentence(tmp_path: Path, place: int) -> None:
    content = bytearray(graphs.plain().SerializeToString())
    content[place % len(content)] ^= 0xFF
    with suppress(DataError):
        assert 0 <= value_of(files_of(tmp_path, bytes(content))) <= 1


def test_what_a_program_says_in_place_of_an_answer_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for script, message in (
        ("kill -SEGV $$", "SIGSEGV"),
        ("echo it is broken >&2; exit 3", "exit code 3 and no answer: it is broken"),
        ("printf no", "exit code 0 and no answer: no message"),
        ("printf '%0100000d' 0 | tr 0 '['; echo", "answer cannot be read"),
        ('printf \'{"value": "%010000d"}\\n\' 0', "not a finite number"),
        (
            'printf \'{"error": "a\\\\u001b[31m\\\\nb%010000d"}\\n\' 0',
            r"^a \[31m b0+…$",
        ),
    ):
        process = replaced(tmp_path, monkeypatch, script)
        with pytest.raises(DataError, match=message) as caught:
            process.value(np.ones(ROWS, dtype=bool), VECTORS)
        assert len(str(caught.value)) < 1100
        assert str(caught.value).isprintable()
    process = replaced(tmp_path, monkeypatch, "exec <&- >&-\nwhile :; do :; done")
    process._left = 0.5
    with pytest.raises(DataError, match="did not answer within 20 seconds"):
        process.ids()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    with pytest.raises(DataError, match="no process can be started"):
        process.ids()


@pytest.mark.skipif(sys.platform != "linux", reason="the system keeps no limit of files")
def test_a_question_that_does_not_fit_on_the_disk_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = files_of(tmp_path, graphs.plain().SerializeToString())
    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match="No space left"):
        ProbeProcess(files, "auc", LIMITS).value(np.ones(ROWS, dtype=bool), VECTORS)


def test_an_answer_that_is_longer_than_it_may_be_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import evergram.evaluation.probe_process as p; p.MOST_WRITTEN = 20; p.main()"
    process = replaced(tmp_path, monkeypatch, f"exec {sys.executable} -c '{program}'")
    with pytest.raises(DataError, match="no answer"):
        process.ids()


def test_a_program_sees_no_secrets_and_no_files_of_the_publisher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    script = f"env > {tmp_path}/env; pwd > {tmp_path}/pwd; ls -A > {tmp_path}/ls"
    with pytest.raises(DataError, match="no answer"):
        replaced(tmp_path, monkeypatch, script).ids()
    assert "hush" not in (tmp_path / "env").read_text()
    assert (tmp_path / "ls").read_text() == ""
    assert not Path((tmp_path / "pwd").read_text().strip()).exists()


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
from evergram.evaluation.probe_process import ProbeLimits, ProbeFiles, ProbeProcess
assert not {"onnxruntime", "torch"} & set(sys.modules)
model, model_sha256, data, data_sha256 = sys.argv[1:]
files = ProbeFiles(Path(model), model_sha256, Path(data), data_sha256)
process = ProbeProcess(files, "auc", ProbeLimits(seconds=1))
# The limit that counts here is that of processor time, which the probe keeps by itself.
process._left = 1e6
process.ids()
print("asks", flush=True)
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
    assert publisher.stdout.readline() == "asks\n"
    children = Path(f"/proc/{publisher.pid}/task/{publisher.pid}/children")
    if not children.exists() or not hasattr(os, "pidfd_open"):
        publisher.kill()
        pytest.skip("the system does not tell when another process ends")
    while not (started := children.read_text().split()):
        assert publisher.poll() is None
    ended = os.pidfd_open(int(started[0]))
    publisher.kill()
    publisher.communicate()
    # Processor time: beside busy processes it takes longer.
    assert select.select([ended], [], [], 300)[0], "the probe goes on for ever"
    os.close(ended)


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
    for content, named in [
        (b"x", "Parquet"),
        (parquet(id=[1]), "columns id and label"),
        (parquet(id=pa.array([], pa.int64()), label=pa.array([], pa.int64())), "one row"),
        (parquet(id=[1, None], label=[1, 1]), "without an id"),
        (parquet(id=[1, 2], label=[1.0, float("nan")]), "without an id or a label"),
        (parquet(id=[1.5], label=[1]), "not int64"),
    ]:
        with pytest.raises(DataError, match=named):
            evaluation(Path("d"), content)


LINEAR, ONNX = Path("model.safetensors"), Path("model.onnx")
VECTORS = np.random.default_rng(0).normal(size=(40, DIM)).astype(np.float32)


def test_three_rows_of_weights_give_classes_and_no_score() -> None:
    random = np.random.default_rng(1)
    parts = {
        "weight": random.normal(size=(3, DIM)),
        "bias": random.normal(size=3),
        "mean": random.normal(size=DIM),
        "scale": random.uniform(0.5, 2, size=1),
    }
    answers = LinearModel(LINEAR, save(parts)).answers(VECTORS)
    expected = [
        max(range(3), key=lambda c: parts["weight"][c] @ (x - parts["mean"]) / parts["scale"][0]
            + parts["bias"][c])
        for x in VECTORS.astype(float)
    ]  # fmt: skip
    assert answers.score is None
    assert answers.predicted is not None
    assert answers.predicted.to_pylist() == expected


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.int32])
def test_weights_of_each_kind_are_read_as_they_are(kind: torch.dtype) -> None:
    weight = (4 * torch.randn(3, DIM, generator=torch.Generator().manual_seed(0))).to(kind)
    logits = LinearModel(LINEAR, torch_save({"weight": weight})).outputs(VECTORS)
    np.testing.assert_allclose(logits, VECTORS.astype(float) @ weight.double().numpy().T)


def test_tensors_that_are_no_linear_model_and_other_dims_are_refused() -> None:
    cases: list[tuple[dict[str, np.ndarray], str]] = [
        ({"bias": np.ones(1)}, r"'weight' .* bias \[1\]"),
        ({"weight": np.ones((1, 1, 2))}, r"weight \[1, 1, 2\]"),
        ({"weight": np.ones(DIM), "what": np.ones(1)}, "'what'"),
        ({"weight": np.ones(DIM), "mean": np.ones(3)}, "'mean' has 3 numbers"),
        ({"weight": np.ones(DIM), "scale": np.zeros(1)}, "NaN"),
        ({"weight": np.ones(3)}, f"dim 3, .* has dim {DIM}"),
    ]
    for tensors, named in cases:
        with pytest.raises(DataError, match=named):
            LinearModel(LINEAR, save(tensors)).answers(VECTORS)


def test_an_onnx_model_is_run_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "BLOCK", 7)
    model = OnnxModel(ONNX, graphs.plain().SerializeToString())
    answers = model.answers(VECTORS)
    assert answers.score is not None
    np.testing.assert_allclose(answers.score, VECTORS.sum(1), rtol=1e-4, atol=1e-4)
    # Numbers that are no probabilities have no place to be cut at.
    assert answers.predicted is None
    shares = np.abs(VECTORS) / np.abs(VECTORS).sum(1, keepdims=True) * np.float32(0.9)
    shares[::2] /= 2
    classes = model.answers(shares).predicted
    assert classes is not None
    assert classes.to_pylist() == (shares.sum(1) > 0.5).astype(int).tolist()


def test_outputs_are_what_a_model_computes_before_it_decides() -> None:
    weight = np.random.default_rng(1).normal(size=(3, DIM))
    logits = LinearModel(LINEAR, save({"weight": weight})).outputs(VECTORS)
    np.testing.assert_allclose(logits, VECTORS.astype(float) @ weight.T, atol=1e-12)


@pytest.mark.parametrize("where", ["initializer", "attribute", "function", "subgraph"])
def test_numbers_in_other_files_are_found_wherever_they_hide(where: str) -> None:
    with pytest.raises(DataError, match="external data"):
        OnnxModel(ONNX, graphs.external(where).SerializeToString())


def test_a_field_whose_number_some_readers_cut_off_is_not_read() -> None:
    """The graph under the number 7 + 2²⁹, which is 7 in 32 bits: not looked at, and not run."""
    graph = onnx.load_from_string(graphs.plain().SerializeToString()).graph.SerializeToString()
    tag = (7 << 3 | 2) + (1 << 32)
    head = bytes((tag >> shift & 0x7F) | (0x80 if shift < 28 else 0) for shift in range(0, 35, 7))
    size = len(graph)
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F])
    with pytest.raises(DataError, match="cannot be read as ONNX"):
        OnnxModel(ONNX, head + length + graph)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_model_are_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="cannot be read as ONNX"):
        OnnxModel(ONNX, content)


SCORE = np.array([0.1, 0.4, 0.4, 0.9])
BINARY = Answers(SCORE, pa.array([0, 0, 1, 1]))


def test_the_error_of_values_is_the_root_of_the_mean_square() -> None:
    # (0.1 − 0.1)², (0.4 − 0)², (0.4 − 1)², (0.9 − 0.9)²
    error = measure("rmse", Answers(SCORE, None), pa.array([0.1, 0.0, 1.0, 0.9]))
    assert error == pytest.approx(((0.16 + 0.36) / 4) ** 0.5)


def test_labels_and_answers_of_another_kind_are_refused() -> None:
    for metric, answers, label, message in [
        ("auc", BINARY, [], "at least one object"),
        ("auc", BINARY, [0, 1, None, 1], "a label for each"),
        ("auc", BINARY, [0, 1, 2, 1], "labels are not 0 and 1; auc needs two classes"),
        ("auc", BINARY, ["a", "b", "a", "b"], "labels are string; auc needs numbers"),
        ("auc", Answers(None, pa.array([0])), [1], "more than two classes; auc needs a single"),
        ("accuracy", Answers(SCORE, None), [0, 1, 0, 1], "so accuracy cannot be measured"),
    ]:
        with pytest.raises(DataError, match=message):
            measure(metric, answers, pa.array(label))


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
OBJECTS, DIMS = 400, 5
DRAW = np.random.default_rng(0)
ROWS_OF_FIVE = DRAW.normal(size=(OBJECTS, DIMS)).astype(np.float32)
DIRECTION = np.array([2.0, -1.0, 0.5, 0.0, 0.0])
CLASSES = np.digitize(ROWS_OF_FIVE @ DIRECTION + 0.5 * DRAW.normal(size=OBJECTS), [-1, 1])


def linear(**tensors: np.ndarray) -> ProbeModel:
    content = save({name: np.asarray(t, dtype=np.float64) for name, t in tensors.items()})
    return load_probe_model(Path("m.safetensors"), content)
