"""Files of two models are told from files of one, and their rows apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.mixed_vectors import DIM, ROWS, drawn, encoded, meanings, mixed
from torch import Tensor
from torch.distributions import MultivariateNormal

from evergram.errors import DataError
from evergram.migration import mixed_models
from evergram.migration.mixed_models import VectorSource, diagnose_vectors
from evergram.vector_files.open_embeddings import open_embeddings, write_vectors


def source_of(vectors: Tensor, ids: pa.Array | None = None) -> VectorSource:
    keys = pa.array(range(len(vectors))) if ids is None else ids
    parts = (slice(0, 1000), slice(1000, None))
    return VectorSource("made up", len(vectors), lambda: [(keys[p], vectors[p]) for p in parts])


def auc(scores: Tensor, positive: Tensor) -> float:
    """The share of pairs that are in order, counted pair by pair."""
    high, low = scores[positive], scores[~positive]
    ordered = (high[:, None] > low).double() + 0.5 * (high[:, None] == low).double()
    return float(ordered.mean())


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_rows_of_a_second_model_are_found_and_named(share: float) -> None:
    vectors, foreign = mixed(share)
    source = source_of(vectors)
    found = diagnose_vectors(source)
    assert (found.report["verdict"], found.report["by"]) == ("two", "geometry")
    assert found.report["shares"][1] == pytest.approx(float(foreign.double().mean()), abs=0.02)
    table = pa.concat_tables(found.models(source))
    assert table["id"].to_pylist() == list(range(ROWS))
    assert auc(torch.tensor(table["probability"].to_pylist()), foreign) > 0.99
    named = torch.tensor(table["model"].to_pylist()) == 1
    assert float((named == foreign).double().mean()) > 0.98


def turned_lengths(seed: int) -> Tensor:
    """Vectors that are longer the more often something is met."""
    popularity = torch.from_numpy(np.random.default_rng(seed).pareto(1, ROWS)).float()
    return encoded(meanings(seed), seed) * popularity.clamp_max(50)[:, None] + 1e-3


def around(topics: int, width: float) -> Tensor:
    draw = drawn(topics)
    centres = torch.randn(topics, DIM, generator=draw)
    rows = centres[torch.randint(topics, (ROWS,), generator=draw)]
    return rows + width * torch.randn(ROWS, DIM, generator=draw)


def sparse() -> Tensor:
    """Topics that have no coordinate in common."""
    rows = torch.zeros(ROWS, 128)
    values = torch.rand(ROWS, 32, generator=drawn(0)) * (
        torch.rand(ROWS, 32, generator=drawn(1)) < 0.4
    )
    for row in range(ROWS):
        rows[row, 32 * (row % 4) : 32 * (row % 4) + 32] = values[row]
    return rows


ONE_MODEL: dict[str, Callable[[], Tensor]] = {
    "topics": lambda: encoded(meanings(5), 5),
    "lengths": lambda: turned_lengths(3),
    "three topics": lambda: around(3, 0.5),
    "tight clusters": lambda: around(12, 0.05),
    "nothing": lambda: torch.randn(ROWS, DIM, generator=drawn(4)),
    "sparse": sparse,
}


@pytest.mark.parametrize("name", ONE_MODEL)
def test_topics_of_one_model_are_not_two(name: str) -> None:
    assert diagnose_vectors(source_of(ONE_MODEL[name]())).report["verdict"] == "one"


def test_rows_that_are_repeated_or_zeros_are_no_model() -> None:
    vectors = encoded(meanings(7), 7)
    vectors[:200], vectors[200:300] = vectors[200], 0
    source = source_of(vectors)
    found = diagnose_vectors(source)
    assert found.report["verdict"] == "one"
    assert (found.report["zeros"], found.report["repeated"]) == (100, 199)
    models = pa.concat_tables(found.models(source))["model"]
    assert models.null_count == 100
    assert models[250].as_py() is None


def test_the_correlation_of_two_turned_shapes_is_zero_with_the_variance_that_is_said() -> None:
    dim, draw = 10, np.random.default_rng(0)
    rows = torch.randn(400, dim, generator=drawn(0)) * torch.linspace(2, 0.1, dim)
    shape = mixed_models._shape(rows).double()
    values = []
    for _ in range(3000):
        turn, triangle = np.linalg.qr(draw.normal(size=(dim, dim)))
        turned = torch.from_numpy(turn * np.sign(np.diag(triangle)))
        values.append(float((shape * (turned @ shape @ turned.T)).sum() / shape.square().sum()))
    assert np.mean(values) == pytest.approx(0, abs=0.01)
    assert np.var(values) == pytest.approx(2 / ((dim - 1) * (dim + 2)), rel=0.1)


def test_densities_are_those_of_a_normal_distribution_with_a_shrunk_covariance() -> None:
    draw = drawn(0)
    rows = torch.randn(300, 6, generator=draw) * torch.linspace(2, 0.5, 6) + 1
    centred = (rows - rows.mean(0)).double()
    covariance = centred.T @ centred / len(rows)
    # By Ledoit and Wolf's own sums over rows.
    sphere = torch.eye(6).double() * covariance.trace() / 6
    far = sum(float((x[:, None] * x - covariance).square().sum()) for x in centred)
    weight = max(0.02, far / len(rows) ** 2 / float((covariance - sphere).square().sum()))
    shrunk = (1 - weight) * covariance + weight * sphere
    normal: Any = MultivariateNormal(rows.mean(0).double(), shrunk)
    oracle = normal.log_prob(rows.double())
    found = mixed_models._normal(rows)(rows).double()
    assert torch.allclose(found - found[0], oracle - oracle[0], atol=1e-3)


def known_file(folder: Path, vectors: Tensor, ids: list[object]) -> Path:
    write_vectors(folder / "known.parquet", [(pa.array(ids), vectors)])
    return folder / "known.parquet"


def test_known_vectors_decide_for_their_ids_and_teach_the_rest(tmp_path: Path) -> None:
    vectors, foreign = mixed(0.2, seed=1)
    ids: list[object] = list(range(0, ROWS, 2))
    noisy = encoded(meanings(1), 2)[::2].half().float()
    known = open_embeddings(known_file(tmp_path, noisy, ids))
    source = source_of(vectors, pa.array([str(i) for i in range(ROWS)]))  # text ids, and integers
    found = diagnose_vectors(source, known)
    assert (found.report["verdict"], found.report["by"]) == ("two", "known vectors")
    assert found.report["compared"] == len(ids)
    models = torch.tensor(pa.concat_tables(found.models(source))["model"].to_pylist()) == 1
    assert torch.equal(models[::2], foreign[::2])
    assert float((models == foreign)[1::2].double().mean()) > 0.98


def test_vectors_of_a_third_model_tell_two_apart_by_their_maps(tmp_path: Path) -> None:
    vectors, foreign = mixed(0.3, seed=2)
    known = open_embeddings(known_file(tmp_path, encoded(meanings(2), 9, 32), list(range(ROWS))))
    found = diagnose_vectors(source_of(vectors), known)
    assert (found.report["verdict"], found.report["by"]) == ("two", "maps")
    assert found.report["shares"][1] == pytest.approx(float(foreign.double().mean()), abs=0.03)
    one = diagnose_vectors(source_of(encoded(meanings(2), 4)), known)
    assert one.report["verdict"] == "one"


def test_too_few_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="100 different vectors"):
        diagnose_vectors(source_of(torch.randn(100, 8).repeat(20, 1)))
    known = open_embeddings(known_file(tmp_path, torch.randn(10, 8), list(range(10))))
    with pytest.raises(DataError, match=r"10 sampled rows of made up have a vector in .*known"):
        diagnose_vectors(source_of(torch.randn(ROWS, 8)), known)
