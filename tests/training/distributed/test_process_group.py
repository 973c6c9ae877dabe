"""Several processes take the steps of one: parameters, optimisers, Gramians, step by step."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.support.several_processes import ended, start, train_cases
from tests.support.shared_training import CASES, states

from evergram.collectives import ALONE
from evergram.errors import RecipeError
from evergram.training.distributed.process_group import join_processes

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
