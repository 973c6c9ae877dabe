"""The checks that every artefact must pass before it is published, and writing its folders."""

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
from numpy.typing import NDArray
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
ZEROS = 1.0  # the relative error if all vectors were zero
# An error contradicts a bound if it exceeds CONTRADICTED · bound + ROUNDING.
CONTRADICTED, ROUNDING = 2.0, 1e-5
KEYS_AT_ONCE = 1 << 20  # keys of vocabularies in a row group
CANARIES = 1000  # canaries per side: enough to estimate a mean, and few enough to keep forever
# Maximum sampled rows of a side for each dim of the old and the new version; at least half as many
# are taken, so that the excess error of the fitted map is a few percent. Larger samples would take
# longer than writing the vectors.
ROWS_PER_DIM = 16
LEAST_ROWS, MOST_ROWS = 16_384, 100_000
LEAST_PAIRS = 4096  # the forward map is fitted to at least this many pairs, if available
CHUNK = 4096  # rows converted to float64 at once
FOR_RIDGE = 10  # one of this many pairs is held out to choose the ridge


# Checks of an artefact.


class _Types(BaseModel):
    """The types of an artefact's fields."""

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
    """Refuse an invalid artefact. Its embeddings are checked later, while they are written."""
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
    for form in (artefact.query_form, artefact.text_encoder):
        if form is not None and form.dim != artefact.dim:
            what = f"The {type(form).__name__} of the artefact has dim {form.dim}"
            raise ShapeError(f"{what}, but its vectors have {artefact.dim}.")
    if other := sorted(set(artefact.canaries or ()) - set(artefact.embeddings)):
        raise DataError(f"The artefact has canaries of the side {other[0]}, but no embeddings.")
    transform = artefact.transform
    if transform is None:
        return
    settings = TRANSFORMS.get(transform.kind)
    if settings is None or type(transform) is not settings.transform_class():
        raise ShapeError(
            f"A {type(transform).__name__} of kind {transform.kind!r} could not be read again; the "
            f"kinds are {', '.join(TRANSFORMS)}. Add your own to compatibility.kinds.TRANSFORMS."
        )
    for name, values in transform.state_dict().items():
        if not bool(values.isfinite().all()):
            raise DataError(f"The transform's {name} has a NaN or an infinity.")


def check_follows(
    artefact: Artefact, address: str, newest: Manifest, version_of: Callable[[str], int | None]
) -> None:
    """Refuse an artefact that was not made for the newest version of the lineage."""
    if artefact.follows is None:
        raise LineageError(
            "This artefact does not say which version its transform leads to; for the newest, give "
            "follows=lineage.manifest(lineage.newest).fingerprint."
        )
    if artefact.follows != newest.fingerprint:
        number = version_of(artefact.follows)
        origin = "for another lineage" if number is None else f"after version {number}"
        raise LineageError(
            f"The transform of this artefact does not lead to version {newest.version} of "
            f"{address}, the newest: it was made {origin}; upgrade the newest version (you can "
            "reuse this model with trained=)."
        )
    transform, error = artefact.transform, artefact.error
    shape = None if transform is None else (transform.old_dim, transform.new_dim)
    if shape != (newest.dim, artefact.dim):
        needed = f"needs a transform of shape {(newest.dim, artefact.dim)}; {shape} was given"
        raise ShapeError(f"A version after version {newest.version} {needed}.")
    if error is not None:
        if error.sigma.shape != (newest.dim, newest.dim):
            shape = newest.dim, newest.dim
            has = f"The sigma of the artefact's error has shape {list(error.sigma.shape)}"
            raise ShapeError(f"{has}; it must be {list(shape)}.")
        if not error.sigma.isfinite().all() or error.power < 0 or math.isinf(error.power):
            raise DataError("The artefact's error is not finite; measure it with `StepError.of`.")
    if missing := sorted(set(newest.embeddings) - set(artefact.embeddings)):
        raise DataError(
            f"Version {newest.version} has embeddings of the side {missing[0]}, but the artefact "
            f"has none; give all sides: {', '.join(newest.embeddings)}."
        )


@dataclass(frozen=True)
class Measured:
    """The error on common canaries of z̃_j (z_k read as version j) against the published z_j."""

    objects: int
    error: float  # √(mean ‖z̃_j − z_j‖²)
    relative: float  # error / √(mean ‖z_j‖²)
    cosine: float  # mean cosine of z̃_j and z_j


def measure_canaries(
    chain: Chain, canaries: Mapping[int, Mapping[str, Block]], source: int, target: int
) -> Measured | None:
    """Return the error of reading version `source` as `target` on their common canaries, or None if
    there are none. `canaries` are by version and side."""
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
    """Return the vectors (float64, in the same order) of the canaries that two versions have in
    common, by side; without sides that have none."""
    pairs = {}
    for side in sorted(past.keys() & now.keys()):
        rows = Vocabulary(now[side][0]).rows(past[side][0])
        if bool((rows >= 0).any()):
            past_vectors = past[side][1][rows >= 0].double()
            pairs[side] = past_vectors, now[side][1][rows[rows >= 0]].double()
    return pairs


def contradicts(bound: float, error: float) -> bool:
    """Return whether the error contradicts the bound. The tolerance is wide, because errors on
    different objects differ by some tenths."""
    return error > CONTRADICTED * bound + ROUNDING


def check_transform_on_canaries(
    artefact: Artefact, canaries: Mapping[str, Block], past: Mapping[str, Block]
) -> float | None:
    """Refuse a transform that does not map the artefact's canaries to those of the previous version
    (`past`). If the artefact has a model, only warn, as otherwise its training would be lost.
    Returns: the relative error on common canaries; None if there are none."""
    transform, error = artefact.transform, artefact.error
    if transform is None:
        return None
    chain = Chain([transform], transform.old_dim)
    measured = measure_canaries(chain, {0: past, 1: canaries}, 1, 0)
    if measured is None:
        return None
    stated = None
    if error is not None and error.is_known:
        # The power is 0 for the identity, which has no error.
        stated = error.rms / math.sqrt(error.power) if error.power > 0 else error.rms
    relative = measured.relative
    wrong = relative > ZEROS if stated is None else contradicts(stated, relative)
    if measured.objects >= LEAST_OBJECTS and wrong:
        claim = "no stated error" if stated is None else f"a stated error of {stated:.4g}"
        sentence = (
            f"The transform has {claim}, but on {measured.objects} canaries of the previous "
            f"version its error is {relative:.4g} of their length: it does not map these vectors "
            "to that version's."
        )
        if artefact.encoder is None:
            todo = "give the transform that was fitted to these vectors, with its own error"
            raise DataError(f"{sentence} Nothing was published; {todo}.")
        log.warning(f"{sentence} Run 'evergram lineage check' before anyone reads it.")
    return relative if math.isfinite(relative) else None


def with_id_type(ids: pa.Array, expected: pa.DataType, side: str, where: str) -> pa.Array:
    """Convert ids to integers or strings, whichever the previous version has (`expected`)."""
    if pa.types.is_integer(expected) == pa.types.is_integer(ids.type):
        return ids
    texts = ids.cast(pa.string())
    if not pa.types.is_integer(expected):
        return texts
    row = pc.index(pc.invert(pc.match_substring_regex(texts, INTEGER)), True).as_py()
    if row < 0:
        try:
            return texts.cast(pa.int64())
        except pa.ArrowInvalid:
            row = pc.index(pc.greater(pc.utf8_length(texts), 18), True).as_py()
    raise DataError(
        f"The {side} ids in {where} are integers, but the new ids include the string "
        f"{texts[row].as_py()!r}; make it an integer or leave it out."
    )


def check_ids(ids: Mapping[str, pa.Array], before: Mapping[str, Path], where: str) -> None:
    """Refuse ids (by side) that are strings if those in the previous version's files (`before`) are
    integers, or that are the same ids in another Unicode normal form."""
    for side in before.keys() & ids.keys():
        with_id_type(ids[side], _id_type(before[side]), side, where)
        old_ids = pq.read_table(before[side], columns=["id"])["id"].combine_chunks()
        refuse_other_form(ids[side], old_ids, f"the side {side}", where)


def _id_type(path: Path) -> pa.DataType:
    return pq.read_schema(path).field("id").type


def refuse_unprobed(
    address: str, metrics: Mapping[str, Any], number: int, resolve: Resolve
) -> None:
    """Refuse a version if its metrics lack the result of a consumer's probe, or if that consumer's
    probe or pinned version has changed since the probe was run."""
    readings = {reading["consumer"]: reading for reading in metrics.get("probes", ())}
    consumers = ConsumerRegistry.open(address).list()
    missing = [c.name for c in consumers if not _is_valid(readings.get(c.name), c, number, resolve)]
    if missing:
        raise LineageError(
            f"The new version was not published: the current probe of {', '.join(missing)} was not "
            "run on it; publish with evergram.publish(lineage, artefact), which runs probes."
        )


def _is_valid(
    reading: Mapping[str, Any] | None, consumer: Consumer, number: int, resolve: Resolve
) -> bool:
    """Return whether a reading is from the consumer's current probe, run on version `number`."""
    probe = consumer.probe
    if probe is None or reading is None:
        return probe is None
    expected: dict[str, Any] = probe.model_dump(include={"model_sha256", "data_sha256"})
    expected |= {"pinned": consumer.pinned, "source": number}
    if expected != {key: reading.get(key) for key in expected}:
        return False
    # If the pinned label was removed, the probe could not be run, and its reading has no value.
    if consumer.pinned == "newest" or reading.get("value") is None:
        return True
    return reading.get("version") == resolve(consumer.pinned)


# The folders of a version, and the measurements made while its vectors are written.


class RowSample:
    """A sample of a side's rows, taken while its blocks are written: every n-th row, where n
    doubles when the sample gets too large. `ids` [S] and `vectors`, float32 [S, D]."""

    moments: Moments  # of the sampled rows, after the last block

    def __init__(self, side: str, *dims: int) -> None:
        self.side = side
        self.limit: int = min(MOST_ROWS, max(LEAST_ROWS, ROWS_PER_DIM * sum(dims)))
        self._samples: list[Block] = []

    def through(self, blocks: Iterable[Block], unknown: int = 0) -> Iterator[Block]:
        """Yield the same blocks, sampling their rows. Of these, `unknown` may be zeros."""
        lengths, count, step = closed_forms.LengthCount(), 0, 1
        for ids, vectors in blocks:
            narrow = vectors.float()  # as they are written
            if (row := lengths.add(narrow)) is not None:
                length = float(narrow[row].double().norm())
                what = f"has the length {length:.3g}, above {closed_forms.LONGEST:g}"
                what = what if math.isfinite(length) else "has a NaN or an infinity"
                raise DataError(f"The {self.side} embedding of id {ids[row].as_py()!r} {what}.")
            for start in range(0, len(ids), BLOCK):
                block = ids.slice(start, BLOCK), vectors[start : start + BLOCK]
                sampled = torch.arange(len(block[0]))[-count % step :: step]
                self._samples.append(_rows(block, sampled))
                count += len(block[0])
                while sum(len(ids) for ids, _ in self._samples) > self.limit:
                    sample = self.ids, self.vectors
                    self._samples = [_rows(sample, torch.arange(0, len(sample[0]), 2))]
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
        return pa.concat_arrays([ids for ids, _ in self._samples])

    @property
    def vectors(self) -> Tensor:
        return torch.cat([vectors for _, vectors in self._samples])


def _moments(vectors: Tensor) -> Moments:
    total, outer = torch.zeros(()).double(), torch.zeros(()).double()
    for chunk in torch.split(vectors, CHUNK):
        wide = chunk.double()
        total, outer = total + wide.sum(0), outer + wide.T @ wide
    return len(vectors), total / len(vectors), outer / len(vectors)


def _rows(block: Block, rows: Tensor) -> Block:
    return block[0].take(pa.array(rows.numpy())), block[1][rows].detach().float().cpu()


def canary_rows(ids: pa.Array, hashes: Tensor, past: pa.Array | None = None) -> Tensor:
    """Return the rows of at most `CANARIES` canaries: the previous version's (`past`), then the ids
    with the lowest and the highest `id_hashes`. Alignment holds out low hashes and is fitted to
    high ones, so the canaries include both kinds."""
    order = torch.argsort((hashes - 2**31).abs(), descending=True, stable=True)
    if past is not None:
        past_rows = pc.index_in(past, value_set=ids.cast(pa.string())).drop_null()
        rows = torch.from_numpy(np.array(past_rows)).long()
        order = torch.cat([rows, order[~torch.isin(order, rows)]])
    return order[:CANARIES]


class CanarySample:
    """Collects the canaries of one side while its blocks are written: `ids` (strings) and
    `vectors`, float32 [n, D].

    Args:
        wanted: ids of the canaries, as strings; None chooses them by `canary_rows`.
        past: ids of the previous version's canaries, as strings.
    """

    def __init__(
        self, side: str, wanted: pa.Array | None = None, past: pa.Array | None = None
    ) -> None:
        self.side, self.wanted, self.past = side, wanted, past
        self.ids: Any = pa.array([], pa.string())
        self.vectors: Tensor = torch.zeros(0, 0)

    def through(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the same blocks. Raises: DataError: at the end, if a wanted id is missing."""
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
    """Fit the map from the previous version's vectors to the new ones, on sampled objects of all
    sides that both versions have; None if these are too few. Memory: the ids of one file and the
    sampled vectors."""
    moments: list[closed_forms.SecondMoments] = []
    for side, sample in samples.items():
        if side not in old:
            continue
        rows, before = _find_vectors(sample.ids, old[side])
        new = sample.vectors[rows]
        if not moments:
            moments = [closed_forms.SecondMoments(new.shape[1], before.shape[1]) for _ in range(2)]
        for z, past in zip(torch.split(new, CHUNK), torch.split(before, CHUNK), strict=True):
            held_out_rows = torch.arange(len(z)) % FOR_RIDGE == 0
            for sums, mask in zip(moments, (~held_out_rows, held_out_rows), strict=True):
                sums.add(z[mask], past[mask])
    if not moments:
        return None
    # This map leads to the new version, so "old" and "new" are swapped.
    seen, held_out = moments
    if seen.count < closed_forms.pairs_needed("affine", seen.old_dim, seen.new_dim):
        return None
    fitted = closed_forms.fit_closed_form("affine", seen, held_out)
    assert fitted.offset is not None
    return fitted.weight, fitted.offset


def _find_vectors(ids: pa.Array, path: Path) -> tuple[Tensor, Tensor]:
    """Find some of the ids in a file; return their indices in `ids` [P] and their vectors [P, D].
    Reads row groups spread evenly over the file, and only as many as needed."""
    with pq.ParquetFile(path) as file:
        file_ids = file.read(columns=["id"])["id"].combine_chunks()
        if file_ids.type != ids.type:
            file_ids, ids = file_ids.cast(pa.string()), ids.cast(pa.string())
        refuse_other_form(ids, file_ids, "the new version", "the version before it")
        row = pc.fill_null(pc.index_in(ids, value_set=file_ids), -1).to_numpy(zero_copy_only=False)
        found = np.flatnonzero(row >= 0)
        found = found[np.argsort(row[found], kind="stable")]  # in the file's order
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        ends = np.searchsorted(row[found], np.cumsum(sizes))
        starts = np.cumsum([0, *sizes])
        dim = file.schema_arrow.field("vector").type.list_size
        wanted = max(LEAST_PAIRS, ROWS_PER_DIM * (dim + 1))
        # Every n-th group first, then the groups after them, and so on.
        stride = max(1, len(found) // wanted)
        vectors, indices, count = [torch.empty(0, dim)], [found[:0]], 0
        for i in (i for first in range(stride) for i in range(first, len(sizes), stride)):
            in_group = found[ends[i - 1] if i else 0 : ends[i]]
            if count >= wanted or not len(in_group):
                continue
            table = file.read_row_group(i, columns=["vector"])
            table = table.take(pa.array(row[in_group] - starts[i]))
            vectors.append(vectors_from_arrow(table["vector"]))
            indices.append(in_group)
            count += len(in_group)
    return torch.from_numpy(np.concatenate(indices)), torch.cat(vectors)


def write_folders(
    target: tuple[Path, str, int],
    artefact: Artefact,
    past: Mapping[str, Block],
    before: Mapping[str, Path],
    new_pairs: TrainedPairs | None,
) -> Manifest:
    """Write both folders of a version, each under a temporary name that is then renamed.

    Args:
        target: the lineage's folder and name, and the number of the version.
        past, before: the canaries and stored files of the previous version, by side.
        new_pairs: the training pairs that no earlier version was trained on; None if unknown.
    """
    (path, name, number), mode = target, file_mode(target[0])
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
            wanted = _chosen_canaries(artefact, side)
            sample = CanarySample(side, wanted, past.get(side, (None,))[0])
            write_vectors(folder / f"{side}.parquet", sample.through(blocks))
            hashes[side] = sha256(folder / f"{side}.parquet")
            if len(sample.ids):
                canaries[side] = sample.ids, sample.vectors
        error = check_transform_on_canaries(artefact, canaries, past)
    files = _tensor_files(artefact, samples, forward_map(samples, before))
    with new_folder(path / "versions" / str(number), mode) as folder:
        for file, tensors in files.items():
            save_tensors(tensors, folder / f"{file}.safetensors")
        if encoder is not None:
            _write_vocabularies(encoder, folder / "vocabularies.parquet")
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


def _chosen_canaries(artefact: Artefact, side: str) -> pa.Array | None:
    """Return the ids of a side's canaries as strings; None if the artefact does not choose any."""
    if artefact.canaries is None:
        return None
    ids = artefact.canaries.get(side, ())
    if hasattr(ids, "__len__") and not len(ids):
        return pa.array([], pa.string())
    return checked_ids(ids, f"canary {side}").cast(pa.string())


def _typed(blocks: Iterable[Block], before: Path | None, side: str, where: str) -> Iterator[Block]:
    """Yield the blocks, with ids converted to the type of the previous version's file, if any."""
    expected = None if before is None else _id_type(before)
    for ids, vectors in blocks:
        yield (ids if expected is None else with_id_type(ids, expected, side, where)), vectors


def _tensor_files(
    artefact: Artefact, samples: Mapping[str, RowSample], forward: Affine | None
) -> dict[str, Mapping[str, Tensor]]:
    """Return the tensors of a version, by file and name."""
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
        scalars = {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}
        tensors["error"] = {"sigma": error.sigma, **scalars}
    if forward is not None:
        tensors["forward"] = dict(zip(("weight", "offset"), forward, strict=True))
    return tensors


def _encoder_record(encoder: EncoderParts) -> EncoderRecord:
    key_types = {name: str(v.keys.type) for name, v in encoder.vocabularies.items()}
    fields = {name: getattr(encoder, name) for name in ("kind", "options", "inputs")}
    return EncoderRecord.model_validate({**fields, "vocabularies": key_types})


def _write_vocabularies(encoder: EncoderParts, path: Path) -> None:
    """Write the names and keys of all vocabularies, one row group at a time."""
    vocabularies = {name: v.keys for name, v in encoder.vocabularies.items() if len(v)}
    names, sizes = pa.array(vocabularies), [len(keys) for keys in vocabularies.values()]
    schema = pa.schema([("vocabulary", pa.dictionary(pa.int32(), names.type)), ("key", names.type)])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, sum(sizes), KEYS_AT_ONCE):
            numbers, keys = list[NDArray[np.int32]](), list[pa.Array]()
            for number, all_keys in enumerate(vocabularies.values()):
                first = start - sum(sizes[:number])
                piece = all_keys[max(first, 0) : max(first + KEYS_AT_ONCE, 0)]
                keys.append(piece.cast(names.type))
                numbers.append(np.full(len(piece), number, np.int32))
            column = pa.DictionaryArray.from_arrays(np.concatenate(numbers), names)
            writer.write_table(pa.table([column, pa.concat_arrays(keys)], schema=schema))


def _canary_table(canaries: Mapping[str, Block]) -> pa.Table:
    tables = [
        pa.table({"side": pa.repeat(side, len(ids)), "id": ids, "vector": vectors_to_arrow(rows)})
        for side, (ids, rows) in canaries.items()
        if len(ids)
    ]
    return pa.concat_tables(tables) if tables else pa.table({"side": [], "id": [], "vector": []})
