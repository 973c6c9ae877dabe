"""What an artefact must be to become the next version."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from math import inf, isnan
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.compatibility.chain import Chain
from evergram.compatibility.kinds import TRANSFORMS
from evergram.compatibility.transforms import Transform
from evergram.data.pair_hash import TrainedPairs
from evergram.errors import DataError, LineageError, ShapeError
from evergram.gramian.new_queries.query_form import QueryForm
from evergram.ids import INTEGER
from evergram.lineage.artefact import Artefact, Block, EncoderParts, are_metrics, checked_blocks
from evergram.lineage.canary_check import Measured, is_belied, measure_canaries
from evergram.lineage.catalog import Catalog
from evergram.lineage.consumers import Consumer, ConsumerRegistry, Resolve
from evergram.lineage.paths import check_name
from evergram.lineage.version_files import plain_numbers
from evergram.texts.record import TextEncoderRecord

# ‖canary − vector‖ over ‖vector‖, at most: encoding a few objects alone rounds otherwise.
CANARY_ROUNDING = 1e-3
log: logging.Logger = logging.getLogger(__name__)
# The relative error of vectors of zeros.
ZEROS = 1.0
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


def with_id_type(ids: pa.Array, expected: pa.DataType, side: str, where: str) -> pa.Array:
    """Return the ids as integers or as text, whichever those of the version before are.

    Args:
        expected: the type of the ids of the version before.
        side: "query", "candidate" or "object".
        where: the lineage, for the error.
    Raises: DataError: integers are expected, and an id is another text than an integer's.
    """
    if pa.types.is_integer(expected) == pa.types.is_integer(ids.type):
        return ids
    if not pa.types.is_integer(expected):
        return ids.cast(pa.string())
    texts = ids.cast(pa.string())
    other = pc.invert(pc.match_substring_regex(texts, INTEGER))
    place = pc.index(other, True).as_py()
    if place < 0:
        try:
            return texts.cast(pa.int64())
        except pa.ArrowInvalid:
            place = pc.index(pc.greater(pc.utf8_length(texts), 18), True).as_py()
    raise DataError(
        f"The {side} ids in {where} are integers, and now there is the text "
        f"{texts[place].as_py()!r}: consumers and stores that ask by integers would find nothing "
        "any more. Nothing was published; make it an integer or leave it out, or begin a new "
        "lineage with ids of text."
    )


def blocks_with_id_type(
    blocks: Iterable[Block], expected: pa.DataType | None, side: str, where: str
) -> Iterator[Block]:
    """Yield the blocks with ids as in `with_id_type`; unchanged where no type is expected."""
    for ids, vectors in blocks:
        yield (ids if expected is None else with_id_type(ids, expected, side, where)), vectors


class CanaryCheck:
    """The canaries of one side; `through` passes its blocks on, and refuses canaries that differ.

    Args:
        ids, vectors: of the canaries, as `Artefact` takes them.
        side: its name, for errors.
        dim: D.
    Raises: DataError, ShapeError: they are no vectors by id, each id once.
    """

    def __init__(self, ids: Any, vectors: Any, side: str, dim: int) -> None:
        self.side = side
        [(keys, rows)] = checked_blocks([(ids, vectors)], f"canary {side}", dim)
        self.ids: Any = keys
        self.vectors: Tensor = rows.detach().float().cpu()

    def through(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the same blocks.

        Raises: DataError: at the end, if a canary's id was in none of them; before it, if its
            vector is another.
        """
        missing = set(self.ids.to_pylist())
        for ids, vectors in blocks:
            mine = self._as_type(ids.type)
            at = pc.fill_null(pc.index_in(ids, value_set=mine), -1).to_numpy(zero_copy_only=False)
            rows = torch.from_numpy((at >= 0).nonzero()[0])
            for row, place in zip(rows.tolist(), at[at >= 0].tolist(), strict=True):
                own, kept = vectors[row].detach().float().cpu(), self.vectors[place]
                # A NaN is at no distance.
                if not float((own - kept).norm()) <= CANARY_ROUNDING * float(own.norm()):
                    raise DataError(
                        f"The canary {self.ids[place].as_py()!r} of the side {self.side} is not "
                        "the vector that the version has for it; give that vector."
                    )
                missing.discard(self.ids[place].as_py())
            yield ids, vectors
        if missing:
            raise DataError(
                f"The canary {min(missing, key=str)!r} of the side {self.side} is not among the "
                "ids of the version; keep objects that it has."
            )

    def _as_type(self, kind: pa.DataType) -> pa.Array:
        """Return the ids as the version has them; those that cannot be so stay apart."""
        if kind == self.ids.type:
            return self.ids
        if pa.types.is_string(kind):
            return self.ids.cast(pa.string())
        numeric = pc.match_substring_regex(self.ids, r"^-?[0-9]{1,18}$")
        return pc.if_else(numeric, self.ids, None).cast(pa.int64())


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


def check_artefact(catalog: Catalog, artefact: Artefact) -> None:
    """Refuse an artefact that cannot be the next version.

    Ids and vectors are checked as they are written, and canaries compared with them.

    Raises: LineageError: it was made after another version, or a side has no proper name.
        DataError: its metrics are of another form, or it has no embeddings. ShapeError: its
        transform, error or canaries do not fit.
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


def refuse_unprobed(
    address: str, metrics: Mapping[str, Any], number: int, resolve: Resolve
) -> None:
    """Refuse a version that a consumer's probe was not run on, or for which the consumer has had
    another probe, or has read another version, since the probe was run.

    Args:
        metrics: of the version; `evergram.publish` adds the reading of each probe, as "probes".
        number: of the version.
        resolve: returns the number of a version or label of the lineage as it is now.
    Raises: LineageError.
    """
    readings = {reading.get("consumer"): reading for reading in metrics.get("probes", ())}
    missing = [
        consumer.name
        for consumer in ConsumerRegistry.open(address).list()
        if consumer.probe is not None
        and not _is_of(readings.get(consumer.name), consumer, number, resolve)
    ]
    if missing:
        who = ", ".join(missing)
        raise LineageError(
            f"The new version was not published: the probe of {who} has not been run on it as it "
            "is now; publish it by evergram.publish(lineage, artefact), which runs every "
            "consumer's probe first."
        )


def _is_of(
    reading: Mapping[str, Any] | None, consumer: Consumer, number: int, resolve: Resolve
) -> bool:
    """Say whether a reading is of this consumer's probe as it is now, on this version."""
    probe = consumer.probe
    assert probe is not None
    if reading is None:
        return False
    read = number
    if consumer.pinned != "newest":
        # If the label is gone, the probe could not be run, and its reading says so.
        with suppress(LineageError):
            read = resolve(consumer.pinned)
    expected = (consumer.pinned, number, probe.model_sha256, probe.data_sha256)
    actual = tuple(reading.get(k) for k in ("pinned", "source", "model_sha256", "data_sha256"))
    return actual == expected and (reading.get("version") == read or reading.get("value") is None)
