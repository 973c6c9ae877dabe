"""Nothing is published past the gate, and nothing unmeasured passes it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from tests.support.publishing import following, publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import DegradationError, LineageError
from evergram.lineage.artefact import Artefact
from evergram.lineage.consumers import ConsumerRegistry, Probe
from evergram.lineage.diagnosis import LEAST_QUERIES, diagnose_lineage, past_limits
from evergram.lineage.lineage import Lineage
from evergram.releasing.probes import with_probes
from evergram.releasing.publish import (
    losses,
    publish,
    refuse_degradation,
    refuse_unmeasurable,
)
from evergram.releasing.upgrade import train, upgrade
from evergram.training.recipe import Recipe

IDS = pa.array([f"id{i}" for i in range(60)])
VECTORS = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))


def artefact(first: bool = False) -> Artefact:
    return Artefact(
        dim=3,
        embeddings={"candidate": (IDS, VECTORS)},
        transform=None if first else LinearTransform.from_matrix(torch.eye(3)),
        metrics={"metrics": {"model": {}}},
        recipe={},
    )


def probe(folder: Path, column: int) -> Probe:
    model, data = folder / f"{column}.safetensors", folder / f"{column}.parquet"
    save_file({"weight": torch.eye(3)[column : column + 1].clone()}, model)
    pq.write_table(pa.table({"id": IDS, "label": (VECTORS[:, column] > 0).tolist()}), data)
    return Probe(model=str(model), data=str(data), side="candidate", metric="auc", min=0.9)


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    new = Lineage.create(tmp_path / "l")
    publish_next(new, artefact(first=True))
    new.label("prod", 0)
    ConsumerRegistry.open(new.path).add("ads", "prod", new.resolve, probe=probe(tmp_path, 0))
    return new


def test_a_version_that_no_probe_was_run_on_is_refused(lineage: Lineage) -> None:
    before = (lineage.path / "lineage.json").read_bytes()
    with pytest.raises(LineageError, match=r"evergram\.publish"):
        publish_next(lineage, artefact())
    said = {"metrics": {"model": {}}, "probes": [{"consumer": "ads"}]}
    forged = replace(artefact(), metrics=said)
    with pytest.raises(LineageError, match="the current probe of ads was not run"):
        publish_next(lineage, forged)
    assert (lineage.path / "lineage.json").read_bytes() == before
    assert publish(lineage, following(lineage, artefact())).version == 1
    # What was run on one version was not run on the next.
    with pytest.raises(LineageError, match="was not run"):
        publish_next(lineage, replace(artefact(), metrics=lineage.metrics(1)))


def test_a_probe_that_came_since_is_run_too(lineage: Lineage, tmp_path: Path) -> None:
    tried, _ = with_probes(artefact(), lineage)
    consumers = ConsumerRegistry.open(lineage.path)
    consumers.repin("ads", "prod", lineage.resolve, probe=probe(tmp_path, 1))
    with pytest.raises(LineageError, match="probe of ads"):
        publish_next(lineage, tried)
    tried, _ = with_probes(artefact(), lineage)
    consumers.add("web", "v0", lineage.resolve, probe=probe(tmp_path, 2))
    with pytest.raises(LineageError, match="probe of web"):
        publish_next(lineage, tried)
    consumers.add("none", "v0", lineage.resolve)
    done = publish(lineage, following(lineage, artefact()))
    assert [r.consumer for r in done.probes] == ["ads", "web"]
    # A label that moved since is another version.
    tried, _ = with_probes(artefact(), lineage)
    lineage.label("prod", 1)
    with pytest.raises(LineageError, match="probe of ads"):
        publish_next(lineage, tried)


def report(**changes: Any) -> Artefact:
    """A version that loses a tenth to the model trained alone, and a fifth read as version 0."""
    ranking = {"past": {"recall@20": 0.5}, "chain": {"recall@20": 0.4}}
    metrics = {
        "metrics": {"model": {"recall@20": 0.45}, "alone": {"recall@20": 0.5}},
        "data": {"test_queries": LEAST_QUERIES},
        "compatibility": {"0": {"queries": LEAST_QUERIES, "ranking": ranking}},
        **changes,
    }
    return replace(artefact(), metrics=metrics, recipe={"training": {"metric": "recall@20"}})


def reading(queries: int = LEAST_QUERIES, past: float = 0.5, now: float = 0.5) -> dict[str, Any]:
    ranking = {"past": {"recall@20": past}, "chain": {"recall@20": now}}
    return {"0": {"queries": queries, "ranking": ranking}}


def test_losses_are_held_to_the_limit() -> None:
    refuse_degradation(report(), [0], 20.1)
    with pytest.raises(DegradationError, match=r"loses 20\.00 % as version 0 of recall@20"):
        refuse_degradation(report(), [0], 15)
    with pytest.raises(DegradationError, match=r"loses 10\.00 % to the model trained alone, 20"):
        refuse_degradation(report(), [0], 5)


def sampled(alone: Any, past: Any) -> Artefact:
    """The report with standard errors of the losses to the model alone and to version 0."""
    read = reading(now=0.4)
    read["0"] = {**read["0"], "sampled": {"loss": {"past": {"recall@20": past}}}}
    return report(compatibility=read, sampled={"loss": {"alone": {"recall@20": alone}}})


def test_a_sampled_loss_is_held_to_the_limit_at_its_worse_end() -> None:
    whole = losses(report().metrics, "recall@20").values()
    assert [loss.worst for loss in whole] == [loss.mean for loss in whole]
    # 10 % to the model alone, 20 % as version 0, each ± 1.96 standard errors.
    refuse_degradation(sampled(1.0, 1.0), [0], 22.0)
    refuse_degradation(sampled(5.0, 0.0), [0], 20.1)
    with pytest.raises(DegradationError, match=r"loses 20\.00 %, by its sample .* up to 21\.96 %"):
        refuse_degradation(sampled(1.0, 1.0), [0], 21.0)
    with pytest.raises(DegradationError, match=r"loses 10\.00 %, by its sample .* up to 29\.60 %"):
        refuse_degradation(sampled(10.0, 0.0), [0], 21.0)


def test_a_sampled_loss_without_an_error_is_refused() -> None:
    cases = [sampled(error, 0.1) for error in (None, math.nan, -3.0, "1")]
    cases += [sampled(0.1, math.inf), sampled(0.1, {})]
    unreadable: list[Any] = [{}, "x", {"loss": 3}, {"loss": {"alone": []}}]
    for case in (*cases, *(report(sampled=broken) for broken in unreadable)):
        with pytest.raises(DegradationError, match="only a sample of queries was ranked"):
            refuse_degradation(case, [0], 1e9)


def test_a_loss_that_was_not_measured_is_refused_by_name() -> None:
    cases: list[tuple[dict[str, Any], list[int], str]] = [
        ({}, [0, 1], "version 1 was not measured"),
        ({"compatibility": {}}, [0], "version 0 was not measured"),
        ({"compatibility": reading(0, math.nan, math.nan)}, [0], "version 0 knew 0 test"),
        ({"compatibility": reading(past=math.nan)}, [0], "version 0 had no recall@20"),
        ({"compatibility": reading(now=math.nan)}, [0], "version 0 had no recall@20"),
        ({"compatibility": reading(past=0.0)}, [0], "version 0 had no recall@20"),
        ({"data": {"test_queries": 3}}, [0], "trained alone knew 3 test queries"),
        ({"metrics": {"model": {"recall@20": 0.5}}}, [0], "upgrade.alone"),
        ({"metrics": {"model": {"recall@20": math.nan}}}, [0], "recall@20 was not measured"),
        ({"metrics": {"model": {}}}, [0], "recall@20 was not measured"),
        ({}, [], "no version before"),
    ]
    for changes, past, message in cases:
        with pytest.raises(DegradationError, match=message):
            refuse_degradation(report(**changes), past, 100)
    stated = replace(artefact(), recipe={"training": {"metric": "ndcg@10"}}, metrics={})
    with pytest.raises(DegradationError, match=r"ndcg@10"):
        refuse_degradation(stated, [0], 2.0)
    with pytest.raises(DegradationError, match="no model was trained"):
        refuse_degradation(artefact(), [0], 100)  # of vectors from a file
    for limit in (math.nan, -1.0):
        with pytest.raises(DegradationError, match="percentage"):
            refuse_degradation(report(), [0], limit)


@pytest.mark.long
@pytest.mark.parametrize("limit", [None, 50.0])
def test_an_upgrade_of_another_version_or_lineage_is_refused(
    small: Recipe, tmp_path: Path, limit: float | None
) -> None:
    recipe = Recipe.of(
        small.model_dump(), ["model.dim=8", "upgrade.alone=false", "upgrade.held_out=0.3"]
    )
    mine, other = (Lineage.create(tmp_path / name) for name in ("mine", "other"))
    mine.publish(train(recipe))
    other.publish(train(recipe.model_copy(update={"seed": 9})))
    next_version = upgrade(recipe, mine)
    with pytest.raises(LineageError, match="was made for another lineage"):
        publish(other, next_version, max_degradation=limit)
    assert other.next_version == 1
    publish(mine, next_version)
    for publish_again in (mine.publish, lambda a: publish(mine, a, max_degradation=limit)):
        with pytest.raises(LineageError, match=r"version 1 .* made after version 0"):
            publish_again(next_version)
    assert mine.next_version == 2
    # Who says that it follows is believed; its certificate is then measured, and does not hold.
    assert past_limits(diagnose_lineage(mine)) == []
    publish_next(other, next_version)
    (sentence,) = past_limits(diagnose_lineage(other))
    assert "Version 0: its certificate bounds the error by" in sentence


def test_strict_probes_without_a_limit_are_refused(lineage: Lineage, tmp_path: Path) -> None:
    """Nothing was compared with anything, and the gate let every version through."""
    consumers = ConsumerRegistry.open(lineage.path)
    unlimited = probe(tmp_path, 0).model_copy(update={"min": None})
    consumers.repin("ads", "prod", lineage.resolve, probe=unlimited)
    with pytest.raises(DegradationError, match=r"no consumer has a probe with a limit.*--limit"):
        publish(lineage, following(lineage, artefact()), strict_probes=True)
    assert lineage.newest == 0
    consumers.add("web", "v0", lineage.resolve, probe=probe(tmp_path, 1))
    done = publish(lineage, following(lineage, artefact()), strict_probes=True)
    assert [reading.broken for reading in done.probes] == [False, False]


@pytest.fixture
def recipe(small: Recipe) -> Recipe:
    return Recipe.of(small.model_dump(), ["training.epochs=2"])


def test_limits_that_cannot_be_met_are_refused_before_training(
    recipe: Recipe, tmp_path: Path
) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    with pytest.raises(DegradationError, match="no consumer has a probe"):
        refuse_unmeasurable(lineage, recipe, None, strict_probes=True)
