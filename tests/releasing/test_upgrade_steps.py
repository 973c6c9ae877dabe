"""A plan is carried out: what is trained, what is measured, what is packaged."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.tiny_training import tiny_lineage, tiny_recipe

from evergram.data.corpus import Corpus
from evergram.lineage.lineage import Lineage
from evergram.releasing import upgrade_steps
from evergram.releasing.publish import degradation, publish, worst_degradation
from evergram.releasing.upgrade import train
from evergram.releasing.upgrade_plan import UpgradeOptions, UpgradePlan, plan_upgrade
from evergram.releasing.upgrade_steps import (
    FittedUpgrade,
    fit_upgrade,
    measure_upgrade,
    package_upgrade,
)
from evergram.training.corpora import load_corpus
from evergram.training.fit import RunContext

CONTEXT = RunContext(torch.device("cpu"), title="version 1", warns=False)


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    return tiny_lineage(tmp_path_factory.mktemp("steps") / "lineage")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus(tiny_recipe())


def carried_out(
    lineage: Lineage, corpus: Corpus, *overrides: str, **options: Any
) -> tuple[UpgradePlan, FittedUpgrade]:
    plan = plan_upgrade(tiny_recipe(*overrides), lineage, corpus, UpgradeOptions(**options))
    return plan, fit_upgrade(plan, CONTEXT)


def test_a_joint_upgrade_is_compared_with_a_model_of_its_own(
    lineage: Lineage, corpus: Corpus
) -> None:
    _, fitted = carried_out(lineage, corpus)
    assert fitted.unaligned is not None
    assert fitted.unaligned is not fitted.trained
    assert not torch.equal(fitted.unaligned.query, fitted.trained.query)


def test_a_model_without_alignment_is_not_trained_twice(lineage: Lineage, corpus: Corpus) -> None:
    _, fitted = carried_out(lineage, corpus, "upgrade.method=post-closed")
    assert fitted.unaligned is fitted.trained
    _, fitted = carried_out(lineage, corpus, "upgrade.alone=false")
    assert fitted.unaligned is None


def test_a_frozen_model_is_packaged_as_it_is_and_was_trained_on_nothing_new(
    lineage: Lineage, corpus: Corpus
) -> None:
    plan, fitted = carried_out(lineage, corpus, "upgrade.method=fix-m0", "upgrade.alone=false")
    artefact = package_upgrade(plan, fitted, measure_upgrade(plan, fitted))
    assert artefact.encoder is not None
    _, state, _ = lineage.encoder_parts(0)
    for name, value in state.items():
        assert torch.equal(artefact.encoder.state[name], value)
    assert artefact.trained is not None
    assert len(artefact.trained[1]) == 0
    assert fitted.error.rms == 0


def test_past_canaries_stay_in_the_package(lineage: Lineage, corpus: Corpus) -> None:
    plan, fitted = carried_out(lineage, corpus, "upgrade.alone=false", readings=False)
    report = measure_upgrade(plan, fitted)
    assert report["compatibility"] == {}
    assert set(report["certificate"]) == {"0"}
    artefact = package_upgrade(plan, fitted, report)
    for side, (ids, _) in lineage.canaries(0).items():
        kept = artefact.canaries[side][0].cast("string").to_pylist()
        assert kept[: len(ids)] == ids.to_pylist()


def test_a_past_version_that_cannot_be_read_is_a_warning(
    lineage: Lineage,
    corpus: Corpus,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan, fitted = carried_out(lineage, corpus, "upgrade.alone=false")
    monkeypatch.setattr(upgrade_steps, "past_model", lambda *_: None)
    with caplog.at_level(logging.WARNING):
        report = measure_upgrade(plan, fitted)
    assert report["compatibility"] == {}
    assert caplog.records[0].message.startswith("Reading the new version as version 0 is not")
    assert "past_encoders={0: EncoderModules(" in caplog.text


def test_a_sampled_upgrade_is_measured_on_the_same_queries_and_held_to_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models, and all readings as a version, are of one sample each; the gate reads it."""
    for module in (
        "evergram.training.monitors.evaluation_work",
        "evergram.releasing.upgrade_steps",
    ):
        monkeypatch.setattr(f"{module}.LEAST", 12)
    size = "data.queries=150", "data.interactions=3000", 'metrics=["recall@3"]'
    lineage, corpus = Lineage.create(tmp_path / "lineage"), load_corpus(tiny_recipe(*size))
    publish(lineage, train(tiny_recipe(*size), corpus, progress=False))
    plan, fitted = carried_out(lineage, corpus, *size, "training.evaluate_share=1e-9")
    report = measure_upgrade(plan, fitted)
    sampled = report["sampled"]
    assert sampled["queries"] == 12 < sampled["of"] == report["data"]["test_queries"]
    assert set(sampled["errors"]) == {"model", "popularity", "alone"}
    assert 0 < sampled["loss"]["alone"]["recall@3"] < 1000
    (reading,) = report["compatibility"].values()
    assert reading["queries"] == reading["sampled"]["queries"] == 12 < reading["sampled"]["of"]
    assert set(reading["sampled"]["errors"]) == set(reading["ranking"])
    means, worst = degradation(report, "recall@3"), worst_degradation(report, "recall@3")
    assert set(worst) == {"alone", "0"}
    assert all(means[name] < worst[name] < 1000 for name in worst)
    whole = measure_upgrade(*carried_out(lineage, corpus, *size))
    assert "sampled" not in whole
    assert "sampled" not in whole["compatibility"]["0"]
