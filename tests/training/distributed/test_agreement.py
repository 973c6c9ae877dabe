"""What the first process decides; and trainings that lose a process, resumed by other numbers."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.support.several_processes import ended, start
from tests.support.shared_training import own_modules, shared_corpus
from tests.support.thread_processes import Threads, in_threads
from torch import nn

from evergram.collectives import ALONE, Collectives
from evergram.encoders.encoder_modules import EncoderModules
from evergram.encoders.module_encoder import ModuleEncoder
from evergram.errors import TrainingError
from evergram.training.build import Companions, prepare
from evergram.training.distributed.agreement import begin_shared, decided, share_step
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.step import Step

CPU = torch.device("cpu")


def resumed(count: int, folder: Path, fatal: int, kind: str) -> list[tuple[int, str]]:
    out = str(folder / "out.safetensors")
    arguments = "-m", "tests.support.resumed_training", str(folder), out, str(fatal), kind
    return ended(start(count, *arguments))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "counts"), [("sogram", (1, 3)), ("storm", (1, 2))])
def test_a_training_that_loses_a_process_ends_and_resumes_in_another_number(
    tmp_path: Path, kind: str, counts: tuple[int, ...]
) -> None:
    (whole,) = resumed(1, tmp_path / "whole", 0, kind)
    assert whole[0] == 0, whole[1]
    steps = int(whole[1].split()[0])
    assert 19 % (steps // 6)  # of six epochs
    began = time.monotonic()
    survivor, killed = resumed(2, tmp_path / "killed", 20, kind)
    assert killed[0] == -9
    assert survivor[0] == 2
    assert "another process of this command has ended or did not answer" in survivor[1]
    assert "start the same command again" in survivor[1]
    assert time.monotonic() - began < 120
    expected = load_file(tmp_path / "whole" / "out.safetensors")
    for count in counts:
        folder = shutil.copytree(tmp_path / "killed", tmp_path / f"by{count}")
        for code, output in resumed(count, folder, 0, kind):
            assert code == 0, output
            # It goes on after step 19, inside an epoch: the next one was never taken.
            assert "steps" not in output or int(output.split()[0]) == steps - 19
        vectors = load_file(folder / "out.safetensors")
        for side, value in expected.items():
            torch.testing.assert_close(vectors[side], value, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_two_processes_resume_inside_an_epoch_of_one(tmp_path: Path) -> None:
    """One process has looked ahead at a whole batch, of which each of two takes its share."""
    assert resumed(1, tmp_path / "whole", 0, "storm")[0][0] == 0
    (killed,) = resumed(1, tmp_path / "killed", 10, "storm")
    assert killed[0] == -9
    for code, output in resumed(2, tmp_path / "killed", 0, "storm"):
        assert code == 0, output
    vectors = load_file(tmp_path / "killed" / "out.safetensors")
    for side, value in load_file(tmp_path / "whole" / "out.safetensors").items():
        torch.testing.assert_close(vectors[side], value, rtol=1e-5, atol=1e-5)


class Pair(Collectives):
    """The first or the second of two processes; the first's answers are handed in."""

    size = 2

    def __init__(self, rank: int, answer: object = None) -> None:
        self.rank, self.answer = rank, answer

    def from_first(self, make: object) -> object:
        return make() if self.is_first else self.answer  # type: ignore[operator]


def test_an_error_of_the_first_is_everyones() -> None:
    def fail() -> str:
        raise TrainingError("The loss is nan.")

    with pytest.raises(TrainingError, match="The loss is nan"):
        decided(fail, Pair(0))
    with pytest.raises(TrainingError, match="The loss is nan"):
        decided(fail, Pair(1, {"error": "The loss is nan."}))


def test_others_take_part_while_the_first_decides() -> None:
    """As often as it asks, and then they have its word."""

    def of(process: Threads) -> tuple[str, list[float]]:
        sums: list[float] = []

        def add() -> None:
            begin_shared("sum", process)
            mine = torch.tensor(1.0 + process.rank)
            sums.append(float(process.sum(mine, "numbers")))

        def decide() -> str:
            add()
            add()
            return "patience"

        return decided(decide, process, {"sum": add}), sums

    assert in_threads(3, of)[0] == [("patience", [6.0, 6.0])] * 3


def step_of(encoder: ModuleEncoder | None) -> Step:
    corpus = shared_corpus()
    values = {"data": {"kind": "synthetic"}, "task": {"penalty": 1.0, "l2": 0.0}}
    kind = ["model.dim=[4]"] if encoder is None else ["model.kind=module"]
    settings = FitSettings.of(Recipe.of(values, kind), corpus, 0)
    return prepare(settings, corpus, CPU, Companions(own=encoder))[0]


def test_modules_that_normalise_by_the_batch_are_refused() -> None:
    corpus = shared_corpus()
    tower = nn.Sequential(nn.Embedding(30, 4), nn.BatchNorm1d(4))
    modules = EncoderModules(tower, nn.Embedding(30, 4), torch.tensor, torch.tensor)
    step = step_of(ModuleEncoder.of(modules, corpus))
    assert share_step(step, ALONE, 3) == 3
    with pytest.raises(TrainingError, match=r"query\.1 is a BatchNorm1d.*use LayerNorm"):
        share_step(step, Pair(1), 3)


def test_dropout_of_own_modules_has_another_seed_in_each_process() -> None:
    own = step_of(own_modules(shared_corpus()))
    assert share_step(own, Pair(0), 3) == 3
    assert share_step(own, Pair(1), 3) != 3
    assert share_step(step_of(None), Pair(1), 3) == 3
