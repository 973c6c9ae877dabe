"""Queries without a table in the loop: gradients against a dense loss, versions, new queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import prepare
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import final_split, load_corpus, split_for
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.step import Step

CPU = torch.device("cpu")
# Query 10 met one candidate.
PAIRS = [(q, (3 * q + 2 * i) % 9) for q in range(10) for i in range(2 + q % 3)] + [(10, 4)]
SQUARED: dict[str, Any] = {"penalty": 3.0, "l2": 0.2, "l2_measure": "penalty"}


@pytest.fixture
def means(small: Recipe) -> Recipe:
    return Recipe.of(small.model_dump(), ["model.kind=mean_of_candidates"])


def corpus() -> Corpus:
    query, candidate = zip(*PAIRS, strict=True)
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate}))


def gradient(
    task: dict[str, Any], *, normalize: bool = False
) -> tuple[Step, Tensor, int, list[Batch]]:
    """Return a float64 step, an epoch's gradient of its table, the pairs that a batch has on
    average, and its batches."""
    whole = task.get("kind") == "softmax_all"
    by_gramians = ["gramian.kind=exact", "training.precondition=0"]
    recipe = Recipe.of(
        {
            "data": {"kind": "python"},
            "model": {"kind": "mean_of_candidates", "dim": 3, "normalize": normalize},
            "task": task,
            "training": {"batch_size": 8 if whole else len(PAIRS)},
        },
        by_gramians if task.get("penalty") else [],
    )
    data = corpus()
    step, sampler, _ = prepare(FitSettings.of(recipe, data, 0), data, CPU)
    table = step.encoder.get_parameter("candidate.weight")
    step.encoder.double()
    for each in step.estimators.values():
        for estimator in each:
            estimator.double()
    with torch.no_grad():
        table.normal_(generator=torch.Generator().manual_seed(2))
    step.optimizers = []
    total = torch.zeros_like(table)
    batches = []
    for batch, _ in run_epoch(step, sampler, None, 0, CPU):
        batches.append(batch)
        assert table.grad is not None
        total += table.grad.to_dense()
        table.grad = None
    assert len(batches) > 1 if whole else len(batches) == 1
    pairs = sampler.expected if whole else len(PAIRS)  # type: ignore[attr-defined]
    return step, total, pairs, batches


def dense(step: Step) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return U [11, D] and V [9, D], the scores of all pairs, and those of the training pairs
    without their own candidate, by matrices of zeros and ones."""
    data, encoder = corpus(), step.encoder
    unit = functional.normalize if encoder.normalize else lambda x, dim=-1: x
    v = unit(encoder.get_parameter("candidate.weight"), dim=-1)
    met = torch.zeros(11, 9, dtype=torch.float64)
    a, b = data.column("query"), data.column("candidate")
    met[a, b] = 1
    u = unit(met @ v / met.sum(1, keepdim=True), dim=-1)
    others = met[a].clone()
    others[torch.arange(len(a)), b] = 0
    mean = others @ v / others.sum(1, keepdim=True).clamp(min=1)
    return u, v, u @ v.T, (unit(mean, dim=-1) * v[b]).sum(-1)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("sparse", ["none", "exclude"])
def test_the_squared_loss_leaves_out_and_its_penalty_does_not(normalize: bool, sparse: str) -> None:
    task = {**SQUARED, "sparse": sparse}
    if normalize:  # norms of rows of length 1 are refused
        task = {"penalty": 3.0, "sparse": sparse, "l2": 0}
    step, got, _, _ = gradient(task, normalize=normalize)
    u, v, scores, own = dense(step)
    push = scores.square()
    if sparse == "exclude":
        push = push * (1 - observed())
    loss = 0.5 * (own - 1).square().mean() + 3.0 * push.mean()
    if not normalize:
        loss = loss + 0.2 * (u.square().sum(1).mean() + v.square().sum(1).mean())
    (expected,) = torch.autograd.grad(loss, step.encoder.get_parameter("candidate.weight"))
    # The weights of entities are float32.
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def observed() -> Tensor:
    data = corpus()
    met = torch.zeros(11, 9, dtype=torch.float64)
    met[data.column("query"), data.column("candidate")] = 1
    return met


@pytest.mark.parametrize("denominator", ["all", "unobserved"])
def test_the_softmax_leaves_out_of_the_pull_alone(denominator: str) -> None:
    task = {"kind": "softmax_all", "temperature": 0.5, "denominator": denominator}
    step, got, pairs, _ = gradient(task, normalize=True)
    _, _, scores, own = dense(step)
    if denominator == "unobserved":
        scores = scores.masked_fill(observed() > 0, -torch.inf)
    normalizers = (scores / 0.5).logsumexp(1)[corpus().column("query")]
    loss = (normalizers - own / 0.5).sum() / pairs
    (expected,) = torch.autograd.grad(loss, step.encoder.get_parameter("candidate.weight"))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_a_negative_meets_the_others_too() -> None:
    task = {"kind": "bpr", "penalty": 0, "l2": 0}
    step, got, _, (batch,) = gradient(task)
    _, v, _, _ = dense(step)
    a, b, other = batch.query, batch.candidate, batch.negative
    assert other is not None
    loss = torch.zeros((), dtype=torch.float64)
    for row in range(len(a)):
        met = observed()[a[row]].clone()
        met[b[row]] = 0
        others = met @ v / met.sum().clamp(min=1)
        loss = loss + functional.softplus(others @ v[other[row]] - others @ v[b[row]]) / len(a)
    (expected,) = torch.autograd.grad(loss, step.encoder.get_parameter("candidate.weight"))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("fit", "rows"),
    [
        ("posthoc", "model.normalize=false"),
        ("joint", "model.normalize=true model.popularity=0.3"),
    ],
)
def test_versions_follow_each_other_and_fold_in_is_exact(
    means: Recipe, fit: str, rows: str, tmp_path: Path
) -> None:
    """A stored query is what `fold_in` makes of its training pairs; the restored encoder makes the
    same of them, and of a later corpus, without the data that it was trained on."""
    overrides = [*rows.split(), f"upgrade.fit={fit}"]
    recipe = Recipe.of(means.model_dump(), overrides)
    data = load_corpus(recipe)
    lineage = Lineage.create(tmp_path / "lineage")
    for version in (0, 1):
        lineage.publish(upgrade(recipe, lineage, data) if version else train(recipe, data))
        training = final_split(split_for(recipe, data, version), refits=recipe.refits).training
        form = lineage.query_form(version)
        assert form is not None
        assert form.rule == "mean"
        ids, stored = lineage.embeddings("query")
        order = training.queries.vocabulary.rows(ids).tolist()
        lists = candidates_of(training)
        folded = lineage.fold_in([lists[row] for row in order])
        torch.testing.assert_close(folded, stored, rtol=1e-4, atol=1e-5)
        restored = load_encoder(lineage, version).embed_all(training)["query"][order]
        torch.testing.assert_close(restored, stored, rtol=1e-4, atol=1e-5)
    # All pairs, also those of later: queries that are new, and queries that met more.
    lists, stored_ids = candidates_of(data), set(ids.to_pylist())
    keys = data.queries.vocabulary.keys.to_pylist()
    known = set(lineage.embeddings("candidate")[0].to_pylist())
    met = [row for row, candidates in enumerate(lists) if known & set(candidates)]
    assert {keys[row] in stored_ids for row in met} == {True, False}
    later = load_encoder(lineage, 1).embed_all(data)["query"]
    folded = lineage.fold_in([lists[row] for row in met], missing="skip")
    torch.testing.assert_close(folded, later[met], rtol=1e-4, atol=1e-5)


def candidates_of(data: Corpus) -> list[list[Any]]:
    keys = data.candidates.vocabulary.keys.to_pylist()
    lists: list[list[Any]] = [[] for _ in range(len(data.queries))]
    pairs = {*zip(data.column("query").tolist(), data.column("candidate").tolist(), strict=True)}
    for query, candidate in sorted(pairs):
        lists[query].append(keys[candidate])
    return lists
