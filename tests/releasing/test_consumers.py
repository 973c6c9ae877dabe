"""Consumers of an upgrade: their probes are run on it, and what they read weighs its errors."""

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
from tests.support.tiny_training import tiny_lineage, tiny_recipe
from torch import Tensor

from evergram.compatibility import consumer_metric, input_fisher
from evergram.compatibility.transforms import LinearTransform
from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.features import SIDES
from evergram.errors import (
    DataError,
    DegradationError,
    EvergramError,
    IntegrityError,
    LineageError,
    RecipeError,
)
from evergram.evaluation.probes import load_probe_model, measure
from evergram.lineage.artefact import Artefact
from evergram.lineage.consumers import ConsumerRegistry, Probe
from evergram.lineage.lineage import Lineage
from evergram.releasing import KnownConsumer, known_consumers, probes
from evergram.releasing.known_consumers import probe_sensitivity
from evergram.releasing.past_versions import known_vectors
from evergram.releasing.probes import (
    measured_probe,
    refuse_broken,
    run_probes,
    with_probes,
)
from evergram.releasing.publish import publish
from evergram.releasing.upgrade import UpgradeOptions, UpgradePlan, plan_upgrade, upgrade
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus

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


WIDTH = 3
torch.manual_seed(0)
VECTORS = {"query": torch.randn(8, WIDTH), "candidate": torch.randn(6, WIDTH)}
SEEN = {"query": torch.tensor([0, 2, 5]), "candidate": torch.tensor([1, 4])}
PAIRS = {"query": torch.tensor([0, 0, 5]), "candidate": torch.tensor([1, 4, 4])}


def one_logit(inputs: Tensor) -> Tensor:
    weight = torch.arange(1.0, inputs.shape[1] + 1)
    return torch.tanh(inputs @ weight)


@pytest.mark.parametrize("side", ["query", "candidate"])
def test_of_a_side_it_reads_the_objects_that_may_be_seen(side: Any) -> None:
    fishers = KnownConsumer("ads", one_logit, side=side).fishers(VECTORS, SEEN, PAIRS)
    assert list(fishers) == [side]
    expected = input_fisher(one_logit, VECTORS[side][SEEN[side]])
    assert torch.equal(fishers[side], expected)


def test_a_value_is_no_logit() -> None:
    value = KnownConsumer("ads", one_logit, output="value").fishers(VECTORS, SEEN, PAIRS)
    logit = KnownConsumer("ads", one_logit).fishers(VECTORS, SEEN, PAIRS)
    assert float(value["candidate"].trace()) >= 4 * float(logit["candidate"].trace())


WEIGHT = torch.tensor([3.0, -1.0, 0.0, 0.5])


@pytest.fixture
def tiny(tmp_path: Path) -> Lineage:
    return tiny_lineage(tmp_path / "lineage")


FIRST = torch.tensor([1.0, 0.0, 0.0, 0.0])
HALF = "upgrade.consumer_weight=0.5"
# (1 − ½) I + ½ 4 e eᵀ, of a consumer that reads the first dim alone.
OF_FIRST = torch.diag(torch.tensor([2.5, 0.5, 0.5, 0.5])).double()


def first_dim(inputs: Tensor) -> Tensor:
    return inputs[:, 0]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus(tiny_recipe())


def plan(lineage: Lineage, corpus: Corpus, *overrides: str, **options: Any) -> UpgradePlan:
    return plan_upgrade(tiny_recipe(*overrides), lineage, corpus, UpgradeOptions(**options))


def test_each_side_is_weighed_by_its_own_consumers(
    tiny: Lineage, corpus: Corpus, tmp_path: Path
) -> None:
    """A registered probe of candidates, and one from Python of queries."""
    register(tiny, tmp_path, "ads", FIRST)
    other = KnownConsumer("search", lambda z: z[:, 1], side="query", output="value")
    made = plan(tiny, corpus, HALF, consumers=[other])
    torch.testing.assert_close(
        made.weighing.metrics["candidate"][0], OF_FIRST, rtol=1e-3, atol=1e-3
    )
    torch.testing.assert_close(
        made.weighing.metrics["query"][0], torch.diag(torch.tensor([0.5, 2.5, 0.5, 0.5])).double()
    )
    assert made.weighing.as_json() == {
        "weight": 0.5,
        "consumers": [
            {"name": "ads", "version": 0, "sides": ["candidate"]},
            {"name": "search", "version": 0, "sides": ["query"]},
        ],
    }
    again = made.backward_for(corpus)
    assert made.backward.candidate_loss is not None
    assert again.candidate_loss is not None
    for side in (made.backward, again):
        assert side.loss.metric is not None
        assert torch.equal(side.loss.metric, made.weighing.metrics["query"][0])


def test_without_weight_nothing_is_read_and_nothing_changes(
    tiny: Lineage, corpus: Corpus, tmp_path: Path
) -> None:
    """A damaged probe would be noticed; the same bits as of a lineage without consumers."""
    plain = upgrade(tiny_recipe("upgrade.alone=false"), tiny, progress=False)
    register(tiny, tmp_path, "ads", FIRST)
    for path in (tiny.path / "probes").rglob("model.*"):
        path.write_bytes(b"damaged")
    made = plan(tiny, corpus)
    assert made.weighing.metrics == {}
    assert made.backward.candidate_loss is None
    again = upgrade(tiny_recipe("upgrade.alone=false"), tiny, progress=False)
    assert "consumers" not in again.metrics
    for side in SIDES:
        assert torch.equal(plain.block(side)[1], again.block(side)[1])
    assert plain.transform is not None
    assert again.transform is not None
    for name, value in plain.transform.state_dict().items():
        assert torch.equal(value, again.transform.state_dict()[name])


@pytest.mark.parametrize("rows", [2, 512])
def test_of_pairs_each_end_has_its_block_over_objects_that_are_evenly_spread(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(known_consumers, "ROWS", rows)
    fishers = KnownConsumer("ads", one_logit, side="pair").fishers(VECTORS, SEEN, PAIRS)
    chosen = [0, 2] if rows == 2 else [0, 1, 2]
    both = torch.cat([VECTORS[s][PAIRS[s][chosen]] for s in ("query", "candidate")], dim=1)
    whole = input_fisher(one_logit, both)
    assert torch.equal(fishers["query"], whole[:WIDTH, :WIDTH])
    assert torch.equal(fishers["candidate"], whole[WIDTH:, WIDTH:])


def test_consumers_that_cannot_read_the_embeddings_are_refused() -> None:
    for model, named in (
        (torch.nn.Linear(WIDTH + 1, 1), r"'ads' .* version 0.*\[2, 3\]"),
        (lambda z: z.sum(), r"version 0.*tensor \[B\]"),
    ):
        with pytest.raises(DataError, match=named):
            KnownConsumer("ads", model).fishers(VECTORS, SEEN, PAIRS)
    none = {"query": torch.zeros(0).long(), "candidate": torch.zeros(0).long()}
    with pytest.raises(DataError, match=r"\[0, 6\]"):
        KnownConsumer("ads", one_logit, side="pair").fishers(VECTORS, SEEN, none)
    with pytest.raises(RecipeError, match=r"'user'.*query, candidate, pair"):
        KnownConsumer("ads", one_logit, side="user")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=r"'class'.*logits, value"):
        KnownConsumer("ads", one_logit, output="class")  # type: ignore[arg-type]


def test_a_probe_is_over_its_objects_that_alignment_may_see(
    tiny: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, vectors = tiny.embeddings("candidate")
    asked = ids.take(pa.array(range(0, len(ids), 2)))
    registry = register(tiny, tmp_path, "ads", WEIGHT, metric="auc", ids=asked)
    probe = registry.get("ads").probe
    assert probe is not None
    used = torch.arange(len(ids)) % 3 != 0
    rows = [row for row in range(0, len(ids), 2) if row % 3]
    scaled = 20 * vectors  # to bend the logistic function
    for most, chosen in ((512, rows), (3, [rows[0], rows[(len(rows) - 1) // 2], rows[-1]])):
        monkeypatch.setattr(known_consumers, "PROBE_ROWS", most)
        matrix = probe_sensitivity(registry, probe, Vocabulary(ids), scaled, used)
        expected = input_fisher(lambda z: z @ WEIGHT, scaled[chosen])
        np.testing.assert_allclose(matrix, expected, rtol=0.02, atol=1e-4)
    with pytest.raises(DataError, match="None of the objects"):
        probe_sensitivity(registry, probe, Vocabulary(ids), vectors, torch.zeros_like(used))
    (tiny.path / probe.model).write_bytes(b"damaged")
    with pytest.raises(IntegrityError):
        probe_sensitivity(registry, probe, Vocabulary(ids), vectors, used)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["upgrade.transform=residual_mlp", "upgrade.transform_rate=0.02", "training.epochs=20"],
        ["upgrade.method=post-closed"],
    ],
    ids=["evergram", "not affine", "post-closed"],
)
def test_an_upgrade_moves_what_consumers_read_less(tiny: Lineage, overrides: list[str]) -> None:
    """Consumers of both sides read the first dim. Post hoc one matrix for both sides drops out."""
    settings = ["upgrade.alone=false", "training.epochs=6", *overrides]
    if "upgrade.method=post-closed" not in overrides:
        settings.append("upgrade.weight=2.0")
    consumers = [KnownConsumer(side, first_dim, side=side) for side in SIDES]  # type: ignore[arg-type]
    moved = {}
    for name, known in (("none", []), ("known", consumers)):
        weight = ["upgrade.consumer_weight=0.9"] if known else []
        recipe = tiny_recipe(*settings, *weight)
        artefact = upgrade(recipe, tiny, progress=False, consumers=known)
        assert artefact.transform is not None
        training = load_corpus(recipe)
        past, _ = known_vectors(load_encoder(tiny, 0), training)
        errors = []
        for side in SIDES:
            ids, vectors = artefact.block(side)
            rows = getattr(training, "queries" if side == "query" else "candidates")
            places = rows.vocabulary.rows(ids)
            errors.append(artefact.transform(vectors).detach() - past[side][places])
        moved[name] = torch.cat(errors).square().mean(0)
    if "upgrade.method=post-closed" in overrides:
        # But for the ridge, which is chosen on other objects.
        torch.testing.assert_close(moved["known"], moved["none"], rtol=0.02, atol=1e-6)
    else:
        assert float(moved["known"][0]) < 0.7 * float(moved["none"][0])


def test_registered_consumers_are_published_with_the_version_that_they_weighed(
    tiny: Lineage, tmp_path: Path
) -> None:
    """From a probe's files to a published version, whose probe moves less than without."""
    for side in SIDES:
        register(tiny, tmp_path, side, FIRST, side=side)
    values = {}
    for mu in (0.0, 0.9):
        settings = ["upgrade.alone=false", "training.epochs=6", "upgrade.weight=2.0"]
        recipe = tiny_recipe(*settings, f"upgrade.consumer_weight={mu}")
        artefact = upgrade(recipe, tiny, progress=False)
        values[mu] = float(artefact.metrics["compatibility"]["0"]["drift"]["known"]["l2"])
    published = publish(tiny, artefact)
    metrics = tiny.metrics(published.version)
    assert [c["name"] for c in metrics["consumers"]["consumers"]] == ["candidate", "query"]
    assert len(metrics["probes"]) == 2
    assert tiny.recipe(1)["upgrade"]["consumer_weight"] == 0.9
    # Other directions pay for it.
    assert values[0.9] > values[0.0]


def test_a_consumer_counts_at_its_own_version(tiny: Lineage, corpus: Corpus) -> None:
    """Versions 0 and 1 have 4 and 5 dims; the multi-step loss counts both, the other the last."""
    tiny.publish(upgrade(tiny_recipe("upgrade.alone=false"), tiny, progress=False))
    old = KnownConsumer("old", first_dim, version=0, output="value")
    new = KnownConsumer("new", first_dim, version=1, output="value")
    both = plan(tiny, corpus, HALF, consumers=[old, new])
    metrics = both.weighing.metrics["candidate"]
    torch.testing.assert_close(metrics[0], OF_FIRST)
    torch.testing.assert_close(metrics[1], consumer_metric([torch.diag(torch.eye(5)[0])], 0.5))
    loss, matrix = both.backward.candidate_loss, tiny.chain.matrix(1, 0)
    assert loss is not None
    assert loss.metric is not None
    expected = metrics[1] + (5 / 4) * matrix.T @ OF_FIRST @ matrix
    torch.testing.assert_close(loss.metric, expected)
    single = plan(tiny, corpus, HALF, "upgrade.method=joint-lin-sloss", consumers=[old, new])
    assert [c["name"] for c in single.weighing.consumers] == ["new"]
    with pytest.raises(RecipeError, match=r"reads version 1, .*joint-lin-sloss"):
        plan(tiny, corpus, HALF, "upgrade.method=joint-lin-sloss", consumers=[old])


def test_consumers_that_cannot_count_are_refused_before_training(
    tiny: Lineage, corpus: Corpus
) -> None:
    flat = KnownConsumer("ads", lambda z: 0 * z[:, 0])
    cases: list[tuple[list[str], list[KnownConsumer], type[EvergramError], str]] = [
        ([HALF], [], RecipeError, r"is 0\.5, and no consumer with a probe counts"),
        ([], [KnownConsumer("ads", first_dim)], RecipeError, r"upgrade\.consumer_weight above 0"),
        ([HALF], [flat], DataError, "'ads' .*trace 0"),
        ([HALF], [KnownConsumer("ads", first_dim, version=3)], LineageError, "version 3"),
    ]
    for overrides, consumers, kind, message in cases:
        with pytest.raises(kind, match=message):
            plan(tiny, corpus, *overrides, consumers=consumers)
    recipe = tiny_recipe("upgrade.method=post-lin-sloss")
    table = recipe.upgrade.model_copy(update={"consumer_weight": 0.5})
    recipe = recipe.model_copy(update={"upgrade": table})
    options = UpgradeOptions(consumers=[KnownConsumer("ads", first_dim)])
    with pytest.raises(RecipeError, match="'post-lin-sloss' weighs no errors"):
        plan_upgrade(recipe, tiny, corpus, options)
    assert plan_upgrade(recipe, tiny, corpus, UpgradeOptions()).weighing.metrics == {}


def test_registered_consumers_that_cannot_count_are_left_out_or_refused(
    tiny: Lineage, corpus: Corpus, tmp_path: Path
) -> None:
    register(tiny, tmp_path, "ads", FIRST)
    register(tiny, tmp_path, "latest", FIRST, pinned="newest")
    registry = register(tiny, tmp_path, "odd", FIRST, side="candidate")
    registry.add("plain", "v0", tiny.resolve)
    made = plan(tiny, corpus, HALF)
    assert [c["name"] for c in made.weighing.consumers] == ["ads", "odd"]
    register(tiny, tmp_path, "wide", torch.ones(7))
    with pytest.raises(DataError, match=r"The probe of wide \(v0\) cannot weigh errors: .*dim 7"):
        plan(tiny, corpus, HALF)


def register(
    lineage: Lineage, folder: Path, name: str, weight: Tensor, pinned: str = "v0", **facts: Any
) -> ConsumerRegistry:
    """Add a consumer whose probe is a linear model, of rmse and of candidates where not said."""
    ids = facts.pop("ids", None)
    ids = lineage.embeddings(facts.get("side", "candidate"))[0] if ids is None else ids
    model = linear(folder / f"{name}.safetensors", weight=weight.contiguous())
    data = evaluation(folder / f"{name}.parquet", [i % 2 for i in range(len(ids))], ids)
    registry = ConsumerRegistry.open(lineage.path)
    probe = probe_of(model, data, **{"metric": "rmse"} | facts)
    registry.add(name, pinned, lineage.resolve, probe=probe)
    return registry
