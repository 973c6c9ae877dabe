"""Mixtures of real text encoders are told from vectors of one of them."""

from __future__ import annotations

import gzip
import json
from itertools import permutations

import pytest
import torch
from benchmarks.migrations import installed, kept_vectors
from tests.migration.test_mixed_models import auc, source_of
from tests.support.mixed_vectors import drawn, merged
from torch import Tensor

from benchmarks import DATA
from evergram.errors import DataError
from evergram.migration.mixed_models import diagnose_vectors

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def encoded() -> dict[str, Tensor]:
    """Return unit vectors of the 5,183 titles of SciFact by each encoder that is installed."""
    file = DATA / "scifact" / "corpus.jsonl.gz"
    if not file.is_file():
        pytest.skip(f"{file} is missing; docs/data-sets.md says how to download it")
    try:
        names = installed()
    except DataError as error:
        pytest.skip(str(error))
    with gzip.open(file, "rt") as lines:
        titles = {r["_id"]: r["title"] for r in map(json.loads, lines)}
    return {name: kept_vectors("SciFact titles", name, "texts", titles) for name in names}


def test_five_percent_of_another_encoder_are_found_and_named(encoded: dict[str, Tensor]) -> None:
    """The longer vectors are cut, as their first numbers are a model as well."""
    for one, other in permutations(encoded, 2):
        dim = min(encoded[one].shape[1], encoded[other].shape[1])
        vectors, foreign = merged(encoded[one][:, :dim], encoded[other][:, :dim], 0.05)
        found = diagnose_vectors(source_of(vectors))
        assert len(found.report["shares"]) == 2, (one, other, found.report)
        chances = found.chances(None, vectors)
        assert auc(chances[:, 1], foreign) >= 0.99, (one, other)


def test_topics_of_one_encoder_are_one_model(encoded: dict[str, Tensor]) -> None:
    """All texts, and the 1,000 nearest to one of them: at most one alarm."""
    alarms = []
    for name, vectors in encoded.items():
        sets = [vectors]
        for row in torch.randint(len(vectors), (5,), generator=drawn(0)).tolist():
            nearest = (vectors @ vectors[row]).topk(1000).indices
            sets.append(vectors[nearest[torch.randperm(1000, generator=drawn(row))]])
        reports = [diagnose_vectors(source_of(each)).report for each in sets]
        alarms += [(name, report) for report in reports if report["verdict"] != "one"]
    assert len(alarms) <= 1, alarms
