"""The sidecar of a published version: codes of its objects, by id, in one file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from evergram.atomic_files import replacing
from evergram.compatibility.sidecar.sidecar import Sidecar
from evergram.errors import DataError, IntegrityError, reason_and_remedy
from evergram.lineage.lineage import Lineage
from evergram.retrieval.id_lookup import IdLookup
from evergram.stores.rows import Rows
from evergram.stores.store import Floats

# Sums over random signs, of each vector.
MARKS = 3
# Of a vector's length: between that of a vector rounded to float16, and any other vector's.
TOLERANCE = 2e-3


def marks_of(vectors: Floats) -> Floats:
    """Return the sums of each vector's coordinates under `MARKS` random signs, float32 [n, MARKS].

    Another vector at a distance d, in lengths of the vector, has marks so near by chance
    (0.8 · TOLERANCE / d)^MARKS of the time: once in five million for d = 0.3.
    """
    # The legacy generator, whose numbers do not change from version to version of NumPy.
    draw = np.random.RandomState(vectors.shape[1])
    signs = 2.0 * draw.randint(0, 2, (vectors.shape[1], MARKS)) - 1.0
    marks: Floats = (vectors.astype(np.float64) @ signs).astype(np.float32)
    return marks


def same_marks(vectors: Floats, marks: Floats) -> npt.NDArray[np.bool_]:
    """Return which vectors [n, D] are those that the marks [n, MARKS] were made of."""
    return near(marks_of(vectors), marks, np.linalg.norm(vectors.astype(np.float64), axis=1))


def near(marks: Floats, others: Floats, lengths: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which marks [n, MARKS] are of vectors of these lengths [n] that are the same."""
    apart = np.abs(marks.astype(np.float64) - others).max(axis=1, initial=0.0)
    same: npt.NDArray[np.bool_] = apart <= TOLERANCE * lengths
    return same


KEY = "evergram.version_sidecar"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class VersionSidecar:
    """Codes of a version's objects, with which they are read as the version before.

    Several threads may use one.

    Args:
        version: v, the version of the objects' rows.
        target: the version before it that was not withdrawn, usually v − 1.
        side: of the lineage.
        fingerprints: of both versions.
        sidecar: from one to the other.
        error, way_back_error: √(E‖error‖² / E‖z_target‖²), measured over all of its objects, with
            codes and without.
        worse: the share of its objects that codes read worse than the backward transform alone.
        ids: [N], as the lineage stores them.
        codes: uint8 [N, size].
        marks, old_marks: `marks_of` the vectors of both versions that the codes were made of.
    """

    version: int
    target: int
    side: str
    fingerprints: tuple[str, str]
    sidecar: Sidecar
    error: float
    way_back_error: float
    worse: float
    ids: pa.Array
    codes: npt.NDArray[np.uint8]
    marks: Floats
    old_marks: Floats

    # By the type of the ids that are asked for.
    _lookups: dict[pa.DataType, IdLookup] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __len__(self) -> int:
        return len(self.ids)

    def __str__(self) -> str:
        return (
            f"version {self.version} of side {self.side!r}, read as version {self.target} by "
            f"{self.sidecar.size} bytes for each of {len(self):,} objects"
        )

    def places(self, ids: pa.Array) -> npt.NDArray[np.int64]:
        """Return the row of each id [n]; -1 for one that it has no codes of.

        Stores may have text ids where the lineage has integers, and the other way round.
        """
        if ids.type not in self._lookups:
            try:
                self._lookups[ids.type] = IdLookup(self.ids.cast(ids.type))
            except pa.ArrowInvalid:  # texts that are no numbers
                return np.full(len(ids), -1, dtype=np.int64)
        return self._lookups[ids.type].rows(ids)

    def known(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Return the places of rows [n] of its version; -1 unless the vector is the published one.

        An object that was embedded anew has another.
        """
        places = self.places(rows.ids)
        # Place -1 compares with the last row, and stays -1.
        return np.where(same_marks(rows.vectors, self.marks[places]), places, -1)

    def follows(
        self, later: VersionSidecar, read: npt.NDArray[np.int64], ids: pa.Array
    ) -> npt.NDArray[np.int64]:
        """Return the places of ids [n] that `later` reads from its places `read`; -1 unless both
        have codes of one vector.

        An object that was embedded anew between the two sidecars has two.
        """
        places = self.places(ids)
        marks = self.marks[places]
        # The root mean square of marks is a vector's length.
        lengths = np.sqrt(np.square(marks.astype(np.float64)).mean(axis=1))
        same = (read >= 0) & near(later.old_marks[read], marks, lengths)
        return np.where(same, places, -1)

    def read(self, places: npt.NDArray[np.int64], vectors: Floats) -> Floats:
        """Return vectors [n, D_v] of the objects at these places, none -1, as the version before
        had them."""
        return self.sidecar.read(vectors, self.codes[places])

    def check(self, lineage: Lineage, what: str) -> None:
        """Check that it is of this lineage. Raises: IntegrityError: it is of another."""
        own = {m.version: m.fingerprint for m in lineage.versions}
        pair = dict(zip((self.version, self.target), self.fingerprints, strict=True))
        # Of a withdrawn version the lineage may keep no fingerprint.
        gone = [version for version in pair if version in lineage.withdrawn]
        if any(own.get(version) != pair[version] for version in pair if version not in gone):
            raise IntegrityError(
                f"{what} is a sidecar of side {self.side!r} from version {self.version} to "
                f"{self.target} of another lineage than {lineage}; make it anew with 'evergram "
                "vectors sidecar'."
            )
        if gone:
            raise IntegrityError(
                f"{what} is a sidecar from version {self.version} to {self.target}, and version "
                f"{gone[0]} of {lineage} was withdrawn; remove it."
            )

    def save(self, path: Path) -> None:
        """Write it, whole or not at all, over an existing file.

        Raises: DataError: the file cannot be written.
        """
        tensors = self.sidecar.tensors() | {
            "codes": torch.from_numpy(np.ascontiguousarray(self.codes)),
            "marks": torch.from_numpy(np.ascontiguousarray(self.marks)),
            "old_marks": torch.from_numpy(np.ascontiguousarray(self.old_marks)),
            **_id_tensors(self.ids),
        }
        record = {
            "format_version": FORMAT_VERSION,
            "content": content_digest(tensors),
            "version": self.version,
            "target": self.target,
            "side": self.side,
            "fingerprints": list(self.fingerprints),
            "memory": self.sidecar.memory,
            "missing": self.sidecar.missing,
            "power": self.sidecar.power,
            "error": self.error,
            "way_back_error": self.way_back_error,
            "worse": self.worse,
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
            if path.exists() and not path.is_file():
                raise DataError(f"{path} is a {'folder' if path.is_dir() else 'device'}; {made}.")
            # All of it before it is looked at: a mapped file that shrinks ends the process.
            content = path.read_bytes()
            tensors = load(content)  # checks the header, too
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            record = json.loads(header["__metadata__"][KEY])
            if record["format_version"] != FORMAT_VERSION:
                raise DataError(
                    f"{path} has the format version {record['format_version']}, and this Evergram "
                    f"reads {FORMAT_VERSION}; read it with a later Evergram."
                )
            codes = tensors["codes"]
            sidecar = Sidecar.of_tensors(tensors, codes, record)
            ids, marks = _ids_of(tensors), (tensors["marks"], tensors["old_marks"])
            shapes = {tuple(part.shape) for part in marks} | {(len(ids), MARKS)}
            whole = record["content"] == content_digest(tensors)
            if sidecar is None or not whole or len(codes) != len(ids) or len(shapes) > 1:
                raise DataError(f"{path} is damaged: its content is not what was written; {made}.")
            new, old = map(str, record["fingerprints"])
            opened = cls(
                int(record["version"]),
                int(record["target"]),
                str(record["side"]),
                (new, old),
                sidecar,
                float(record["error"]),
                float(record["way_back_error"]),
                float(record["worse"]),
                ids,
                codes.numpy(),
                *(part.float().numpy() for part in marks),
            )
            opened.places(ids.slice(0, 0))  # sorts the ids now, and not within a request
            return opened
        except OSError as error:
            raise DataError(f"{path} cannot be read: {reason_and_remedy(error)}.") from error
        except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"{path} is not the sidecar of a version, or not all of it is there yet; {made}."
            ) from error


def content_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors, their names and their shapes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


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
