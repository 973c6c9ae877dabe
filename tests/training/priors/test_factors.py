"""The factors of each kind of prior, and measures; their part in the loss is in tests/tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from evergram.data.corpus import Corpus, Vocabulary
from evergram.errors import DataError, RecipeError
from evergram.training.priors.factors import prior_constant, read_vectors
from evergram.training.priors.kinds import (
    FilesSettings,
    SVDSettings,
)
from evergram.training.priors.measures import build_measures
from evergram.training.recipe import Recipe


def corpus() -> Corpus:
    draw = torch.Generator().manual_seed(0)
    pairs = torch.randint(8, (40, 2), generator=draw)
    return Corpus.from_tables(
        pa.table({"query": pairs[:, 0].numpy(), "candidate": pairs[:, 1].numpy()})
    )


def vectors(path: Path, ids: list[int], rows: list[list[float]]) -> str:
    pq.write_table(pa.table({"id": ids, "vector": pa.array(rows, pa.list_(pa.float32()))}), path)
    return str(path)


def test_files_are_joined_by_id(tmp_path: Path) -> None:
    data = corpus()
    keys = data.queries.vocabulary.keys.to_pylist()
    query = vectors(tmp_path / "q.parquet", [keys[2], keys[0], 99], [[1, 2], [3, 4], [5, 6]])
    known = data.candidates.vocabulary.keys.to_pylist()
    candidate = vectors(tmp_path / "c.parquet", known, [[float(i), 1.0] for i in range(len(known))])
    prior = FilesSettings(query=query, candidate=candidate).build(data, None, 0)
    assert prior["query"][:3].tolist() == [[3, 4], [0, 0], [1, 2]]
    assert prior["candidate"][:, 0].tolist() == list(range(len(known)))


@pytest.mark.parametrize(
    ("rows", "ids", "message"),
    [
        ([[1.0, 2.0, 3.0]], None, "must agree"),
        ([[1.0, 2.0]], [-5], "knows none"),
        ([[1.0, float("nan")]], None, "finite"),
    ],
)
def test_files_that_cannot_be_a_prior(
    tmp_path: Path, rows: list[list[float]], ids: list[int] | None, message: str
) -> None:
    data = corpus()
    key = data.queries.vocabulary.keys[0].as_py()
    query = vectors(tmp_path / "q.parquet", ids or [key], rows)
    other = data.candidates.vocabulary.keys[0].as_py()
    candidate = vectors(tmp_path / "c.parquet", [other], [[1.0, 2.0]])
    with pytest.raises(DataError, match=message):
        FilesSettings(query=query, candidate=candidate).build(data, None, 0)


def test_svd_is_the_best_low_rank_fit_of_the_observed_matrix() -> None:
    data = corpus()
    observed = np.zeros((len(data.queries), len(data.candidates)))
    observed[data.column("query"), data.column("candidate")] = 1  # repeats count once
    values = np.linalg.svd(observed, compute_uv=False)
    prior = SVDSettings(rank=3).build(data, None, 0)
    error = ((prior["query"] @ prior["candidate"].T).numpy() - observed) ** 2
    assert error.sum() == pytest.approx((values[3:] ** 2).sum(), rel=1e-3)
    again = SVDSettings(rank=3).build(data, None, 0)
    assert torch.equal(prior["query"], again["query"])
    with pytest.raises(RecipeError, match=r"prior\.rank is 8"):
        SVDSettings(rank=8).build(data, None, 0)


def test_the_constant_is_the_double_sum() -> None:
    draw = torch.Generator().manual_seed(0)
    prior = {"query": torch.randn(4, 2, generator=draw)}
    prior["candidate"] = torch.randn(5, 2, generator=draw)
    measures = {s: torch.rand(len(p), 2, generator=draw).double() for s, p in prior.items()}
    expected = 0.0
    for r, strength in enumerate([0.5, 2.0]):
        for a in range(4):
            for b in range(5):
                score = float(prior["query"][a].double() @ prior["candidate"][b].double())
                weight = measures["query"][a, r] * measures["candidate"][b, r]
                expected += strength * float(weight) * score**2
    assert prior_constant(prior, measures, [0.5, 2.0]) == pytest.approx(expected)


def test_vectors_of_several_lengths_are_refused_and_large_lists_read(tmp_path: Path) -> None:
    def read(kind: pa.DataType, rows: list[list[float] | None]) -> torch.Tensor:
        ids = pa.array(range(len(rows)))
        pq.write_table(
            pa.table({"id": ids, "vector": pa.array(rows, kind)}), tmp_path / "v.parquet"
        )
        return read_vectors(tmp_path / "v.parquet", Vocabulary(pa.array([0, 1])))

    assert read(pa.large_list(pa.float64()), [[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    wrong: list[list[list[float] | None]] = [
        [[1.0], [2.0, 3.0, 4.0]],
        [[1.0, 2.0, 3.0], None, [4.0, 5.0, 6.0]],
        [None, None],
    ]
    for rows in wrong:
        with pytest.raises(DataError, match="all of one length"):
            read(pa.list_(pa.float32()), rows)


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
