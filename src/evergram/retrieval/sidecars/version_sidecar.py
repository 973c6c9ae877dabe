"""The sidecar of a published version: codes of its objects, by id, in one file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from evergram.atomic_files import replacing
from evergram.compatibility.sidecar.sidecar import Sidecar
from evergram.compatibility.sidecar.sidecar_file import sidecar_of, sidecar_tensors
from evergram.errors import DataError, IntegrityError
from evergram.lineage.read_only_lineage import ReadOnlyLineage
from evergram.retrieval.engines.id_lookup import IdLookup
from evergram.stores.rows import Checks, Rows, row_checks
from evergram.stores.store import Floats
from evergram.system_errors import reason_and_remedy

KEY = "evergram.version_sidecar"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class VersionSidecar:
    """Codes of a version's objects, with which they are read as the version before.

    Args:
        version: v, the version of the objects' rows.
        side: of the lineage.
        fingerprints: of version v and of version v − 1.
        sidecar: from v to v − 1.
        error, way_back_error: √(E‖error‖² / E‖z_{v-1}‖²), measured over all of its objects, with
            codes and without.
        ids: [N], as stores have them.
        codes: uint8 [N, size].
        checks: `row_checks` of the published vectors: codes are of these, and of no others.
    """

    version: int
    side: str
    fingerprints: tuple[str, str]
    sidecar: Sidecar
    error: float
    way_back_error: float
    ids: pa.Array
    codes: npt.NDArray[np.uint8]
    checks: Checks

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _lookup(self) -> IdLookup:
        return IdLookup(self.ids)

    def known(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return of which rows [n] of its version the vectors are those that were published.

        An object that was embedded anew, or is stored in fewer bits, is not among them.
        """
        places = self._lookup.rows(rows.ids)
        # Place -1 compares with the last row, and does not count.
        same: npt.NDArray[np.bool_] = (row_checks(rows) == self.checks[places]) & (places >= 0)
        return same

    def has(self, ids: pa.Array) -> npt.NDArray[np.bool_]:
        """Return which of the ids [n] it has codes of."""
        there: npt.NDArray[np.bool_] = self._lookup.rows(ids) >= 0
        return there

    def read(self, ids: pa.Array, vectors: Floats) -> Floats:
        """Return vectors [n, D_v] of objects that it `has` as version v − 1 had them."""
        return self.sidecar.read(vectors, self.codes[self._lookup.rows(ids)])

    def check(self, lineage: ReadOnlyLineage, what: str) -> None:
        """Check that it is of this lineage. Raises: IntegrityError: it is of another."""
        newest = lineage.newest if lineage.versions else -1
        if self.version <= newest:
            own = tuple(lineage.manifest(v).fingerprint for v in (self.version, self.version - 1))
            if own == self.fingerprints and self.side in lineage.manifest(self.version).embeddings:
                return
        raise IntegrityError(
            f"{what} is a sidecar of side {self.side!r} of other versions than {self.version} and "
            f"{self.version - 1} of {lineage}; make it with 'evergram vectors sidecar'."
        )

    def save(self, path: Path) -> None:
        """Write it, whole or not at all, over an existing file.

        Raises: DataError: the file cannot be written.
        """
        tensors = sidecar_tensors(self.sidecar) | {
            "codes": torch.from_numpy(np.ascontiguousarray(self.codes)),
            "checks": torch.from_numpy(self.checks.view(np.int32)),
            **_id_tensors(self.ids),
        }
        record = {
            "format_version": FORMAT_VERSION,
            "version": self.version,
            "side": self.side,
            "fingerprints": list(self.fingerprints),
            "missing": self.sidecar.missing,
            "power": self.sidecar.power,
            "error": self.error,
            "way_back_error": self.way_back_error,
        }
        try:
            with replacing(path) as file:
                file.write(save(tensors, {KEY: json.dumps(record)}))
        except OSError as error:
            raise DataError(f"{path} cannot be written: {reason_and_remedy(error)}.") from error

    @classmethod
    def open(cls, path: Path) -> VersionSidecar:
        """Read a file of `save`. Raises: DataError: it is missing, damaged, or of another kind."""
        made = "give a file that 'evergram vectors sidecar' made"
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            record = json.loads(metadata[KEY])
            if record["format_version"] != FORMAT_VERSION:
                raise DataError(
                    f"{path} has the format version {record['format_version']}, and this Evergram "
                    f"reads {FORMAT_VERSION}; read it with a later Evergram."
                )
            codes = tensors["codes"]
            sidecar = sidecar_of(tensors, codes, record["missing"], record["power"])
            ids, checks = _ids_of(tensors), tensors["checks"].numpy().view(np.uint32)
            if sidecar is None or not len(codes) == len(ids) == len(checks):
                raise DataError(f"{path} is damaged: its parts do not fit together; {made}.")
            new, old = map(str, record["fingerprints"])
            return cls(
                int(record["version"]),
                str(record["side"]),
                (new, old),
                sidecar,
                float(record["error"]),
                float(record["way_back_error"]),
                ids,
                codes.numpy(),
                checks,
            )
        except OSError as error:
            raise DataError(f"{path} cannot be read: {reason_and_remedy(error)}.") from error
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} is no sidecar of a version; {made}.") from error


def _id_tensors(ids: pa.Array) -> dict[str, Tensor]:
    """Return ids as tensors: integers, or the bytes of texts and where each ends."""
    if pa.types.is_integer(ids.type):
        return {"ids": torch.from_numpy(ids.to_numpy().astype(np.int64))}
    texts = [text.encode() for text in ids.to_pylist()]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    content = np.frombuffer(b"".join(texts), dtype=np.uint8).copy()
    return {"id_bytes": torch.from_numpy(content), "id_ends": torch.from_numpy(ends)}


def _ids_of(tensors: dict[str, Tensor]) -> pa.Array:
    if "ids" in tensors:
        return pa.array(tensors["ids"].numpy(), pa.int64())
    content, ends = tensors["id_bytes"].numpy().tobytes(), [0, *tensors["id_ends"].tolist()]
    texts = [content[a:b].decode() for a, b in pairwise(ends)]
    return pa.array(texts, pa.string())
