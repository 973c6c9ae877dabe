"""The published files of one version, each compared with its hash before it is read.

A hash says that a file is the one that was published, and not that Evergram wrote it: contents that
do not fit together are an error, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from torch import Tensor

from evergram.compatibility.certificate import StepError
from evergram.compatibility.kinds import TRANSFORMS, build_transform
from evergram.compatibility.transforms import Transform
from evergram.data.corpus import Vocabulary
from evergram.data.pair_hash import TrainedPairs
from evergram.errors import EvergramError, IntegrityError, LineageError, ShapeError
from evergram.gramian.new_queries.query_form import QueryForm
from evergram.lineage.artefact import Block, are_metrics
from evergram.lineage.disk.manifest import EncoderRecord, Manifest, check_files
from evergram.lineage.disk.query_form_file import RECORD, TENSORS, read_query_form
from evergram.lineage.disk.tensor_files import load_tensors
from evergram.lineage.disk.trained_pairs import FILE as PAIRS
from evergram.lineage.disk.trained_pairs import read_trained_pairs
from evergram.lineage.publishing.publish_statistics import Moments
from evergram.vector_files.writers import to_block


class VersionReader:
    """Reads the files of one published version.

    Args:
        folder: `versions/<n>`.
        manifest: of the version.
        check_files: compares files with their hashes; that of a remote lineage downloads them.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        check_files: Callable[[Path, Mapping[str, str]], None] = check_files,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self._check_files = check_files

    def check(self) -> None:
        """Compare all files with their hashes. Raises: IntegrityError: one differs, or is gone."""
        self._check_files(self.folder, self.manifest.files)

    def metrics(self) -> dict[str, Any]:
        """Return what was measured at publication."""
        path = self._checked("metrics.json")
        with _understood(path):
            metrics = json.loads(path.read_text())
            if not are_metrics(metrics):
                raise TypeError("its metrics or its probes are of another form")
        return dict(metrics)

    def transform(self, old_dim: int) -> Transform:
        """Return B_k, frozen, which leads into a space of `old_dim` dims.

        Raises: LineageError: this process does not know its kind. IntegrityError: its file is
            damaged, or leads elsewhere.
        """
        record, dim = self.manifest.transform, self.manifest.dim
        assert record is not None
        if record.kind not in TRANSFORMS:
            raise LineageError(
                f"The transform of version {self.manifest.version} is of kind {record.kind!r}, and "
                f"there are {', '.join(TRANSFORMS)}. If it is a kind of your own, put its settings "
                "into evergram.compatibility.kinds.TRANSFORMS and read the lineage from Python; "
                "otherwise install an Evergram that has it."
            )
        path = self._checked("transform.safetensors")
        try:
            transform = build_transform(record.kind, old_dim, dim, record.options)
            transform.load_state_dict(load_tensors(path))
        except (ShapeError, RuntimeError) as error:
            raise IntegrityError(
                f"{path} does not lead from version {self.manifest.version} (dim {dim}) to the "
                f"version before (dim {old_dim}): {error}"
            ) from error
        for name, value in transform.state_dict().items():
            if not bool(value.isfinite().all()):
                raise IntegrityError(f"{path}: tensor {name!r} has a NaN or an infinity.")
        return transform.requires_grad_(False).eval()

    def error(self, old_dim: int) -> StepError | None:
        """Return the error of B_k in a space of `old_dim` dims; None if none was published."""
        if "error.safetensors" not in self.manifest.files:
            return None
        shapes = {"sigma": (old_dim, old_dim), "objects": (), "power": ()}
        tensors = self._tensors("error.safetensors", shapes)
        with _understood(self.folder / "error.safetensors"):
            return StepError(tensors["sigma"], int(tensors["objects"]), float(tensors["power"]))

    def forward(self, old_dim: int) -> tuple[Tensor, Tensor] | None:
        """Return F_k: a matrix [D_k, D_{k-1}] and an offset [D_k], float64; None if unpublished."""
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
        with _understood(path):
            return read_trained_pairs(path)

    def moments(self) -> dict[str, Moments]:
        """Return, by side, the number of vectors, their mean [D] and E[z zᵀ] [D, D], float64."""
        dim = self.manifest.dim
        shapes: dict[str, tuple[int, ...]] = {}
        for side in self.manifest.embeddings:
            shapes |= {f"{side}.count": (), f"{side}.mean": (dim,), f"{side}.second": (dim, dim)}
        tensors = self._tensors("moments.safetensors", shapes)
        moments = {}
        with _understood(self.folder / "moments.safetensors"):
            for side in sorted(self.manifest.embeddings):
                count, mean, second = (tensors[f"{side}.{x}"] for x in ("count", "mean", "second"))
                moments[side] = int(count), mean, second
        return moments

    def query_form(self) -> QueryForm | None:
        """Return how the version folds in new queries; None if that was not published."""
        if RECORD not in self.manifest.files:
            return None
        path = self._checked(RECORD)
        self._checked(TENSORS)
        with _understood(path):
            return read_query_form(self.folder, self.manifest.dim)

    def canaries(self) -> dict[str, Block]:
        """Return, by side, the ids (as strings) and vectors [n, D] that were kept for ever."""
        path = self._checked("canary.parquet")
        with _understood(path):
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
        assert record is not None
        state = load_tensors(self._checked("encoder.safetensors"))
        path = self._checked("vocabularies.parquet")
        with _understood(path):
            table = pq.read_table(path)
            names, keys = table["vocabulary"].combine_chunks(), table["key"].combine_chunks()
            vocabularies = {}
            for name, kind in record.vocabularies.items():
                mine = keys.filter(pc.equal(names, name))
                vocabularies[name] = Vocabulary(mine.cast(pa.type_for_alias(kind)))
        return record, state, vocabularies

    def _tensors(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return the tensors of a file as float64.

        Args:
            shapes: of the tensors that it must have.
        Raises: IntegrityError: one is missing, or is of another shape.
        """
        path = self._checked(name)
        tensors = {key: tensor.double() for key, tensor in load_tensors(path).items()}
        for key, shape in shapes.items():
            if key not in tensors or tuple(tensors[key].shape) != shape:
                has = list(tensors[key].shape) if key in tensors else "none"
                raise IntegrityError(
                    f"{path} needs a tensor {key!r} of shape {list(shape)} and has {has}; restore "
                    "it from a copy of the lineage."
                )
        return tensors

    def _checked(self, name: str) -> Path:
        files = self.manifest.files
        if name not in files:
            raise IntegrityError(
                f"The manifest of version {self.manifest.version} does not list {name}."
            )
        self._check_files(self.folder, {name: files[name]})
        return self.folder / name


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    """Turn a failure to read a file into an IntegrityError: the file has the right hash and other
    contents than it should."""
    try:
        yield
    except EvergramError:
        raise
    except (
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RuntimeError,
        pa.ArrowException,
    ) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        raise IntegrityError(
            f"{path} has the right hash and cannot be read as a file of a version ({why}); restore "
            "it from a copy of the lineage."
        ) from error
