"""The sidecar of a published version: a file of codes by object id, with which objects are read at
the previous version. Make sidecars, and read files and folders of them, again when they change."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from evergram.atomic_files import replacing
from evergram.compatibility.sidecar import SAMPLE, Sidecar
from evergram.errors import DataError, IntegrityError, LineageError, reason_and_remedy
from evergram.lineage.lineage import Lineage, side_of
from evergram.retrieval.metric_search import Metric, by_vectors
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.store import (
    MOST_HITS,
    Embedded,
    Floats,
    Hits,
    Keys,
    Places,
    Rows,
    find,
    joined_ids,
    keys_of,
    places_among,
)
from evergram.vector_files.open_embeddings import EmbeddingFile, Pairing, open_embeddings

# Called with objects encoded and total objects.
Progress = Callable[[int, int], None]
log: logging.Logger = logging.getLogger(__name__)
# The backward transform's error on unchecked objects may be WORSE times that on the objects which
# the lineage can check; LEAST of these are needed.
WORSE, LEAST = 1.2, 20
# Number of random-sign sums per vector.
MARKS = 3
# Relative to a vector's length: above float16 rounding, below the distance to another vector.
TOLERANCE = 2e-3
KEY = "evergram.version_sidecar"
FORMAT_VERSION = 1
# Metadata in a file besides the tensors and the fields of `Sidecar`.
FACTS = {
    "version": int,
    "target": int,
    "side": str,
    "fingerprints": list,
    "error": float,
    "transform_error": float,
    "worse": float,
}
# Default number of hits per query to re-rank by a sidecar.
DEPTH = 1000
# Minimum per result: with fewer hits, objects that codes would move up are missing.
PER_RESULT = 4
# Queries per fetch of hits.
BLOCK = 16
# Maximum number of hits to hold at once.
HITS = 65_536
SUFFIX = ".safetensors"
# Identifies a file and its state, including permissions; None if it is missing.
Stamp: TypeAlias = tuple[int, int, int, int, int] | None
Paths: TypeAlias = str | Path | Sequence[str | Path]


def marks_of(vectors: Floats) -> Floats:
    """Return the sums of each vector's coordinates under `MARKS` random signs, float32 [n, MARKS].

    A different vector at relative distance d has marks within the tolerance with probability
    (0.8 · TOLERANCE / d)^MARKS: one in five million for d = 0.3.
    """
    # The legacy generator gives the same numbers with every NumPy version.
    draw = np.random.RandomState(vectors.shape[1])
    signs = 2.0 * draw.randint(0, 2, (vectors.shape[1], MARKS)) - 1.0
    marks: Floats = (vectors.astype(np.float64) @ signs).astype(np.float32)
    return marks


def same_marks(vectors: Floats, marks: Floats) -> npt.NDArray[np.bool_]:
    """Return a mask [n] of the vectors [n, D] that match the marks [n, MARKS]."""
    return near(marks_of(vectors), marks, np.linalg.norm(vectors.astype(np.float64), axis=1))


def near(marks: Floats, others: Floats, lengths: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return a mask [n]: True where the marks [n, MARKS] of vectors of these lengths agree."""
    apart: npt.NDArray[np.float64] = np.abs(marks.astype(np.float64) - others).max(axis=1)
    return apart <= TOLERANCE * lengths


@dataclass(frozen=True)
class VersionSidecar:
    """Codes of a version's objects, with which they are read at the previous version. Thread-safe.

    Args:
        sidecar: decodes vectors of `version` and codes to vectors of `target`.
        ids: [N], with the type of the lineage's ids.
        codes: uint8 [N, size].
        marks, old_marks: `marks_of` the vectors of both versions from which codes were computed.
        version: v, the version of the objects' rows.
        target: the previous version that was not withdrawn, usually v − 1.
        side: a side of the lineage.
        fingerprints: those of `version` and `target`.
        error, transform_error: √(E‖error‖² / E‖z_target‖²) over all objects, with and without
            codes.
        worse: share of the objects with a larger error with codes than without.
    """

    sidecar: Sidecar
    ids: pa.Array
    codes: npt.NDArray[np.uint8]
    marks: Floats
    old_marks: Floats
    version: int
    target: int
    side: str
    fingerprints: Sequence[str]
    error: float
    transform_error: float
    worse: float

    # By the type of the requested ids: the own ids in that type, their sorted keys, and the order.
    _sorted: dict[pa.DataType, tuple[pa.Array, Keys, Places]] = field(
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
        """Return the row of each id [n], or -1. Stores may have text ids where the lineage has
        integers, and vice versa."""
        places = np.full(len(ids), -1, dtype=np.int64)
        if ids.type not in self._sorted:
            try:
                own = self.ids.cast(ids.type)
            except pa.ArrowInvalid:  # not numbers
                return places
            keys = keys_of(own)
            order = np.argsort(keys, kind="stable")
            self._sorted[ids.type] = own, keys[order], order
        own, keys, order = self._sorted[ids.type]
        if len(own):
            which, at = find(keys, ids, keys_of(ids), lambda p: own.take(pa.array(order[p])))
            places[which] = order[at]
        return places

    def known(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Return the places of rows [n] of its version; -1 for unknown ids and for vectors that
        differ from the published ones."""
        places = self.places(rows.ids)
        # Place -1 compares with the last row, and stays -1.
        return np.where(same_marks(rows.vectors, self.marks[places]), places, -1)

    def follows(
        self, later: VersionSidecar, read: npt.NDArray[np.int64], ids: pa.Array
    ) -> npt.NDArray[np.int64]:
        """Return the places of ids [n] that `later` has at places `read`; -1 unless both sidecars
        were made from the same vector of this version."""
        places = self.places(ids)
        marks = self.marks[places]
        # The root mean square of marks estimates the vector's length.
        lengths = np.sqrt(np.square(marks.astype(np.float64)).mean(axis=1))
        same = (read >= 0) & near(later.old_marks[read], marks, lengths)
        return np.where(same, places, -1)

    def read(self, places: npt.NDArray[np.int64], vectors: Floats) -> Floats:
        """Map vectors [n, D_v] of the objects at these places (none -1) to the previous version."""
        return self.sidecar.read(vectors, self.codes[places])

    def check(self, lineage: Lineage, what: str) -> None:
        """Raises: IntegrityError: it belongs to another lineage or a withdrawn version."""
        own = {m.version: m.fingerprint for m in lineage.versions}
        pair = dict(zip((self.version, self.target), self.fingerprints, strict=True))
        # The lineage may not know the fingerprint of a withdrawn version.
        gone = [version for version in pair if version in lineage.withdrawn]
        wrong = f", and version {gone[0]} of {lineage} was withdrawn; remove it" if gone else ""
        if any(own.get(version) != pair[version] for version in pair if version not in gone):
            wrong = f" of another lineage than {lineage}; make it anew"
        if wrong:
            raise IntegrityError(
                f"{what} is a sidecar of side {self.side!r} from version {self.version} to "
                f"{self.target}{wrong}."
            )

    def save(self, path: Path) -> None:
        """Write the file atomically. Raises: DataError: it cannot be written."""
        tensors = self.sidecar.tensors() | {
            "codes": torch.from_numpy(np.ascontiguousarray(self.codes)),
            "marks": torch.from_numpy(np.ascontiguousarray(self.marks)),
            "old_marks": torch.from_numpy(np.ascontiguousarray(self.old_marks)),
        }
        if pa.types.is_integer(self.ids.type):
            tensors["ids"] = torch.from_numpy(self.ids.to_numpy().astype(np.int64))
        else:
            # The texts' bytes, and the end of each text.
            texts = [text.encode() for text in self.ids.to_pylist()]
            content = np.frombuffer(b"".join(texts), dtype=np.uint8).copy()
            ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
            tensors |= {"id_bytes": torch.from_numpy(content), "id_ends": torch.from_numpy(ends)}
        record = {
            "format_version": FORMAT_VERSION,
            "content": content_digest(tensors),
            **{name: getattr(self, name) for name in FACTS},
            **{name: getattr(self.sidecar, name) for name in ("missing", "power")},
        }
        try:
            with replacing(path) as file:
                file.write(save(tensors, {KEY: json.dumps(record)}))
        except OSError as error:
            raise DataError(f"{path} cannot be written: {reason_and_remedy(error)}.") from error

    @classmethod
    def open(cls, path: Path) -> VersionSidecar:
        """Read a file from `save`. Raises: DataError: it is missing, damaged or not a sidecar."""
        made = "give a file that 'evergram vectors sidecar' made"
        try:
            if path.exists() and not path.is_file():
                raise DataError(f"{path} is a {'folder' if path.is_dir() else 'device'}; {made}.")
            # Not memory-mapped: a mapped file that shrinks crashes the process.
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
            if "ids" in tensors:
                ids = pa.array(tensors["ids"].numpy(), pa.int64())
            else:
                raw, ends = tensors["id_bytes"].numpy().tobytes(), tensors["id_ends"].tolist()
                ids = pa.array([raw[a:b].decode() for a, b in pairwise([0, *ends])], pa.string())
            marks = tensors["marks"], tensors["old_marks"]
            shapes = {tuple(part.shape) for part in marks} | {(len(ids), MARKS)}
            whole = record["content"] == content_digest(tensors)
            if sidecar is None or not whole or len(codes) != len(ids) or len(shapes) > 1:
                raise DataError(f"{path} is damaged: its content is not what was written; {made}.")
            facts = {name: record[name] for name in FACTS}
            if [type(fact) for fact in facts.values()] != list(FACTS.values()):
                raise ValueError("a fact is of another type")
            new, old = (part.float().numpy() for part in marks)
            opened = cls(sidecar, ids, codes.numpy(), new, old, **facts)
            opened.places(ids.slice(0, 0))  # sorts the ids now, not during a request
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
    """Return the SHA-256 of tensors with names, types and shapes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


class Sidecars:
    """The sidecars of a lineage's versions. Thread-safe.

    Args:
        sidecars: at most one per side and version.
        depth: number of hits per query to re-rank by a sidecar; at least `PER_RESULT` · k.
    """

    def __init__(self, sidecars: Iterable[VersionSidecar] = (), depth: int = DEPTH) -> None:
        self._of = {(s.side, s.version): s for s in sidecars}
        self._depth = depth

    def apply(self, side: str, target: int, filled: Iterable[int]) -> bool:
        """Return whether any of these versions' rows can be read at `target` by a sidecar."""
        return any(v > target and (side, v) in self._of for v in filled)

    def depth(self, side: str, target: int, k: int) -> int:
        """Return how many hits per query a search at `target` needs."""
        later = any(own == side and version > target for own, version in self._of)
        return max(k, min(max(self._depth, PER_RESULT * k), MOST_HITS)) if later else k

    def rows(self, maps: VersionMaps, rows: Rows, target: int, side: str) -> Floats:
        """Map rows of a version with a sidecar to an earlier one, [n, D_target], step by step: by
        codes where available, else by the backward transform. Raises: as `VersionMaps.rows`."""
        vectors, version = rows.vectors, rows.version
        sidecar = self._of.get((side, version))
        assert sidecar is not None
        places = sidecar.known(rows)
        # The target may be a withdrawn version, which is no sidecar's target.
        while sidecar is not None and sidecar.target >= target and (places >= 0).any():
            known = places >= 0
            if known.all():
                vectors = sidecar.read(places, vectors)
            else:
                some = sidecar.read(places[known], vectors[known])
                vectors = maps.rows(vectors, version, sidecar.target)
                vectors[known] = some
            later, read, version = sidecar, places, sidecar.target
            sidecar = self._of.get((side, version)) if version > target else None
            if sidecar is not None:
                places = sidecar.follows(later, read, rows.ids)
        return maps.rows(vectors, version, target)


def reread(
    embed: Callable[[pa.Array], Embedded],
    hits: Sequence[Hits],
    queries: Floats,
    metric: Metric,
    k: int,
) -> list[Hits]:
    """Return each query's k best hits by the vectors of `embed`, called per block of queries."""
    best = []
    for start in range(0, len(hits), BLOCK):
        part = hits[start : start + BLOCK]
        embedded = embed(joined_ids([h.ids for h in part], part[0].ids.type).unique())
        for of_query, query in zip(part, queries[start : start + BLOCK], strict=True):
            _, places = places_among(of_query.ids, embedded.ids)
            # A row may have been removed since the search.
            there = embedded.sources[places] >= 0
            ids = of_query.ids.filter(pa.array(there))
            stored = Hits(ids, of_query.scores[there], embedded.sources[places][there])
            vectors = embedded.vectors[places][there]
            best.append(by_vectors(stored, vectors, query, metric).first(k))
    return best


class SidecarFiles:
    """Files of `evergram vectors sidecar`, and folders of them (.safetensors), which are reopened
    when they change. Thread-safe.

    Args:
        paths: one or more files and folders.
        depth: as for `Sidecars`.
    Raises: DataError: a path is empty.
    """

    def __init__(self, paths: Paths = (), depth: int = DEPTH) -> None:
        named = [paths] if isinstance(paths, str | Path) else paths
        if not all(str(path) for path in named):
            raise DataError("The path of a sidecar is empty; name a file or a folder.")
        # Absolute paths for error messages.
        self._paths = [Path(path).absolute() for path in named]
        self._depth = depth
        # True until the first successful `read`.
        self._strict = True
        self._opened: dict[Path, tuple[Stamp, VersionSidecar]] = {}
        self._logged: set[str] = set()
        self._reading = threading.Lock()
        # Problems of the last `read`, one sentence each.
        self.problems: list[str] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return SidecarFiles, (self._paths, self._depth)

    def stamps(self) -> tuple[tuple[str, Stamp], ...]:
        """Return a value that changes when any file is changed, added or removed."""
        paths = dict.fromkeys([*self._paths, *self._files([])])
        return tuple((str(path), _stamp(path)) for path in paths)

    def read(self, lineage: Lineage) -> Sidecars:
        """Return the lineage's sidecars.

        Unreadable files in folders are skipped, and on later calls also those in `paths`. Of two
        files for one side and version, the later one is used. Both are reported in `problems`,
        and logged once.

        Raises, on the first call: DataError: a path cannot be read. IntegrityError: a file in
            `paths` belongs to another lineage.
        """
        with self._reading:
            problems: list[str] = []
            chosen: dict[tuple[str, int], tuple[Path, VersionSidecar]] = {}
            files = self._files(problems)
            for path in self._opened.keys() - files:
                log.warning("%s is gone, and not used any more (%s).", path, self._opened[path][1])
                del self._opened[path]
            for path in files:
                try:
                    stamp = _stamp(path)
                    if path not in self._opened or self._opened[path][0] != stamp:
                        self._opened.pop(path, None)
                        self._opened[path] = stamp, VersionSidecar.open(path)
                    sidecar = self._opened[path][1]
                    sidecar.check(lineage, str(path))
                except (DataError, IntegrityError) as error:
                    if self._strict and path in self._paths:
                        raise
                    problems.append(str(error))
                    continue
                key = sidecar.side, sidecar.version
                if key in chosen:
                    problems.append(
                        f"{chosen[key][0]} is of side {key[0]!r} and version {key[1]}, as {path} "
                        "is, which is later; remove one of them. It is not used."
                    )
                chosen[key] = path, sidecar
            sidecars = Sidecars((sidecar for _, sidecar in chosen.values()), self._depth)
            sentences = {f"{path}: {sidecar}.": logging.INFO for path, sidecar in chosen.values()}
            # Versions without a sidecar, while others of the side have one.
            gaps = [
                f"Version {m.version} has no sidecar of side {side!r}, and is read as those before "
                "it by the backward transform; make one with 'evergram vectors sidecar'."
                for side in dict.fromkeys(side for side, _ in chosen)
                for m in [m for m in lineage.versions if side in m.embeddings][1:]
                if m.version <= lineage.production and (side, m.version) not in chosen
            ]
            sentences |= dict.fromkeys(problems + gaps, logging.WARNING)
            for sentence, level in sentences.items():
                if sentence not in self._logged:
                    log.log(level, "%s", sentence)
            self._logged, self.problems, self._strict = {*sentences}, problems, False
        return sidecars

    def _files(self, problems: list[str]) -> list[Path]:
        """Return the files, without duplicates, oldest first."""
        files = []
        for path in self._paths:
            try:
                inside = path.iterdir() if path.is_dir() else [path]
                files += [file for file in inside if file.suffix == SUFFIX or file == path]
            except OSError as error:
                sentence = f"{path} cannot be read: {reason_and_remedy(error)}."
                if self._strict:
                    raise DataError(sentence) from error
                problems.append(sentence)
        # A file may have several paths.
        by_place = {file.resolve(): file for file in reversed(files)}
        return sorted(by_place.values(), key=lambda file: ((_stamp(file) or (0,))[0], str(file)))


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    times = status.st_mtime_ns, status.st_ctime_ns
    return *times, status.st_size, status.st_ino, status.st_dev


def make_sidecar(
    lineage: Lineage,
    old: EmbeddingFile | None = None,
    *,
    version: int | None = None,
    side: str | None = None,
    size: int | None = None,
    error: float | None = None,
    progress: Progress | None = None,
) -> VersionSidecar:
    """Make the sidecar from a version to the previous one, for all objects in both.

    Args:
        old: vectors of the previous version; default: the stored ones.
        version: v, with stored vectors; default: the newest.
        side: optional if the lineage has only one.
        size: bytes per vector; give this or `error`.
        error: largest relative error, on a sample of `SAMPLE` objects; determines the size.
        progress: called with objects encoded and total objects.
    Raises: LineageError: unknown version or side, or `old` is not the previous version. ShapeError:
        the backward transform is not affine. DataError: invalid `size` or `error`, or no common
        object.
    """
    if (size is None) == (error is None):
        raise DataError("A sidecar has a number of bytes or an error; give one of the two.")
    number = lineage.newest if version is None else lineage.resolve(version)
    before = [m.version for m in lineage.versions if m.version < number]
    if not before:
        raise LineageError(f"Version {number} of {lineage} is its first, and needs no sidecar.")
    target = max(before)
    side = side_of(lineage.manifest(number).embeddings, str(lineage), side)
    stored = open_embeddings(lineage.stored(side, number))
    if old is not None:
        _refuse_another(old, lineage, target, side)
    elif target not in lineage.versions_with_embeddings:
        raise LineageError(
            f"The vectors of version {target} are no longer stored in {lineage}; give their file "
            "(--old)."
        )
    past = open_embeddings(lineage.stored(side, target)) if old is None else old
    pairing = Pairing(past, stored)
    weight, offset = lineage.chain.affine(number, target)
    backward = weight, offset if bool(offset.any()) else None
    sampled_old, sampled_new = _sampled(pairing)
    if error is not None:
        sidecar = Sidecar.fit_for_error(*backward, sampled_new, sampled_old, error)
    else:
        assert size is not None
        sidecar = Sidecar.fit(*backward, sampled_new, sampled_old, size)
    facts: dict[str, Any] = {"version": number, "target": target, "side": side}
    facts["fingerprints"] = [lineage.manifest(v).fingerprint for v in (number, target)]
    facts["ids"] = pairing.ids.cast(stored.ids().type)
    made, distances = _encoded(pairing, sidecar, progress, **facts)
    if old is not None:
        kept = lineage.canaries(target).get(side, (pa.array([], pa.string()), None))[0]
        compared = pc.is_in(pairing.ids.cast(pa.string()), value_set=kept.cast(pa.string()))
        _refuse_mixed_up(distances, compared.to_numpy(zero_copy_only=False), str(old.path))
    return made


def _encoded(
    pairing: Pairing, sidecar: Sidecar, progress: Progress | None, **facts: Any
) -> tuple[VersionSidecar, npt.NDArray[np.float64]]:
    """Return the sidecar of all objects, and the backward transform's relative error [N]."""
    codes, marks, old_marks, lefts, alones, lengths = [], [], [], [], [], []
    done = 0
    for past, present in _floats(pairing):
        codes.append(sidecar.encode(present, past))
        lefts.append((sidecar.read(present, codes[-1]).double() - past).norm(dim=1))
        alones.append((sidecar.read_without_codes(present) - past).norm(dim=1))
        lengths.append(past.double().norm(dim=1))
        marks.append(marks_of(present.numpy()))
        old_marks.append(marks_of(past.numpy()))
        done += len(past)
        if progress is not None:
            progress(done, len(pairing))
    left, alone, length = (torch.cat(parts) for parts in (lefts, alones, lengths))
    made = VersionSidecar(
        sidecar,
        codes=torch.cat(codes).numpy(),
        marks=np.concatenate(marks),
        old_marks=np.concatenate(old_marks),
        error=float(left.norm() / length.norm()),
        transform_error=float(alone.norm() / length.norm()),
        # Ignore differences within float16 rounding.
        worse=float((left > alone + TOLERANCE * length).double().mean()),
        **facts,
    )
    return made, (alone / torch.where(length > 0, length, 1.0)).numpy()


def _refuse_mixed_up(
    distances: npt.NDArray[np.float64], compared: npt.NDArray[np.bool_], path: str
) -> None:
    """Raises: LineageError: the backward transform is much worse on unchecked objects than on those
    whose old vectors were compared, or too few were compared."""
    if compared.all():
        return
    if compared.sum() < LEAST:
        raise LineageError(
            f"{path} has {compared.sum()} of the objects whose vectors the lineage keeps to "
            f"compare, and {LEAST} are needed to tell whether the others are right; give the whole "
            "file."
        )
    # Clip outliers, such as short vectors.
    near = np.minimum(distances, 2.0)
    right, rest = near[compared].mean(), near[~compared].mean()
    if rest > WORSE * right + TOLERANCE:
        raise LineageError(
            f"The backward transform has a mean relative error of {rest:.3f} on {path}, and of "
            f"{right:.3f} on those of its objects whose vectors the lineage keeps to compare: the "
            "others are other vectors, or under other ids."
        )


def _refuse_another(old: EmbeddingFile, lineage: Lineage, version: int, side: str) -> None:
    """Raises: LineageError: the file has none of the version's canaries, or different vectors.
    DataError: as `EmbeddingFile.blocks`."""
    lineage.check_fingerprint(old.fingerprint, version, str(old.path))
    ids, kept = lineage.canaries(version).get(side, (pa.array([], pa.string()), torch.empty(0, 0)))
    what = f"{old.path} is not what version {version} of {lineage} is"
    dim = lineage.manifest(version).dim
    if old.dim != dim:
        raise LineageError(f"{what}: its dim is {old.dim}, not {dim}.")
    known = dict(zip(ids.to_pylist(), kept, strict=True))
    seen = 0
    for some, vectors in old.blocks():
        for row, text in enumerate(some.cast(pa.string()).to_pylist()):
            if (own := known.get(text)) is None:
                continue
            seen += 1
            if float((vectors[row] - own).norm()) > TOLERANCE * float(own.norm()):
                raise LineageError(f"{what}: the vector of id {text!r} is another.")
    if not seen:
        raise LineageError(
            f"{what}, as far as can be seen: it has none of the {len(known)} objects whose vectors "
            "the lineage keeps to compare; give the whole file, and where it has no ids, these in "
            "a FILE.ids.txt beside it."
        )


def _floats(pairing: Pairing) -> Iterator[tuple[Tensor, Tensor]]:
    return ((past.float(), present.float().contiguous()) for past, present in pairing.blocks())


def _sampled(pairing: Pairing) -> tuple[Tensor, Tensor]:
    """Return the old and new vectors of a random sample of objects."""
    drawn = torch.randperm(len(pairing), generator=torch.Generator().manual_seed(0))
    chosen = torch.zeros(len(pairing), dtype=torch.bool)
    chosen[drawn[:SAMPLE]] = True
    past, present, start = [], [], 0
    for one, two in _floats(pairing):
        part = chosen[start : start + len(one)]
        past.append(one[part])
        present.append(two[part])
        start += len(one)
    return torch.cat(past), torch.cat(present)
