"""Publish artefacts that a test made by hand, with the version that they follow filled in."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage


def following(lineage: Lineage, artefact: Artefact) -> Artefact:
    """Return the artefact as one that leads to the newest version that `lineage` knows; one without
    a model keeps the canaries that it names, if any."""
    if artefact.encoder is None:
        artefact = replace(artefact, canaries=artefact.canaries or {})
    if not lineage.next_version:
        return artefact
    return replace(artefact, follows=lineage.manifest(lineage.newest).fingerprint)


def publish_next(lineage: Lineage, artefact: Artefact, **options: Any) -> int:
    return lineage.publish(following(lineage, artefact), **options)


def copy_of(key: str, publish: Callable[[Path], object], folder: Path) -> Lineage:
    """Publish a lineage once in this process, as each publication waits for the disk; copy it."""
    made = Path(_folder().name) / key
    if not made.exists():
        publish(made)
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return Lineage.open(folder)


@cache
def _folder() -> TemporaryDirectory[str]:
    """A folder that is removed when the process ends."""
    return TemporaryDirectory(prefix="evergram-lineages-")
