"""Fingerprints of weights: of everything that changes a vector, and of nothing else."""

from __future__ import annotations

import json

import numpy as np
import pytest

from evergram.texts.weights import weights_fingerprint

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.zeros(2, np.float32)}
RULES = {"model": {"vocab": {"x": 0}}, "padding": None}


def fingerprint(
    arrays: dict[str, np.ndarray] = ARRAYS, settings: object = 1, rules: object = RULES
) -> str:
    return weights_fingerprint(arrays.items(), settings, json.dumps(rules))


def test_order_and_what_the_last_call_left_behind_change_nothing() -> None:
    turned = dict(reversed(ARRAYS.items()))
    assert fingerprint(turned) == fingerprint()
    assert fingerprint(rules={**RULES, "padding": {"length": 9}, "truncation": 3}) == fingerprint()
    assert fingerprint({**ARRAYS, "a": np.asfortranarray(ARRAYS["a"])}) == fingerprint()
    assert fingerprint().startswith("weights:")


@pytest.mark.parametrize(
    "other",
    [
        fingerprint({**ARRAYS, "a": ARRAYS["a"] + 1e-12}),
        fingerprint({**ARRAYS, "a": ARRAYS["a"].reshape(3, 2)}),
        fingerprint({**ARRAYS, "b": np.zeros(2, np.int32)}),
        fingerprint({"c": ARRAYS["a"], "b": ARRAYS["b"]}),
        fingerprint(settings=2),
        fingerprint(rules={"model": {"vocab": {"y": 0}}}),
        weights_fingerprint(ARRAYS.items(), 1, ""),
    ],
)
def test_each_part_counts(other: str) -> None:
    assert other != fingerprint()
