"""Graph encoders in the loop: one pass a step, every method, published and read back."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch
from evergram.encoders.features import SIDES
from evergram.encoders.graph.graph_encoder import GraphEncoder
from evergram.encoders.graph.graphsage import GraphSage
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import prepare
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.recipe.methods import METHODS
from evergram.training.step import Step

CPU = torch.device("cpu")
KINDS = ["graphsage", "lightgcn"]
# Query 3 met every candidate, and candidate 0 every query.
PAIRS = [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (3, 3)]


@pytest.fixture
def graph(small: Recipe) -> Recipe:
    return Recipe.of(
        small.model_dump(),
        ["model.kind=graphsage", "model.ids=true", "training.layer_rate=0.02"],
    )


def whole_run(graph: Recipe, *overrides: str) -> tuple[Step, GraphEncoder, Iterator[Batch]]:
    """A float64 run on eight pairs, its encoder as it starts, and its batches, stepped on.

    Degrees and numbers of entities are powers of two, so that the weights, which are float32, are
    exact.
    """
    table = {"query": [q for q, _ in PAIRS], "candidate": [c for _, c in PAIRS]}
    recipe = Recipe.of(
        graph.model_dump(),
        ["gramian.kind=exact", "model.dim=3", "task.penalty=7", "task.l2=0", *overrides],
    )
    corpus = Corpus.from_tables(pa.table(table))
    step, sampler, draws = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)
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
        "gramian.kind=storm",
        "gramian.kind=sagram",
        "gramian.batch=independent gramian.sampler=adaptive",
        "task.kind=bpr task.penalty=1",
    ],
)
def test_a_step_passes_over_the_graph_once(
    graph: Recipe, overrides: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe.of(graph.model_dump(), overrides.split())
    corpus = split_for(recipe, load_corpus(recipe), 0).training
    step, sampler, draws = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)
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


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("lightgcn", "task.kind=bpr task.penalty=0 task.l2=0.005"),
        ("graphsage", "task.penalty=5 gramian.kind=sogram training.precondition=0"),
    ],
)
def test_a_graph_encoder_learns_more_than_popularity(graph: Recipe, kind: str, task: str) -> None:
    keys = [f"model.kind={kind}", "training.epochs=12", "training.evaluate_every=3"]
    recipe = Recipe.of(graph.model_dump(), [*keys, *task.split()])
    split = split_for(recipe, load_corpus(recipe), 0)
    metrics = fit_encoder(recipe, split, 0, RunContext(CPU)).metrics
    assert metrics["model"]["recall@20"] > 1.3 * metrics["popularity"]["recall@20"]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_versions_grow_in_layers_and_dims(graph: Recipe, kind: str, tmp_path: Path) -> None:
    recipe = Recipe.of(graph.model_dump(), [f"model.kind={kind}", "model.layers=[1, 2, 3]"])
    corpus = load_corpus(recipe)
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(recipe, corpus))
    for _ in range(2):
        lineage.publish(upgrade(recipe, lineage, corpus))
    depths = []
    for version in range(3):
        encoder = load_encoder(lineage, version)
        assert isinstance(encoder, GraphEncoder)
        depths.append((encoder.dim, encoder.depth))
    assert depths == [(8, 1), (12, 2), (10, 3)]
    training = split_for(recipe, corpus, 2).training
    vectors = load_encoder(lineage, 2).embed_all(training)
    for side, entities in (("query", training.queries), ("candidate", training.candidates)):
        ids, stored = lineage.embeddings(side)
        rows = entities.vocabulary.rows(ids)
        torch.testing.assert_close(stored, vectors[side][rows])
    # Version 0 reads the corpus of version 2, and all of it: nobody is without a neighbour.
    first = load_encoder(lineage, 0)
    scene = first.read(training)
    assert all(bool(first.known(side, scene).all()) for side in SIDES)
    assert lineage.metrics(2)["compatibility"]["0"]["drift"]["known"]["objects"] == len(
        training.queries
    ) + len(training.candidates)


@pytest.mark.parametrize("method", ["fix-m0", "finetune-m0", "evergram"])
def test_every_method_upgrades_a_graph_encoder(graph: Recipe, tmp_path: Path, method: str) -> None:
    values = graph.model_dump()
    values["upgrade"] = {"method": method, "alone": False}
    recipe = Recipe.of(values, ["model.layers=[1, 2]", "training.epochs=2"])
    corpus = load_corpus(recipe)
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(recipe, corpus))
    lineage.publish(upgrade(recipe, lineage, corpus))
    one, other = load_encoder(lineage, 0), load_encoder(lineage, 1)
    assert isinstance(other, GraphEncoder)
    kept = METHODS[method]["start"] != "fresh"
    assert (other.dim, other.depth) == ((8, 1) if kept else (12, 2))
    same = all(
        torch.equal(value, one.state_dict().get(name, torch.empty(0)))
        for name, value in other.state_dict().items()
    )
    assert same == (METHODS[method]["start"] == "frozen")
