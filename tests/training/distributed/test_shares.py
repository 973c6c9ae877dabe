"""What each of several processes does of a step; processes are simulated in threads."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.shared_training import BASE, own_modules, shared_corpus
from tests.support.thread_processes import Threads, in_threads
from torch import Tensor, nn

from evergram.collectives import ALONE, Collectives
from evergram.data.sampling import Draw
from evergram.encoders.encoder import Encoder
from evergram.encoders.factory import publish_by_popularity
from evergram.encoders.features import SIDES
from evergram.training.build import Companions, prepare
from evergram.training.callbacks import Callback
from evergram.training.distributed import shared_embedding
from evergram.training.distributed.gradients import sum_gradients
from evergram.training.distributed.shared_embedding import embed_together
from evergram.training.distributed.shared_state import whole_look_ahead
from evergram.training.distributed.shares import part_of, rows_of_all
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings


def process(rank: int, size: int) -> Collectives:
    collectives = Collectives()
    collectives.rank, collectives.size = rank, size
    return collectives


def test_portions_weigh_unequal_shares_right() -> None:
    draw = Draw(torch.arange(7), torch.rand(7, 2))
    parts = [part_of(draw, 7, process(rank, 3)) for rank in range(3)]
    assert [len(p.rows.ids) for p in parts] == [2, 2, 3]
    means = torch.stack([p.portion * p.rows.weights.mean(0) for p in parts])
    torch.testing.assert_close(means.sum(0), draw.weights.mean(0))


def test_a_process_without_rows_has_one_that_counts_for_nothing() -> None:
    draw = Draw(torch.tensor([4]), torch.tensor([[2.0]]))
    part = part_of(draw, 1, process(0, 2))
    assert part.rows.ids.tolist() == [4]
    assert part.portion == 0
    assert part.counted(part.rows.weights).tolist() == [[0.0]]
    assert part_of(draw, 1, process(1, 2)).portion == 1


class Gathering(Collectives):
    """Knows the others' rows."""

    def __init__(self, all_rows: torch.Tensor, rank: int, size: int) -> None:
        self.all_rows, self.rank, self.size = all_rows, rank, size

    def rows(self, mine: torch.Tensor, count: int, kind: str) -> torch.Tensor:
        return self.all_rows.clone()


def test_gradients_of_gathered_rows_are_those_of_the_whole_loss() -> None:
    """Each process counts for its part of a loss that all compute, and has its rows' gradient."""
    rows = torch.randn(5, 2, dtype=torch.float64)
    whole = rows.clone().requires_grad_()
    torch.autograd.backward((whole @ whole.T).exp().sum().log())
    gradients = []
    for rank in range(3):
        collectives = Gathering(rows, rank, 3)
        mine = rows[collectives.share(5)].clone().requires_grad_()
        gathered = rows_of_all(mine, 5, collectives)
        torch.autograd.backward((gathered @ gathered.T).exp().sum().log() / 3)
        assert mine.grad is not None
        gradients.append(mine.grad)
    assert whole.grad is not None
    torch.testing.assert_close(torch.cat(gradients), whole.grad)


# torch's generator is one for all threads.
SEEDING = Lock()


def trained(rank: int, size: int, rows: int, collectives: Collectives) -> list[Tensor | None]:
    """Return the gradients, and the objective, after a backward pass of a process's rows."""
    with SEEDING:
        torch.manual_seed(0)
        table, layer = nn.Embedding(rows, 3, sparse=True), nn.Linear(3, 2)
        unused, rare = nn.Linear(2, 2), nn.Linear(2, 1, bias=False)
        weight = torch.rand(12)
    ids = torch.arange(12) % rows
    own = Collectives.share(collectives, 12) if size > 1 else slice(None)
    out = layer(table(ids[own])) * weight[own, None]
    loss = out.square().sum()
    if rank == size - 1:  # a parameter that one process alone has a gradient of
        loss = loss + rare(torch.ones(1, 2)).sum()
    loss.backward()
    parameters = [*table.parameters(), *layer.parameters(), *rare.parameters()]
    optimizers = [torch.optim.SGD(parameters[:1], 0.1), torch.optim.SGD(parameters[1:], 0.1)]
    optimizers.append(torch.optim.SGD(unused.parameters(), 0.1))
    value = sum_gradients(optimizers, loss.detach(), collectives)
    assert all(p.grad is None for p in unused.parameters())
    grads = [None if p.grad is None else p.grad.to_dense() for p in parameters]
    return [*grads, value]


def check(rows: int, size: int, tables: str) -> None:
    alone = trained(0, 1, rows, ALONE)
    results, processes = in_threads(size, lambda p: trained(p.rank, size, rows, p))
    for result in results:
        for together, one in zip(result, alone, strict=True):
            torch.testing.assert_close(together, one)
    assert processes[0].kinds.count(tables) == 1


def test_touched_rows_are_gathered_of_a_large_table() -> None:
    check(500, 3, "tables, gathered")


def test_a_small_table_is_summed_whole() -> None:
    check(6, 3, "tables")


class Saving(Callback):
    def __init__(self, wants: bool) -> None:
        self.wants = wants

    def wants_state(self, run: Any) -> bool:
        return self.wants


def shared_run(together: Collectives, wants_before: bool = True) -> Any:
    """Return a run whose processes share five queries and one candidate."""
    rows = {"query": torch.arange(10.0).view(5, 2), "candidate": torch.full((1, 2), 7.0)}
    ahead = {}
    for side, all_rows in rows.items():
        own = all_rows[together.share(len(all_rows))]
        ahead[side] = own if len(own) else all_rows[:1]  # one stands in
    step = SimpleNamespace(
        collectives=together,
        wants_before=wants_before,
        look_ahead=ahead,
        look_ahead_rows={side: len(r) for side, r in rows.items()},
    )
    return SimpleNamespace(step=step, look_ahead=None)


@pytest.mark.parametrize("wants", [True, False])
def test_shares_are_put_together_only_where_one_is_saved(wants: bool) -> None:
    callbacks = [Saving(wants), Saving(False)]

    def saved(process: Threads) -> Any:
        run = shared_run(process)
        with whole_look_ahead(run, callbacks if process.is_first else []) as wanting:
            inside = run.look_ahead
        assert run.look_ahead is None
        return inside, list(wanting)

    results, processes = in_threads(3, saved)
    assert results[0][1] == callbacks[:wants]
    assert not results[1][1]
    for inside, _ in results:
        if wants:
            assert torch.equal(inside["query"], torch.arange(10.0).view(5, 2))
            assert torch.equal(inside["candidate"], torch.full((1, 2), 7.0))
        else:
            assert inside is None
    assert processes[0].kinds == ["counts"] + ["look ahead"] * (2 * wants)


CPU = torch.device("cpu")


def encoder_of(kind: str) -> Encoder:
    corpus = shared_corpus()
    shape = [] if kind == "module" else ["model.dim=[4]"]
    shape += ["model.hidden=[6]"] if kind == "two_tower" else []
    recipe = Recipe.of({"data": {"kind": "synthetic"}}, [*BASE, f"model.kind={kind}", *shape])
    own = own_modules(corpus) if kind == "module" else None
    if own is not None:
        own.encoder_modules = replace(own.encoder_modules, batch_size=5)
    settings = FitSettings.of(recipe, corpus, 0)
    encoder = prepare(settings, corpus, CPU, Companions(own=own))[0].encoder
    publish_by_popularity(encoder, 0.5, corpus)
    return encoder


@pytest.mark.parametrize("kind", ["two_tower", "module"])
@pytest.mark.parametrize("size", [3])
def test_each_process_embeds_a_share_and_has_all(
    kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_embedding, "ROWS", 5)
    corpus = shared_corpus()
    alone = encoder_of(kind)
    vectors = alone.embed_all(corpus)
    copies = [deepcopy(alone) for _ in range(size)]

    def embedded(process: Threads) -> tuple[dict[str, Tensor], int]:
        encoder, rows = copies[process.rank], 0
        embed: Any = encoder.embed

        def counted(side: str, inputs: object) -> Tensor:
            nonlocal rows
            made: Tensor = embed(side, inputs)
            rows += len(made)
            return made

        encoder.embed = counted  # type: ignore[assignment]
        encoder.train()
        result = embed_together(encoder, corpus, process)
        assert encoder.training
        return result, rows

    results, _ = in_threads(size, embedded)
    for shared, rows in results:
        for side in SIDES:
            torch.testing.assert_close(shared[side], vectors[side], rtol=0, atol=1e-6)
            assert torch.equal(shared[side], results[0][0][side])
        assert rows < sum(map(len, vectors.values())) / size + 2 * 5
    assert sum(rows for _, rows in results) == sum(map(len, vectors.values()))


@pytest.mark.parametrize("kind", ["factorization", "lightgcn"])
def test_tables_and_graphs_are_embedded_whole(kind: str) -> None:
    corpus = shared_corpus()
    encoder = encoder_of(kind)
    vectors = encoder.embed_all(corpus)
    copies = [deepcopy(encoder) for _ in range(2)]
    results, processes = in_threads(2, lambda p: embed_together(copies[p.rank], corpus, p))
    for shared in results:
        assert all(torch.equal(shared[side], vectors[side]) for side in SIDES)
    assert not processes[0].kinds
    alone = embed_together(encoder, corpus, ALONE)
    assert all(torch.equal(alone[side], vectors[side]) for side in SIDES)
