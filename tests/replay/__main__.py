"""Record what twelve recipes publish, and compare it with what they publish after a change.

    python -m tests.replay record FOLDER
    python -m tests.replay compare FOLDER [NAME…]

Bits depend on the machine, so both run on the same one, with the same number of threads. FOLDER
keeps the versions, so that a difference is printed as a number. Each recipe trains version 0 and
upgrades it through the command, and everything but JSON is compared: tensors, vectors, transforms,
and of the metrics their values.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tests.replay.recipes import NAMES, toml_of

# The command, with the keys of the papers' experiments.
EVERGRAM = """
from evergram.training import recipe
from reproduction.recipe import PaperRecipe
recipe.Recipe = PaperRecipe
from evergram.cli import main
main()
"""


def publish(name: str, folder: Path) -> None:
    """Train and upgrade a recipe; its lineage is `folder`/`name`."""
    recipe = folder / f"{name}.toml"
    recipe.write_text(toml_of(name))
    for command in ("train", "upgrade"):
        words = [sys.executable, "-c", EVERGRAM, command, str(recipe)]
        words += ["--lineage", str(folder / name)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name}, {command}: {done.stderr}")


def numbers(lineage: Path) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Yield a name and the numbers of each tensor, column of vectors and metric of a lineage."""
    for file in sorted(lineage.rglob("*")):
        inside = file.relative_to(lineage)
        if file.suffix == ".safetensors":
            for key, tensor in sorted(load_file(file).items()):
                yield f"{inside}:{key}", tensor
        elif file.suffix == ".parquet":
            for column in pq.read_table(file).itercolumns():
                flat = column.combine_chunks()
                while hasattr(flat, "flatten") and hasattr(flat.type, "value_type"):
                    flat = flat.flatten()
                yield f"{inside}:{flat.type}", flat.to_numpy(zero_copy_only=False)
        elif file.name == "metrics.json":
            yield str(inside), np.array(list(_values(json.loads(file.read_text()))))


def _values(metrics: object) -> Iterator[float]:
    """Yield the numbers of nested metrics, without those of clocks and memory."""
    if isinstance(metrics, dict):
        for key, value in sorted(metrics.items()):
            if not any(word in key for word in ("second", "bytes", "memory", "training")):
                yield from _values(value)
    elif isinstance(metrics, list):
        for value in metrics:
            yield from _values(value)
    elif isinstance(metrics, float):
        yield metrics


def difference(before: NDArray[np.generic], after: NDArray[np.generic]) -> str:
    """Return how two arrays differ, or "" if they are the same bits."""
    if before.dtype == object or after.dtype == object:
        return "" if before.tolist() == after.tolist() else "other values"
    if before.shape != after.shape or before.dtype != after.dtype:
        return f"{before.dtype} {before.shape} became {after.dtype} {after.shape}"
    if before.tobytes() == after.tobytes():
        return ""
    gap = np.abs(before.astype(np.float64) - after.astype(np.float64)).max()
    return f"largest difference {gap:.3g}, largest value {np.abs(before).max():.3g}"


def compare(name: str, recorded: Path) -> list[str]:
    """Return a line for each thing that a recipe publishes otherwise than it did."""
    with tempfile.TemporaryDirectory() as folder:
        publish(name, Path(folder))
        before, after = dict(numbers(recorded / name)), dict(numbers(Path(folder) / name))
    lines = [f"{key}: not published any more" for key in before.keys() - after.keys()]
    lines += [f"{key}: new" for key in after.keys() - before.keys()]
    gaps = {key: difference(before[key], after[key]) for key in before.keys() & after.keys()}
    return sorted(lines + [f"{key}: {gap}" for key, gap in gaps.items() if gap])


def main(words: list[str]) -> int:
    """Run one of the two commands; 1 if anything differs."""
    what, folder, names = words[0], Path(words[1]), words[2:] or NAMES
    differing = 0
    for name in names:
        if what == "record":
            folder.mkdir(parents=True, exist_ok=True)
            publish(name, folder)
            sys.stdout.write(f"{name}: recorded\n")
        else:
            lines = compare(name, folder)
            sys.stdout.write(
                "\n  ".join([f"{name}: {'differs' if lines else 'the same'}", *lines]) + "\n"
            )
            differing += bool(lines)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
