"""Golden files: tiny ones of every format that lies on people's disks, read by today's code.

From the first release on they are never made again, only added to. `lineage-1/trained` is a lineage
of three trained versions, and `lineage-1/expected.json` and `.safetensors` are its fingerprints,
and the ids and vectors of every version as the code that made it read them. The script refuses to
write over them:

    python tests/golden/make.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

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


if __name__ == "__main__":
    lineage(HERE / "lineage-1")
