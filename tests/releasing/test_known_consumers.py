"""Consumers whose models weigh errors: what they read, by which matrices, and what it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from tests.support.tiny_training import tiny_lineage, tiny_recipe
from torch import Tensor

from evergram.compatibility import consumer_metric, input_fisher
from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.features import SIDES
from evergram.errors import DataError, EvergramError, IntegrityError, LineageError, RecipeError
from evergram.lineage.consumers.record import Probe
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.releasing import KnownConsumer, known_consumers
from evergram.releasing.known_consumers import probe_sensitivity
from evergram.releasing.past_versions import known_vectors
from evergram.releasing.publish import publish
from evergram.releasing.upgrade import upgrade
from evergram.releasing.upgrade_plan import UpgradeOptions, UpgradePlan, plan_upgrade
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus

DIM = 3
torch.manual_seed(0)
VECTORS = {"query": torch.randn(8, DIM), "candidate": torch.randn(6, DIM)}
ROWS = {"query": torch.tensor([0, 2, 5]), "candidate": torch.tensor([1, 4])}
PAIRS = {"query": torch.tensor([0, 0, 5]), "candidate": torch.tensor([1, 4, 4])}


def one_logit(inputs: Tensor) -> Tensor:
    weight = torch.arange(1.0, inputs.shape[1] + 1)
    return torch.tanh(inputs @ weight)


@pytest.mark.parametrize("side", ["query", "candidate"])
def test_of_a_side_it_reads_the_objects_that_may_be_seen(side: Any) -> None:
    fishers = KnownConsumer("ads", one_logit, side=side).fishers(VECTORS, ROWS, PAIRS)
    assert list(fishers) == [side]
    expected = input_fisher(one_logit, VECTORS[side][ROWS[side]])
    assert torch.equal(fishers[side], expected)


def test_a_value_is_no_logit() -> None:
    value = KnownConsumer("ads", one_logit, output="value").fishers(VECTORS, ROWS, PAIRS)
    logit = KnownConsumer("ads", one_logit).fishers(VECTORS, ROWS, PAIRS)
    assert float(value["candidate"].trace()) >= 4 * float(logit["candidate"].trace())


WEIGHT = torch.tensor([3.0, -1.0, 0.0, 0.5])


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
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
    lineage: Lineage, corpus: Corpus, tmp_path: Path
) -> None:
    """A registered probe of candidates, and one from Python of queries."""
    register(lineage, tmp_path, "ads", FIRST)
    other = KnownConsumer("search", lambda z: z[:, 1], side="query", output="value")
    made = plan(lineage, corpus, HALF, consumers=[other])
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
    lineage: Lineage, corpus: Corpus, tmp_path: Path
) -> None:
    """A damaged probe would be noticed; the same bits as of a lineage without consumers."""
    plain = upgrade(tiny_recipe("upgrade.alone=false"), lineage, progress=False)
    register(lineage, tmp_path, "ads", FIRST)
    for path in (lineage.path / "probes").rglob("model.*"):
        path.write_bytes(b"damaged")
    made = plan(lineage, corpus)
    assert made.weighing.metrics == {}
    assert made.backward.candidate_loss is None
    again = upgrade(tiny_recipe("upgrade.alone=false"), lineage, progress=False)
    assert "consumers" not in again.metrics
    for side in SIDES:
        assert torch.equal(plain.block(side)[1], again.block(side)[1])
    assert plain.transform is not None
    assert again.transform is not None
    for name, value in plain.transform.state_dict().items():
        assert torch.equal(value, again.transform.state_dict()[name])


def test_the_recipe_may_name_the_consumers(
    lineage: Lineage, corpus: Corpus, tmp_path: Path
) -> None:
    for name, dim in (("ads", 0), ("search", 1)):
        register(lineage, tmp_path, name, torch.eye(4)[dim])
    made = plan(lineage, corpus, HALF, 'upgrade.consumers=["ads"]')
    assert [c["name"] for c in made.weighing.consumers] == ["ads"]
    both = plan(lineage, corpus, HALF).weighing
    assert [c["name"] for c in both.consumers] == ["ads", "search"]
    expected = torch.diag(torch.tensor([1.5, 1.5, 0.5, 0.5])).double()
    torch.testing.assert_close(both.metrics["candidate"][0], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows", [2, 512])
def test_of_pairs_each_end_has_its_block_over_objects_that_are_evenly_spread(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(known_consumers, "ROWS", rows)
    fishers = KnownConsumer("ads", one_logit, side="pair").fishers(VECTORS, ROWS, PAIRS)
    chosen = [0, 2] if rows == 2 else [0, 1, 2]
    both = torch.cat([VECTORS[s][PAIRS[s][chosen]] for s in ("query", "candidate")], dim=1)
    whole = input_fisher(one_logit, both)
    assert torch.equal(fishers["query"], whole[:DIM, :DIM])
    assert torch.equal(fishers["candidate"], whole[DIM:, DIM:])


def test_consumers_that_cannot_read_the_embeddings_are_refused() -> None:
    for model, named in (
        (torch.nn.Linear(DIM + 1, 1), r"'ads' .* version 0.*\[2, 3\]"),
        (lambda z: z.sum(), r"version 0.*tensor \[B\]"),
    ):
        with pytest.raises(DataError, match=named):
            KnownConsumer("ads", model).fishers(VECTORS, ROWS, PAIRS)
    none = {"query": torch.zeros(0).long(), "candidate": torch.zeros(0).long()}
    with pytest.raises(DataError, match=r"\[0, 6\]"):
        KnownConsumer("ads", one_logit, side="pair").fishers(VECTORS, ROWS, none)
    with pytest.raises(RecipeError, match=r"'user'.*query, candidate, pair"):
        KnownConsumer("ads", one_logit, side="user")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=r"'class'.*logits, value"):
        KnownConsumer("ads", one_logit, output="class")  # type: ignore[arg-type]


def test_a_probe_is_over_its_objects_that_alignment_may_see(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, vectors = lineage.embeddings("candidate")
    asked = ids.take(pa.array(range(0, len(ids), 2)))
    registry = register(lineage, tmp_path, "ads", WEIGHT, metric="auc", ids=asked)
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
    (lineage.path / probe.model).write_bytes(b"damaged")
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
def test_an_upgrade_moves_what_consumers_read_less(lineage: Lineage, overrides: list[str]) -> None:
    """Consumers of both sides read the first dim. Post hoc one matrix for both sides drops out."""
    settings = ["upgrade.alone=false", "training.epochs=6", *overrides]
    if "upgrade.method=post-closed" not in overrides:
        settings.append("upgrade.weight=2.0")
    consumers = [KnownConsumer(side, first_dim, side=side) for side in SIDES]  # type: ignore[arg-type]
    moved = {}
    for name, known in (("none", []), ("known", consumers)):
        weight = ["upgrade.consumer_weight=0.9"] if known else []
        recipe = tiny_recipe(*settings, *weight)
        artefact = upgrade(recipe, lineage, progress=False, consumers=known)
        assert artefact.transform is not None
        training = load_corpus(recipe)
        past, _ = known_vectors(load_encoder(lineage, 0), training)
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
    lineage: Lineage, tmp_path: Path
) -> None:
    """From a probe's files to a published version, whose probe moves less than without."""
    for side in SIDES:
        register(lineage, tmp_path, side, FIRST, side=side)
    values = {}
    for mu in (0.0, 0.9):
        settings = ["upgrade.alone=false", "training.epochs=6", "upgrade.weight=2.0"]
        recipe = tiny_recipe(*settings, f"upgrade.consumer_weight={mu}")
        artefact = upgrade(recipe, lineage, progress=False)
        values[mu] = float(artefact.metrics["compatibility"]["0"]["drift"]["known"]["l2"])
    published = publish(lineage, artefact)
    metrics = lineage.metrics(published.version)
    assert [c["name"] for c in metrics["consumers"]["consumers"]] == ["candidate", "query"]
    assert len(metrics["probes"]) == 2
    assert lineage.recipe(1)["upgrade"]["consumer_weight"] == 0.9
    # Other directions pay for it.
    assert values[0.9] > values[0.0]


def test_a_consumer_counts_at_its_own_version(lineage: Lineage, corpus: Corpus) -> None:
    """Versions 0 and 1 have 4 and 5 dims; the multi-step loss counts both, the other the last."""
    lineage.publish(upgrade(tiny_recipe("upgrade.alone=false"), lineage, progress=False))
    old = KnownConsumer("old", first_dim, version=0, output="value")
    new = KnownConsumer("new", first_dim, version=1, output="value")
    both = plan(lineage, corpus, HALF, consumers=[old, new])
    metrics = both.weighing.metrics["candidate"]
    torch.testing.assert_close(metrics[0], OF_FIRST)
    torch.testing.assert_close(metrics[1], consumer_metric([torch.diag(torch.eye(5)[0])], 0.5))
    loss, matrix = both.backward.candidate_loss, lineage.chain.matrix(1, 0)
    assert loss is not None
    assert loss.metric is not None
    expected = metrics[1] + (5 / 4) * matrix.T @ OF_FIRST @ matrix
    torch.testing.assert_close(loss.metric, expected)
    single = plan(lineage, corpus, HALF, "upgrade.steps='single'", consumers=[old, new])
    assert [c["name"] for c in single.weighing.consumers] == ["new"]
    with pytest.raises(RecipeError, match=r"reads version 1 \(upgrade.steps = 'single'\)"):
        plan(lineage, corpus, HALF, "upgrade.steps='single'", consumers=[old])


def test_consumers_that_cannot_count_are_refused_before_training(
    lineage: Lineage, corpus: Corpus
) -> None:
    flat = KnownConsumer("ads", lambda z: 0 * z[:, 0])
    cases: list[tuple[list[str], list[KnownConsumer], type[EvergramError], str]] = [
        ([HALF], [], RecipeError, r"is 0\.5, and no consumer with a probe counts"),
        ([], [KnownConsumer("ads", first_dim)], RecipeError, r"upgrade\.consumer_weight is 0"),
        ([HALF, 'upgrade.consumers=["ads"]'], [], LineageError, "no consumer 'ads'"),
        ([HALF], [flat], DataError, "'ads' .*trace 0"),
        ([HALF], [KnownConsumer("ads", first_dim, version=3)], LineageError, "version 3"),
    ]
    for overrides, consumers, kind, message in cases:
        with pytest.raises(kind, match=message):
            plan(lineage, corpus, *overrides, consumers=consumers)
    recipe = tiny_recipe("upgrade.method=post-lin-sloss")
    table = recipe.upgrade.model_copy(update={"consumer_weight": 0.5})
    recipe = recipe.model_copy(update={"upgrade": table})
    options = UpgradeOptions(consumers=[KnownConsumer("ads", first_dim)])
    with pytest.raises(RecipeError, match=r"'posthoc' .*'gradient' weighs no errors"):
        plan_upgrade(recipe, lineage, corpus, options)
    assert plan_upgrade(recipe, lineage, corpus, UpgradeOptions()).weighing.metrics == {}


def test_registered_consumers_that_cannot_count_are_left_out_or_refused(
    lineage: Lineage, corpus: Corpus, tmp_path: Path
) -> None:
    register(lineage, tmp_path, "ads", FIRST)
    register(lineage, tmp_path, "latest", FIRST, pinned="newest")
    registry = register(lineage, tmp_path, "odd", FIRST, side="candidate")
    registry.add("plain", "v0", lineage.resolve)
    made = plan(lineage, corpus, HALF)
    assert [c["name"] for c in made.weighing.consumers] == ["ads", "odd"]
    for name, message in (("latest", "reads the newest version"), ("plain", "has no probe")):
        with pytest.raises(RecipeError, match=f"names '{name}', which {message}"):
            plan(lineage, corpus, HALF, f'upgrade.consumers=["{name}"]')
    register(lineage, tmp_path, "wide", torch.ones(7))
    with pytest.raises(DataError, match=r"The probe of wide \(v0\) cannot weigh errors: .*dim 7"):
        plan(lineage, corpus, HALF)


def register(
    lineage: Lineage, folder: Path, name: str, weight: Tensor, **changes: Any
) -> ConsumerRegistry:
    """Add a consumer whose probe is a linear model.

    Args:
        weight: [D] or [C, D].
        changes: of `side` ("candidate"), `metric` ("rmse"), `pinned` ("v0") and `ids`, by default
            those of the side.
    """
    side, pinned = changes.get("side", "candidate"), changes.get("pinned", "v0")
    ids = changes.get("ids")
    if ids is None:
        ids = lineage.embeddings(side)[0]
    model, data = folder / f"{name}.safetensors", folder / f"{name}.parquet"
    save_file({"weight": weight.contiguous()}, model)
    pq.write_table(pa.table({"id": ids, "label": [i % 2 for i in range(len(ids))]}), data)
    probe = Probe(model=str(model), data=str(data), side=side, metric=changes.get("metric", "rmse"))
    registry = ConsumerRegistry.open(lineage.path)
    registry.add(name, pinned, lineage.resolve, probe=probe)
    return registry
