"""Several processes take the steps of one: parameters, optimisers, Gramians, step by step."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.fits import CPU, parts_of, untimed
from tests.support.several_processes import called
from tests.support.shared_training import (
    CASES,
    own_modules,
    shared_corpus,
    states,
)
from tests.support.thread_processes import in_threads
from tests.support.tiny_training import tiny_recipe
from torch import Tensor, nn

import evergram
from evergram.cli.failures import sentence_and_code
from evergram.collectives import ALONE, RANK, WORLD, Collectives, is_first_process
from evergram.data.sampling import Draw
from evergram.encoders.encoder import SIDES
from evergram.encoders.module_encoder import EncoderModules, ModuleEncoder
from evergram.errors import EvergramError, TrainingError
from evergram.training import selection
from evergram.training.distributed import (
    join_processes,
    seed_of_process,
)
from evergram.training.recipe import Recipe
from evergram.training.resuming import CheckpointSettings
from evergram.training.step import Step, shard_of, sum_gradients

# Three processes share an epoch's last pair, so that two have none.
OF_THREE = ["sogram", "sagram, 1", "joint, paper-code, softmax"]
# Batch weights are float32 whatever the rest is.
CLOSE = 1e-6
FLOAT = [case for case in CASES if not case.startswith("bfloat16")]


def write_states(out: str, *cases: str) -> None:
    """In one of several processes, train cases; the first writes their states to `out`."""
    processes = join_processes(CPU)
    for case in cases:
        kept = states(case, processes)
        if processes.is_first:
            save_file(kept, Path(out) / f"{case.replace('/', ' of ')}.safetensors")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Train all cases in two processes, and some in three; one set of processes each."""
    folders = {}
    for count, cases in ((2, [*CASES]), (3, OF_THREE)):
        out = folders[count] = tmp_path_factory.mktemp("results")
        for code, output in called(count, write_states, str(out), *cases):
            assert code == 0, output
    return folders


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "case"), [*((2, case) for case in CASES), *((3, case) for case in OF_THREE)]
)
def test_processes_take_the_steps_of_one(results: dict[int, Path], count: int, case: str) -> None:
    together = load_file(results[count] / f"{case.replace('/', ' of ')}.safetensors")
    alone = states(case)
    assert together.keys() == alone.keys()
    assert len({name.split("|")[0] for name in alone}) == 20
    # The comparison would notice a process that took no part.
    last = [name for name in alone if name.startswith("19|encoder|")]
    moved = [alone[n].double() - alone[n.replace("19|", "0|", 1)] for n in last]
    assert max(float(one.abs().max()) for one in moved) > 1e-3
    if case in FLOAT:
        for name, value in alone.items():
            assert torch.allclose(together[name], value, rtol=CLOSE, atol=CLOSE), name
        return
    # A layer's gradient is rounded to 8 bits in each process and then summed: they differ by less
    # than 0.5 % of how far training has moved the parameters.
    apart = [together[n].double() - alone[n] for n in last]
    norms = [math.hypot(*(float(one.norm()) for one in each)) for each in (apart, moved)]
    assert 0 < norms[0] < 0.005 * norms[1]


@pytest.mark.parametrize("case", ["joint, batch", "joint, paper-code"])
def test_threads_align_the_rows_of_a_batch_as_one_does(case: str) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # of all threads
    try:
        alone = states(case)
        (together, _), _ = in_threads(2, lambda threads: states(case, threads))
    finally:
        torch.set_default_dtype(before)
    for name, value in alone.items():
        assert torch.allclose(together[name], value, rtol=CLOSE, atol=CLOSE), name


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join_processes(CPU) is ALONE
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("EVERGRAM_PROCESS_TIMEOUT", "nan")
    with pytest.raises(TrainingError, match=r"NaN.*EVERGRAM_PROCESS_TIMEOUT"):
        join_processes(CPU)
    monkeypatch.setenv("LOCAL_RANK", "two")
    with pytest.raises(TrainingError, match="'two'"):
        join_processes(torch.device("cuda"))


def group_threads() -> list[str]:
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def evaluations(task: dict[str, float], **more: Any) -> list[Any]:
    """Return what ends a training, its pilots, and its evaluations, which rank some queries."""
    selection.FREE, selection.LEAST = 1, 5
    data = {"kind": "synthetic", "queries": 40, "candidates": 30, "interactions": 500}
    training = {"epochs": 2, "patience": 1, "evaluate_share": 0.001, "metric": "ndcg@20"}
    recipe = Recipe.of({"data": data, "model": {"dim": 4}, "task": task, "training": training})
    metrics = evergram.train(recipe, progress=False, **more).metrics
    found = metrics["training"]
    return [found["ended"], found.get("pilots"), untimed(found["history"]), metrics["metrics"]]


NUMBERS = {"penalty": 5.0, "l2": 0.1}


def choose_pilots_and_leave(folder: str) -> None:
    """In one of several processes, choose pilots twice, first in no time, write what was found, and
    leave; then write what threads are left.

    The first process alone has a limit, and a folder in which the first pilot is kept.
    """
    processes = join_processes(CPU)
    own: dict[str, Any] = {"folder": Path(folder) / "pilots"} if processes.is_first else {}
    limits: list[dict[str, Any]] = [{"minutes": 0} if processes.is_first else {}, {}]
    for limit in limits:
        sys.stdout.write(f"{json.dumps(evaluations({}, **own, **limit))}\n")
    sys.stdout.write(f"{json.dumps(evaluations(NUMBERS))}\n")
    assert group_threads()
    torch.distributed.destroy_process_group()
    sys.stdout.write(f"left: {group_threads()}\n")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of threads")
def test_processes_choose_the_pilots_of_the_first_and_leave_no_thread_of_their_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pilots end by the first one's clock. A thread that frees a tensor while Python ends would
    abort the process: exit -6, not its own."""
    results = called(2, choose_pilots_and_leave, str(tmp_path))
    for code, output in results:
        assert code == 0, output
        assert output.endswith("left: []\n"), output
    first, second = (
        [json.loads(line) for line in output.splitlines() if line.startswith("[")]
        for _, output in results
    )
    assert second == first
    limited, whole, together = first
    assert (limited[0], len(limited[1])) == ("minutes", 1)
    assert whole[0] != "minutes"
    assert (len(whole[1]), whole[1][0]) == (8, limited[1][0])
    # Parameters are those of one process up to rounding, so metrics are, as no two scores are near.
    for name in ("FREE", "LEAST"):
        monkeypatch.setattr(selection, name, getattr(selection, name))
    ended, _, history, metrics = evaluations(NUMBERS)
    assert together[0] == ended
    assert all(record["standard_error"] > 0 for record in history)
    assert [pytest.approx(record, rel=1e-5) for record in history] == together[2]
    assert together[3] == metrics


def train_perhaps_killed(folder: str, fatal: str, *overrides: str) -> None:
    """In one of several processes, train, with a checkpoint after every step, and write the
    embeddings; before step `fatal` the last process is killed, at 0 none is."""
    last = int(os.environ.get(RANK, 0)) == int(os.environ.get(WORLD, 1)) - 1
    take, taken = Step.__call__, [0]

    def counted(self: Step, *batch: Any) -> Any:
        taken[0] += 1
        if last and taken[0] == int(fatal):
            os.kill(os.getpid(), signal.SIGKILL)
        return take(self, *batch)

    Step.__call__ = counted  # type: ignore[assignment, method-assign]
    recipe, every = tiny_recipe("training.epochs=6", *overrides), CheckpointSettings(1)
    try:
        artefact = evergram.train(recipe, progress=False, folder=Path(folder), checkpoints=every)
    except EvergramError as error:
        sentence, code = sentence_and_code(error)
        sys.stderr.write(f"{sentence}\n")
        sys.exit(code)
    if is_first_process():
        vectors = {side: artefact.block(side)[1].contiguous() for side in SIDES}
        save_file(vectors, f"{folder}/out.safetensors")
        sys.stdout.write(f"{taken[0]} steps\n")


@pytest.mark.long
@pytest.mark.parametrize(
    ("overrides", "killed", "counts"),
    [
        (["gramian.kind=sogram"], 2, (1, 3)),
        (["gramian.kind=sagram"], 2, (1, 2)),
        (["gramian.kind=sogram"], 1, (2,)),
    ],
)
def test_a_training_that_loses_a_process_ends_and_resumes_in_another_number(
    tmp_path: Path, overrides: list[str], killed: int, counts: tuple[int, ...]
) -> None:
    def run(count: int, folder: Path, fatal: int) -> list[tuple[int, str]]:
        return called(count, train_perhaps_killed, str(folder), str(fatal), *overrides)

    whole = run(1, tmp_path / "whole", 0)
    assert [code for code, _ in whole] == [0] * len(whole), whole
    steps = int(whole[0][1].split()[0])
    assert 19 % (steps // 6)  # of six epochs
    *survivors, last = run(killed, tmp_path / "killed", 20)
    assert last[0] == -9
    for code, output in survivors:
        assert code == 2
        assert "another process of this command has ended or did not answer" in output
    expected = load_file(tmp_path / "whole" / "out.safetensors")
    for count in counts:
        folder = shutil.copytree(tmp_path / "killed", tmp_path / f"by{count}")
        for code, output in run(count, folder, 0):
            assert code == 0, output
            # It goes on after step 19, inside an epoch: the next one was never taken.
            assert "steps" not in output or int(output.split()[0]) == steps - 19
        vectors = load_file(folder / "out.safetensors")
        for side, value in expected.items():
            torch.testing.assert_close(vectors[side], value, rtol=1e-5, atol=1e-5)


class Pair(Collectives):
    """The first or the second of two processes."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank


def step_of(encoder: ModuleEncoder | None) -> Step:
    kind = ["model.dim=[4]"] if encoder is None else ["model.kind=module"]
    values = {"data": {"kind": "synthetic"}, "task": {"penalty": 1.0, "l2": 0.0}}
    return parts_of(Recipe.of(values, kind), shared_corpus(), own=encoder)[0]


def test_own_modules_drop_out_apart_and_do_not_normalise_by_the_batch() -> None:
    corpus = shared_corpus()
    own = step_of(own_modules(corpus)).encoder
    plain = step_of(None).encoder
    assert seed_of_process(own, 3, Pair(0)) == seed_of_process(plain, 3, Pair(1)) == 3
    assert seed_of_process(own, 3, Pair(1)) != 3
    tower = nn.Sequential(nn.Embedding(30, 4), nn.BatchNorm1d(4))
    modules = EncoderModules(tower, nn.Embedding(30, 4), torch.tensor, torch.tensor)
    encoder = step_of(ModuleEncoder.of(modules, corpus)).encoder
    assert seed_of_process(encoder, 3, ALONE) == 3
    with pytest.raises(TrainingError, match=r"query\.1 is a BatchNorm1d.*use LayerNorm"):
        seed_of_process(encoder, 3, Pair(1))


def process(rank: int, size: int) -> Collectives:
    collectives = Collectives()
    collectives.rank, collectives.size = rank, size
    return collectives


@pytest.mark.parametrize("rows", [7, 2])
def test_portions_weigh_unequal_shares_right(rows: int) -> None:
    """Of two rows one process has none: the one that stands in counts for nothing."""
    draw = Draw(torch.arange(rows), torch.rand(rows, 2))
    parts = [shard_of(draw, rows, process(rank, 3)) for rank in range(3)]
    shares = [len(p.rows.ids) * (p.portion > 0) for p in parts]
    assert sum(shares) == rows
    assert max(shares) - min(shares) == 1
    means = torch.stack([p.portion * p.rows.weights.mean(0) for p in parts])
    torch.testing.assert_close(means.sum(0), draw.weights.mean(0))
    counted = torch.cat([p.rows.weights * bool(p.portion) for p in parts])
    torch.testing.assert_close(counted.sum(0), draw.weights.sum(0))


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


def test_gradients_of_layers_are_summed_and_touched_rows_gathered() -> None:
    alone = trained(0, 1, 500, ALONE)
    results, processes = in_threads(3, lambda p: trained(p.rank, 3, 500, p))
    for result in results:
        for together, one in zip(result, alone, strict=True):
            torch.testing.assert_close(together, one)
    assert processes[0].kinds.count("tables, gathered") == 1
