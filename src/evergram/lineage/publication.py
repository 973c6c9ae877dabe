"""The gate that every artefact passes before it is published, and the writing of its folders."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError
from torch import Tensor

from evergram.atomic_files import new_folder, write_text
from evergram.compatibility import closed_forms
from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.compatibility.chain import Chain
from evergram.compatibility.kinds import TRANSFORMS
from evergram.compatibility.transforms import Transform
from evergram.data.corpus import Vocabulary
from evergram.data.split import TrainedPairs
from evergram.errors import DataError, LineageError, ShapeError
from evergram.gramian.query_form import QueryForm
from evergram.ids import INTEGER, id_hashes, refuse_other_form
from evergram.lineage.artefact import (
    PAIRS,
    Affine,
    Artefact,
    Block,
    EncoderParts,
    MetricsForm,
    Moments,
    checked_ids,
    plain_numbers,
    save_tensors,
    write_query_form,
    write_trained_pairs,
)
from evergram.lineage.consumers import Consumer, ConsumerRegistry, Resolve
from evergram.lineage.locks import file_mode
from evergram.lineage.record import EncoderRecord, Manifest, TransformRecord, check_name, sha256
from evergram.texts.record import TextEncoderRecord
from evergram.validation import sentence_of
from evergram.vector_files.open_embeddings import (
    BLOCK,
    vectors_from_arrow,
    vectors_to_arrow,
    write_vectors,
)

log: logging.Logger = logging.getLogger(__name__)
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


class _Types(BaseModel):
    """The types of an artefact's parts."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True, from_attributes=True)

    dim: int = Field(gt=0)
    embeddings: Annotated[Mapping[str, Any], Field(min_length=1)]
    recipe: Mapping[str, Any]
    metrics: MetricsForm
    canaries: Mapping[str, Any] | None
    transform: InstanceOf[Transform] | None
    encoder: InstanceOf[EncoderParts] | None
    error: InstanceOf[StepError] | None
    trained: tuple[str, InstanceOf[TrainedPairs]] | None
    query_form: InstanceOf[QueryForm] | None
    text_encoder: InstanceOf[TextEncoderRecord] | None


def check_artefact(artefact: Artefact) -> None:
    """Refuse an artefact that can be no version; its blocks are checked as they are written."""
    try:
        _Types.model_validate(artefact)
    except ValidationError as error:
        reason = sentence_of(error, _Types)
        raise DataError(f"The artefact cannot be published: {reason}") from error
    for side, source in artefact.embeddings.items():
        check_name(side, "the name of a side")
        if not callable(source) and not (isinstance(source, tuple | list) and len(source) == 2):
            wanted = "ids and vectors, or a function that returns blocks of them"
            kind = type(source).__name__
            raise DataError(f"The {side} embeddings are of type {kind}; give {wanted}.")
    for part in (artefact.query_form, artefact.text_encoder):
        if part is not None and part.dim != artefact.dim:
            what = f"The {type(part).__name__} of the artefact has dim {part.dim}"
            raise ShapeError(f"{what}, and its vectors {artefact.dim}.")
    if other := sorted(set(artefact.canaries or ()) - set(artefact.embeddings)):
        raise DataError(f"The artefact has canaries of the side {other[0]}, and no embeddings.")
    transform = artefact.transform
    if transform is None:
        return
    settings = TRANSFORMS.get(transform.kind)
    if settings is None or type(transform) is not settings.transform_class():
        raise ShapeError(
            f"A {type(transform).__name__} of kind {transform.kind!r} could not be read back; "
            f"the kinds are {', '.join(TRANSFORMS)}. Register the settings of your own there."
        )
    for name, values in transform.state_dict().items():
        if not bool(values.isfinite().all()):
            raise DataError(f"The transform's {name} has a NaN or an infinity.")


def check_follows(
    artefact: Artefact, address: str, newest: Manifest, version_of: Callable[[str], int | None]
) -> None:
    """Refuse an artefact that does not follow the newest version of the lineage at an address."""
    if artefact.follows is None:
        raise LineageError(
            "This artefact does not say which version its transform leads to; for the newest, give "
            "follows=lineage.manifest(lineage.newest).fingerprint."
        )
    if artefact.follows != newest.fingerprint:
        number = version_of(artefact.follows)
        made = "for another lineage" if number is None else f"after version {number}"
        raise LineageError(
            f"The transform of this artefact does not lead to version {newest.version} of "
            f"{address}, the newest: it was made {made}; upgrade the newest version (trained= "
            "takes this model as it is)."
        )
    transform, error = artefact.transform, artefact.error
    shape = None if transform is None else (transform.old_dim, transform.new_dim)
    if shape != (newest.dim, artefact.dim):
        needed = f"needs a transform of shape {(newest.dim, artefact.dim)}; {shape} was given"
        raise ShapeError(f"A version after version {newest.version} {needed}.")
    if error is not None:
        if error.sigma.shape != (newest.dim, newest.dim):
            shape = newest.dim, newest.dim
            has = f"The sigma of the artefact's error is {list(error.sigma.shape)}"
            raise ShapeError(f"{has}; it must be {list(shape)}.")
        if not error.sigma.isfinite().all() or error.power < 0 or math.isinf(error.power):
            raise DataError("The artefact's error is not finite; measure it by `StepError.of`.")
    if gone := sorted(set(newest.embeddings) - set(artefact.embeddings)):
        raise DataError(
            f"Version {newest.version} has embeddings of the side {gone[0]} and the artefact has "
            f"none; give all sides: {', '.join(newest.embeddings)}."
        )


@dataclass(frozen=True)
class Measured:
    """The true error on the canaries of both versions: of z_k read as j, to z_j as published."""

    objects: int
    error: float  # root of the mean of ‖z̃_j − z_j‖²
    relative: float  # that over the root of the mean of ‖z_j‖²
    cosine: float  # mean, of z̃_j and z_j


def measure_canaries(
    chain: Chain, canaries: Mapping[int, Mapping[str, Block]], source: int, target: int
) -> Measured | None:
    """Return the error of reading version `source` as `target`, on canaries of both; None if there
    are none. `canaries` are by version and side."""
    pairs = common_canaries(canaries[target], canaries[source])
    if not pairs:
        return None
    past, now = (torch.cat(rows) for rows in zip(*pairs.values(), strict=True))
    back = chain.apply(now, source, target)
    power = float(past.square().sum(1).mean())
    error = float((back - past).square().sum(1).mean())
    return Measured(
        len(past),
        math.sqrt(error),
        math.sqrt(error / power) if power else math.nan,
        float(torch.nn.functional.cosine_similarity(back, past).mean()),
    )


def common_canaries(
    past: Mapping[str, Block], now: Mapping[str, Block]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the vectors, float64, of the canaries that two versions have in common, by side and in
    one order; without sides that have none."""
    pairs = {}
    for side in sorted(past.keys() & now.keys()):
        rows = Vocabulary(now[side][0]).rows(past[side][0])
        if bool((rows >= 0).any()):
            then = past[side][1][rows >= 0].double()
            pairs[side] = then, now[side][1][rows[rows >= 0]].double()
    return pairs


def is_belied(bound: float, error: float) -> bool:
    """Whether the error is far above the bound; errors of other objects differ by some tenths."""
    return error > BELIED * bound + ROUNDING


def check_transform_on_canaries(
    artefact: Artefact, own: Mapping[str, Block], past: Mapping[str, Block]
) -> float | None:
    """Refuse a transform that does not lead to the version before, as the canaries of both show; of
    an artefact with a model it is a warning, as its training would be lost. Returns: the relative
    error on common canaries; None if there are none."""
    transform, error = artefact.transform, artefact.error
    if transform is None:
        return None
    chain = Chain([transform], transform.old_dim)
    measured = measure_canaries(chain, {0: past, 1: own}, 1, 0)
    if measured is None:
        return None
    stated = None
    if error is not None and error.is_known:
        # Without a power it is the identity, which has no error.
        stated = error.rms / math.sqrt(error.power) if error.power > 0 else error.rms
    relative = measured.relative
    wrong = relative > ZEROS if stated is None else is_belied(stated, relative)
    if measured.objects >= LEAST_OBJECTS and wrong:
        comes = "with no error" if stated is None else f"with an error of {stated:.4g}"
        sentence = (
            f"The transform comes {comes}, and on {measured.objects} objects that the version "
            f"before kept, its canaries, it is {relative:.4g} of their length: it does not lead "
            "from these vectors to that version's."
        )
        if artefact.encoder is None:
            todo = "give the transform that was fitted to these vectors, with its own error"
            raise DataError(f"{sentence} Nothing was published; {todo}.")
        log.warning(f"{sentence} Run 'evergram lineage check' before anyone reads it.")
    return relative if math.isfinite(relative) else None


def with_id_type(ids: pa.Array, expected: pa.DataType, side: str, where: str) -> pa.Array:
    """Return the ids as integers or as text, whichever those of the version before (`expected`)
    are."""
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
        f"{texts[place].as_py()!r}; make it an integer or leave it out."
    )


def check_ids(ids: Mapping[str, pa.Array], before: Mapping[str, Path], where: str) -> None:
    """Refuse ids, by side, that are text where those of the version before (its files) are
    integers, or are theirs in another normal form."""
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
    consumer has had another probe, or has read another version, since the probe was run."""
    readings = {reading["consumer"]: reading for reading in metrics.get("probes", ())}
    consumers = ConsumerRegistry.open(address).list()
    missing = [c.name for c in consumers if not _is_of(readings.get(c.name), c, number, resolve)]
    if missing:
        raise LineageError(
            f"The new version was not published: the probe of {', '.join(missing)} has not been "
            "run on it as it is now, as evergram.publish(lineage, artefact) does."
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
    if expected != {key: reading.get(key) for key in expected}:
        return False
    # The probe of a label that is gone could not be run, and its reading says so.
    if consumer.pinned == "newest" or reading.get("value") is None:
        return True
    return reading.get("version") == resolve(consumer.pinned)


# The folders of a version, and what is measured of its vectors on the way.


class RowSample:
    """Every n-th row of a side, taken as its blocks pass; n doubles when there are too many. `ids`
    [S] and `vectors`, float32 [S, D], are of the rows that were taken."""

    moments: Moments  # of these rows, once all blocks have passed

    def __init__(self, side: str, *dims: int) -> None:
        self.side = side
        self.limit: int = min(MOST_ROWS, max(LEAST_ROWS, ROWS_PER_DIM * sum(dims)))
        self._parts: list[Block] = []

    def through(self, blocks: Iterable[Block], unknown: int = 0) -> Iterator[Block]:
        """Yield the same blocks, and sample rows of them; `unknown` of these are zeros that may be
        published."""
        lengths, passed, step = closed_forms.LengthCount(), 0, 1
        for ids, vectors in blocks:
            # Vectors are written as float32.
            narrow = vectors.float()
            if (row := lengths.add(narrow)) is not None:
                length = float(narrow[row].double().norm())
                what = f"has the length {length:.3g}, past {closed_forms.LONGEST:g}"
                what = what if math.isfinite(length) else "has a NaN or an infinity"
                raise DataError(f"The {self.side} embedding of id {ids[row].as_py()!r} {what}.")
            for start in range(0, len(ids), BLOCK):
                part = ids.slice(start, BLOCK), vectors[start : start + BLOCK]
                self._parts.append(_taken(part, torch.arange(len(part[0]))[-passed % step :: step]))
                passed += len(part[0])
                while sum(len(ids) for ids, _ in self._parts) > self.limit:
                    whole = self.ids, self.vectors
                    self._parts = [_taken(whole, torch.arange(0, len(whole[0]), 2))]
                    step *= 2
            yield ids, vectors
        self.moments = _, mean, second = _moments(self.vectors)
        spread = second - torch.outer(mean, mean)
        rows, zeros = lengths.rows - unknown, lengths.zeros - unknown
        problem = closed_forms.vectors_problem(rows, zeros, second, spread)
        if problem is not None:
            raise DataError(f"The {self.side} embeddings cannot be published: {problem}.")

    @property
    def ids(self) -> pa.Array:
        return pa.concat_arrays([ids for ids, _ in self._parts])

    @property
    def vectors(self) -> Tensor:
        return torch.cat([vectors for _, vectors in self._parts])


def _moments(vectors: Tensor) -> Moments:
    total, outer = torch.zeros(()).double(), torch.zeros(()).double()
    for part in torch.split(vectors, CHUNK):
        wide = part.double()
        total, outer = total + wide.sum(0), outer + wide.T @ wide
    return len(vectors), total / len(vectors), outer / len(vectors)


def _taken(block: Block, rows: Tensor) -> Block:
    return block[0].take(pa.array(rows.numpy())), block[1][rows].detach().float().cpu()


def canary_rows(ids: pa.Array, hashes: Tensor, past: pa.Array | None = None) -> Tensor:
    """Return the rows of the objects whose vectors are kept, at most `CANARIES`: those that the
    version before kept (`past`), then those with the lowest and the highest `id_hashes`. Alignment
    holds out low hashes and is fitted to high ones, so that canaries are of both kinds."""
    order = torch.argsort((hashes - 2**31).abs(), descending=True, stable=True)
    if past is not None:
        places = pc.index_in(past, value_set=ids.cast(pa.string())).drop_null()
        rows = torch.from_numpy(np.array(places)).long()
        order = torch.cat([rows, order[~torch.isin(order, rows)]])
    return order[:CANARIES]


class CanarySample:
    """Takes the canaries of one side as its blocks pass: `ids`, strings, and `vectors`, float32
    [n, D], are of those so far.

    Args:
        wanted: the ids to keep, as strings; None picks them, see `canary_rows`.
        past: ids that the version before kept, as strings.
    """

    def __init__(
        self, side: str, wanted: pa.Array | None = None, past: pa.Array | None = None
    ) -> None:
        self.side, self.wanted, self.past = side, wanted, past
        self.ids: Any = pa.array([], pa.string())
        self.vectors: Tensor = torch.zeros(0, 0)

    def through(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the same blocks. Raises: DataError: at the end, if a wanted id was in none."""
        hashes = torch.zeros(0, dtype=torch.int64)
        for block in blocks:
            ids, vectors = block[0].cast(pa.string()), block[1].detach().float().cpu()
            if self.wanted is not None:
                mask = pc.is_in(ids, value_set=self.wanted)
                ids, vectors = ids.filter(mask), vectors[torch.from_numpy(np.array(mask))]
            hashes = torch.cat([hashes, torch.from_numpy(id_hashes(ids))])
            vectors = torch.cat([self.vectors, vectors]) if len(self.ids) else vectors
            ids = pa.concat_arrays([self.ids, ids])
            rows = torch.arange(len(ids))
            if self.wanted is None:
                rows = canary_rows(ids, hashes, self.past)
            self.ids, self.vectors = ids.take(pa.array(rows.numpy())), vectors[rows]
            hashes = hashes[rows]
            yield block
        missing = set(() if self.wanted is None else self.wanted.to_pylist())
        missing -= set(self.ids.to_pylist())
        if missing:
            canary = f"The canary {min(missing)!r} of the side {self.side}"
            raise DataError(f"{canary} is not among the ids of the version.")


def forward_map(samples: Mapping[str, RowSample], old: Mapping[str, Path]) -> Affine | None:
    """Return the map to a version from the version before, fitted to sampled objects of all sides
    of both; None if too few objects are in both. It holds the ids of one file and the sampled
    vectors in memory."""
    pairs: list[closed_forms.SecondMoments] = []
    for side, sample in samples.items():
        if side not in old:
            continue
        rows, before = _looked_up(sample.ids, old[side])
        new = sample.vectors[rows]
        if not pairs:
            pairs = [closed_forms.SecondMoments(new.shape[1], before.shape[1]) for _ in range(2)]
        for z, past in zip(torch.split(new, CHUNK), torch.split(before, CHUNK), strict=True):
            apart = torch.arange(len(z)) % FOR_RIDGE == 0
            for sums, chosen in zip(pairs, (~apart, apart), strict=True):
                sums.add(z[chosen], past[chosen])
    if not pairs:
        return None
    # The target of this map is the new version: "old" and "new" have changed places.
    seen, held_out = pairs
    if seen.count < closed_forms.pairs_needed("affine", seen.old_dim, seen.new_dim):
        return None
    fitted = closed_forms.fit_closed_form("affine", seen, held_out)
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
        new_pairs: the training pairs that no earlier version was trained on; None if not known.
    """
    (path, name, number), mode = place, file_mode(place[0])
    encoder, transform = artefact.encoder, artefact.transform
    dims = [artefact.dim, *([] if transform is None else [transform.old_dim])]
    samples: dict[str, RowSample] = {}
    canaries: dict[str, Block] = {}
    hashes: dict[str, str] = {}
    with new_folder(path / "embeddings" / str(number), mode) as folder:
        for side in artefact.embeddings:
            samples[side] = RowSample(side, *dims)
            blocks = _typed(artefact.blocks(side), before.get(side), side, name)
            blocks = samples[side].through(blocks, artefact.unknown.get(side, 0))
            kept = CanarySample(side, _wanted(artefact, side), past.get(side, (None,))[0])
            write_vectors(folder / f"{side}.parquet", kept.through(blocks))
            hashes[side] = sha256(folder / f"{side}.parquet")
            if len(kept.ids):
                canaries[side] = kept.ids, kept.vectors
        error = check_transform_on_canaries(artefact, canaries, past)
    tensors = _tensors(artefact, samples, forward_map(samples, before))
    with new_folder(path / "versions" / str(number), mode) as folder:
        for file, of_file in tensors.items():
            save_tensors(of_file, folder / f"{file}.safetensors")
        if encoder is not None:
            pq.write_table(_vocabulary_table(encoder), folder / "vocabularies.parquet")
        if new_pairs is not None:
            write_trained_pairs(new_pairs, folder / PAIRS)
        if artefact.query_form is not None:
            write_query_form(artefact.query_form, folder)
        pq.write_table(_canary_table(canaries), folder / "canary.parquet")
        write_text(folder / "metrics.json", json.dumps(plain_numbers(artefact.metrics), indent=2))
        back = None
        if transform is not None:
            back = TransformRecord(kind=transform.kind, options=dict(transform.options))
        manifest = Manifest(
            version=number,
            name=f"{name}@v{number}",
            dim=artefact.dim,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            evergram=package_version("evergram"),
            encoder=None if encoder is None else _encoder_record(encoder),
            transform=back,
            recipe=dict(artefact.recipe),
            files={file.name: sha256(file) for file in sorted(folder.iterdir())},
            embeddings=hashes,
            text_encoder=artefact.text_encoder,
            canary_error=error,
        )
        write_text(folder / "manifest.json", manifest.to_json())
    return manifest


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


def _tensors(
    artefact: Artefact, samples: Mapping[str, RowSample], forward: Affine | None
) -> dict[str, Mapping[str, Tensor]]:
    """Return the tensors of a version by file and name."""
    moments: dict[str, Tensor] = {}
    for side, sample in samples.items():
        count, mean, second = sample.moments
        moments |= {f"{side}.count": torch.tensor(count), f"{side}.mean": mean}
        moments[f"{side}.second"] = second
    tensors: dict[str, Mapping[str, Tensor]] = {"moments": moments}
    if artefact.encoder is not None:
        tensors["encoder"] = artefact.encoder.state
    if artefact.transform is not None:
        tensors["transform"] = artefact.transform.state_dict()
    if (error := artefact.error) is not None:
        numbers = {"objects": error.objects, "power": error.power}
        of_error = {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}
        tensors["error"] = {"sigma": error.sigma, **of_error}
    if forward is not None:
        tensors["forward"] = dict(zip(("weight", "offset"), forward, strict=True))
    return tensors


def _encoder_record(encoder: EncoderParts) -> EncoderRecord:
    key_types = {name: str(v.keys.type) for name, v in encoder.vocabularies.items()}
    fields = {name: getattr(encoder, name) for name in ("kind", "options", "inputs")}
    return EncoderRecord.model_validate({**fields, "vocabularies": key_types})


def _vocabulary_table(encoder: EncoderParts) -> pa.Table:
    parts = encoder.vocabularies.items()
    names = pa.concat_arrays([pa.repeat(name, len(v)) for name, v in parts]).dictionary_encode()
    keys = pa.concat_arrays([v.keys.cast(pa.string()) for _, v in parts])
    return pa.table({"vocabulary": names, "key": keys})


def _canary_table(canaries: Mapping[str, Block]) -> pa.Table:
    tables = [
        pa.table({"side": pa.repeat(side, len(ids)), "id": ids, "vector": vectors_to_arrow(rows)})
        for side, (ids, rows) in canaries.items()
        if len(ids)
    ]
    return pa.concat_tables(tables) if tables else pa.table({"side": [], "id": [], "vector": []})
