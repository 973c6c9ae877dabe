"""Values that JSON can hold."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.support.artefacts import artefact

from evergram.lineage.disk.plain_json import plain_numbers
from evergram.lineage.lineage import Lineage


def test_a_metric_that_could_not_be_measured_is_null_in_json(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    nothing = {"a": float("nan"), "b": [1.0, float("inf")], "c": {"d": 2}}
    lineage.publish(dataclasses.replace(artefact(2), metrics=nothing))
    assert lineage.metrics(0) == {"a": None, "b": [1.0, None], "c": {"d": 2}}


def test_only_what_json_does_not_have_is_replaced() -> None:
    value = {"a": (1, 2.5, float("-inf")), "b": "nan", "c": True, "d": {"e": [float("nan")]}}
    assert plain_numbers(value) == {"a": [1, 2.5, None], "b": "nan", "c": True, "d": {"e": [None]}}
