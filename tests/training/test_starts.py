"""Starting vectors against dense algebra in float64, and tables that start from them."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.fits import parts_of, split_of
from tests.support.tiny_training import tiny_recipe
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import SIDES, Encoder, Factorization
from evergram.errors import DataError, RecipeError
from evergram.lineage.lineage import Lineage
from evergram.releasing.publish import publish
from evergram.releasing.upgrade import train, upgrade
from evergram.training.factors import (
    NormalisedMatrix,
    build_measures,
    distinct_pairs,
    prior_constant,
    smooth_start,
)
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import FilesSettings, PriorSettings, SVDSettings


def corpus_of(seed: int = 0) -> Corpus:
    """150 pairs of 29 queries with 17 candidates."""
    generator = torch.Generator().manual_seed(seed)
    sides = [torch.randint(0, size, (150,), generator=generator).tolist() for size in (30, 17)]
    return Corpus.of(list(zip(*sides, strict=True)))


def matrix_of(seed: int = 0) -> NormalisedMatrix:
    return NormalisedMatrix.of(corpus_of(seed), torch.float64)


def encoder_of(corpus: Corpus, *overrides: str) -> Encoder:
    return parts_of(tiny_recipe(*overrides), corpus)[0].encoder


def tables(encoder: Encoder) -> dict[str, Tensor]:
    assert isinstance(encoder, Factorization)
    return {"query": encoder.query.weight.detach(), "candidate": encoder.candidate.weight.detach()}


def test_smooth_rows_are_those_of_the_spectrum_without_its_first_pair() -> None:
    """Over many Gaussian columns, inner products tend to Σ_{k>0} σ_k⁴ v_k v_kᵀ, in cosines."""
    matrix = matrix_of()
    left, values, right = torch.linalg.svd(matrix.matrix.to_dense(), full_matrices=False)
    vectors = smooth_start(matrix, 200_000, seed=1)
    for side, singular, power in (("query", left, 6), ("candidate", right.T, 4)):
        kernel = (singular[:, 1:] * values[1:] ** power) @ singular[:, 1:].T
        lengths = kernel.diag().sqrt()
        cosines = vectors[side] @ vectors[side].T
        expected = kernel / torch.outer(lengths, lengths)
        torch.testing.assert_close(cosines, expected, rtol=0, atol=0.02)


def test_tables_start_from_the_vectors_and_rows_without_pairs_stay_as_drawn() -> None:
    # Both sides have all ids, whether or not they are met as a query, or as a candidate.
    corpus = Corpus.of([(f"a{i % 9}", f"b{i * i % 11 % 7}") for i in range(40)], shared_ids=True)
    random, started = encoder_of(corpus), encoder_of(corpus, "model.start=smooth")
    matrix = NormalisedMatrix.of(corpus)
    expected = smooth_start(matrix, 4, 0)
    for side in SIDES:
        known = matrix.degrees[side] > 0
        rows = expected[side] * (0.1 * 4**0.5)
        torch.testing.assert_close(tables(started)[side][known], rows[known])
        assert torch.equal(tables(started)[side][~known], tables(random)[side][~known])
    assert not bool((matrix.degrees["candidate"] > 0).all())
    again = encoder_of(corpus, "model.start=smooth")
    other = encoder_of(corpus, "model.start=smooth", "seed=1")
    assert torch.equal(tables(again)["query"], tables(started)["query"])
    assert not torch.equal(tables(other)["query"], tables(started)["query"])


def test_rows_of_which_nothing_is_left_stay_as_drawn() -> None:
    """Where all queries met all candidates nothing is left without popularity, but rounding."""
    corpus = Corpus.of([(q, c) for q in range(6) for c in range(5)])
    vectors = smooth_start(NormalisedMatrix.of(corpus), 4, 0)
    assert all(not rows.any() for rows in vectors.values())
    drawn = tables(encoder_of(corpus, "model.normalize=true"))
    started = tables(encoder_of(corpus, "model.normalize=true", "model.start=smooth"))
    assert all(torch.equal(started[side], drawn[side]) for side in SIDES)


def test_without_an_epoch_the_start_is_the_model(tmp_path: Path) -> None:
    posthoc = ("upgrade.method=post-closed",)
    recipe = tiny_recipe("model.start=smooth", "training.epochs=0", *posthoc)
    lineage = Lineage.create(tmp_path / "line", "line")
    artefact = train(recipe, progress=False)
    assert artefact.metrics["training"]["epochs"] == 0
    corpus = split_of(recipe).training
    expected = smooth_start(NormalisedMatrix.of(corpus), 4, 0)
    for side in SIDES:
        started = expected[side].any(dim=1)
        rows = expected[side][started] * (0.1 * 4**0.5)
        torch.testing.assert_close(artefact.block(side)[1][started], rows)
    publish(lineage, artefact)
    again = upgrade(recipe, lineage, progress=False)
    assert again.transform is not None


def test_each_distinct_pair_is_divided_by_the_roots_of_its_degrees() -> None:
    pairs = [("a", 1), ("a", 2), ("b", 1), ("c", 3), ("a", 1), ("c", 1), ("d", 2), ("d", 1)]
    corpus = Corpus.of(pairs)
    matrix = NormalisedMatrix.of(corpus, torch.float64)
    sides = (corpus.queries, corpus.candidates)
    rows = [{key: i for i, key in enumerate(s.vocabulary.keys.to_pylist())} for s in sides]
    expected = torch.zeros(4, 3, dtype=torch.float64)
    for pair in set(pairs):
        degrees = [len({p for p in set(pairs) if p[side] == pair[side]}) for side in (0, 1)]
        value = 1 / ((degrees[0] + 5) * (degrees[1] + 5)) ** 0.5
        expected[rows[0][pair[0]], rows[1][pair[1]]] = value
    torch.testing.assert_close(matrix.matrix.to_dense(), expected, rtol=1e-12, atol=0)
    assert torch.equal(matrix.transposed.to_dense(), matrix.matrix.to_dense().T)


def test_tables_in_files_take_no_start() -> None:
    with pytest.raises(RecipeError, match=r"mapped from files.*set model\.start"):
        encoder_of(corpus_of(), "model.start=smooth", "training.tables=mapped")


def corpus() -> Corpus:
    draw = torch.Generator().manual_seed(0)
    pairs = torch.randint(8, (40, 2), generator=draw)
    return Corpus.of(pa.table({"query": pairs[:, 0].numpy(), "candidate": pairs[:, 1].numpy()}))


def prior_of(settings: PriorSettings, data: Corpus) -> dict[str, Tensor]:
    ids = {"query": data.queries.vocabulary, "candidate": data.candidates.vocabulary}
    return settings.build(ids, lambda: distinct_pairs(data), 0)


def vectors(path: Path, ids: list[int], rows: list[list[float]]) -> str:
    pq.write_table(pa.table({"id": ids, "vector": pa.array(rows, pa.list_(pa.float32()))}), path)
    return str(path)


def test_files_are_joined_by_id(tmp_path: Path) -> None:
    data = corpus()
    keys = data.queries.vocabulary.keys.to_pylist()
    query = vectors(tmp_path / "q.parquet", [keys[2], keys[0], 99], [[1, 2], [3, 4], [5, 6]])
    known = data.candidates.vocabulary.keys.to_pylist()
    candidate = vectors(tmp_path / "c.parquet", known, [[float(i), 1.0] for i in range(len(known))])
    prior = prior_of(FilesSettings(query=query, candidate=candidate), data)
    assert prior["query"][:3].tolist() == [[3, 4], [0, 0], [1, 2]]
    assert prior["candidate"][:, 0].tolist() == list(range(len(known)))


def test_files_that_cannot_be_a_prior(tmp_path: Path) -> None:
    data = corpus()
    keys = [s.vocabulary.keys[0].as_py() for s in (data.queries, data.candidates)]
    candidate = vectors(tmp_path / "c.parquet", [keys[1]], [[1.0, 2.0]])
    for row, key, message in (
        ([1.0, 2.0, 3.0], keys[0], "must have the same number"),
        ([1.0, 2.0], -5, "has none of"),
        ([1.0, float("nan")], keys[0], "finite"),
    ):
        query = vectors(tmp_path / "q.parquet", [key], [row])
        with pytest.raises(DataError, match=message):
            prior_of(FilesSettings(query=query, candidate=candidate), data)


def test_svd_is_the_best_low_rank_fit_of_the_observed_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = corpus()
    observed = np.zeros((len(data.queries), len(data.candidates)))
    observed[data.column("query"), data.column("candidate")] = 1  # repeats count once
    values = np.linalg.svd(observed, compute_uv=False)
    most = min(len(data.queries), len(data.candidates)) - 1
    assert prior_of(SVDSettings(), data)["query"].shape[1] == most < SVDSettings.rank
    monkeypatch.setattr(SVDSettings, "rank", 3)
    prior = prior_of(SVDSettings(), data)
    error = ((prior["query"] @ prior["candidate"].T).numpy() - observed) ** 2
    assert error.sum() == pytest.approx((values[3:] ** 2).sum(), rel=1e-3)
    again = prior_of(SVDSettings(), data)
    assert torch.equal(prior["query"], again["query"])


def test_the_constant_is_the_double_sum() -> None:
    draw = torch.Generator().manual_seed(0)
    prior = {side: torch.randn(n, 2, generator=draw) for side, n in zip(SIDES, (4, 5), strict=True)}
    measures = {s: torch.rand(len(p), 2, generator=draw).double() for s, p in prior.items()}
    expected = 0.0
    for r, a, b in product(range(2), range(4), range(5)):
        score = float(prior["query"][a].double() @ prior["candidate"][b].double())
        weight = float(measures["query"][a, r] * measures["candidate"][b, r])
        expected += (0.5, 2.0)[r] * weight * score**2
    assert prior_constant(prior, measures, [0.5, 2.0]) == pytest.approx(expected)


# a-x is there twice.
MEASURED = Corpus.of([("a", "x"), ("a", "x"), ("a", "y"), ("b", "y"), ("c", "x")])


def measures_of(chosen: list[Any]) -> Tensor:
    return build_measures(chosen, MEASURED.counts("query"), MEASURED.queries.vocabulary)


def test_a_measure_is_a_power_of_the_counts_or_a_file_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "weights.parquet"
    pq.write_table(pa.table({"sku": ["b", "elsewhere", "a"], "weight": [3, 9, 1]}), path)
    measures = {"query_measure": [0.0, 1.0, str(path)], "candidate_measure": [0.0] * 3}
    task = {"penalty": [1.0] * 3, **measures}
    recipe = Recipe.of({"data": {"kind": "synthetic"}, "task": task})
    expected = [[1 / 3, 3 / 5, 1 / 4], [1 / 3, 1 / 5, 3 / 4], [1 / 3, 1 / 5, 0.0]]
    made = measures_of(recipe.task.measures_of("query"))
    torch.testing.assert_close(made, torch.tensor(expected, dtype=torch.float64))


def test_a_file_of_weights_that_cannot_be_a_measure_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.parquet"
    cases: list[tuple[list[Any], str]] = [
        (["x", "2"], "row 1: weight is 'x'; it must be a number"),
        ([1.0, -2.0], "row 2: weight is -2.0; it must be a finite number of at least 0"),
        ([float("nan"), 1.0], "row 1: weight is nan"),
        ([0.0, 0.0], "gives no weight to any entity of the corpus"),
    ]
    for weights, message in cases:
        pq.write_table(pa.table({"id": ["a", "b"], "weight": weights}), path)
        with pytest.raises(DataError, match=message):
            measures_of([str(path)])
