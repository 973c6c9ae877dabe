"""A transform is tried on the canaries of the version before, against the error it comes with."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import pyarrow as pa

from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.compatibility.chain import Chain
from evergram.errors import DataError
from evergram.lineage.artefact import Artefact, Block
from evergram.lineage.canary_check import Measured, is_belied, measure_canaries
from evergram.lineage.publishing.artefact_check import check_canaries

log: logging.Logger = logging.getLogger(__name__)
# The relative error of vectors of zeros.
ZEROS = 1.0


def check_transform_on_canaries(
    artefact: Artefact, past: Mapping[str, Block], newest: int
) -> float | None:
    """Refuse a transform that does not lead to the version before, as its canaries show.

    Of an artefact with a model of its own it is a warning: its training would be lost.

    Returns: the relative error on canaries that both have; None if there are none.

    Args:
        artefact: that could be the next version; see `check_artefact`.
        past: of each side, ids (as strings) and vectors [n, D] that version `newest` kept.
    Raises: DataError: the error on canaries that both have is far above the one that the transform
        comes with; or, if it comes with none, above that of vectors of zeros.
    """
    measured, stated = _measured(artefact, past), _relative(artefact.error)
    if measured is None:
        return None
    known = measured.relative if math.isfinite(measured.relative) else None
    if measured.objects < LEAST_OBJECTS:
        return known
    if stated is None and not measured.relative > ZEROS:
        return known
    if stated is not None and not is_belied(stated, measured):
        return known
    comes = "with no error" if stated is None else f"with an error of {stated:.4g}"
    sentence = (
        f"The transform comes {comes}, and on {measured.objects} objects that version {newest} "
        f"kept, its canaries, it is {measured.relative:.4g} of their length: it does not lead from "
        "these vectors to that version's."
    )
    if artefact.encoder is not None:
        log.warning(f"{sentence} Run 'evergram lineage check' before anyone reads it.")
        return known
    raise DataError(
        f"{sentence} Nothing was published; give the transform that was fitted to these vectors, "
        "with its own error."
    )


def _relative(error: StepError | None) -> float | None:
    """Return √E‖δ‖² over √E‖z‖²; None if the error was not measured on enough objects."""
    if error is None or not error.is_known:
        return None
    if not error.power > 0:  # NaN: the identity, which has none
        return error.rms
    return error.rms / math.sqrt(error.power)


def _measured(artefact: Artefact, past: Mapping[str, Block]) -> Measured | None:
    """Return the error of the transform on canaries of both versions; None if there are none."""
    checked = check_canaries(artefact)
    own = {side: (c.ids.cast(pa.string()), c.vectors) for side, c in checked.items()}
    if artefact.transform is None or not own or not past:
        return None
    chain = Chain([artefact.transform], artefact.transform.old_dim)
    return measure_canaries(chain, {0: past, 1: own}, 1, 0)
