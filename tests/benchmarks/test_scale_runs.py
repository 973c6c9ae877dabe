"""The probes measure rows that are drawn anew, and leave the tables as they were."""

from __future__ import annotations

import torch
from benchmarks.scale_model import Size
from benchmarks.training_rate import LoopStep, Model, Shape, corpus_of

from benchmarks import scale_runs


def test_probes_measure_every_rate_and_change_no_table() -> None:
    size = Size(200, 2000, 4, 64)
    corpus = corpus_of(Shape(100, 100, 2000))
    loop = LoopStep(Model("factorization", 4, 64), corpus, scale_runs.SETTINGS)
    before = [p.detach().clone() for p in loop.step.encoder.parameters()]
    rates = scale_runs._Probes(size, loop).rates(1e-3, rounds=2)
    assert all(getattr(rates, name) > 0 for name in rates.__dataclass_fields__)
    after = loop.step.encoder.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_ids_of_one_call_are_not_those_of_the_next() -> None:
    ids = scale_runs._Fresh(1000, torch.Generator().manual_seed(0))
    assert not torch.equal(ids.next(50), ids.next(50))
