"""Fifty trainings killed at random moments, resumed until they end, publish the same bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from evergram.data.corpus import Corpus
from evergram.data.sorted_pairs import SortedPairs
from evergram.encoders.module_encoder import EncoderModules
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import load_corpus
from evergram.training.recipe import Recipe
from evergram.training.resuming import CheckpointSettings

# What a clock writes into a published version, and digests of files that hold it.
OF_THE_CLOCK = {"seconds", "created", "check", "metrics.json"}


def forked(work: Callable[[], None]) -> int:
    """Return the id of a new process that does some work and exits with 0, or with 1 by an error.

    A fork saves the two seconds that a new process imports torch for.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def command(arguments: list[str]) -> int:
    """Return the id of a new process that runs a command, whose output is thrown away."""
    nowhere = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_WRONLY, 0) for n in (1, 2)]
    return os.posix_spawn(arguments[0], arguments, os.environ, file_actions=nowhere)


def cpu_seconds(process: int) -> float:
    """Return the CPU time that a process has had; infinite if it has ended."""
    try:
        return time.clock_gettime((~process << 3) | 2)  # clock_getcpuclockid(3)
    except OSError:
        return float("inf")


def killed(process: int, after: float, ready: Callable[[], bool] = lambda: True) -> bool:
    """Kill a process by SIGKILL when it has had so many seconds of CPU since it was ready, which is
    the same moment however busy the machine is. Returns: False if it ended before, as it should."""
    begun: float | None = None
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0, "it failed"
            return False
        used = cpu_seconds(process)
        if begun is None and ready():
            begun = 0.0 if ready.__name__ == "<lambda>" else used
        if begun is not None and used >= begun + after:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return True
        time.sleep(0.002)


def finished(process: int) -> float:
    """Wait for a process that should end well. Returns: its CPU seconds."""
    _, status, usage = os.wait4(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "it failed"
    return usage.ru_utime + usage.ru_stime


def newest_checkpoint(work: Path) -> dict[str, Any]:
    """Return the name, the steps and the batches of the newest whole checkpoint; none is empty."""
    paths = sorted(work.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    if not paths:
        return {}
    with safe_open(paths[-1], framework="pt") as file:
        facts = json.loads(file.metadata()["facts"])
    title = paths[-1].name.split(".")[0]
    return {"title": title, "steps": facts["steps"], "batches": facts["batches"]}


def published(folder: Path) -> dict[str, Any]:
    """Return every file of a lineage, by path: its bytes, and of JSON what no clock wrote."""
    files: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or name.startswith("."):  # .lock, and .work with its checkpoints
            continue
        content = path.read_bytes()
        files[name] = _timeless(json.loads(content)) if path.suffix == ".json" else content
    return files


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in OF_THE_CLOCK}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


# Kills of forks of each kind of training, and of real commands.
BY_FORK, BY_COMMAND = 9, 5
DATA = {"kind": "synthetic", "queries": 200, "candidates": 120, "interactions": 3000}
RECIPE = {
    "name": "killed",
    "data": DATA,
    "split": {"kind": "time", "versions": [0.6, 0.8]},
    "model": {"dim": [6, 8]},
    "task": {"penalty": 5.0, "l2": 0.1},
    "training": {"epochs": 4, "patience": 0, "batch_size": 24, "table_rate": 0.1},
}
RECIPE_FILE = """
name = "killed"
[data]
kind = "synthetic"
queries = 200
candidates = 120
interactions = 3000
[model]
kind = "two_tower"
dim = 6
[task]
penalty = 5.0
l2 = 0.1
[gramian]
kind = "sogram"
[training]
epochs = 4
patience = 0
batch_size = 24
"""


class Tower(nn.Module):
    """A table with dropout, which draws from torch's global generator, and running statistics."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(size, 6, sparse=True)
        nn.init.normal_(self.table.weight, std=0.1, generator=torch.Generator().manual_seed(size))
        self.dropout, self.norm = nn.Dropout(0.2), nn.BatchNorm1d(6)

    def forward(self, rows: Tensor) -> Tensor:
        embeddings: Tensor = self.norm(self.dropout(self.table(rows)))
        return embeddings


def modules(corpus: Corpus) -> EncoderModules:
    def rows(ids: Any) -> Tensor:
        return torch.tensor([int(str(one)) for one in ids])

    size = 1 + max(
        int(str(one))
        for side in (corpus.queries, corpus.candidates)
        for one in side.vocabulary.keys.to_pylist()
    )
    return EncoderModules(Tower(size), Tower(size + 1), rows, rows)


@dataclass(frozen=True)
class Kind:
    """A kind of training: keys of its recipe, and whether it has dropout or is an upgrade."""

    overrides: str
    dropout: bool = False
    upgrades: bool = False

    def recipe(self) -> Recipe:
        return Recipe.of(RECIPE, self.overrides.split())

    def run(self, folder: Path, corpus: Corpus, checkpoints: CheckpointSettings) -> None:
        """Train and publish, or go on where an earlier process was killed."""
        if (folder / "versions" / ("1" if self.upgrades else "0")).exists():
            return  # killed after its publication
        lineage = Lineage.open(folder) if self.upgrades else Lineage.create(folder, "killed")
        # A fork cannot use its parent's GPU.
        settings: dict[str, Any] = {"checkpoints": checkpoints, "progress": False, "device": "cpu"}
        with lineage.training() as work:
            if self.upgrades:
                artefact = upgrade(self.recipe(), lineage, corpus, folder=work, **settings)
            else:
                own = modules(corpus) if self.dropout else None
                artefact = train(self.recipe(), corpus, encoder=own, folder=work, **settings)
        lineage.publish(artefact)


KINDS = {
    "sogram with dropout": Kind("model.kind=module gramian.rate=auto", dropout=True),
    "sogram, separate draws": Kind("gramian.sampler=linear"),
    "sagram, adaptive pools": Kind("gramian.kind=sagram gramian.sampler=adaptive"),
    "bpr with a refit": Kind("task.kind=bpr task.penalty=1 training.refit=true"),
    "least squares in blocks": Kind("training.optimizer=als"),
    "joint upgrade": Kind("gramian.rate=0.1", upgrades=True),
}


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep has about as many blocks of rows as an epoch has batches."""
    monkeypatch.setattr(SortedPairs, "block", 24)


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_killed_by_fork_at_random_moments(name: str, tmp_path: Path) -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        pytest.skip("this process has used a GPU, which its forks cannot")
    kind, draw = KINDS[name], random.Random(name)
    corpus = load_corpus(kind.recipe())
    torch.set_num_threads(1)  # a fork has none of its parent's threads
    # Here and not in a fork: forks then have all that a training imports.
    start = tmp_path / "start"
    Kind("training.epochs=1").run(start, corpus, CheckpointSettings())

    def fresh(folder: str) -> Path:
        if kind.upgrades:
            shutil.copytree(start, tmp_path / folder)
        return tmp_path / folder

    whole = fresh("whole")
    seconds = finished(forked(lambda: kind.run(whole, corpus, CheckpointSettings())))
    expected = published(whole)
    kills, inside, rounds = 0, 0, 0
    while kills < BY_FORK:
        folder, rounds = fresh(f"round {rounds}"), rounds + 1
        before: dict[str, Any] = {}
        while kills < BY_FORK:
            checkpoints = CheckpointSettings(every=draw.choice([1, 2, 5, 13]))
            process = forked(lambda f=folder, c=checkpoints: kind.run(f, corpus, c))  # type: ignore[misc]
            if not killed(process, draw.uniform(0.05, 0.6) * seconds):
                break
            kills += 1
            after = newest_checkpoint(folder / ".work")
            inside += after.get("batches", 0) > 0
            if before and after.get("title") == before["title"]:
                assert after["steps"] >= before["steps"], "it began anew"
            before = after
        finished(forked(lambda f=folder: kind.run(f, corpus, CheckpointSettings())))  # type: ignore[misc]
        assert published(folder) == expected
    assert inside >= BY_FORK / 2, "most kills should be inside an epoch"


@pytest.mark.long
def test_killed_commands(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE_FILE)
    program = "from evergram.cli import main; main()"
    evergram = [sys.executable, "-c", program, "train", str(recipe)]
    whole, folder, draw = tmp_path / "whole", tmp_path / "killed", random.Random(0)
    finished(command([*evergram, "--lineage", str(whole)]))
    work = folder / ".work"

    def further() -> bool:
        return bool({path.name for path in work.glob("*.safetensors")} - there)

    for _ in range(BY_COMMAND):
        there = {path.name for path in work.glob("*.safetensors")}
        often = ["--checkpoint-every", "2"]
        process = command([*evergram, "--lineage", str(folder), *often])
        assert killed(process, draw.uniform(0.0, 0.25), further), "it ended before it was killed"
        steps = newest_checkpoint(work)["steps"]
        assert steps == max(int(path.name.split(".")[1]) for path in work.glob("*.safetensors"))
    finished(command([*evergram, "--lineage", str(folder)]))
    assert published(folder) == published(whole)
    assert not work.exists()
