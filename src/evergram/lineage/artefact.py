"""The contents of one version: in memory before publication, and as files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from pydantic import BaseModel, Strict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from evergram.atomic_files import write_text
from evergram.compatibility.certificate import StepError
from evergram.compatibility.kinds import TRANSFORMS, build_transform
from evergram.compatibility.transforms import Transform
from evergram.data.corpus import Vocabulary
from evergram.data.split import TrainedPairs
from evergram.errors import DataError, EvergramError, IntegrityError, LineageError, ShapeError
from evergram.gramian.query_form import Length, QueryForm, Rule
from evergram.ids import refuse_missing, refuse_repeats
from evergram.lineage.record import EncoderRecord, Manifest, StrictRecord
from evergram.texts.record import TextEncoderRecord
from evergram.vector_files.open_embeddings import to_block

Block = tuple[pa.Array, Tensor]
_TEXTS = "string", "large_string", "string_view"
AnyBlock = tuple[Any, Any]  # ids and vectors in any form that `Artefact` accepts
# The number of vectors, their mean [D] and E[z zᵀ] [D, D], float64.
Moments = tuple[int, Tensor, Tensor]
# The weight [D_k, D_{k-1}] and the offset [D_k] of an affine map, float64.
Affine = tuple[Tensor, Tensor]
PAIRS = "trained_pairs.parquet"
FORM, FORM_TENSORS = "fold_in.json", "fold_in.safetensors"
_NAMES = ("strengths", "powers", "matrices", "centres")
# Exceptions of the parsers when a file's hash is right but its contents are not valid.
_UNREADABLE = AttributeError, LookupError, TypeError, ValueError, RuntimeError, pa.ArrowException


def checked_block(ids: Any, vectors: Any, side: str, dim: int) -> Block:
    """Convert ids and vectors that `Artefact` accepts to int64 or string [N], and to a tensor of
    floats [N, D]."""
    keys, rows = checked_ids(ids, side), vectors
    if isinstance(rows, np.ndarray) and rows.dtype.kind == "f" and rows.itemsize <= 8:
        # Torch supports neither foreign byte orders nor negative strides.
        rows = torch.from_numpy(np.ascontiguousarray(rows, rows.dtype.newbyteorder("=")))
    dense = isinstance(rows, Tensor) and rows.layout == torch.strided
    if not dense or not rows.is_floating_point():
        kind = getattr(rows, "dtype", type(rows).__name__)
        wanted = "floats in a dense torch tensor or a NumPy array"
        raise DataError(f"The {side} embeddings are {kind}; they must be {wanted}.")
    if rows.shape != (len(keys), dim):
        expected = f"with {len(keys)} ids and dim {dim} it must be {[len(keys), dim]}"
        raise ShapeError(f"The {side} embeddings have shape {list(rows.shape)}; {expected}.")
    return keys, rows.detach()


def checked_blocks(blocks: Iterable[tuple[Any, Any]], side: str, dim: int) -> Iterator[Block]:
    """Yield each block from `checked_block`. Keeps all ids of the side in memory."""
    seen: list[pa.Array] = []
    for ids, vectors in blocks:
        keys, rows = checked_block(ids, vectors, side, dim)
        if seen and keys.type != seen[0].type:
            what = f"The {side} ids are {seen[0].type} in one block and {keys.type} in another"
            raise DataError(f"{what}; give only integers or only strings.")
        seen.append(keys)
        yield keys, rows
    all_ids = pa.chunked_array(seen) if seen else pa.chunked_array([], pa.int64())
    if not len(all_ids):
        raise DataError(f"There are no {side} embeddings to publish; a side needs at least one.")
    refuse_repeats(all_ids, f"The {side} embeddings")


def checked_ids(ids: Any, side: str) -> pa.Array:
    """Convert ids to int64 or string [N]. Raises: DataError: one is missing, or of another type."""
    keys: Any = None
    try:
        array = ids if isinstance(ids, pa.Array | pa.ChunkedArray) else pa.array(ids)
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        if (kind := str(array.type)) in _TEXTS:
            keys = array.cast(pa.string())
        elif pa.types.is_integer(array.type):
            keys = array.cast(pa.int64())
    except (pa.ArrowException, TypeError, OverflowError) as error:
        kind = " ".join(str(error).split()).rstrip(".")
    if keys is None:
        wanted = "all integers below 2⁶³, or all strings"
        raise DataError(f"The {side} ids cannot be published ({kind}); they must be {wanted}.")
    refuse_missing(keys, f"Of the {side} embeddings row")
    return keys


@dataclass(frozen=True)
class EncoderParts:
    """The serializable parts of an encoder: how to build it, its tensors, and its schema."""

    kind: str
    options: Mapping[str, Any]
    state: Mapping[str, Tensor]
    inputs: Mapping[str, Mapping[str, str]]
    vocabularies: Mapping[str, Vocabulary]


@dataclass(frozen=True, repr=False)
class Artefact:
    """A version that is ready to be published.

    Args:
        dim: D.
        embeddings: for each side, unique ids [N] and float vectors [N, D]; or a function that
            returns them block by block if they do not fit in memory. A model has the sides "query"
            and "candidate". Ids are integers or strings, in an Arrow or NumPy array or a list;
            vectors are a torch tensor or a NumPy array.
        transform: B_k; None only for version 0.
        metrics: the measurements, as JSON.
        recipe: the recipe, as JSON.
        encoder: None if the embeddings came from a file.
        canaries: for each side, ids of a few objects whose vectors are kept forever; None chooses
            the previous version's canaries, and more by a hash of their ids.
        error: the error of B_k, for the certificate.
        trained: salt and hashes of the model's training pairs; None if no model was trained.
        follows: fingerprint of the version that `transform` leads to; None only for version 0.
        query_form: how to compute a new query's vector from its candidates; None if impossible.
        text_encoder: the encoder that made the embeddings from texts; None if unknown.
        unknown: for each side, how many embeddings are zeros because the model does not know the
            object; this many zeros are allowed in addition to the usual share.
    """

    dim: int
    embeddings: Mapping[str, AnyBlock | Callable[[], Iterable[AnyBlock]]]
    transform: Transform | None
    metrics: Mapping[str, Any]
    recipe: Mapping[str, Any]
    encoder: EncoderParts | None = None
    canaries: Mapping[str, Any] | None = None
    error: StepError | None = None
    trained: tuple[str, TrainedPairs] | None = None
    follows: str | None = None
    query_form: QueryForm | None = None
    text_encoder: TextEncoderRecord | None = None
    unknown: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        model = "no encoder" if self.encoder is None else self.encoder.kind
        back = "no transform" if self.transform is None else f"{self.transform.kind} transform"
        return f"Artefact(dim {self.dim}, {model}, {back}, sides {', '.join(self.embeddings)})"

    def blocks(self, side: str) -> Iterator[Block]:
        """Yield the ids and vectors of a side in one or more blocks. Raises: DataError, ShapeError:
        they cannot be published."""
        source = self.embeddings[side]
        return checked_blocks(source() if callable(source) else [source], side, self.dim)

    def block(self, side: str) -> Block:
        """Return all ids [N] and vectors [N, D] of a side. Raises: see `blocks`."""
        blocks = list(self.blocks(side))
        if len(blocks) == 1:
            return blocks[0]
        return pa.concat_arrays([ids for ids, _ in blocks]), torch.cat([v for _, v in blocks])


class _Tables(BaseModel):
    model: dict[str, Annotated[float, Strict()] | None] = {}


class _ProbeEntry(BaseModel):
    consumer: str


class MetricsForm(BaseModel):
    """The fields of a version's metrics that this package relies on."""

    metrics: _Tables = _Tables()
    probes: list[_ProbeEntry] = []


# The files of a version.


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file, by name. Raises: IntegrityError: it cannot be read."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise IntegrityError(f"{path} cannot be read: {error}.") from error
    return tensors


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors, on any device, to a file."""
    save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, path)


def plain_numbers(value: Any) -> Any:
    """Replace every NaN and infinity, which JSON cannot represent, by None."""
    if isinstance(value, Mapping):
        return {k: plain_numbers(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_trained_pairs(pairs: TrainedPairs, path: Path) -> None:
    """Write the hashes of pairs. As they are ascending, delta encoding needs about 14 bits per pair
    for a million pairs, and 7 for a hundred million."""
    table = pa.table({"pair": pa.array(pairs.marks)})
    packed = {"pair": "DELTA_BINARY_PACKED"}
    pq.write_table(table, path, use_dictionary=False, column_encoding=packed, compression="zstd")


def read_trained_pairs(path: Path) -> TrainedPairs:
    """Read the hashes that `write_trained_pairs` wrote."""
    marks = pq.read_table(path)["pair"].to_numpy()
    if marks.dtype != np.uint32 or not (marks[1:] > marks[:-1]).all():
        raise IntegrityError(f"{path} does not hold ascending 32-bit numbers; restore it.")
    return TrainedPairs(marks)


class _FormRecord(StrictRecord):
    """The contents of `fold_in.json`."""

    rule: Rule
    squares: float
    pull: float
    length: Length
    values: bool


def write_query_form(form: QueryForm, folder: Path) -> None:
    """Write both files of a query form into a version's folder."""
    record = {name: getattr(form, name) for name in _FormRecord.model_fields}
    write_text(folder / FORM, json.dumps(_FormRecord(**record).model_dump(), indent=2))
    save_tensors({name: getattr(form, name) for name in _NAMES}, folder / FORM_TENSORS)


def read_query_form(folder: Path, dim: int) -> QueryForm:
    """Read the query form of a version with dimension `dim` from its folder."""
    record = _FormRecord.model_validate_json((folder / FORM).read_bytes())
    tensors = load_tensors(folder / FORM_TENSORS)
    try:
        arrays: dict[str, Any] = {name: tensors[name] for name in _NAMES}
        form = QueryForm(**record.model_dump(), **arrays)
    except (DataError, KeyError, ShapeError) as error:
        raise IntegrityError(f"{folder / FORM_TENSORS}: {error}") from error
    if form.dim != dim:
        raise IntegrityError(f"{folder / FORM_TENSORS} has dim {form.dim}, its version {dim}.")
    return form


@dataclass(frozen=True)
class VersionReader:
    """Reads the files of one published version, `versions/<n>`. `check_files` verifies the hash of
    a file before it is read, and downloads it if the lineage is remote."""

    folder: Path
    manifest: Manifest
    check_files: Callable[[Path, Mapping[str, str]], None]

    def metrics(self) -> dict[str, Any]:
        """Return the measurements made at publication."""
        path = self._checked("metrics.json")
        with _parsing(path):
            metrics: dict[str, Any] = json.loads(path.read_text())
            MetricsForm.model_validate(metrics)
        return metrics

    def transform(self, old_dim: int) -> Transform:
        """Return B_k, frozen, which maps to `old_dim` dimensions."""
        record, dim = self.manifest.transform, self.manifest.dim
        assert record is not None
        if record.kind not in TRANSFORMS:
            raise LineageError(
                f"The transform of version {self.manifest.version} has the unknown kind "
                f"{record.kind!r}; the kinds are {', '.join(TRANSFORMS)}. Add your own kind to "
                "evergram.compatibility.kinds.TRANSFORMS, and read the lineage from Python."
            )
        path = self._checked("transform.safetensors")
        try:
            transform = build_transform(record.kind, old_dim, dim, record.options)
            transform.load_state_dict(load_tensors(path))
        except (ShapeError, RuntimeError) as error:
            what = f"does not map dim {dim} to the previous version's dim {old_dim}"
            raise IntegrityError(f"{path} {what}: {error}") from error
        for name, value in transform.state_dict().items():
            if not bool(value.isfinite().all()):
                raise IntegrityError(f"{path}: tensor {name!r} has a NaN or an infinity.")
        return transform.requires_grad_(False).eval()

    def error(self, old_dim: int) -> StepError | None:
        """Return the error of B_k, in `old_dim` dimensions; None if none was published."""
        if "error.safetensors" not in self.manifest.files:
            return None
        shapes = {"sigma": (old_dim, old_dim), "objects": (), "power": ()}
        tensors = self._tensors("error.safetensors", shapes)
        with _parsing(self.folder / "error.safetensors"):
            return StepError(tensors["sigma"], int(tensors["objects"]), float(tensors["power"]))

    def forward(self, old_dim: int) -> Affine | None:
        """Return F_k: matrix [D_k, D_{k-1}] and offset [D_k], float64; None if not published."""
        if "forward.safetensors" not in self.manifest.files:
            return None
        dim = self.manifest.dim
        shapes = {"weight": (dim, old_dim), "offset": (dim,)}
        tensors = self._tensors("forward.safetensors", shapes)
        return tensors["weight"], tensors["offset"]

    def trained_pairs(self) -> TrainedPairs | None:
        """Return the training pairs that no earlier version had; None if they are not recorded."""
        if PAIRS not in self.manifest.files:
            return None
        path = self._checked(PAIRS)
        with _parsing(path):
            return read_trained_pairs(path)

    def moments(self) -> dict[str, Moments]:
        """Return, by side, the number of vectors, their mean [D], and E[z zᵀ], [D, D]; float64."""
        dim = self.manifest.dim
        parts: dict[str, tuple[int, ...]] = {"count": (), "mean": (dim,), "second": (dim, dim)}
        sides = sorted(self.manifest.embeddings)
        shapes = {f"{side}.{name}": shape for side in sides for name, shape in parts.items()}
        tensors = self._tensors("moments.safetensors", shapes)
        moments = {}
        with _parsing(self.folder / "moments.safetensors"):
            for side in sides:
                count, mean, second = (tensors[f"{side}.{name}"] for name in parts)
                moments[side] = int(count), mean, second
        return moments

    def query_form(self) -> QueryForm | None:
        """Return how the version folds in new queries; None if not published."""
        if FORM not in self.manifest.files:
            return None
        self._checked(FORM_TENSORS)
        with _parsing(self._checked(FORM)):
            return read_query_form(self.folder, self.manifest.dim)

    def canaries(self) -> dict[str, Block]:
        """Return, by side, the ids (as strings) and vectors [n, D] of the canaries."""
        path = self._checked("canary.parquet")
        with _parsing(path):
            table = pq.read_table(path)
            sides = table["side"].combine_chunks()
            canaries = {}
            for side in pc.unique(sides).to_pylist():
                ids, vectors = to_block(table.filter(pc.equal(sides, side)), path)
                canaries[str(side)] = ids.cast(pa.string()), vectors
                if vectors.shape != (len(ids), self.manifest.dim):
                    raise ValueError(f"its vectors are {list(vectors.shape)}")
        return canaries

    def encoder(self) -> tuple[EncoderRecord, dict[str, Tensor], dict[str, Vocabulary]]:
        """Return how to build the encoder, its tensors, and its vocabularies."""
        record = self.manifest.encoder
        if record is None:
            raise LineageError(
                f"Version {self.manifest.version} came from a file: it has no model."
            )
        state = load_tensors(self._checked("encoder.safetensors"))
        path = self._checked("vocabularies.parquet")
        with _parsing(path):
            table = pq.read_table(path)
            names, keys = table["vocabulary"].combine_chunks(), table["key"].combine_chunks()
            vocabularies = {}
            for name, kind in record.vocabularies.items():
                ids = keys.filter(pc.equal(names, name))
                vocabularies[name] = Vocabulary(ids.cast(pa.type_for_alias(kind)))
        return record, state, vocabularies

    def _tensors(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return the tensors of a file as float64."""
        path = self._checked(name)
        tensors = {key: tensor.double() for key, tensor in load_tensors(path).items()}
        for key, shape in shapes.items():
            if key not in tensors or tuple(tensors[key].shape) != shape:
                has = list(tensors[key].shape) if key in tensors else "none"
                needed = f"a tensor {key!r} of shape {list(shape)}"
                raise IntegrityError(f"{path} needs {needed}, but has {has}; restore it.")
        return tensors

    def _checked(self, name: str) -> Path:
        files, number = self.manifest.files, self.manifest.version
        if name not in files:
            raise IntegrityError(f"The manifest of version {number} does not list {name}.")
        self.check_files(self.folder, {name: files[name]})
        return self.folder / name


@contextmanager
def _parsing(path: Path) -> Iterator[None]:
    """Convert an error while parsing a file, whose hash was right, to an IntegrityError."""
    try:
        yield
    except EvergramError:
        raise
    except _UNREADABLE as error:
        why = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        what = f"has the right hash, but is not a valid file of a version ({why})"
        raise IntegrityError(f"{path} {what}; restore it from a copy.") from error
