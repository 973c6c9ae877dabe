"""Files of two models are told from files of one, and their rows apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.mixed_vectors import DIM, ROWS, drawn, encoded, meanings, merged, mixed, turn
from torch import Tensor
from torch.distributions import MultivariateNormal

from evergram.errors import DataError
from evergram.migration import mixed_models
from evergram.migration.mixed_models import Split, VectorSource, diagnose_vectors, evidence
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


def padded(vectors: Tensor, dim: int = DIM) -> Tensor:
    return torch.nn.functional.pad(vectors, (0, dim - vectors.shape[1]))


MIXTURES: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "1 %": lambda: mixed(0.01, rows=6000),
    "5 %": lambda: mixed(0.05),
    "20 %": lambda: mixed(0.2),
    "50 %": lambda: mixed(0.5),
    "padded": lambda: merged(encoded(meanings(), 0), padded(encoded(meanings(), 1, 32)), 0.05),
    "padded and of the same dims first": lambda: merged(
        encoded(meanings(), 0), padded(encoded(meanings(), 0)[:, :32]), 0.3
    ),
    "two seeds": lambda: merged(encoded(meanings(), 0), encoded(meanings(), 0) @ turn(), 0.05),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_rows_of_a_second_model_are_found_and_named(name: str) -> None:
    vectors, foreign = MIXTURES[name]()
    source = source_of(vectors)
    found = diagnose_vectors(source)
    assert (found.report["verdict"], found.report["by"]) == ("several", "geometry")
    assert found.report["confidence"] > 0.99
    share = min(found.report["shares"])
    assert share == pytest.approx(float(foreign.double().mean()), abs=0.02)
    table = pa.concat_tables(found.models(source))
    assert table["id"].to_pylist() == list(range(len(vectors)))
    chances = found.chances(table["id"].combine_chunks(), vectors)
    assert max(auc(chances[:, i], foreign) for i in (0, 1)) > 0.99
    named = torch.tensor(table["model"].to_pylist()) == 1
    right = float((named == foreign).double().mean())
    assert max(right, 1 - right if name == "50 %" else 0) > 0.98


@pytest.mark.parametrize("shares", [(0.34, 0.33, 0.33), (0.6, 0.2, 0.2)])
def test_three_models_are_found(shares: tuple[float, ...]) -> None:
    chosen = torch.multinomial(torch.tensor(shares), ROWS, replacement=True, generator=drawn(0))
    models = torch.stack([encoded(meanings(), seed) for seed in (5, 6, 7)])
    source = source_of(models[chosen, torch.arange(ROWS)])
    found = diagnose_vectors(source)
    assert len(found.report["shares"]) == 3
    named = torch.tensor(pa.concat_tables(found.models(source))["model"].to_pylist())
    counts = torch.bincount(3 * named + chosen, minlength=9).reshape(3, 3)
    assert int(counts.amax(1).sum()) > 0.98 * ROWS


def turned_lengths(seed: int) -> Tensor:
    """Vectors that are longer the more often something is met."""
    popularity = torch.from_numpy(np.random.default_rng(seed).pareto(1, ROWS)).float()
    return encoded(meanings(seed), seed) * popularity.clamp_max(50)[:, None] + 1e-3


def around(topics: int, width: float) -> Tensor:
    draw = drawn(topics)
    centres = torch.randn(topics, DIM, generator=draw)
    rows = centres[torch.randint(topics, (ROWS,), generator=draw)]
    return rows + width * torch.randn(ROWS, DIM, generator=draw)


def languages() -> Tensor:
    """Texts of two languages, whose means are far apart."""
    texts = meanings(8)
    texts[: ROWS // 2] += 6 * torch.randn(texts.shape[1], generator=drawn(8))
    return encoded(texts, 8)


def traits() -> Tensor:
    """Topics of which each has traits of its own besides those of all."""
    draw, topic = drawn(9), torch.randint(10, (ROWS,), generator=drawn(10))
    scales = torch.rand(10, DIM, generator=draw).add(0.05).log().neg() * torch.linspace(2, 0.3, DIM)
    rows = torch.randn(10, DIM, generator=draw)[topic]
    return (rows + torch.randn(ROWS, DIM, generator=draw) * scales[topic]) @ turn()


ONE_MODEL: dict[str, Callable[[], Tensor]] = {
    "topics": lambda: encoded(meanings(5), 5),
    "lengths": lambda: turned_lengths(3),
    "three topics": lambda: around(3, 0.5),
    "tight clusters": lambda: around(12, 0.05),
    "nothing": lambda: torch.randn(ROWS, DIM, generator=drawn(4)),
    "languages": languages,
    "traits": traits,
}


@pytest.mark.parametrize("name", ONE_MODEL)
def test_topics_of_one_model_are_not_two(name: str) -> None:
    report = diagnose_vectors(source_of(ONE_MODEL[name]())).report
    assert (report["verdict"], report["shares"]) == ("one", [1.0])
    assert report["confidence"] < mixed_models.SURE / 2


def test_sparse_vectors_are_refused() -> None:
    rows = torch.rand(ROWS, 128, generator=drawn(0))
    with pytest.raises(DataError, match="known vectors"):
        diagnose_vectors(source_of(rows * (rows > 0.6)))


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


def alignment(one: Tensor, other: Tensor) -> tuple[float, float]:
    """Return the alignment of two groups and its error, with neighbours in a row's own group."""
    rows, group = torch.cat([one, other]), torch.arange(len(one) + len(other)) < len(one)
    ways = torch.cat([mixed_models.directions(one), mixed_models.directions(other)])
    found = mixed_models.measured(rows, ways, group)
    assert found is not None
    return found.alignment, found.error


@pytest.fixture
def any_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_models, "LEAST_SHAPE", 0.0)


@pytest.mark.usefixtures("any_shape")
def test_turned_groups_are_aligned_by_0_with_the_variance_that_is_said() -> None:
    dim = 10
    rows = torch.randn(1200, dim, generator=drawn(0)) * torch.linspace(2, 0.1, dim)
    one, other = (torch.nn.functional.normalize(part, dim=1) for part in (rows[:600], rows[600:]))
    found = [alignment(one, other @ turn(dim, seed))[0] for seed in range(300)]
    assert np.mean(found) == pytest.approx(0, abs=0.03)
    assert np.var(found) == pytest.approx(2 / ((dim - 1) * (dim + 2)), rel=0.3)
    assert alignment(one, other)[0] == pytest.approx(1, abs=0.05)


@pytest.mark.usefixtures("any_shape")
def test_the_error_of_an_alignment_is_that_of_new_rows() -> None:
    dim = 24
    scales = torch.stack([torch.linspace(2, 0.1, dim), torch.linspace(2, 0.1, dim).roll(8)])
    found = []
    for seed in range(60):
        rows = torch.randn(2, 200, dim, generator=drawn(seed)) * scales[:, None]
        found.append(alignment(*torch.nn.functional.normalize(rows, dim=2)))
    values, errors = np.array(found).T
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.3)


def test_shapes_are_covariances_of_directions_beyond_those_of_isotropic_rows() -> None:
    """Against sums over rows and their neighbours, in float64."""
    rows = torch.nn.functional.normalize(torch.randn(60, 5, generator=drawn(0)), dim=1)
    labels = torch.randint(3, (60,), generator=drawn(1))
    products = mixed_models._products(rows, mixed_models.directions(rows), labels, 3)
    shapes = np.zeros((2, 3, 5, 5))
    for half in (0, 1):
        some = rows[half::2].double().numpy()
        for row, label in zip(some, labels[half::2].tolist(), strict=True):
            near = np.argsort(-(some @ row))[1:3]
            for other in some[near]:
                way = (np.eye(5) - np.outer(row, row)) @ (other - row)
                away = np.outer(way, way) / (way @ way)
                shapes[half, label] += (away - (np.eye(5) - np.outer(row, row)) / 4) / 2
    oracle = np.einsum("gij,hij->gh", *shapes)
    assert products.numpy() == pytest.approx(oracle, abs=1e-4)


def test_several_models_are_as_frequent_as_the_confidence_says() -> None:
    """The alignment of the lowest split is drawn for one model and for several, as often."""
    draw, dim, inside = np.random.default_rng(0), 64, 0.35
    several = draw.random(20_000) < 0.5
    spread = np.where(several, np.hypot(0.02, np.sqrt(2 / 63 / 66)), mixed_models.SPREAD)
    values = draw.normal(np.where(several, 0, inside), np.hypot(spread, 0.03))
    other, none = Split(torch.zeros(0), inside, 0.0), torch.zeros(0)
    found = [evidence(Split(none, v, 0.03), other, dim)["confidence"] for v in values]
    for low, high in ((0.02, 0.5), (0.5, 0.98), (0.98, 1.1)):
        some = (np.array(found) >= low) & (np.array(found) < high)
        assert several[some].mean() == pytest.approx(np.array(found)[some].mean(), abs=0.1)


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
    assert (found.report["verdict"], found.report["by"]) == ("several", "known vectors")
    assert found.report["compared"] == len(ids)
    models = torch.tensor(pa.concat_tables(found.models(source))["model"].to_pylist()) == 1
    assert torch.equal(models[::2], foreign[::2])
    assert float((models == foreign)[1::2].double().mean()) > 0.98


def test_vectors_of_a_third_model_tell_two_apart_by_their_maps(tmp_path: Path) -> None:
    vectors, foreign = mixed(0.3, seed=2)
    known = open_embeddings(known_file(tmp_path, encoded(meanings(2), 9, 32), list(range(ROWS))))
    found = diagnose_vectors(source_of(vectors), known)
    assert (found.report["verdict"], found.report["by"]) == ("several", "maps")
    assert found.report["shares"][1] == pytest.approx(float(foreign.double().mean()), abs=0.03)
    one = diagnose_vectors(source_of(encoded(meanings(2), 4)), known)
    assert one.report["verdict"] == "one"


def test_too_few_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="100 different vectors"):
        diagnose_vectors(source_of(torch.randn(100, 8).repeat(20, 1)))
    known = open_embeddings(known_file(tmp_path, torch.randn(10, 8), list(range(10))))
    with pytest.raises(DataError, match=r"10 sampled rows of made up have a vector in .*known"):
        diagnose_vectors(source_of(torch.randn(ROWS, 8)), known)
