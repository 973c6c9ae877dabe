"""Trainings of most kinds on a GPU give the models that the CPU trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.fits import changed, split_of
from torch import Tensor

from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import load_corpus, pick_device
from evergram.training.callbacks import Callback
from evergram.training.fit import RunContext, Trained, fit_encoder
from evergram.training.loop import Trainer
from evergram.training.recipe import Recipe
from evergram.training.resuming import CheckpointSettings

if not torch.cuda.is_available():
    pytest.skip("no CUDA device on this machine", allow_module_level=True)
UNIT = "model.normalize=true training.optimizer=adam training.table_rate=0.02 "
SOFTMAX = f"{UNIT} task.kind=softmax_all task.temperature=0.2 task.penalty=0 "
APART = "gramian.sampler=linear "
KINDS = {
    "SOGram": "",
    "SOGram, fixed rate": "gramian.rate=0.05",
    "SAGram": "gramian.kind=sagram",
    "SAGram, 1": "gramian.kind=sagram gramian.beta=1",
    "exact": "gramian.kind=exact",
    "sampled": "gramian.kind=sampled",
    "independent draws": APART,
    "adaptive draws": f"{APART} gramian.sampler=adaptive",
    "not preconditioned": "training.precondition=0",
    "two measures": "task.query_measure=[0.0,0.0] task.candidate_measure=[0.0,0.5] "
    "task.penalty=[3.0,2.0]",
    "adam": "training.optimizer=adam training.table_rate=0.02",
    "sgd": "training.optimizer=sgd",
    "least squares": "training.optimizer=als",
    "bpr": "task.kind=bpr task.penalty=1",
    "softmax in the batch": "task.kind=softmax task.penalty=1",
    "softmax over all": SOFTMAX,
    "softmax, limited": f"{SOFTMAX} task.largest_share=0.05 task.push=1.1",
    "softmax, bfloat16": f"{SOFTMAX} training.precision=bfloat16",
    "softmax, neighbours": f"{SOFTMAX} task.neighbour_share=0.2 training.rescale_rows=true",
    "smooth start": f"{SOFTMAX} model.start=smooth",
    "two towers": "model.kind=two_tower",
    "two towers, deep": "model.kind=two_tower model.hidden=[16,16]",
    "lightgcn": "model.kind=lightgcn",
    "means of candidates": "model.kind=mean_of_candidates",
    "refit": "training.refit=true",
}


def trained(small: Recipe, kind: str, device: str) -> Trained:
    recipe = changed(small, *KINDS[kind].split())
    return fit_encoder(recipe, split_of(recipe), 0, RunContext(torch.device(device)))


def scores(trained: Trained) -> Tensor:
    return trained.query.double() @ trained.candidate.double().T


@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_trains_the_model_of_the_cpu_and_the_same_bits_each_time(
    small: Recipe, kind: str
) -> None:
    on_cpu, on_cuda, again = (trained(small, kind, device) for device in ("cpu", "cuda", "cuda"))
    assert on_cuda.query.device == torch.device("cpu")
    one, other = scores(on_cpu), scores(on_cuda)
    error = float((one - other).norm() / one.norm())
    # On an H200 they were 2e-6 apart at most, and 4e-4 with TensorFloat-32's products.
    assert error < (0.005 if "bfloat16" in kind else 1e-4)
    objectives = [t.history[-1]["objective"] for t in (on_cpu, on_cuda)]
    assert objectives[0] == pytest.approx(objectives[1], rel=0.01)
    assert torch.equal(on_cuda.query, again.query)
    assert torch.equal(on_cuda.candidate, again.candidate)


@pytest.mark.parametrize("method", ["evergram", "bc-aligner"])
@pytest.mark.parametrize("kind", ["SOGram", "softmax, limited", "two towers", "lightgcn"])
def test_an_upgrade_on_a_gpu(small: Recipe, kind: str, method: str, tmp_path: Path) -> None:
    recipe = changed(small, *KINDS[kind].split(), f"upgrade.method={method}")
    corpus = load_corpus(recipe)
    read = {}
    for device in ("cpu", "cuda"):
        lineage = Lineage.create(tmp_path / device, recipe.name)
        lineage.publish(train(recipe, corpus, device=device, progress=False))
        lineage.publish(upgrade(recipe, lineage, corpus, device=device, progress=False))
        lineage.publish(upgrade(recipe, lineage, corpus, device=device, progress=False))
        read[device] = lineage.view(0).embeddings("candidate")[1].double()
    assert float((read["cpu"] - read["cuda"]).norm() / read["cpu"].norm()) < 0.05


class Steps(Callback):
    """Counts the steps of a run, and ends it as a kill would after so many."""

    def __init__(self, limit: int | None = None) -> None:
        self.count, self.limit = 0, limit

    def on_step(self, run: Trainer, batch: object, objective: object) -> None:
        self.count += 1
        if self.count == self.limit:
            raise RuntimeError("killed")


@pytest.mark.parametrize("kind", ["SOGram", "SAGram", "softmax, limited", "two towers"])
def test_a_training_on_a_gpu_resumes(small: Recipe, kind: str, tmp_path: Path) -> None:
    recipe, device = changed(small, *KINDS[kind].split()), torch.device("cuda")
    split = split_of(recipe)
    often = CheckpointSettings(every=7)

    def run(steps: Steps, folder: Path | None) -> Trained:
        context = RunContext(device, folder=folder, callbacks=[steps], checkpoints=often)
        return fit_encoder(recipe, split, 0, context)

    undisturbed, killed, rest = Steps(), Steps(40), Steps()
    whole = run(undisturbed, None)
    with pytest.raises(RuntimeError, match="killed"):
        run(killed, tmp_path)
    resumed = run(rest, tmp_path)
    # A checkpoint is at most seven steps, and the one that was killed, older than the kill.
    assert undisturbed.count - 40 <= rest.count <= undisturbed.count - 40 + 8
    torch.testing.assert_close(scores(whole), scores(resumed))


def test_auto_is_the_gpu() -> None:
    assert pick_device("auto").type == "cuda"
