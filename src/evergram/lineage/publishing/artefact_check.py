"""What an artefact must be to become the next version, checked before anything is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf, isnan
from typing import Any

import torch
from torch import Tensor

from evergram.compatibility.certificate import StepError
from evergram.compatibility.kinds import TRANSFORMS
from evergram.compatibility.transforms import Transform
from evergram.data.pair_hash import TrainedPairs
from evergram.errors import DataError, LineageError, ShapeError
from evergram.gramian.new_queries.query_form import QueryForm
from evergram.lineage.artefact import Artefact, EncoderParts, are_metrics
from evergram.lineage.catalog.catalog import Catalog
from evergram.lineage.disk.names import check_name
from evergram.lineage.disk.plain_json import plain_numbers
from evergram.lineage.publishing.canary_check import CanaryCheck
from evergram.texts.record import TextEncoderRecord

# Of σ's largest entry or of a coordinate's mean square, what rounding may make of its symmetry and
# of its least eigenvalue.
ROUNDING = 1e-6
# What an artefact may have or not.
PARTS: dict[str, type] = {
    "encoder": EncoderParts,
    "error": StepError,
    "query_form": QueryForm,
    "text_encoder": TextEncoderRecord,
}


def check_artefact(catalog: Catalog, artefact: Artefact) -> None:
    """Refuse an artefact that cannot be the next version; see `Lineage.check_artefact`.

    Ids and vectors are checked as they are written, and canaries compared with them.
    """
    if isinstance(artefact.dim, bool) or not isinstance(artefact.dim, int) or artefact.dim < 1:
        raise ShapeError(f"dim is {artefact.dim!r}; it must be a whole number ≥ 1.")
    _check_mapping(artefact.embeddings, "embeddings", "ids and vectors by side")
    _check_mapping(artefact.recipe, "recipe", "settings by name")
    if artefact.trained is not None and not (
        isinstance(artefact.trained, tuple)
        and len(artefact.trained) == 2
        and isinstance(artefact.trained[0], str)
        and isinstance(artefact.trained[1], TrainedPairs)
    ):
        raise DataError(
            "trained of an artefact must be a salt, which is a text, and TrainedPairs in a tuple; "
            "or None, if no model was trained."
        )
    if not artefact.embeddings:
        raise DataError("The artefact has no embeddings; a version has at least one side.")
    for side, source in artefact.embeddings.items():
        check_name(side, "a side")
        if not callable(source):
            _check_pair(source, f"{side} embeddings", ", or a function that returns blocks of them")
    check_canaries(artefact)
    for name, kind in PARTS.items():
        if not isinstance(getattr(artefact, name), kind | None):
            raise DataError(
                f"{name} of an artefact is of type {type(getattr(artefact, name)).__name__}; it "
                f"must be {kind.__name__}, as training makes it, or None."
            )
    record = artefact.text_encoder
    if record is not None and record.dim != artefact.dim:
        raise ShapeError(
            f"The text encoder {record.address} has {record.dim} dims and the version "
            f"{artefact.dim}; give the record of the encoder that made these vectors."
        )
    if not are_metrics(artefact.metrics):
        raise DataError(
            "The metrics of a version must have numbers by name in metrics.model, and in probes a "
            "list of one reading for each consumer; nothing was published."
        )
    for name, value in (("metrics", artefact.metrics), ("recipe", artefact.recipe)):
        _check_json(name, value)
    if artefact.query_form is not None and artefact.query_form.dim != artefact.dim:
        raise ShapeError(
            f"The query form of the artefact is of dim {artefact.query_form.dim}, and its vectors "
            f"are of dim {artefact.dim}."
        )
    if artefact.transform is not None:
        _check_transform(artefact.transform)
    if catalog.next_version:
        _check_predecessor(catalog, artefact)
    elif artefact.transform is not None:
        raise ShapeError("Version 0 has no version before it and takes no transform.")


def check_canaries(artefact: Artefact) -> dict[str, CanaryCheck]:
    """Return what compares the canaries of each side with its vectors.

    Raises: DataError, ShapeError: they cannot be any version's.
    """
    other = sorted(set(artefact.canaries) - set(artefact.embeddings))
    if other:
        raise DataError(
            f"The artefact has canaries of the side {other[0]}, and embeddings of "
            f"{', '.join(artefact.embeddings)}; canaries are some of these."
        )
    for side, block in artefact.canaries.items():
        _check_pair(block, f"canaries of the side {side}")
    return {
        side: CanaryCheck(ids, vectors, side, artefact.dim)
        for side, (ids, vectors) in artefact.canaries.items()
        if not hasattr(ids, "__len__") or len(ids)
    }


def _check_mapping(value: Any, name: str, what: str) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise DataError(
            f"{name} of an artefact must be a dictionary of {what}, with texts as its keys; it is "
            f"of type {type(value).__name__}."
        )


def _check_pair(block: Any, name: str, otherwise: str = "") -> None:
    if not isinstance(block, tuple | list) or len(block) != 2:
        raise DataError(
            f"The {name} are of type {type(block).__name__}; give ids and vectors{otherwise}."
        )


def _check_transform(transform: Transform) -> None:
    """Refuse a transform that would not be read back as it is."""
    if not isinstance(transform, Transform):
        raise ShapeError(
            f"transform is of type {type(transform).__name__}; it must be a Transform, "
            "and an Aligner's as_transform() is one."
        )
    if transform.kind not in TRANSFORMS:
        raise ShapeError(
            f"The transform {transform.kind!r} is none of {', '.join(TRANSFORMS)}; register its "
            "settings in TRANSFORMS, so that it can be read back."
        )
    owner = TRANSFORMS[transform.kind].transform_class()
    if type(transform) is not owner:
        raise ShapeError(
            f"{type(transform).__name__} has the kind {transform.kind!r}, which is read back as "
            f"{owner.__name__}; give your class a kind of its own."
        )
    for name, values in transform.state_dict().items():
        if not bool(values.isfinite().all()):
            raise DataError(f"The transform's {name} has a NaN or an infinity.")


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
        assert transform is not None
        _check_measured(artefact.error, transform)
    gone = sorted(set(catalog.manifest(catalog.newest).embeddings) - set(artefact.embeddings))
    if gone:
        raise DataError(
            f"Version {catalog.newest} has embeddings of the side {gone[0]} and the artefact has "
            f"none, so that nobody could read this side any more; give all sides, which are "
            f"{', '.join(catalog.manifest(catalog.newest).embeddings)}."
        )


def _check_error(error: StepError, old_dim: int) -> None:
    sigma = error.sigma
    if not isinstance(sigma, Tensor) or sigma.shape != (old_dim, old_dim):
        shape = list(sigma.shape) if isinstance(sigma, Tensor) else type(sigma).__name__
        raise ShapeError(
            f"The sigma of the artefact's error is {shape}; that of its transform is "
            f"[{old_dim}, {old_dim}]."
        )
    if isinstance(error.objects, bool) or not isinstance(error.objects, int) or error.objects < 0:
        raise DataError(f"The artefact's error is over {error.objects!r} objects; give a count.")
    if not isinstance(error.power, float) or not (isnan(error.power) or 0 <= error.power < inf):
        raise DataError(
            f"The power of the artefact's error is {error.power!r}; it is a mean square."
        )
    if not bool(sigma.isfinite().all()):
        raise DataError("The sigma of the artefact's error has a NaN or an infinity.")
    wide = sigma.detach().double().cpu()
    power = 0.0 if isnan(error.power) else error.power
    rounding = ROUNDING * max(float(wide.abs().max()), power / old_dim)
    uneven = float((wide - wide.T).abs().max()) > rounding
    if uneven or float(torch.linalg.eigvalsh(wide)[0]) < -rounding:
        raise DataError(
            "The sigma of the artefact's error is no mean of δ ⊗ δ: it must be symmetric without "
            "negative eigenvalues, as `StepError.of` makes it."
        )


def _check_measured(error: StepError, transform: Transform) -> None:
    """Refuse an error that was not measured, unless the transform changes nothing."""
    if not isnan(error.power):
        return
    points = torch.cat([torch.eye(transform.new_dim), torch.zeros(1, transform.new_dim)])
    with torch.no_grad():
        moved = transform(points)
    if moved.shape != points.shape or not torch.equal(moved, points):
        raise DataError(
            "The artefact's error has no power, which says that its transform is the identity and "
            "needs no measurement; it is another, so measure it by `StepError.of`."
        )


def _check_json(name: str, value: Mapping[str, Any]) -> None:
    try:
        json.dumps(plain_numbers(value))
    except (TypeError, ValueError) as error:
        problem = " ".join(str(error).split()).rstrip(".")
        raise DataError(
            f"The {name} of the artefact cannot be written as JSON ({problem}); use texts, "
            "numbers, lists and tables of these."
        ) from error
