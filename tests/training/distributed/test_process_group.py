"""Several processes take the steps of one: parameters, optimisers, Gramians, step by step."""

from __future__ import annotations

import json
import math
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.support.several_processes import ended, start, train_cases
from tests.support.shared_training import CASES, own_modules, shared_corpus, states
from tests.support.thread_processes import Threads, in_threads
from torch import nn

from evergram.collectives import ALONE, Collectives
from evergram.encoders.encoder_modules import EncoderModules
from evergram.encoders.module_encoder import ModuleEncoder
from evergram.errors import RecipeError, TrainingError
from evergram.training.build import Companions, prepare
from evergram.training.distributed.agreement import begin_shared, decided, share_step
from evergram.training.distributed.process_group import join_processes
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.step import Step

CPU = torch.device("cpu")
# As `evergram train`, with `--minutes 0` and then without; the first process alone has a limit and
# a folder, in which the first pilot is kept.
TRAININGS = """
import json, os, sys, evergram
data = {"kind": "synthetic", "queries": 60, "candidates": 40, "interactions": 900}
training = {"epochs": 3, "patience": 2}
recipe = evergram.Recipe.of({"data": data, "model": {"dim": 4}, "training": training})
first = os.environ["RANK"] == "0"
folder = {"folder": sys.argv[1]} if first else {}
for limit in ({"minutes": 0} if first else {}, {}):
    found = evergram.train(recipe, progress=False, **folder, **limit).metrics["training"]
    print(json.dumps([found["ended"], found["pilots"]]))
"""


# Three processes share an epoch's last pair, so that two have none.
OF_THREE = ["sogram", "storm", "joint, paper-code, softmax"]


# Batch weights are float32 whatever the rest is.
CLOSE = 1e-6


FLOAT = [case for case in CASES if not case.startswith(("float32", "bfloat16"))]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Train every case in two processes, and some in three; one set of processes each."""
    folder = tmp_path_factory.mktemp("results")
    return train_cases("tests.support.shared_training", {2: list(CASES), 3: OF_THREE}, folder)


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "case"), [*((2, case) for case in FLOAT), *((3, case) for case in OF_THREE)]
)
def test_processes_take_the_steps_of_one(results: dict[int, Path], count: int, case: str) -> None:
    together = load_file(results[count] / f"{case.replace('/', ' of ')}.safetensors")
    alone = states(case)
    assert together.keys() == alone.keys()
    assert len({name.split("|")[0] for name in alone}) == 20
    for name, value in alone.items():
        assert torch.allclose(together[name], value, rtol=CLOSE, atol=CLOSE), name
    # The comparison would notice a process that took no part.
    first, last = alone["0|encoder|" + table_of(alone)], alone["19|encoder|" + table_of(alone)]
    assert float((first - last).abs().max()) > 1e-3


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "single"), [("towers", "float32, towers"), ("modules", "modules")]
)
def test_bfloat16_layers_round_each_share_apart(
    results: dict[int, Path], case: str, single: str
) -> None:
    """A layer's gradient is rounded to 8 bits in each process and then summed, so that two
    processes differ from one by less than bfloat16 does from float32, and by less than 0.5 % of
    how far training has moved the parameters."""
    alone = states(f"bfloat16, {case}")
    together = load_file(results[2] / f"bfloat16, {case}.safetensors")
    assert together.keys() == alone.keys()
    apart = _apart(together, alone)
    assert 0 < apart < 0.005
    exact = {name: value.float() for name, value in states(single).items()}
    assert apart < _apart(alone, exact)


def _apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return ‖x − y‖ over how far y has moved since its first step; of all parameters at the last
    one."""
    names = [name for name in other if name.startswith("19|encoder|")]
    first = {name: other[name.replace("19|", "0|", 1)] for name in names}
    apart = sum(float((one[n] - other[n]).double().square().sum()) for n in names)
    moved = sum(float((other[n] - first[n]).double().square().sum()) for n in names)
    return math.sqrt(apart / moved)


def table_of(states: dict[str, torch.Tensor]) -> str:
    """Return the name of a parameter of the encoder."""
    return next(n.split("|")[2] for n in states if n.startswith("0|encoder|"))


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join_processes(CPU) is ALONE
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("EVERGRAM_PROCESS_TIMEOUT", "nan")
    with pytest.raises(RecipeError, match="_TIMEOUT is 'nan'"):
        join_processes(CPU)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of threads")
@pytest.mark.parametrize(
    "program", ["leaving_sharded", pytest.param("leaving_group", marks=pytest.mark.long)]
)
def test_no_thread_of_the_group_outlives_it(tmp_path: Path, program: str) -> None:
    """One that frees a tensor while Python ends would abort the process: exit -6, not its own."""
    for code, output in ended(start(2, "-m", f"tests.support.{program}", str(tmp_path))):
        assert code == 0, output
        assert output.endswith("left: []\n"), output


def test_the_first_process_decides_which_pilots_all_train(tmp_path: Path) -> None:
    """By its clock, and by its file of pilots that have ended."""
    results = ended(start(2, "-c", TRAININGS, str(tmp_path)))
    assert [code for code, _ in results] == [0, 0], results
    first, second = (
        [json.loads(line) for line in output.splitlines() if line.startswith("[")]
        for _, output in results
    )
    (limited, one), (whole, all_) = first
    assert (limited, len(one)) == ("minutes", 1)
    assert whole != "minutes"
    assert (len(all_), all_[0]) == (8, one[0])
    assert second == first


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
