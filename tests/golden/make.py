"""Golden lineages: tiny ones, in every format that ever was, read for ever.

What is here is **never made again, only added to**: it stands for what lies on people's disks. The
script refuses to write over anything. Each format was made with the code of its own time:

    git worktree add --detach /tmp/old COMMIT
    PYTHONPATH=/tmp/old/src python tests/golden/make.py FORMAT

with COMMIT 60c432b for format 1, 866a559 for format 2, and the commits that added format-3 and
format-4 for these. `format-<n>/NAME` is a lineage; `format-<n>/NAME.json` and `.safetensors` beside
it are ids and vectors of every version that could be read, as that code read them. Then

    python tests/golden/make.py fingerprints

adds the fingerprints of new ones to `fingerprints.json`, so that they never change either.

`stores-1/` are stores of before a store knew its side: a snapshot, and `lance#films`, each filled
with the candidates of `format-3/trained` by eb0111e (`evergram store fill … --store candidate=…`).

`aligner-1/` are files of `Aligner.save`, made by `python tests/golden/make.py aligner`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

HERE = Path(__file__).parent
RECIPE: dict[str, Any] = {
    "name": "golden",
    "data": {"kind": "synthetic", "queries": 30, "candidates": 20, "interactions": 400},
    "split": {"kind": "time", "versions": [0.5, 0.6, 0.7, 0.8]},
    "model": {"dim": [4, 6, 3, 5]},
    "task": {"penalty": 5.0},
    "training": {"epochs": 2, "batch_size": 64},
}


def trained(path: Path, versions: int) -> Any:
    """A model and its upgrades."""
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.upgrade import train, upgrade
    from evergram.training.recipe import Recipe

    recipe = Recipe.of(RECIPE)
    lineage = Lineage.create(path, "golden")
    lineage.publish(train(recipe))
    for _ in range(1, versions):
        lineage.publish(upgrade(recipe, lineage))
    return lineage


def files(path: Path, formats: list[str], rows: int = 300) -> Any:
    """A file of vectors, and its upgrades. From format 2 on."""
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.files.align import align
    from evergram.releasing.files.align_settings import AlignSettings
    from evergram.vector_files.open_embeddings import open_embeddings

    draw = np.random.default_rng(0)
    base = draw.normal(size=(rows, 3))
    lineage = Lineage.create(path, "files")
    with tempfile.TemporaryDirectory() as folder:
        made = []
        for number in range(len(formats) + 1):
            made.append(Path(folder) / f"v{number}.npy")
            matrix = draw.normal(size=(3, 3 + number % 2))
            noise = 0.01 * draw.normal(size=(rows, 3 + number % 2))
            np.save(made[-1], (base @ matrix + noise).astype(np.float32))
        for number, kind in enumerate(formats):
            old = number if number else open_embeddings(made[0])
            align(old, open_embeddings(made[number + 1]), lineage, AlignSettings(kind))
    return lineage


def operated(path: Path) -> Any:
    """Labels, a version in production that is not the newest, one withdrawn, and one retired."""
    from evergram.releasing.upgrade import upgrade
    from evergram.training.recipe import Recipe

    recipe = Recipe.of(RECIPE)
    lineage = trained(path, 2)
    lineage.publish(upgrade(recipe, lineage), promote=False)
    lineage.withdraw(2, "made to be withdrawn")
    lineage.publish(upgrade(recipe, lineage), promote=False)
    lineage.label("canary", 3)
    lineage.retire(0)
    return lineage


def keep(lineage: Any) -> None:
    """What the code of this time reads, beside the lineage."""
    readable = getattr(lineage, "readable", [m.version for m in lineage.versions])
    tensors, ids = {}, {}
    for version in readable:
        view = lineage.view(version, lineage.newest)
        sides = lineage.manifest(lineage.newest).embeddings
        for side in sides:
            keys, vectors = view.embeddings(side)
            ids[side] = keys.to_pylist()
            tensors[f"{version}/{side}"] = vectors.contiguous()
    path = lineage.path
    save_file(tensors, path.with_suffix(".safetensors"))
    path.with_suffix(".json").write_text(json.dumps(ids) + "\n")
    (path / ".lock").unlink(missing_ok=True)


def make(number: int) -> None:
    folder = HERE / f"format-{number}"
    if folder.exists():
        sys.exit(f"{folder} is there, and golden files are never made again.")
    keep(trained(folder / "trained", 3))
    if number >= 2:
        keep(files(folder / "files", ["linear", "affine"]))
    if number >= 3:
        keep(operated(folder / "operated"))


def add_fingerprints() -> None:
    from evergram.lineage.lineage import Lineage

    path = HERE / "fingerprints.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    for record in sorted(HERE.glob("format-*/*/lineage.json")):
        name = f"{record.parent.parent.name}/{record.parent.name}"
        fingerprints = {str(m.version): m.fingerprint for m in Lineage.open(record.parent).versions}
        known.setdefault(name, fingerprints)
    path.write_text(json.dumps(known, indent=2) + "\n")


def aligners(folder: Path) -> None:
    """An aligner of each kind, one of them without its moments, and what it makes of a vector."""
    from evergram.compatibility import Aligner

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
    if sys.argv[1:] == ["fingerprints"]:
        add_fingerprints()
    elif sys.argv[1:] == ["aligner"]:
        aligners(HERE / "aligner-1")
    else:
        make(int(sys.argv[1]))
