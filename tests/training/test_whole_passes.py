"""Whole passes in the loop, of graph encoders and of softmaxes over all candidates: gradients
against dense losses, one pass a step, new queries."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.fits import CPU, changed, epoch_gradients, parts_of
from torch import Tensor
from torch.nn import functional

from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch
from evergram.encoders.encoder import ROWS, SIDES
from evergram.encoders.graph_encoders import GraphEncoder, GraphSage
from evergram.errors import RecipeError
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training import build
from evergram.training.build import final_split, load_corpus, split_for
from evergram.training.checkpoint import load_encoder
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.step import SharedCandidates, Step

KINDS = ["graphsage", "lightgcn"]


# Query 3 met every candidate, and candidate 0 every query.
PAIRS = [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (3, 3)]


@pytest.fixture
def graph(small: Recipe) -> Recipe:
    return changed(small, "model.kind=graphsage", "model.ids=true", "training.layer_rate=0.02")


def whole_run(graph: Recipe, *overrides: str) -> tuple[Step, GraphEncoder, Iterator[Batch]]:
    """A float64 run on eight pairs, its encoder as it starts, and its batches, stepped on.

    Degrees and numbers of entities are powers of two, so that the weights, which are float32, are
    exact.
    """
    exact = "gramian.kind=exact", "model.dim=3", "task.penalty=7", "task.l2=0"
    step, sampler, draws = parts_of(changed(graph, *exact, *overrides), Corpus.of(PAIRS))
    step.encoder.double()
    for of_side in step.estimators.values():
        of_side[0].double()
    twin = copy.deepcopy(step.encoder).train()
    assert isinstance(twin, GraphEncoder)
    return step, twin, (batch for batch, _ in run_epoch(step, sampler, draws, 0, CPU))


def naive_loss(query: Tensor, candidate: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
    """Observed pairs one by one, and every pair there is."""
    loss = torch.zeros((), dtype=torch.float64)
    for q, c in pairs:
        loss = loss + 0.5 * (query[q] @ candidate[c] - 1) ** 2 / len(pairs)
    for a in range(4):
        for b in range(4):
            loss = loss + 7 * (query[a] @ candidate[b]) ** 2 / 16
    return loss


def assert_same_gradients(step: Step, twin: GraphEncoder) -> None:
    for (name, expected), got in zip(
        twin.named_parameters(), step.encoder.parameters(), strict=True
    ):
        assert expected.grad is not None
        torch.testing.assert_close(got.grad, expected.grad, rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [8, 2])
def test_a_pass_serves_the_batch_and_all_unobserved_pairs(
    graph: Recipe, kind: str, size: int
) -> None:
    """Nothing of the penalty is sampled and nothing is stale, however small the batch."""
    step, twin, batches = whole_run(
        graph, f"model.kind={kind}", f"training.batch_size={size}", "training.precondition=0"
    )
    batch = next(batches)
    assert len(batch.query) == size
    embeddings = twin(step.scene)
    query, candidate = (embeddings.rows(s, torch.arange(4)) for s in SIDES)
    observed = list(zip(batch.query.tolist(), batch.candidate.tolist(), strict=True))
    naive_loss(query, candidate, observed).backward()  # type: ignore[no-untyped-call]
    assert_same_gradients(step, twin)


def test_the_preconditioner_turns_every_embedding_once(graph: Recipe) -> None:
    step, twin, batches = whole_run(graph, "training.batch_size=8", "training.precondition=0.1")
    next(batches)
    embeddings = twin(step.scene)
    query, candidate = (embeddings.rows(s, torch.arange(4)) for s in SIDES)
    slopes = torch.autograd.grad(
        naive_loss(query, candidate, PAIRS), [query, candidate], retain_graph=True
    )
    turned = []
    for slope, other in zip(slopes, (candidate, query), strict=True):
        gramian = (other.T @ other / 4).detach()
        mean = gramian.trace() / 3
        eye = torch.eye(3, dtype=torch.float64)
        turned.append(slope @ torch.linalg.inv(gramian / mean + 0.1 * eye))
    torch.autograd.backward([query, candidate], turned)
    assert_same_gradients(step, twin)


@pytest.mark.parametrize(
    "overrides",
    [
        "gramian.kind=exact",
        "gramian.sampler=linear",
        "gramian.kind=sagram",
        "gramian.sampler=adaptive",
        "task.kind=bpr task.penalty=1",
    ],
)
def test_a_step_passes_over_the_graph_once(
    graph: Recipe, overrides: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = changed(graph, *overrides.split())
    step, sampler, draws = parts_of(recipe)
    passes = 0
    real = GraphSage.propagate

    def counted(self: GraphSage, *arguments: torch.Tensor) -> torch.Tensor:
        nonlocal passes
        passes += 1
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(GraphSage, "propagate", counted)
    steps = len(list(run_epoch(step, sampler, draws, 0, CPU)))
    assert steps > 3
    # SAGram fills its cache from the first step's pass, and embeds each step's pairs after it.
    assert passes == steps * (2 if recipe.gramian.kind == "sagram" else 1)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_versions_of_a_graph_grow_in_layers_and_dims(
    graph: Recipe, kind: str, tmp_path: Path
) -> None:
    recipe = changed(graph, f"model.kind={kind}", "model.layers=[1, 2, 3]", "training.epochs=2")
    data = load_corpus(recipe)
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(recipe, data))
    for version, (dim, depth) in enumerate([(12, 2), (10, 3)], 1):
        lineage.publish(upgrade(recipe, lineage, data))
        encoder = load_encoder(lineage, version)
        assert isinstance(encoder, GraphEncoder)
        assert (encoder.dim, encoder.depth) == (dim, depth)
    training = split_for(recipe, data, 2).training
    vectors = encoder.embed_all(training)
    for side, entities in (("query", training.queries), ("candidate", training.candidates)):
        ids, stored = lineage.embeddings(side)
        torch.testing.assert_close(stored, vectors[side][entities.vocabulary.rows(ids)])
    # Version 0 reads the corpus of version 2, and all of it: nobody is without a neighbour.
    first = load_encoder(lineage, 0)
    scene = first.read(training)
    assert all(bool(first.known(side, scene).all()) for side in SIDES)


# Query 10 met one candidate.
MEAN_PAIRS = [(q, (3 * q + 2 * i) % 9) for q in range(10) for i in range(2 + q % 3)] + [(10, 4)]


SQUARED: dict[str, Any] = {"penalty": 3.0, "l2": 0.2, "l2_measure": "penalty"}


@pytest.fixture
def means(small: Recipe) -> Recipe:
    return changed(small, "model.kind=mean_of_candidates")


def gradient(
    task: dict[str, Any], *, normalize: bool = False
) -> tuple[Step, Tensor, float, list[Batch]]:
    """Return a float64 step of means of candidates, an epoch's gradient of its table, the pairs
    that a batch has on average, and its batches."""
    whole = task.get("kind") == "softmax_all"
    by_gramians = ["gramian.kind=exact", "training.precondition=0"]
    recipe = Recipe.of(
        {
            "data": {"kind": "python"},
            "model": {"kind": "mean_of_candidates", "dim": 3, "normalize": normalize},
            "task": task,
            "training": {"batch_size": 8 if whole else len(MEAN_PAIRS)},
        },
        by_gramians if task.get("penalty") else [],
    )
    step, sampler, _ = parts_of(recipe, DATA)
    table = step.encoder.get_parameter("candidate.weight")
    for module in (step.encoder, *(e for each in step.estimators.values() for e in each)):
        module.double()
    with torch.no_grad():
        table.normal_(generator=torch.Generator().manual_seed(2))
    total, batches = epoch_gradients(step, sampler)
    assert len(batches) > 1 if whole else len(batches) == 1
    pairs = sampler.mean_size or len(MEAN_PAIRS)
    return step, total["candidate.weight"], pairs, batches


DATA = Corpus.of(MEAN_PAIRS)
# Which of the 11 queries met which of the 9 candidates.
MET = torch.zeros(11, 9, dtype=torch.float64)
MET[DATA.column("query"), DATA.column("candidate")] = 1


def dense(step: Step) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return U [11, D] and V [9, D], the scores of all pairs, and those of the training pairs
    without their own candidate, by matrices of zeros and ones."""
    encoder, met = step.encoder, MET
    unit = functional.normalize if encoder.normalize else lambda x, dim=-1: x
    v = unit(encoder.get_parameter("candidate.weight"), dim=-1)
    a, b = DATA.column("query"), DATA.column("candidate")
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
        push = push * (1 - MET)
    loss = 0.5 * (own - 1).square().mean() + 3.0 * push.mean()
    if not normalize:
        loss = loss + 0.2 * (u.square().sum(1).mean() + v.square().sum(1).mean())
    (expected,) = torch.autograd.grad(loss, step.encoder.get_parameter("candidate.weight"))
    # The weights of entities are float32.
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_the_softmax_leaves_out_of_the_pull_alone() -> None:
    task = {"kind": "softmax_all", "temperature": 0.5}
    step, got, pairs, _ = gradient(task, normalize=True)
    _, _, scores, own = dense(step)
    normalizers = (scores / 0.5).logsumexp(1)[DATA.column("query")]
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
        met = MET[a[row]].clone()
        met[b[row]] = 0
        others = met @ v / met.sum().clamp(min=1)
        loss = loss + functional.softplus(others @ v[other[row]] - others @ v[b[row]]) / len(a)
    (expected,) = torch.autograd.grad(loss, step.encoder.get_parameter("candidate.weight"))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("method", "rows"),
    [
        ("post-lin-mloss", "model.normalize=false"),
        ("evergram", "model.normalize=true"),
    ],
)
def test_versions_follow_each_other_and_fold_in_is_exact(
    means: Recipe, method: str, rows: str, tmp_path: Path
) -> None:
    """A stored query is what `fold_in` makes of its training pairs; the restored encoder makes the
    same of them, and of a later corpus, without the data that it was trained on."""
    recipe = changed(means, *rows.split(), f"upgrade.method={method}")
    data = load_corpus(recipe)
    lineage = Lineage.create(tmp_path / "lineage")
    for version in (0, 1):
        lineage.publish(upgrade(recipe, lineage, data) if version else train(recipe, data))
        training = final_split(split_for(recipe, data, version), refits=recipe.refits).training
        form = lineage.reader(version).query_form()
        assert form is not None
        assert form.rule == "mean"
        ids, stored = lineage.embeddings("query")
        order = training.queries.vocabulary.rows(ids).tolist()
        lists = candidates_of(training)
        folded = lineage.view().fold_in([lists[row] for row in order])
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
    folded = lineage.view().fold_in([lists[row] for row in met], missing="skip")
    torch.testing.assert_close(folded, later[met], rtol=1e-4, atol=1e-5)


def candidates_of(data: Corpus) -> list[list[Any]]:
    keys = data.candidates.vocabulary.keys.to_pylist()
    lists: list[list[Any]] = [[] for _ in range(len(data.queries))]
    pairs = {*zip(data.column("query").tolist(), data.column("candidate").tolist(), strict=True)}
    for query, candidate in sorted(pairs):
        lists[query].append(keys[candidate])
    return lists


SOFTMAX = Corpus.of([(q, (3 * q + i) % 9) for q in range(11) for i in range(1 + q % 4)])


def softmax(*overrides: str, **task: Any) -> Recipe:
    return Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"dim": 3, "normalize": True},
            "task": {"kind": "softmax_all", "temperature": 0.5, **task},
            "training": {"batch_size": 8},
        },
        overrides,
    )


@pytest.mark.parametrize("kind", ["factorization", "two_tower", *KINDS])
@pytest.mark.parametrize("rows", [4, 65_536])
def test_an_epochs_gradients_are_those_of_the_whole_softmax(
    kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dense softmax of all pairs at once, by torch; towers embed blocks of `rows` again."""
    defaults = SharedCandidates.__init__.__defaults__
    assert defaults == (ROWS,)
    monkeypatch.setattr(SharedCandidates.__init__, "__defaults__", (rows,))
    step, sampler, _ = parts_of(softmax(f"model.kind={kind}"), SOFTMAX)
    total, _ = epoch_gradients(step, sampler)
    embeddings = step.encoder(step.scene)
    sizes = (len(SOFTMAX.counts(side)) for side in SIDES)
    users, items = (embeddings.rows(s, torch.arange(n)) for s, n in zip(SIDES, sizes, strict=True))
    scores = users @ items.T / 0.5
    observed = scores[SOFTMAX.column("query"), SOFTMAX.column("candidate")]
    normalizers = scores.logsumexp(1)[SOFTMAX.column("query")]
    ((normalizers - observed).sum() / sampler.mean_size).backward()
    for name, parameter in step.encoder.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(total[name], parameter.grad.to_dense(), rtol=1e-4, atol=1e-5)


def test_an_epoch_begins_with_rows_of_norm_one() -> None:
    chosen = softmax("training.optimizer=adam", "training.rescale_rows=true")
    step, sampler, _ = parts_of(chosen, SOFTMAX)
    tables = [step.encoder.get_parameter(f"{side}.weight") for side in SIDES]
    for _ in run_epoch(step, sampler, None, 0, CPU):
        pass
    before = step.encoder.embed_all(step.scene)
    lengths = [table.norm(dim=1) for table in tables]
    assert not any(torch.allclose(own, torch.ones(())) for own in lengths)
    step.begin_epoch(start=3, number=1)  # goes on with an interrupted epoch
    assert all(torch.equal(t.norm(dim=1), own) for t, own in zip(tables, lengths, strict=True))
    step.begin_epoch(number=1)
    torch.testing.assert_close(step.encoder.embed_all(step.scene), before)
    for table in tables:
        torch.testing.assert_close(table.norm(dim=1), torch.ones(len(table)))


def test_candidates_that_are_elsewhere_or_beyond_memory_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RecipeError, match="'mapped', which needs steps that read only a batch's"):
        softmax("training.tables=mapped")
    monkeypatch.setattr(build, "machine_memory", lambda: 947)
    with pytest.raises(RecipeError, match="at least 948 bytes"):
        parts_of(softmax(), SOFTMAX)
    monkeypatch.setattr(build, "machine_memory", lambda: 948)
    parts_of(softmax(), SOFTMAX)
