"""What an artefact must be to become the next version, checked before anything is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import Transform
from evergram.errors import DataError, LineageError, ShapeError
from evergram.lineage.artefact import Artefact, are_metrics
from evergram.lineage.catalog.catalog import Catalog
from evergram.lineage.disk.names import check_name
from evergram.lineage.disk.plain_json import plain_numbers
from evergram.lineage.publishing.block_check import checked_block


def check_artefact(catalog: Catalog, artefact: Artefact) -> None:
    """Refuse an artefact that cannot be the next version; see `Lineage.check_artefact`.

    Ids and vectors that are not canaries are checked as they are written.
    """
    if isinstance(artefact.dim, bool) or not isinstance(artefact.dim, int) or artefact.dim < 1:
        raise ShapeError(f"dim is {artefact.dim!r}; it must be a whole number ≥ 1.")
    if not artefact.embeddings:
        raise DataError("The artefact has no embeddings; a version has at least one side.")
    for side in artefact.embeddings:
        check_name(side, "a side")
    for side, (ids, vectors) in artefact.canaries.items():
        checked_block(ids, vectors, side, artefact.dim)
    if not are_metrics(artefact.metrics):
        raise DataError(
            "The metrics of a version must have numbers by name in metrics.model, and in probes a "
            "list of one reading for each consumer; nothing was published."
        )
    for name, value in (("metrics", artefact.metrics), ("recipe", artefact.recipe)):
        _check_json(name, value)
    if artefact.transform is not None and not isinstance(artefact.transform, Transform):
        raise ShapeError(
            f"transform is of type {type(artefact.transform).__name__}; it must be a Transform, "
            "and an Aligner's as_transform() is one."
        )
    if catalog.next_version:
        _check_predecessor(catalog, artefact)
    elif artefact.transform is not None:
        raise ShapeError("Version 0 has no version before it and takes no transform.")


def _check_predecessor(catalog: Catalog, artefact: Artefact) -> None:
    if artefact.follows is None:
        raise LineageError(
            "This artefact does not say which version its transform leads to; nothing was "
            "published. Where it leads to the newest, give "
            "follows=lineage.manifest(lineage.newest).fingerprint."
        )
    if artefact.follows != catalog.manifest(catalog.newest).fingerprint:
        number = catalog.version_of(artefact.follows)
        made = "for another lineage" if number is None else f"after version {number}"
        raise LineageError(
            f"The transform of this artefact does not lead to version {catalog.newest} of "
            f"{catalog.address}, the newest: the artefact was made {made}; nothing was published. "
            "Upgrade the newest version (with trained= and this model, none is trained again)."
        )
    transform, old_dim = artefact.transform, catalog.manifest(catalog.newest).dim
    shape = None if transform is None else (transform.old_dim, transform.new_dim)
    if shape != (old_dim, artefact.dim):
        raise ShapeError(
            f"Version {catalog.next_version} needs a transform of shape "
            f"{(old_dim, artefact.dim)}; {shape} was given."
        )
    if artefact.error is not None:
        _check_error(artefact.error, old_dim)


def _check_error(error: StepError, old_dim: int) -> None:
    sigma = error.sigma
    if not isinstance(sigma, Tensor) or sigma.shape != (old_dim, old_dim):
        shape = list(sigma.shape) if isinstance(sigma, Tensor) else type(sigma).__name__
        raise ShapeError(
            f"The sigma of the artefact's error is {shape}; that of its transform is "
            f"[{old_dim}, {old_dim}]."
        )
    if not bool(sigma.isfinite().all()):
        raise DataError("The sigma of the artefact's error has a NaN or an infinity.")


def _check_json(name: str, value: Mapping[str, Any]) -> None:
    try:
        json.dumps(plain_numbers(value))
    except (TypeError, ValueError) as error:
        problem = " ".join(str(error).split()).rstrip(".")
        raise DataError(
            f"The {name} of the artefact cannot be written as JSON ({problem}); use texts, "
            "numbers, lists and tables of these."
        ) from error
