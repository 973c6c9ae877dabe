"""What is shown of a sample of queries."""

from __future__ import annotations

from typing import Any

import pytest

from evergram.lineage.sampled_metrics import sample_sentence, standard_errors, with_error


def test_errors_and_sizes_are_read() -> None:
    sampled = {"queries": 5000, "of": 606_000, "errors": {"model": {"recall@20": 0.0012}}}
    assert standard_errors(sampled, "model") == {"recall@20": 0.0012}
    assert standard_errors(sampled, "alone") == {}
    assert sample_sentence(sampled) == (
        "Measured on 5,000 of 606,000 test queries, drawn at random; ± is a standard error."
    )
    assert with_error("0.1234", 0.0012) == "0.1234 ±0.0012"
    assert with_error("0.1234", None) == "0.1234"


@pytest.mark.parametrize("sampled", [{}, {"errors": 3}, {"errors": {"model": [1]}}, {"queries": 3}])
def test_what_others_wrote_is_no_traceback(sampled: Any) -> None:
    assert standard_errors(sampled, "model") == {}
    assert sample_sentence(sampled) == (
        "Measured on a sample of the test queries; ± is a standard error."
    )


def test_metrics_of_all_queries_have_no_sample() -> None:
    assert standard_errors(None, "model") == {}
    assert sample_sentence(None) is None
    wrong = {"errors": {"model": {"a": None, "b": -1.0, "c": float("nan"), "d": 0}}}
    assert standard_errors(wrong, "model") == {"d": 0.0}
