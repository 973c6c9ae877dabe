"""What is read from the folder of one version, each file compared with its hash first."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from torch import Tensor

from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import Transform, build_transform
from evergram.data.corpus import Vocabulary
from evergram.data.pair_hash import TrainedPairs
from evergram.errors import IntegrityError, ShapeError
from evergram.lineage.artefact import Block
from evergram.lineage.files import load_tensors
from evergram.lineage.manifest import EncoderRecord, Manifest, check_files
from evergram.lineage.moments import Moments
from evergram.lineage.pair_history import FILE as PAIRS
from evergram.lineage.pair_history import read_trained_pairs
from evergram.stores.parquet import to_block


class Contents:
    """One published version.

    Args:
        folder: `versions/<n>`.
        manifest: what it holds.
        check_files: for files that may have to be brought from elsewhere first.
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
        """Raises: IntegrityError: a file is missing or is not what was published."""
        self._check_files(self.folder, self.manifest.files)

    def metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._checked("metrics.json").read_text())
        return found

    def transform(self, old_dim: int) -> Transform:
        """B_k, into a space of `old_dim`."""
        record, dim = self.manifest.transform, self.manifest.dim
        assert record is not None
        path = self._checked("transform.safetensors")
        try:
            transform = build_transform(record.kind, old_dim, dim, record.options)
            transform.load_state_dict(load_tensors(path))
        except (ShapeError, RuntimeError) as error:
            raise IntegrityError(
                f"{path} does not lead from version {self.manifest.version} (dim {dim}) to the "
                f"version before (dim {old_dim}): {error}"
            ) from error
        return transform.requires_grad_(False).eval()

    def error(self) -> StepError | None:
        """Σ_k, where it was published."""
        if "error.safetensors" not in self.manifest.files:
            return None
        tensors = load_tensors(self._checked("error.safetensors"))
        return StepError(tensors["sigma"], int(tensors["objects"]), float(tensors["power"]))

    def forward(self) -> tuple[Tensor, Tensor] | None:
        """F_k: the matrix [D_k, D_{k-1}] and the offset [D_k], float64, where it was published."""
        if "forward.safetensors" not in self.manifest.files:
            return None
        tensors = load_tensors(self._checked("forward.safetensors"))
        return tensors["weight"], tensors["offset"]

    def trained_pairs(self) -> TrainedPairs | None:
        """The training pairs that no earlier version had; None where they were not recorded."""
        if PAIRS not in self.manifest.files:
            return None
        return read_trained_pairs(self._checked(PAIRS))

    def moments(self) -> dict[str, Moments]:
        """By side: how many vectors, their mean [D] and second moments [D, D], float64."""
        if "moments.safetensors" not in self.manifest.files:
            return {}
        tensors = load_tensors(self._checked("moments.safetensors"))
        sides = [name.removesuffix(".count") for name in tensors if name.endswith(".count")]
        found = {}
        for side in sorted(sides):
            count, mean, second = (tensors[f"{side}.{x}"] for x in ("count", "mean", "second"))
            found[side] = int(count), mean, second
        return found

    def canaries(self) -> dict[str, Block]:
        """For each side, ids (as strings) and vectors [n, D] as they were at publication."""
        path = self._checked("canary.parquet")
        table = pq.read_table(path)
        sides = table["side"].combine_chunks()
        return {
            side: to_block(table.filter(pc.equal(sides, side)), path)
            for side in pc.unique(sides).to_pylist()
        }

    def encoder(self) -> tuple[EncoderRecord, dict[str, Tensor], dict[str, Vocabulary]]:
        """How to build the encoder, its tensors, and its vocabularies."""
        record = self.manifest.encoder
        assert record is not None
        state = load_tensors(self._checked("encoder.safetensors"))
        table = pq.read_table(self._checked("vocabularies.parquet"))
        names, keys = table["vocabulary"].combine_chunks(), table["key"].combine_chunks()
        vocabularies = {}
        for name, kind in record.vocabularies.items():
            mine = keys.filter(pc.equal(names, name))
            vocabularies[name] = Vocabulary(mine.cast(pa.type_for_alias(kind)))
        return record, state, vocabularies

    def _checked(self, name: str) -> Path:
        files = self.manifest.files
        if name not in files:
            raise IntegrityError(
                f"The manifest of version {self.manifest.version} does not list {name}."
            )
        self._check_files(self.folder, {name: files[name]})
        return self.folder / name
