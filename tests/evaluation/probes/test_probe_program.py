"""The program of a probe, called in this process without its limits."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from evergram.errors import DataError
from evergram.evaluation.probes import probe_program
from evergram.evaluation.probes.probe_program import Job, evaluation

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


def test_it_answers_with_the_matrix_where_that_is_asked_for(ask: Ask, job: Job) -> None:
    vectors = np.array([[0.5, 9], [-1, 8]], dtype="<f4")
    line = json.dumps({"shape": [2, 2], "asks": "fisher"}).encode() + b"\n"
    _, answer = ask({**job, "metric": "rmse"}, line + bytes([1, 1, 0]) + vectors.tobytes())
    assert list(answer) == ["fisher"]
    np.testing.assert_allclose(answer["fisher"], [[1, 0], [0, 0]], atol=1e-5)


def test_it_names_files_as_the_publisher_does(ask: Ask, job: Job) -> None:
    for changed, message in (
        ({"model_sha256": "0"}, "their-model.safetensors was changed while the probe"),
        ({"data": job["data"] + "x"}, "their-data.parquet cannot be read: No such file"),
    ):
        answers = list(ask({**job, **changed}, b""))  # type: ignore[typeddict-item]
        assert len(answers) == 1
        assert answers[0]["error"].startswith(message)


def test_it_ends_when_nobody_asks_for_the_value(ask: Ask, job: Job) -> None:
    answers = ask(job, b"")
    assert next(answers) == {"ids": ["a", "b", "c"]}
    with pytest.raises(SystemExit):
        next(answers)


def test_any_error_of_a_model_is_one_sentence(
    ask: Ask, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path, content: bytes) -> Any:
        raise KeyError("two\nlines")

    monkeypatch.setattr(probe_program, "load_probe_model", broken)
    message = r"their-model.safetensors cannot be used as a probe (KeyError: 'two\nlines')."
    assert list(ask(job, b"")) == [{"error": message}]
    monkeypatch.setattr(probe_program, "load_probe_model", _without_memory)
    assert list(ask(job, b"")) == [{"memory": True}]


def _without_memory(path: Path, content: bytes) -> Any:
    raise MemoryError


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x", "d cannot be read as Parquet"),
        (parquet(id=[1]), "with the columns id and label"),
        (parquet(id=pa.array([], pa.int64()), label=pa.array([], pa.int64())), "at least one row"),
        (parquet(id=[1, None], label=[1, 1]), "a row without an id or without a label"),
        (parquet(id=[1, 2], label=[1, None]), "a row without an id or without a label"),
        (parquet(id=[1, 2], label=[1.0, float("nan")]), "a row without an id or without a label"),
        (parquet(id=[1.5], label=[1]), "ids of the evaluation file are not int64"),
    ],
)
def test_an_evaluation_file_that_cannot_be_used_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        evaluation(Path("d"), content)
