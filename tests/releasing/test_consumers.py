"""Consumers of an upgrade: their probes are run on it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from tests.support.publishing import publish_next
from torch import Tensor

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import (
    DataError,
    DegradationError,
)
from evergram.evaluation.probes import load_probe_model, measure
from evergram.lineage.artefact import Artefact
from evergram.lineage.consumers import ConsumerRegistry, Probe
from evergram.lineage.lineage import Lineage
from evergram.releasing import probes
from evergram.releasing.probes import (
    measured_probe,
    refuse_broken,
    run_probes,
    with_probes,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ROWS, DIM = 300, 6
IDS = pa.array([f"id{i}" for i in range(ROWS)])


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


OLD = randn(0, ROWS, DIM)
LABEL = (OLD @ randn(1, DIM) + 0.5 * randn(2, ROWS) > 0).numpy()
VALUE = (OLD @ randn(1, DIM) + 0.1 * randn(2, ROWS)).numpy()


def evaluation(path: Path, labels: Any, ids: Any = IDS) -> Path:
    pq.write_table(pa.table({"id": ids, "label": pa.array(labels)}), path)
    return path


def linear(path: Path, **tensors: Tensor) -> Path:
    save_file(tensors, path)
    return path


def classifier(path: Path, **options: Any) -> tuple[Path, Any]:
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression().fit(OLD.numpy(), LABEL)
    onnx = to_onnx(fitted, OLD[:1].numpy(), options={id(fitted): options} if options else None)
    path.write_bytes(onnx.SerializeToString())
    return path, fitted


def artefact(vectors: Tensor, back: Tensor | None, side: str = "candidate") -> Artefact:
    return Artefact(
        dim=vectors.shape[1],
        embeddings={side: (IDS, vectors)},
        transform=None if back is None else LinearTransform.from_matrix(back),
        metrics={"metrics": {"model": {}}},
        recipe={},
    )


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    new = Lineage.create(tmp_path / "lineage")
    publish_next(new, artefact(OLD, None))
    return new


def add(lineage: Lineage, model: Path, data: Path, **facts: Any) -> None:
    probe = probe_of(model, data, **facts)
    measured = measured_probe(lineage, "v0", probe)
    ConsumerRegistry.open(lineage.path).add("ads", "v0", lineage.resolve, probe=measured)


def next_version(broken: bool = False) -> Artefact:
    """OLD under a change of basis; broken, the transform does not undo it."""
    turn = torch.linalg.qr(randn(3, DIM, DIM))[0]
    return artefact(OLD @ turn.T, turn.T if not broken else torch.eye(DIM))


@pytest.mark.parametrize("options", [{}, {"zipmap": False}, {"zipmap": "columns"}])
def test_a_classifier_of_scikit_learn_is_read_as_it_is(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    from sklearn.metrics import roc_auc_score

    path, fitted = classifier(tmp_path / "m.onnx", **options)
    answers = load_probe_model(path).answers(OLD.numpy())
    assert answers.score is not None
    expected = fitted.predict_proba(OLD.numpy())[:, 1]
    np.testing.assert_allclose(answers.score, expected, atol=1e-6)
    auc = measure("auc", answers, pa.array(LABEL))
    assert auc == pytest.approx(roc_auc_score(LABEL, expected), abs=1e-9)
    assert measure("accuracy", answers, pa.array(LABEL)) == fitted.score(OLD.numpy(), LABEL)


def test_a_classifier_of_three_named_classes_has_an_accuracy_and_no_auc(tmp_path: Path) -> None:
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    names = np.array(["a", "b", "c"])[np.digitize(VALUE, [-1, 1])]
    fitted = LogisticRegression().fit(OLD.numpy(), names)
    path = tmp_path / "m.onnx"
    path.write_bytes(to_onnx(fitted, OLD[:1].numpy()).SerializeToString())
    answers = load_probe_model(path).answers(OLD.numpy())
    assert measure("accuracy", answers, pa.array(names)) == fitted.score(OLD.numpy(), names)
    with pytest.raises(DataError, match="more than two classes"):
        measure("auc", answers, pa.array(LABEL))


def test_a_regressor_has_the_error_of_scikit_learn(tmp_path: Path) -> None:
    from skl2onnx import to_onnx
    from sklearn.linear_model import LinearRegression

    fitted = LinearRegression().fit(OLD.numpy(), VALUE)
    onnx = tmp_path / "m.onnx"
    onnx.write_bytes(to_onnx(fitted, OLD[:1].numpy()).SerializeToString())
    plain = linear(
        tmp_path / "m.safetensors",
        weight=torch.tensor(fitted.coef_),
        bias=torch.tensor([fitted.intercept_]),
    )
    expected = float(np.sqrt(np.mean((fitted.predict(OLD.numpy()) - VALUE) ** 2)))
    for path in (onnx, plain):
        rmse = measure("rmse", load_probe_model(path).answers(OLD.numpy()), pa.array(VALUE))
        assert rmse == pytest.approx(expected, rel=1e-4)


def test_a_linear_model_of_tensors_is_that_of_scikit_learn(tmp_path: Path) -> None:
    """With one row of weights and with one a class, centred and scaled."""
    from sklearn.linear_model import LogisticRegression

    mean, scale = OLD.mean(0), OLD.std(0)
    inputs = ((OLD - mean) / scale).numpy()
    fitted = LogisticRegression().fit(inputs, LABEL)
    weight, bias = torch.tensor(fitted.coef_), torch.tensor(fitted.intercept_)
    expected = fitted.decision_function(inputs)
    parts = {"mean": mean, "scale": scale}
    for tensors in (
        {"weight": weight, "bias": bias},
        {"weight": weight[0].contiguous(), "bias": bias},
        {"weight": torch.cat([0 * weight, weight]), "bias": torch.cat([0 * bias, bias])},
    ):
        path = linear(tmp_path / "m.safetensors", **tensors, **parts)
        answers = load_probe_model(path).answers(OLD.numpy())
        assert answers.score is not None
        np.testing.assert_allclose(answers.score, expected, atol=1e-5)
        assert measure("accuracy", answers, pa.array(LABEL)) == fitted.score(inputs, LABEL)


def test_a_probe_is_run_before_a_version_is_published(tmp_path: Path, lineage: Lineage) -> None:
    from sklearn.metrics import roc_auc_score

    model, fitted = classifier(tmp_path / "m.onnx")
    add(lineage, model, evaluation(tmp_path / "d.parquet", LABEL), min=0.7)
    expected = roc_auc_score(LABEL, fitted.predict_proba(OLD.numpy())[:, 1])
    new, readings = with_probes(next_version(), lineage)
    assert [r.consumer for r in readings] == ["ads"]
    reading = readings[0]
    assert (reading.version, reading.source, reading.objects, reading.missing) == (0, 1, ROWS, 0)
    assert reading.value == pytest.approx(expected, abs=1e-3)
    assert reading.baseline is not None
    assert reading.baseline.value == pytest.approx(expected, abs=1e-6)
    assert (reading.baseline.version, reading.baseline.objects) == (0, ROWS)
    assert not reading.broken
    refuse_broken(readings)
    assert lineage.newest == 0
    publish_next(lineage, new)
    assert lineage.metrics(1)["probes"] == [reading.as_json()]
    # What is published says the same as what was about to be.
    again = run_probes(lineage)[0]
    assert (again.value, again.source) == (reading.value, 1)


@pytest.mark.parametrize(
    ("metric", "bound"), [("auc", "min"), ("accuracy", "min"), ("rmse", "max")]
)
def test_a_value_exactly_at_its_limit_is_within_it(
    tmp_path: Path, lineage: Lineage, monkeypatch: pytest.MonkeyPatch, metric: str, bound: str
) -> None:
    value = 0.75
    monkeypatch.setattr(probes, "_measure", lambda *_: (value, ROWS, 0))
    model, data = linear(tmp_path / "m.safetensors", w=OLD), evaluation(tmp_path / "d", LABEL)
    better = -np.inf if bound == "min" else np.inf
    for limit, broken in ((value, False), (float(np.nextafter(value, -better)), True)):
        add(lineage, model, data, metric=metric, **{bound: limit})
        assert [reading.broken for reading in run_probes(lineage)] == [broken]
        ConsumerRegistry.open(lineage.path).remove("ads")


def test_missing_ids_are_left_out_and_repeated_ones_count_each_time(
    tmp_path: Path, lineage: Lineage
) -> None:
    from sklearn.metrics import roc_auc_score

    model, fitted = classifier(tmp_path / "m.onnx")
    order = [*range(ROWS - 1, -1, -1), 5, 5, 7]
    ids = [f"id{i}" for i in order] + ["gone", "away"]
    labels = [bool(LABEL[i]) for i in order] + [True, False]
    add(lineage, model, evaluation(tmp_path / "d.parquet", labels, ids))
    expected = roc_auc_score(LABEL[order], fitted.predict_proba(OLD[order].numpy())[:, 1])
    for blocks in (1, 3):
        parts = list(zip(torch.arange(ROWS).chunk(blocks), OLD.chunk(blocks), strict=True))
        pieces = [(IDS.take(pa.array(rows.numpy())), vectors) for rows, vectors in parts]
        whole = artefact(OLD, torch.eye(DIM))
        new = replace(whole, embeddings={"candidate": partial(list, pieces)})
        reading = run_probes(lineage, new)[0]
        # An object of several rows is one object.
        assert (reading.objects, reading.missing) == (ROWS, 2)
        assert reading.value == pytest.approx(expected, abs=1e-6)
        assert (reading.limit, reading.broken) == (None, False)


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize(
    ("had", "kept", "needed"),
    [(ROWS, 19, 20), (ROWS, 20, 20), (4, 3, 4)],
)
def test_a_version_without_most_of_a_probes_objects_breaks_it(
    tmp_path: Path, lineage: Lineage, had: int, kept: int, needed: int, measured: bool
) -> None:
    """Twenty are enough, or all; of a probe without a baseline nobody knows how many are all."""
    if not measured:
        needed = 20
    order = OLD[:, 0].argsort().tolist()
    rows = [
        order[i] for pair in zip(range(had), range(-1, -had - 1, -1), strict=True) for i in pair
    ]
    labels = [bool(OLD[row, 0] > 0) for row in rows]  # each object has two rows where it is all
    data = evaluation(tmp_path / "d.parquet", labels[:had], IDS.take(pa.array(rows[:had])))
    model = first_coordinate(tmp_path / "m.safetensors")
    if measured:
        add(lineage, model, data, min=0.7)
    else:
        registry = ConsumerRegistry.open(lineage.path)
        registry.add("ads", "v0", lineage.resolve, probe=probe_of(model, data, min=0.7))
    stored = rows[:kept]
    new = replace(
        artefact(OLD, torch.eye(DIM)),
        embeddings={"candidate": (IDS.take(pa.array(stored)), OLD[stored])},
    )
    _, (reading,) = with_probes(new, lineage)
    assert (reading.objects, reading.missing) == (kept, had - kept)
    assert reading.broken is (kept < needed)
    if kept >= needed:
        assert reading.value == 1.0
        refuse_broken([reading])
    else:
        assert reading.value is None
        with pytest.raises(DegradationError, match=f"Only {kept} .* at least {needed} are"):
            refuse_broken([reading])


def test_ids_may_be_numbers_on_either_side(tmp_path: Path) -> None:
    """A text with leading zeros is another id than the number."""
    lineage = Lineage.create(tmp_path / "l")
    numbers = replace(artefact(OLD, None), embeddings={"candidate": (pa.array(range(ROWS)), OLD)})
    lineage.publish(numbers)
    model, _ = classifier(tmp_path / "m.onnx")

    def baseline(ids: Any) -> Any:
        data = evaluation(tmp_path / "d.parquet", LABEL, ids)
        return measured_probe(lineage, "v0", probe_of(model, data)).baseline

    texts = [str(i) for i in range(ROWS)]
    by_number = baseline(list(range(ROWS)))
    assert by_number is not None
    assert by_number == baseline(texts) == baseline([float(i) for i in range(ROWS)])
    for other in ("id7", "007", "-0"):
        with pytest.raises(DataError, match=f"int64.*'{other}'"):
            baseline([other, *texts[1:]])


def test_one_probe_that_cannot_be_run_does_not_hide_the_others(
    tmp_path: Path, lineage: Lineage
) -> None:
    model, _ = classifier(tmp_path / "m.onnx")
    data = evaluation(tmp_path / "d.parquet", LABEL)
    add(lineage, model, data)
    registry = ConsumerRegistry.open(lineage.path)
    kept = registry.add("web", "v0", lineage.resolve, probe=probe_of(model, data)).probe
    assert kept is not None
    (lineage.path / kept.model).write_bytes(b"")
    ads, web = run_probes(lineage)
    assert not ads.broken
    assert (web.broken, web.value) == (True, None)
    assert "SHA-256" in web.sentence
    assert [r.consumer for r in run_probes(lineage, names=["ads"])] == ["ads"]


def test_a_consumer_of_the_newest_reads_the_new_version_itself(
    tmp_path: Path, lineage: Lineage
) -> None:
    """What was built on one version and reads whatever is newest breaks; the probe says so."""
    model, _ = classifier(tmp_path / "m.onnx")
    probe = probe_of(model, evaluation(tmp_path / "d.parquet", LABEL), min=0.7)
    ConsumerRegistry.open(lineage.path).add("ads", "newest", lineage.resolve, probe=probe)
    assert not run_probes(lineage)[0].broken
    reading = with_probes(next_version(), lineage)[1][0]
    assert (reading.version, reading.source, reading.broken) == (1, 1, True)


def probe_of(model: Path, data: Path, **facts: Any) -> Probe:
    return Probe(model=str(model), data=str(data), **{"side": "candidate", "metric": "auc"} | facts)


def first_coordinate(path: Path) -> Path:
    return linear(path, weight=torch.eye(DIM)[:1].contiguous())
