"""Golden files: tiny ones of every format that lies on people's disks, read by today's code.

From the first release on they are never made again, only added to. `lineage-1/trained` is a lineage
of three trained versions, and `lineage-1/expected.json` and `.safetensors` are its fingerprints,
and the ids and vectors of every version as the code that made it read them. `aligner-1/` are files
of `Aligner.save`. The script refuses to write over either:

    python tests/golden/make.py lineage
    python tests/golden/make.py aligner
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

from evergram.compatibility import Aligner
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.recipe import Recipe

HERE = Path(__file__).parent
RECIPE: dict[str, Any] = {
    "name": "golden",
    "metrics": ["recall@5", "map@10"],
    "data": {"kind": "synthetic", "queries": 40, "candidates": 30, "interactions": 600},
    "split": {"kind": "time", "versions": [0.5, 0.6, 0.7, 0.8]},
    "model": {"dim": [4, 6, 3, 5]},
    "task": {"penalty": 5.0},
    "training": {"epochs": 2, "batch_size": 64, "metric": "recall@5"},
}


def lineage(folder: Path) -> None:
    """A model and two upgrades of it."""
    folder.mkdir()
    recipe = Recipe.of(RECIPE)
    made = Lineage.create(folder / "trained", "golden")
    made.publish(train(recipe))
    for _ in range(2):
        made.publish(upgrade(recipe, made))
    tensors, ids = {}, {}
    for version in made.readable:
        for side in made.manifest(version).embeddings:
            keys, vectors = made.view(version).embeddings(side)
            ids[side] = keys.to_pylist()
            tensors[f"{version}/{side}"] = vectors.contiguous()
    save_file(tensors, folder / "expected.safetensors")
    fingerprints = [manifest.fingerprint for manifest in made.versions]
    expected = {"fingerprints": fingerprints, "ids": ids}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    (made.path / ".lock").unlink(missing_ok=True)


def aligners(folder: Path) -> None:
    """An aligner of each kind, one of them without its moments, and what it makes of a vector."""
    draw = np.random.default_rng(0)
    new = draw.normal(size=(300, 3)) + 0.5
    old = new @ draw.normal(size=(3, 2)) + 0.1 * draw.normal(size=(300, 2))
    kinds: dict[str, dict[str, Any]] = {
        "linear": {},
        "affine": {"ridge": 0.01},
        "orthogonal": {"scaled": True},
        "low_rank": {"rank": 1, "held_out": 0.2},
    }
    folder.mkdir()
    expected = {}
    for kind, options in kinds.items():
        aligner = Aligner(kind, **options).fit(new, old)
        aligner.save(folder / f"{kind}.safetensors", moments=kind != "affine")
        expected[kind] = {
            "aligner": repr(aligner),
            "new": [1.0, -2.0, 0.25],
            "mapped": aligner.transform(np.array([1.0, -2.0, 0.25])).tolist(),
            "held_out_rows": aligner.report().held_out_rows,
        }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    make = {"lineage": lineage, "aligner": aligners}[sys.argv[1]]
    make(HERE / f"{sys.argv[1]}-1")
