"""The gate that every artefact passes before it is published, and the writing of its folders."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
)
from torch import Tensor

from evergram.atomic_files import new_folder
from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.compatibility.closed_forms import fit_closed_form, pairs_needed
from evergram.compatibility.kinds import TRANSFORMS
from evergram.compatibility.second_moments import (
    LONGEST,
    LengthCount,
    SecondMoments,
    vectors_problem,
)
from evergram.compatibility.transforms import Transform
from evergram.data.split import TrainedPairs
from evergram.errors import DataError, LineageError, ShapeError
from evergram.gramian.new_queries.query_form import QueryForm
from evergram.ids import INTEGER, id_hashes, refuse_other_form
from evergram.lineage.artefact import (
    Affine,
    Artefact,
    Block,
    EncoderParts,
    Moments,
    PublicationFacts,
    are_metrics,
    checked_ids,
    write_version,
)
from evergram.lineage.consumers import Consumer, ConsumerRegistry, Resolve
from evergram.lineage.paths import check_name, file_mode
from evergram.lineage.record import Manifest, sha256
from evergram.texts.record import TextEncoderRecord
from evergram.validation import sentence_of
from evergram.vector_files.open_embeddings import BLOCK
from evergram.vector_files.writers import vectors_from_arrow, write_embeddings

log: logging.Logger = logging.getLogger(__name__)
LOCK = ".lock"
# The relative error of vectors of zeros.
ZEROS = 1.0
# An error contradicts a bound if it is more than this multiple of it plus rounding.
BELIED, ROUNDING = 2.0, 1e-5
# Canaries of each side: enough for a mean, and few enough to keep for ever.
CANARIES = 1000
# Sampled rows of a side for each dim of the old and the new space: at most this many, and at least
# half of them, so that the fitted map has an excess error of a few percent. More would
# cost more than writing the vectors does.
ROWS_PER_DIM = 16
LEAST_ROWS, MOST_ROWS = 16_384, 100_000
# The forward map is fitted to at least this many pairs, if there are as many.
LEAST_PAIRS = 4096
# Rows that are converted to float64 at once.
CHUNK = 4096
# One pair in this many is held out to choose the ridge.
FOR_RIDGE = 10


# What an artefact must be.


def _is_metrics(value: Any) -> Any:
    if not are_metrics(value):
        raise ValueError(
            "it must have numbers by name in metrics.model, and in probes a list of one reading "
            "for each consumer"
        )
    return value


class _Types(BaseModel):
    """The types of an artefact's parts."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True)

    dim: int = Field(gt=0)
    embeddings: Mapping[str, Any]
    recipe: Mapping[str, Any]
    metrics: Annotated[Mapping[str, Any], AfterValidator(_is_metrics)]
    canaries: Mapping[str, Any] | None
    transform: InstanceOf[Transform] | None
    encoder: InstanceOf[EncoderParts] | None
    error: InstanceOf[StepError] | None
    trained: tuple[str, InstanceOf[TrainedPairs]] | None
    query_form: InstanceOf[QueryForm] | None
    text_encoder: InstanceOf[TextEncoderRecord] | None


def check_artefact(artefact: Artefact) -> None:
    """Refuse an artefact that can be no version; ids and vectors are checked as they are written.

    Raises: LineageError: a side has no proper name. DataError, ShapeError: a part is of another
        type, or does not fit the others.
    """
    parts = {part.name: getattr(artefact, part.name) for part in fields(artefact)}
    try:
        _Types.model_validate({name: parts[name] for name in _Types.model_fields})
    except ValidationError as error:
        raise DataError(
            f"The artefact cannot be published: {sentence_of(error, _Types)}"
        ) from error
    if not artefact.embeddings:
        raise DataError("The artefact has no embeddings; a version has at least one side.")
    for side, source in artefact.embeddings.items():
        check_name(side, "a side")
        if not callable(source) and not (isinstance(source, tuple | list) and len(source) == 2):
            raise DataError(
                f"The {side} embeddings are of type {type(source).__name__}; give ids and vectors, "
                "or a function that returns blocks of them."
            )
    for name, part in (
        ("query form", artefact.query_form),
        ("text encoder", artefact.text_encoder),
    ):
        if part is not None and part.dim != artefact.dim:
            raise ShapeError(
                f"The {name} of the artefact has dim {part.dim}, and its vectors {artefact.dim}."
            )
    if artefact.transform is not None:
        _check_transform(artefact.transform)
    if other := sorted(set(artefact.canaries or ()) - set(artefact.embeddings)):
        raise DataError(
            f"The artefact has canaries of the side {other[0]}, and embeddings of "
            f"{', '.join(artefact.embeddings)}; canaries are some of these."
        )


def check_follows(
    artefact: Artefact, address: str, newest: Manifest, version_of: Callable[[str], int | None]
) -> None:
    """Refuse an artefact that does not follow the newest version of the lineage at an address.

    Raises: LineageError: it was made after another version. ShapeError, DataError: its transform or
        error do not lead to it, or it lacks a side.
    """
    if artefact.follows is None:
        raise LineageError(
            "This artefact does not say which version its transform leads to; nothing was "
            "published. Where it leads to the newest, give "
            "follows=lineage.manifest(lineage.newest).fingerprint."
        )
    if artefact.follows != newest.fingerprint:
        number = version_of(artefact.follows)
        made = "for another lineage" if number is None else f"after version {number}"
        raise LineageError(
            f"The transform of this artefact does not lead to version {newest.version} of "
            f"{address}, the newest: the artefact was made {made}; nothing was published. "
            "Upgrade the newest version (with trained= and this model, none is trained again)."
        )
    transform, error = artefact.transform, artefact.error
    shape = None if transform is None else (transform.old_dim, transform.new_dim)
    if transform is None or shape != (newest.dim, artefact.dim):
        raise ShapeError(
            f"A version after version {newest.version} needs a transform of shape "
            f"{(newest.dim, artefact.dim)}; {shape} was given."
        )
    if error is not None:
        _check_error(error, newest.dim)
    gone = sorted(set(newest.embeddings) - set(artefact.embeddings))
    if gone:
        raise DataError(
            f"Version {newest.version} has embeddings of the side {gone[0]} and the artefact has "
            f"none, so that nobody could read this side any more; give all sides, which are "
            f"{', '.join(newest.embeddings)}."
        )


def _check_transform(transform: Transform) -> None:
    """Refuse a transform that would not be read back as it is."""
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


def _check_error(error: StepError, dim: int) -> None:
    """Raises: DataError, ShapeError: the error is not one that `StepError.of` could measure."""
    sigma = error.sigma
    if not isinstance(sigma, Tensor) or sigma.shape != (dim, dim):
        shape = list(sigma.shape) if isinstance(sigma, Tensor) else type(sigma).__name__
        raise ShapeError(
            f"The sigma of the artefact's error is {shape}; it must be [{dim}, {dim}]."
        )
    if not bool(sigma.isfinite().all()) or error.power < 0 or math.isinf(error.power):
        raise DataError(
            "The artefact's error has a NaN, an infinity or a negative power; measure it by "
            "`StepError.of`."
        )


def is_belied(bound: float, error: float) -> bool:
    """Whether the error is far above the bound; errors of other objects differ by some tenths."""
    return error > BELIED * bound + ROUNDING


def check_transform_on_canaries(
    artefact: Artefact,
    own: Mapping[str, Block],
    past: Mapping[str, Block],
) -> float | None:
    """Refuse a transform that does not lead to the version before, as its canaries show.

    Of an artefact with a model of its own it is a warning: its training would be lost.

    Args:
        own, past: the canaries of the artefact, and those that the version before kept.
    Returns: the relative error on canaries that both have; None if there are none.
    Raises: DataError: that error is far above the one that the transform comes with; or, if it
        comes with none, above that of vectors of zeros.
    """
    pairs = [_common(own[side], past[side]) for side in sorted(own.keys() & past.keys())]
    if artefact.transform is None or not sum(len(now) for now, _ in pairs):
        return None
    now, then = (torch.cat(rows) for rows in zip(*pairs, strict=True))
    with torch.no_grad():
        affine = artefact.transform.affine()
        if affine is None:
            back = artefact.transform(now).double()
        else:
            weight, offset = affine
            back = now.double() @ weight.double().T + (0 if offset is None else offset.double())
    objects, stated = len(then), _relative(artefact.error)
    power = float(then.square().sum(1).mean())
    error = float((back - then).square().sum(1).mean())
    relative = math.sqrt(error / power) if power else math.nan
    known = relative if math.isfinite(relative) else None
    wrong = relative > ZEROS if stated is None else is_belied(stated, relative)
    if objects < LEAST_OBJECTS or not wrong:
        return known
    comes = "with no error" if stated is None else f"with an error of {stated:.4g}"
    sentence = (
        f"The transform comes {comes}, and on {objects} objects that the version before "
        f"kept, its canaries, it is {relative:.4g} of their length: it does not lead from "
        "these vectors to that version's."
    )
    if artefact.encoder is not None:
        log.warning(f"{sentence} Run 'evergram lineage check' before anyone reads it.")
        return known
    raise DataError(
        f"{sentence} Nothing was published; give the transform that was fitted to these vectors, "
        "with its own error."
    )


def _common(own: Block, past: Block) -> tuple[Tensor, Tensor]:
    """Return the vectors of the canaries that both have, float32 [n, D_k] and float64 [n, D_{k-1}],
    in one order."""
    places = pc.index_in(own[0], value_set=past[0])
    rows = torch.from_numpy(np.array(places.drop_null())).long()
    return own[1][torch.from_numpy(np.array(places.is_valid()))], past[1][rows].double()


def _relative(error: StepError | None) -> float | None:
    """Return √E‖δ‖² over √E‖z‖²; None if the error was not measured on enough objects."""
    if error is None or not error.is_known:
        return None
    if not error.power > 0:  # NaN: the identity, which has none
        return error.rms
    return error.rms / math.sqrt(error.power)


def with_id_type(ids: pa.Array, expected: pa.DataType, side: str, where: str) -> pa.Array:
    """Return the ids as integers or as text, whichever those of the version before (`expected`)
    are.

    Raises: DataError: integers are expected, and an id is another text than an integer's.
    """
    if pa.types.is_integer(expected) == pa.types.is_integer(ids.type):
        return ids
    texts = ids.cast(pa.string())
    if not pa.types.is_integer(expected):
        return texts
    place = pc.index(pc.invert(pc.match_substring_regex(texts, INTEGER)), True).as_py()
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


def check_ids(ids: Mapping[str, pa.Array], before: Mapping[str, Path], where: str) -> None:
    """Refuse ids, by side, that are text where those of the version before (its files) are
    integers, or are theirs in another normal form.

    Raises: DataError.
    """
    for side in before.keys() & ids.keys():
        with_id_type(ids[side], _id_type(before[side]), side, where)
        theirs = pq.read_table(before[side], columns=["id"])["id"].combine_chunks()
        refuse_other_form(ids[side], theirs, f"the side {side}", where)


def _id_type(path: Path) -> pa.DataType:
    return pq.read_schema(path).field("id").type


def refuse_unprobed(
    address: str, metrics: Mapping[str, Any], number: int, resolve: Resolve
) -> None:
    """Refuse a version with metrics that a consumer's probe was not run on, or for which the
    consumer has had another probe, or has read another version, since the probe was run.

    Raises: LineageError.
    """
    readings = {reading["consumer"]: reading for reading in metrics.get("probes", ())}
    consumers = ConsumerRegistry.open(address).list()
    missing = [c.name for c in consumers if not _is_of(readings.get(c.name), c, number, resolve)]
    if missing:
        raise LineageError(
            f"The new version was not published: the probe of {', '.join(missing)} has not been "
            "run on it as it is now; publish it by evergram.publish(lineage, artefact), which runs "
            "every consumer's probe first."
        )


def _is_of(
    reading: Mapping[str, Any] | None, consumer: Consumer, number: int, resolve: Resolve
) -> bool:
    """Return whether a reading is of the consumer's probe as it is now, on this version."""
    probe = consumer.probe
    if probe is None or reading is None:
        return probe is None
    expected: dict[str, Any] = probe.model_dump(include={"model_sha256", "data_sha256"})
    expected |= {"pinned": consumer.pinned, "source": number}
    if any(reading.get(key) != value for key, value in expected.items()):
        return False
    # The probe of a label that is gone could not be run, and its reading says so.
    if consumer.pinned == "newest" or reading.get("value") is None:
        return True
    return reading.get("version") == resolve(consumer.pinned)


# The folders of a version, and what is measured of its vectors on the way.


class RowSample:
    """Every n-th row of a side, taken as its blocks pass; n doubles when there are too many.

    `ids` [S] and `vectors`, float32 [S, D], are those of the rows that were taken.
    """

    def __init__(self, side: str, *dims: int) -> None:
        self.side = side
        self.limit: int = min(MOST_ROWS, max(LEAST_ROWS, ROWS_PER_DIM * sum(dims)))
        self._step, self._rows = 1, 0
        self._parts: list[Block] = []
        self._lengths = LengthCount()
        self._moments: Moments | None = None

    def through(self, blocks: Iterable[Block], unknown: int = 0) -> Iterator[Block]:
        """Yield the same blocks, and sample rows of them; `unknown` of these are zeros that may be
        published.

        Raises: DataError: a vector is not finite or too long; or, at the end, the vectors cannot be
            published, see `vectors_problem`.
        """
        for ids, vectors in blocks:
            # Vectors are written as float32.
            narrow = vectors.float()
            if (row := self._lengths.add(narrow)) is not None:
                length = float(narrow[row].double().norm())
                what = f"has the length {length:.3g}, past {LONGEST:g}"
                raise DataError(
                    f"The {self.side} embedding of id {ids[row].as_py()!r} "
                    f"{what if math.isfinite(length) else 'has a NaN or an infinity'}; such a "
                    "version is not published."
                )
            for start in range(0, len(ids), BLOCK):
                self._add(ids.slice(start, BLOCK), vectors[start : start + BLOCK])
            yield ids, vectors
        _, mean, second = self.moments()
        spread = second - torch.outer(mean, mean)
        rows, zeros = self._lengths.rows - unknown, self._lengths.zeros - unknown
        problem = vectors_problem(rows, zeros, second, spread)
        if problem is not None:
            raise DataError(
                f"The {self.side} embeddings cannot be published: {problem}; look at how they were "
                "made. Nothing was published."
            )

    @property
    def ids(self) -> pa.Array:
        return pa.concat_arrays([ids for ids, _ in self._parts])

    @property
    def vectors(self) -> Tensor:
        return torch.cat([vectors for _, vectors in self._parts])

    def moments(self) -> Moments:
        """Return the number, mean and second moments of the sampled rows."""
        if self._moments is not None:
            return self._moments
        total, outer, count = torch.zeros(()).double(), torch.zeros(()).double(), 0
        for part in torch.split(self.vectors, CHUNK):
            wide = part.double()
            total, outer, count = total + wide.sum(0), outer + wide.T @ wide, count + len(wide)
        self._moments = count, total / count, outer / count
        return self._moments

    def _add(self, ids: pa.Array, vectors: Tensor) -> None:
        rows = torch.arange(len(ids))[-self._rows % self._step :: self._step]
        self._rows += len(ids)
        self._moments = None
        self._parts.append(_taken((ids, vectors), rows))
        while sum(len(ids) for ids, _ in self._parts) > self.limit:
            whole = self.ids, self.vectors
            self._parts = [_taken(whole, torch.arange(0, len(whole[0]), 2))]
            self._step *= 2


def _taken(block: Block, rows: Tensor) -> Block:
    return block[0].take(pa.array(rows.numpy())), block[1][rows].detach().float().cpu()


def canary_rows(ids: pa.Array, hashes: Tensor, past: pa.Array | None = None) -> Tensor:
    """Return the rows of the objects whose vectors are kept, at most `CANARIES`: those that the
    version before kept (`past`), then those with the lowest and the highest `id_hashes`.

    Alignment holds out low hashes and is fitted to high ones, so that canaries are of both kinds.
    """
    order = torch.argsort((hashes - 2**31).abs(), descending=True, stable=True)
    if past is not None:
        places = pc.index_in(past, value_set=ids.cast(pa.string())).drop_null()
        rows = torch.from_numpy(np.array(places)).long()
        order = torch.cat([rows, order[~torch.isin(order, rows)]])
    return order[:CANARIES]


class CanarySample:
    """Takes the canaries of one side as its blocks pass.

    Args:
        side: its name, for errors.
        wanted: the ids to keep, as strings; None picks them, see `canary_rows`.
        past: ids that the version before kept, as strings.
    Attributes:
        ids, vectors: of the canaries so far, as strings and float32 [n, D].
    """

    def __init__(
        self, side: str, wanted: pa.Array | None = None, past: pa.Array | None = None
    ) -> None:
        self.side, self.wanted, self.past = side, wanted, past
        self.ids: Any = pa.array([], pa.string())
        self.vectors: Tensor = torch.zeros(0, 0)
        self._hashes = torch.zeros(0, dtype=torch.int64)

    def through(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the same blocks. Raises: DataError: at the end, if a wanted id was in none."""
        for ids, vectors in blocks:
            self._add(ids.cast(pa.string()), vectors.detach().float().cpu())
            yield ids, vectors
        missing = set(() if self.wanted is None else self.wanted.to_pylist())
        missing -= set(self.ids.to_pylist())
        if missing:
            raise DataError(
                f"The canary {min(missing)!r} of the side {self.side} is not among the ids of the "
                "version; keep objects that it has."
            )

    def _add(self, ids: pa.Array, vectors: Tensor) -> None:
        if self.wanted is not None:
            mask = pc.is_in(ids, value_set=self.wanted)
            ids, vectors = ids.filter(mask), vectors[torch.from_numpy(np.array(mask))]
        hashes = torch.cat([self._hashes, torch.from_numpy(id_hashes(ids))])
        ids = pa.concat_arrays([self.ids, ids])
        vectors = torch.cat([self.vectors, vectors]) if len(self.ids) else vectors
        rows = torch.arange(len(ids))
        if self.wanted is None:
            rows = canary_rows(ids, hashes, self.past)
        self.ids, self._hashes = ids.take(pa.array(rows.numpy())), hashes[rows]
        self.vectors = vectors[rows]


def forward_map(samples: Mapping[str, RowSample], old: Mapping[str, Path]) -> Affine | None:
    """Return the map to a version from the version before, fitted to sampled objects of all sides
    of both; None if too few objects are in both.

    It holds the ids of one file and the sampled vectors in memory.
    """
    pairs: list[SecondMoments] = []
    for side, sample in samples.items():
        if side not in old:
            continue
        rows, before = _looked_up(sample.ids, old[side])
        new = sample.vectors[rows]
        if not pairs:
            pairs = [SecondMoments(new.shape[1], before.shape[1]) for _ in range(2)]
        for z, past in zip(torch.split(new, CHUNK), torch.split(before, CHUNK), strict=True):
            apart = torch.arange(len(z)) % FOR_RIDGE == 0
            for sums, chosen in zip(pairs, (~apart, apart), strict=True):
                sums.add(z[chosen], past[chosen])
    if not pairs:
        return None
    # The target of this map is the new version: "old" and "new" have changed places.
    seen, held_out = pairs
    if seen.count < pairs_needed("affine", seen.old_dim, seen.new_dim):
        return None
    fitted = fit_closed_form("affine", seen, held_out)
    assert fitted.offset is not None
    return fitted.weight, fitted.offset


def _looked_up(ids: pa.Array, path: Path) -> tuple[Tensor, Tensor]:
    """Return the places in `ids` [P] of some that a file has, and their vectors there [P, D]. Row
    groups are read evenly over the file, and no more of them than are needed."""
    with pq.ParquetFile(path) as file:
        theirs = file.read(columns=["id"])["id"].combine_chunks()
        if theirs.type != ids.type:
            theirs, ids = theirs.cast(pa.string()), ids.cast(pa.string())
        refuse_other_form(ids, theirs, "the new version", "the version before it")
        place = pc.fill_null(pc.index_in(ids, value_set=theirs), -1).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(place >= 0)
        rows = rows[np.argsort(place[rows], kind="stable")]  # as they come in the file
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        ends = np.searchsorted(place[rows], np.cumsum(sizes))
        starts = np.cumsum([0, *sizes])
        dim = file.schema_arrow.field("vector").type.list_size
        wanted = max(LEAST_PAIRS, ROWS_PER_DIM * (dim + 1))
        # Every n-th group, then those after them, and so on.
        stride = max(1, len(rows) // wanted)
        vectors, places, count = [torch.empty(0, dim)], [rows[:0]], 0
        for i in (i for first in range(stride) for i in range(first, len(sizes), stride)):
            mine = rows[ends[i - 1] if i else 0 : ends[i]]
            if count >= wanted or not len(mine):
                continue
            table = file.read_row_group(i, columns=["vector"])
            kept = table.take(pa.array(place[mine] - starts[i]))
            vectors.append(vectors_from_arrow(kept["vector"]))
            places.append(mine)
            count += len(mine)
    return torch.from_numpy(np.concatenate(places)), torch.cat(vectors)


def write_folders(
    place: tuple[Path, str, int],
    artefact: Artefact,
    past: Mapping[str, Block],
    before: Mapping[str, Path],
    new_pairs: TrainedPairs | None,
) -> Manifest:
    """Write both folders of a version, each under another name and then renamed.

    Args:
        place: the lineage's folder and name, and the number of the version.
        past, before: the canaries and the stored files of the version before, by side.
        new_pairs: see `PublicationFacts`.
    Raises: as `Artefact.blocks`, `RowSample.through` and `check_transform_on_canaries`.
    """
    (path, name, number), mode = place, file_mode(place[0])
    dims = [artefact.dim, *([artefact.transform.old_dim] if artefact.transform else [])]
    samples: dict[str, RowSample] = {}
    kept: dict[str, CanarySample] = {}
    hashes: dict[str, str] = {}
    with new_folder(path / "embeddings" / str(number), mode) as folder:
        for side in artefact.embeddings:
            samples[side] = RowSample(side, *dims)
            blocks = samples[side].through(
                _typed(artefact.blocks(side), before.get(side), side, name),
                artefact.unknown.get(side, 0),
            )
            kept[side] = CanarySample(side, _wanted(artefact, side), past.get(side, (None,))[0])
            write_embeddings(folder / f"{side}.parquet", kept[side].through(blocks))
            hashes[side] = sha256(folder / f"{side}.parquet")
        canaries = {s: (k.ids, k.vectors) for s, k in kept.items() if len(k.ids)}
        error = check_transform_on_canaries(artefact, canaries, past)
    moments = {side: sample.moments() for side, sample in samples.items()}
    forward = forward_map(samples, before)
    known = PublicationFacts(hashes, moments, forward, new_pairs, error, canaries)
    with new_folder(path / "versions" / str(number), mode) as folder:
        return write_version(folder, name, number, artefact, known)


def _wanted(artefact: Artefact, side: str) -> pa.Array | None:
    """Return the ids of a side's canaries as strings; None if they are not chosen."""
    if artefact.canaries is None:
        return None
    ids = artefact.canaries.get(side, ())
    if hasattr(ids, "__len__") and not len(ids):
        return pa.array([], pa.string())
    return checked_ids(ids, f"canary {side}").cast(pa.string())


def _typed(blocks: Iterable[Block], before: Path | None, side: str, where: str) -> Iterator[Block]:
    """Yield the blocks with ids of the type that they have in the file before, if there is one."""
    expected = None if before is None else _id_type(before)
    for ids, vectors in blocks:
        yield (ids if expected is None else with_id_type(ids, expected, side, where)), vectors
