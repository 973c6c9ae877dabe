"""Results on disk: one JSON file per training and seed, written atomically."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evergram.errors import DataError

FORMAT = 1
FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Result:
    """The result of one training with one seed."""

    # These four identify the training.
    experiment: str
    preset: str
    label: str
    seed: int
    key: str  # hash of everything that it depends on, see `key_of`
    # The recipe's values, the readings' settings, and the synthetic corpus.
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    date: str  # "YYYY-MM-DD"
    # Time of the training with its readings; if it was interrupted, since it was resumed.
    seconds: float
    cpu_seconds: float
    # The output of each reading, by name; plain JSON.
    series: Mapping[str, Any] = field(default_factory=dict)
    commit: str = ""
    evidence: str = ""  # the key of the tiny preset's figures at that time, see `evidence`


def key_of(settings: Mapping[str, Any], seed: int) -> str:
    """Return the key of a training: a hash of its settings and seed, twelve hexadecimal digits."""
    text = json.dumps({"settings": settings, "seed": seed}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def path_of(folder: Path, experiment: str, preset: str, label: str, seed: int) -> Path:
    """Return the path of a result in a folder of results."""
    name = re.sub(r"[^a-z0-9.]+", "-", label.lower().replace("λ", "l").replace("α", "a"))
    if not name.strip("-"):
        name = "-".join(f"{ord(letter):x}" for letter in label)
    return folder / experiment / preset / f"{name.strip('-')}.seed{seed}.json"


def write(folder: Path, result: Result) -> Path:
    """Write a result atomically and return its path."""
    path = path_of(folder, result.experiment, result.preset, result.label, result.seed)
    write_text(path, json.dumps({"format": FORMAT, **_plain(asdict(result))}, ensure_ascii=False))
    return path


def write_text(path: Path, text: str) -> None:
    """Write a temporary file, sync it, and rename it to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read(path: Path) -> Result:
    """Read a result. Raises: DataError: the file is not a result, or has a later format."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("format") != FORMAT:
            raise DataError(f"{path} does not have format {FORMAT}; delete it to run it again.")
        return Result(**values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a result ({error}); delete it to run it again.") from error


def read_all(folder: Path, experiment: str, preset: str) -> list[Result]:
    """Read all results of a preset in a folder, ordered by file name."""
    return [read(path) for path in sorted((folder / experiment / preset).glob("[!.]*.json"))]


def are_there(folder: Path, experiment: str) -> bool:
    """Return True if an experiment has results of any preset in a folder."""
    return any((folder / experiment).glob("*/[!.]*.json"))


def refuse_file(folder: Path) -> None:
    """Raises: DataError: the folder of results, or one of its parents, is a file."""
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise DataError(f"{place} is a file, but --out must be a folder; choose another.")


@cache
def machine() -> dict[str, Any]:
    """Return the processor's name, its cores, and the threads that torch uses."""
    import torch

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


@cache
def versions() -> dict[str, str]:
    return {
        "evergram": version("evergram"),
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _plain(value: Any) -> Any:
    """Round numbers to six digits, and replace those that JSON cannot represent by None."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
