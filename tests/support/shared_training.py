"""Trainings whose every step is compared between one process and several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import torch
from reproduction.recipe import PaperRecipe
from torch import Tensor, nn

from evergram.collectives import ALONE, Collectives
from evergram.compatibility.alignment_loss import AlignmentLoss
from evergram.compatibility.chain import Chain
from evergram.compatibility.transforms import LinearTransform
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import SIDES
from evergram.encoders.module_encoder import EncoderModules, ModuleEncoder
from evergram.training.build import Companions, FitSettings, prepare
from evergram.training.joint import JointAlignment
from evergram.training.loop import gather, run_epoch
from evergram.training.recipe.tables import TransformTraining
from evergram.training.step import Step

CPU = torch.device("cpu")
# 101 pairs in batches of 25: the last batch of each epoch is one pair, and one process has none.
PAIRS, BATCH, EPOCHS = 101, 25, 4
BASE = ["task.penalty=2.0", "task.l2=0.1"]
TOWER = ["model.kind=two_tower", "model.hidden=[6]", "training.layer_rate=0.01"]
POOL = ["gramian.sampler=adaptive", "gramian.batch_size=10"]
# Whole queries, in five batches an epoch as well.
ALL = ["task.kind=softmax_all", "training.batch_size=21"]
MEANS = ["model.kind=mean_of_candidates"]
CASES: dict[str, list[str]] = {
    "sogram": [],
    "sogram, a fixed rate": ["gramian.rate=0.1"],
    "exact": ["gramian.kind=exact"],
    "sampled, a matrix": ["gramian.kind=sampled"],
    "sampled, pairs": ["gramian.kind=sampled", "gramian.sampler=linear", "gramian.batch_size=3"],
    "sagram, 1/n": ["gramian.kind=sagram"],
    "sagram, 1": ["gramian.kind=sagram", "gramian.beta='1'"],
    "sogram, independent": ["gramian.sampler=linear"],
    "independent, sampled gradient": [
        *("gramian.sampler=linear", "gramian.gradient=sampled", "gramian.batch_size=17")
    ],
    "pools": POOL,
    "pools, sampled gradient": [*POOL, "gramian.gradient=sampled"],
    "not preconditioned": ["training.precondition=0.0"],
    "sgd": ["training.optimizer=sgd", "training.table_rate=0.05"],
    "bpr": ["task.kind=bpr"],
    "softmax": ["task.kind=softmax"],
    "softmax_all": ALL,
    "softmax_all, adam": [*ALL, "task.penalty=0", "training.optimizer=adam"],
    "two towers, softmax_all": [*TOWER, *ALL],
    "lightgcn, softmax_all": ["model.kind=lightgcn", "model.layers=[2]", *ALL, "task.penalty=0"],
    "two measures, a prior, sparse weights": [
        *("task.query_measure=[0.0, 1.0]", "task.candidate_measure=[0.5, 1.0]"),
        *("task.penalty=[2.0, 1.0]", "task.sparse=exclude", "prior.kind=constant"),
    ],
    "l2 by measure": ["task.l2_measure=penalty"],
    "two towers": TOWER,
    "two towers, softmax, not preconditioned": [
        *(*TOWER, "task.kind=softmax", "training.precondition=0.0")
    ],
    "modules": ["model.kind=module"],
    "bfloat16, towers": [*TOWER, "training.precision=bfloat16"],
    "bfloat16, modules": ["model.kind=module", "training.precision=bfloat16"],
    "lightgcn": ["model.kind=lightgcn", "model.layers=[2]"],
    "lightgcn, exact": ["model.kind=lightgcn", "model.layers=[2]", "gramian.kind=exact"],
    "means": MEANS,
    "means, softmax_all": [*MEANS, *ALL, "task.penalty=0", "training.optimizer=adam"],
    "means, softmax": [*MEANS, "task.kind=softmax"],
    "joint, all": [],
    "joint, batch": TOWER,
    "joint, all, softmax_all": [*ALL, "model.normalize=true", "task.l2=0"],
    "joint, paper-code": ["task.kind=bpr"],
    "joint, paper-code, softmax": ["task.kind=softmax"],
    "joint, all, lightgcn": ["model.kind=lightgcn", "model.layers=[2]"],
}


def shared_corpus() -> Corpus:
    """101 pairs of 23 queries with 17 candidates that have tags."""
    draw = torch.Generator().manual_seed(3)
    chance = torch.rand(PAIRS, 2, generator=draw)
    query, candidate = (23 * chance[:, 0] ** 2).long(), (17 * chance[:, 1] ** 2).long()
    tags = [[f"t{i % 5}", f"t{i % 3}"][: i % 3] for i in range(17)]
    return Corpus.of(
        pa.table({"query": query.numpy(), "candidate": candidate.numpy()}),
        candidate_features=pa.table({"id": list(range(17)), "tags": tags}),
    )


class Tower(nn.Module):
    """A table of ids and a layer; `dense` is whether the table's gradient is."""

    def __init__(self, seed: int, dense: bool) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.table = nn.Embedding(30, 4, sparse=not dense)
        self.layer = nn.Linear(4, 4)
        with torch.no_grad():
            for value in self.parameters():
                value.copy_(torch.randn(value.shape, generator=draw) / 3)

    def forward(self, rows: Tensor) -> Tensor:
        layered: Tensor = self.layer(self.table(rows))
        return layered.tanh()


def own_modules(corpus: Corpus) -> ModuleEncoder:
    modules = EncoderModules(Tower(1, True), Tower(2, False), torch.tensor, torch.tensor)
    return ModuleEncoder.of(modules, corpus)


def joint_of(case: str, corpus: Corpus) -> JointAlignment | None:
    """Return the alignment that a case trains: its objects are the word after "joint"."""
    if not case.startswith("joint"):
        return None
    draw = torch.Generator().manual_seed(5)
    sizes = {"query": len(corpus.queries), "candidate": len(corpus.candidates)}
    past = {s: torch.randn(n, 3, generator=draw) for s, n in sizes.items()}
    weight = {s: (torch.rand(n, generator=draw) < 0.8).to(past[s]) for s, n in sizes.items()}
    transform = LinearTransform(3, 4)
    with torch.no_grad():
        for value in transform.parameters():
            value.copy_(torch.randn(value.shape, generator=draw) / 2)
    objects: Any = case.split(", ")[1]
    adam = TransformTraining(rate=0.02, objects=objects, rows=9)
    return JointAlignment(transform, AlignmentLoss(Chain([], 3)), past, weight, 1.0, adam)


def prepared(case: str, corpus: Corpus, collectives: Collectives) -> Iterator[tuple[Step, Tensor]]:
    """Yield a case's step with its objective, after each step of its training."""
    overrides = [*BASE, *CASES[case]]
    values = {
        "data": {"kind": "synthetic"},
        "training": {"batch_size": BATCH, "short_batch": True},
    }
    own_encoder = "model.kind=module" in overrides
    if not own_encoder:
        overrides.append("model.dim=[4]")
    settings = FitSettings.of(PaperRecipe.of(values, overrides), corpus, 0)
    own = own_modules(corpus) if own_encoder else None
    beside = Companions(joint_of(case, corpus), own=own)
    step, sampler, draws = prepare(settings, corpus, CPU, beside, None, collectives)
    step.collectives = collectives
    for epoch in range(EPOCHS):
        for _, objective in run_epoch(step, sampler, draws, epoch, CPU):
            yield step, objective


def states(case: str, collectives: Collectives = ALONE) -> dict[str, Tensor]:
    """Return all state after each step, by step and name."""
    before = torch.get_default_dtype()
    # Outputs of modules of one's own are made float32.
    single = case == "modules" or case.startswith("bfloat16")
    torch.set_default_dtype(torch.float32 if single else torch.float64)
    try:
        kept: dict[str, Tensor] = {}
        trained = prepared(case, shared_corpus(), collectives)
        for number, (step, objective) in enumerate(trained):
            modules: dict[str, nn.Module] = {"encoder": step.encoder, "objective": step.objective}
            if step.joint is not None:
                modules["joint"] = step.joint
            for side in SIDES:
                modules |= {f"{side}{r}": e for r, e in enumerate(step.estimators[side])}
            state = gather(modules, step.optimizers) | {"objective": objective}
            kept |= {f"{number}|{name}": value.detach().clone() for name, value in state.items()}
    finally:
        torch.set_default_dtype(before)
    return kept
