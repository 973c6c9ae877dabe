"""Sentences that the readers of a version should know, from how it was published."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.halving_versions import IDS, VECTORS, add_halving_version
from tests.support.publishing import publish_next

from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.compatibility.transforms import LinearTransform
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.lineage.version_warnings import (
    LEAST_QUERIES,
    _by_closed_form,
    below_popularity,
    few_test_queries,
    objects_without_vectors,
    version_warnings,
)


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    line = Lineage.create(tmp_path / "l")
    add_halving_version(line, {})
    return line


def test_few_common_objects_and_a_transform_without_certificate_are_warned_of(
    lineage: Lineage,
) -> None:
    add_halving_version(lineage, {}, {"small": True, "common": 3, "held_out_share": 0.1}, objects=1)
    few, unmeasured = version_warnings(lineage)[1]
    assert few == "It has only 3 objects in common with the version before it."
    measured = f"The error of its transform was measured on 1 objects, and {LEAST_OBJECTS} are"
    assert unmeasured.startswith(measured)
    add_halving_version(lineage, {})
    # A version that came since has warnings too.
    assert version_warnings(lineage) == {0: [], 1: version_warnings(lineage)[1], 2: []}
    assert version_warnings(Lineage.open(lineage.path)) == version_warnings(lineage)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, None),
        ({"test_queries": LEAST_QUERIES}, None),
        ({"test_queries": 3}, "It was tested on 3 queries only; its metrics say little below 30."),
        (
            {"test_queries": 0, "in_training": 5, "trained_before": 2},
            "It was tested on 0 queries only (of the held-out pairs, 5 are in the training data too"
            " and 2 were trained on by an earlier version); its metrics say little below 30.",
        ),
    ],
)
def test_a_test_on_few_queries_is_warned_of(data: dict[str, int], sentence: str | None) -> None:
    assert few_test_queries(data) == sentence


def test_a_version_is_warned_of_once_for_each_thing(lineage: Lineage) -> None:
    published = Artefact(
        3,
        {"object": (IDS, VECTORS)},
        LinearTransform.from_matrix(torch.eye(3)),
        {
            "metrics": {"model": {}},
            "untested": "No test figure: nothing was held out.",
            "alignment": {"chance": {"beaten": False}},
        },
        {},
    )
    publish_next(lineage, published)
    assert version_warnings(lineage)[1] == [
        "No test figure: nothing was held out.",
        "Its transform is no better than chance: it errs as much with the objects mixed up.",
        "Its transform was published without a measured error, and has no certificate.",
    ]


def test_an_error_longer_than_the_vectors_is_warned_of(lineage: Lineage) -> None:
    add_halving_version(
        lineage, {}, error=StepError(2 * torch.eye(3, dtype=torch.float64), 100, 3.0)
    )
    (sentence,) = version_warnings(lineage)[1]
    assert sentence.startswith("Its transform errs by 141 % of the length of the past vectors")


@pytest.mark.parametrize(
    ("upgrade", "named"),
    [
        ({"fit": "posthoc", "solver": "gradient", "transform": "linear"}, True),
        ({"fit": "posthoc", "solver": "gradient", "transform": "residual_mlp"}, False),
        ({"fit": "posthoc", "solver": "closed", "transform": "linear"}, False),
        ({"fit": "joint", "solver": "gradient", "transform": "linear"}, False),
        ({}, False),
    ],
)
def test_a_fit_by_gradient_that_fails_names_the_closed_form(
    upgrade: dict[str, str], named: bool
) -> None:
    assert ("upgrade.solver = 'closed'" in _by_closed_form({"upgrade": upgrade})) == named


def test_a_model_below_popularity_is_warned_of(lineage: Lineage) -> None:
    metrics = {
        "model": {"recall@20": 0.25, "ndcg@20": 0.1},
        "popularity": {"recall@20": 0.26, "ndcg@20": 0.2},
    }
    (sentence,) = below_popularity(metrics)
    assert "(recall@20 is 0.2500, and 0.2600 by popularity)" in sentence
    published = Artefact(3, {"object": (IDS, VECTORS)}, None, {"metrics": metrics}, {})
    other = Lineage.create(lineage.path.parent / "other")
    publish_next(other, published)
    assert version_warnings(other) == {0: [sentence]}
    # One metric that is higher leaves it to people.
    metrics["model"]["ndcg@20"] = 0.3
    assert below_popularity(metrics) == below_popularity({"model": {}}) == []


def test_objects_that_a_kept_model_does_not_know_are_counted() -> None:
    assert objects_without_vectors({"queries": 3}) is None
    sentence = objects_without_vectors({"unknown_to_model": {"query": 1200, "candidate": 7}})
    assert sentence is not None
    assert sentence.startswith("It has no vectors of 1,200 queries and 7 candidates of its data")
