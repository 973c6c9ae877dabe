"""A measure is a power of the counts, or a file of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from evergram.data.corpus import Corpus
from evergram.errors import DataError
from evergram.training.priors.measures import build_measures
from evergram.training.recipe import Recipe

# a-x is there twice.
PAIRS = {"query": ["a", "a", "a", "b", "c"], "candidate": ["x", "x", "y", "y", "x"]}
CORPUS = Corpus.from_tables(pa.table(PAIRS))


def recipe(**tables: dict[str, Any]) -> Recipe:
    return Recipe.of({"data": {"kind": "synthetic"}, **tables})


def test_a_measure_is_a_power_of_the_counts_or_a_file_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "weights.parquet"
    pq.write_table(pa.table({"sku": ["b", "elsewhere", "a"], "weight": [3, 9, 1]}), path)
    task = recipe(
        task={
            "penalty": [1.0, 1.0, 1.0],
            "query_measure": [0.0, 1.0, str(path)],
            "candidate_measure": [0.0, 0.0, 0.0],
        }
    ).task
    expected = [[1 / 3, 3 / 5, 1 / 4], [1 / 3, 1 / 5, 3 / 4], [1 / 3, 1 / 5, 0.0]]
    measures = build_measures(task.measures_of("query"), CORPUS, "query")
    torch.testing.assert_close(measures, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (["x", "2"], "row 1: weight is 'x'; it must be a number"),
        ([1.0, -2.0], "row 2: weight is -2.0; it must be a finite number of at least 0"),
        ([float("nan"), 1.0], "row 1: weight is nan"),
        ([0.0, 0.0], "gives no weight to any entity of the corpus"),
    ],
)
def test_a_file_of_weights_that_cannot_be_a_measure_is_refused(
    tmp_path: Path, weights: list[Any], message: str
) -> None:
    path = tmp_path / "weights.parquet"
    pq.write_table(pa.table({"id": ["a", "b"], "weight": weights}), path)
    with pytest.raises(DataError, match=message):
        build_measures([str(path)], CORPUS, "query")
