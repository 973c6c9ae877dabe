"""A small training and its upgrades give the numbers that they gave when they were recorded.

`python -m tests.training.test_same_numbers` records them anew, which a change of the house must
never need.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.fits import untimed
from torch import Tensor

from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe

GOLDEN = Path(__file__).parents[1] / "golden" / "training-1"
BASE: dict[str, Any] = {
    "name": "same-numbers",
    "data": {"kind": "synthetic", "queries": 200, "candidates": 120, "interactions": 5000},
    "split": {"kind": "time", "versions": [0.5, 0.6, 0.7]},
    "model": {"dim": [8, 12, 10]},
    "training": {"epochs": 4, "batch_size": 256},
}
# The default when these were recorded.
GRADIENT = "upgrade.solver=gradient"
CASES = {
    "joint": ["upgrade.alone=true", "upgrade.objects=batch", GRADIENT],
    "patience": ["training.epochs=40", "training.patience=2", "upgrade.alone=false", GRADIENT],
    "refit": ["training.refit=true", "gramian.kind=storm", "upgrade.alone=true", GRADIENT],
    "posthoc": ["upgrade.method=post-lin-sloss", "gramian.sampler=linear"],
    "previous": ["upgrade.start=previous", "upgrade.fit=none", "upgrade.transform=truncate"],
    "tower": ["model.kind=two_tower", "upgrade.select_after=2", GRADIENT],
    "bpr": [
        GRADIENT,
        "task.kind=bpr",
        "upgrade.objects=paper-code",
        "training.evaluate_every=3",
    ],
}
# Not of the numbers themselves: what reports say since these were recorded.
LATER = ("table_rate", "in_training", "l2_measure")


def place() -> str:
    """Return what sums of floats depend on: the build of torch, and all that a library could choose
    its code by. Two processors with AVX-512 were seen to give different sums."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        fields = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
        names = ("vendor_id", "cpu family", "model", "stepping", "cache size", "flags")
        processor = "".join(fields.get(name, "") for name in names)
    except OSError:  # not Linux
        processor = platform.processor()
    digest = hashlib.sha256(processor.encode()).hexdigest()[:16]
    return f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()} {digest}"


def numbers(name: str) -> tuple[dict[str, Tensor], str]:
    """Train version 0 and two upgrades. Returns: the first rows of all embeddings and transforms,
    and the SHA-256 over all of them and over the metrics."""
    recipe = Recipe.of(BASE, CASES[name])
    corpus = load_corpus(recipe)
    tensors: dict[str, Tensor] = {}
    digest = hashlib.sha256()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # Pilots would take longer than all the rest.
    without_pilots = patch("evergram.training.pilots.MOST_PAIRS", 0)
    # An epoch's objective, which is among the metrics, was summed in float32 when it was recorded.
    summed = patch("evergram.training.loop.SUM", torch.float32)
    with tempfile.TemporaryDirectory() as folder, without_pilots, summed:
        lineage = Lineage.create(Path(folder) / "lineage")
        for version in range(3):
            artefact = upgrade(recipe, lineage, corpus) if version else train(recipe, corpus)
            lineage.publish(artefact)
            parts = {side: artefact.block(side)[1] for side in ("query", "candidate")}
            if artefact.transform is not None:
                parts |= artefact.transform.state_dict()
            for key, value in parts.items():
                digest.update(value.contiguous().numpy().tobytes())
                tensors[f"{name}.{version}.{key}"] = value[:8].clone()
            digest.update(json.dumps(untimed(artefact.metrics, LATER), sort_keys=True).encode())
    torch.set_num_threads(threads)
    return tensors, digest.hexdigest()


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_that_were_recorded(name: str) -> None:
    recorded = json.loads((GOLDEN / "digests.json").read_text())
    tensors, digest = numbers(name)
    if recorded["place"] == place():
        assert digest == recorded["digests"][name]
        return
    rows = load_file(GOLDEN / "rows.safetensors")
    assert {key for key in rows if key.startswith(f"{name}.")} == tensors.keys()
    for key, value in tensors.items():
        near = 1e-3 * float(rows[key].abs().max())
        torch.testing.assert_close(value, rows[key], rtol=0, atol=near)


def record() -> None:
    GOLDEN.mkdir(exist_ok=True)
    rows: dict[str, Tensor] = {}
    digests = {}
    for name in CASES:
        tensors, digests[name] = numbers(name)
        rows |= tensors
    save_file(rows, GOLDEN / "rows.safetensors")
    (GOLDEN / "digests.json").write_text(
        json.dumps({"place": place(), "digests": digests}, indent=2)
    )


if __name__ == "__main__":
    record()
