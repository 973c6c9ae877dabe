"""Align a vector file to an older one: fit a backward transform in closed form, in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.compatibility.aligner.solution import MapSettings
from evergram.compatibility.alignment_loss import history_metric
from evergram.compatibility.certificate import LEAST_OBJECTS, StepError, certify
from evergram.compatibility.chance import (
    LEAST_DEVIATIONS,
    MOST_OF_CHANCE,
    Chance,
    compared_with_chance,
)
from evergram.compatibility.closed_forms import (
    ClosedForm,
    LengthCount,
    SecondMoments,
    degenerate_side,
    fit_closed_form,
    pairs_needed,
)
from evergram.compatibility.row_groups import Groups, pair_groups, vector_hashes
from evergram.errors import DataError, DegradationError
from evergram.evaluation.version_distance import VectorPairs, chance_reading, mapping_readings
from evergram.ids import id_hashes
from evergram.lineage.artefact import Artefact, Block
from evergram.lineage.lineage import Lineage
from evergram.lineage.publication import RowSample, canary_rows
from evergram.releasing.past_file import (
    SIDE,
    checked_past,
    facts_of,
    first_version,
    text_encoder_of,
)
from evergram.releasing.publish import publish, refuse_untried
from evergram.training.progress import Progress
from evergram.vector_files.open_embeddings import EmbeddingFile, Pairing, ahead

QUIET = Progress(quiet=True)
# Number of queries and of catalogue rows for comparing neighbours.
QUERIES, CATALOGUE = 1000, 20_000


@dataclass(frozen=True)
class AlignSettings(MapSettings):
    """Settings of a map between two files. A hash of the ids chooses the held-out objects.

    Args:
        allow_small_overlap: accept too few common objects to fit or to measure the transform.
    """

    allow_small_overlap: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.held_out:
            raise DataError("held_out (--held-out) is 0; the error is measured on this share.")


def refuse_error(
    error: float, chance: Chance, held: int, limit: float | None, names: tuple[Path, Path]
) -> None:
    """Refuse an error on `held` objects that exceeds the limit or is no better than chance."""
    if limit is not None and not limit >= 0:
        raise DataError(f"max_error is {limit}; it is a number such as 0.5, or inf for no limit.")
    if limit is not None and math.isinf(limit):
        return
    start, other = "The new version was not published: ", "--max-error inf sets no limit"
    if held < LEAST_OBJECTS or math.isnan(error):
        raise DegradationError(
            f"{start}its error would be measured on {held} objects, and {LEAST_OBJECTS} are needed "
            f"to hold it to a limit; raise --held-out or give more objects in common ({other})."
        )
    if limit is not None and error > limit:
        past = f"the relative error is {error:.4g}, past the limit of {limit:g}"
        raise DegradationError(f"{start}on {held} held-out objects {past}; {other}.")
    if not chance.is_beaten:
        raise DegradationError(
            f"{start}{names[1]} hardly predicts {names[0]}: on {held} held-out objects the "
            f"relative error is {error:.4g}, which is {chance.ratio:.0%} of the error with the "
            f"objects mixed up, and {chance.deviations:.1f} standard deviations below it; at most "
            f"{MOST_OF_CHANCE:.0%} and at least {LEAST_DEVIATIONS:g} are needed. Check that the "
            f"same id is the same object in both, and try --transform affine ({other})."
        )


def refuse_few(
    groups: Groups,
    dims: tuple[int, int],
    kind: str,
    rank: int,
    *,
    allow_small: bool = False,
    vectors: Tensor | None = None,
) -> bool:
    """Refuse too few pairs to fit a transform or measure its error; return True if `allow_small`
    accepts them. `dims` are the old and the new one. Objects with equal hashes in `vectors`, int64
    [N], count once; None before the files are read."""
    keys = torch.arange(len(groups.held)) if vectors is None else vectors
    held, fitted = (len(np.unique(keys[rows].numpy())) for rows in (groups.held, ~groups.held))
    what = "common objects" if vectors is None else "different new vectors of common objects"
    needed = pairs_needed(kind, *dims, rank)
    if fitted >= needed and held >= LEAST_OBJECTS and bool(groups.chosen.any()):
        return False
    some = all(bool(rows.any()) for rows in (groups.held, groups.chosen, groups.seen))
    if some and allow_small:
        return True
    option = ", or go on with so few by --allow-small-overlap" if some else ""
    if fitted < needed:
        raise DataError(
            f"{fitted} {what} are there to fit to ({held} more are held out), and a {kind} "
            f"transform from {dims[1]} to {dims[0]} dims needs {needed}; give more{option}."
        )
    raise DataError(
        f"Only {held} of {held + fitted} {what} are held out to measure on, and "
        f"{LEAST_OBJECTS} are needed; raise --held-out{option}."
    )


def sampled_rows(hashes: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Return held-out rows as queries, and other rows, held out or not, as the catalogue."""
    order = torch.argsort(hashes, stable=True)
    queries = order[held[order]][:QUERIES]
    drawn = torch.randperm(len(hashes), generator=torch.Generator().manual_seed(0))
    return queries, drawn[~torch.isin(drawn, queries)][:CATALOGUE]


@dataclass(frozen=True)
class PairReading:
    """Moments of two files by group (see `Groups`), and the vectors of some `rows`."""

    seen: SecondMoments
    chosen: SecondMoments
    held: SecondMoments
    rows: Tensor
    old: Tensor
    new: Tensor
    zeros: tuple[int, int]  # number of zero vectors in the old and the new file
    hashes: Tensor  # hash of each row's new vector, int64 [N]

    def take(self, rows: Tensor) -> VectorPairs:
        """Return the old and new vectors of a subset of `rows`."""
        place = torch.searchsorted(self.rows, rows)
        return VectorPairs(self.old[place], self.new[place])


def read_pairs(
    pairing: Pairing, dims: tuple[int, int], groups: Groups, rows: Tensor, progress: Progress
) -> PairReading:
    """Read both files once, keeping the vectors of `rows`."""
    moments = SecondMoments(*dims), SecondMoments(*dims), SecondMoments(*dims)
    wanted = torch.zeros(len(pairing), dtype=torch.bool)
    wanted[rows] = True
    kept: list[tuple[Tensor, Tensor]] = []
    hashes: list[Tensor] = []
    lengths = LengthCount(), LengthCount()
    start = 0
    with progress.task("pairs", len(pairing)) as bar:
        for pair in ahead(pairing.blocks()):
            old, new = pair
            part = slice(start, start + len(old))
            for sums, mask in zip(moments, (groups.seen, groups.chosen, groups.held), strict=True):
                sums.add(old[mask[part]], new[mask[part]])
            kept.append((old[wanted[part]].float(), new[wanted[part]].float()))
            hashes.append(vector_hashes(new.double()))
            for count, vectors in zip(lengths, pair, strict=True):
                count.add(vectors)
            start += len(old)
            bar.advance(len(old), len(old))
    old, new = (torch.cat(side) for side in zip(*kept, strict=True))
    zeros = lengths[0].zeros, lengths[1].zeros
    return PairReading(*moments, wanted.nonzero().squeeze(1), old, new, zeros, torch.cat(hashes))


DEFAULT = AlignSettings()


class FileAlignment:
    """Two files, and a map from new to old vectors, `fitted` to the common objects that are not
    held out. `error` and `readings` are measured on `objects` distinct held-out vectors; `chance`
    compares the error with the map's error on shuffled objects."""

    def __init__(
        self,
        old: EmbeddingFile,
        new: EmbeddingFile,
        lineage: Lineage,
        settings: AlignSettings,
        progress: Progress,
    ) -> None:
        self.old, self.new, self.settings = old, new, settings
        self.dims: tuple[int, int] = (old.dim, new.dim)
        self.rank: int = settings.rank_of(*self.dims)
        self.pairing: Pairing = Pairing(old, new)
        self.small: bool = False
        hashes = torch.from_numpy(id_hashes(self.pairing.ids))
        self.groups: Groups = pair_groups(hashes, settings.held_out)
        self._refuse_few()
        self.read: PairReading
        queries, catalogue = self._read(hashes, progress)
        read = self.read
        whole = read.seen.plus(read.chosen, read.held)
        if (degenerate := degenerate_side(whole, read.zeros)) is not None:
            path, problem = old.path if degenerate[0] == "old" else new.path, degenerate[1]
            objects = f"of the {whole.count} objects in common"
            raise DataError(f"{path} has no vectors that could be aligned: {objects}, {problem}.")
        # Hold out all copies of a vector, or none.
        apart = self.groups.apart(read.hashes)
        if not torch.equal(apart.held, self.groups.held):
            self.groups = apart
            queries, catalogue = self._read(hashes, progress)
            read = self.read
            whole = read.seen.plus(read.chosen, read.held)
        self._refuse_few(read.hashes)
        metric = _metric(lineage) if lineage.versions else None
        self.fitted: ClosedForm = self._fit(read.seen, read.chosen, metric)
        self.fitted.transform.requires_grad_(False).eval()
        ideal = _published(self._fit(whole, None, metric))
        affine, sampled = _published(self.fitted), read.take(queries)
        # Copies of a text count once.
        self.objects: int = len(torch.unique(read.hashes[self.groups.held]))
        self.error = StepError(read.held.sigma(*affine), self.objects, read.held.power)
        self.chance: Chance = compared_with_chance(read.held, *affine, objects=self.objects)
        self.readings: dict[str, dict[str, float]] = mapping_readings(
            {"transformed": affine, "in_sample": ideal}, read.held, sampled, read.take(catalogue)
        )
        self.readings["chance"] = chance_reading(affine, self.chance, sampled, len(catalogue))
        self.neighbours: dict[str, int] = {"queries": len(queries), "catalogue": len(catalogue)}

    def _refuse_few(self, vectors: Tensor | None = None) -> None:
        kind, allowed = self.settings.transform, self.settings.allow_small_overlap
        self.small |= refuse_few(
            self.groups, self.dims, kind, self.rank, allow_small=allowed, vectors=vectors
        )

    def _read(self, hashes: Tensor, progress: Progress) -> tuple[Tensor, Tensor]:
        """Read both files; return the rows of queries and of the catalogue of neighbours."""
        queries, catalogue = sampled_rows(hashes, self.groups.held)
        rows = torch.cat([queries, catalogue])
        self.read = read_pairs(self.pairing, self.dims, self.groups, rows, progress)
        return queries, catalogue

    def _fit(
        self, some: SecondMoments, choosing: SecondMoments | None, metric: Tensor | None
    ) -> ClosedForm:
        kind, scaled = self.settings.transform, self.settings.scaled
        return fit_closed_form(kind, some, choosing, metric, rank=self.rank, scaled=scaled)

    def blocks(self, file: EmbeddingFile) -> Iterator[Block]:
        """Yield the blocks of a file. Raises: DataError: it changed since the alignment."""
        read = self.read
        known = read.new if file is self.new else read.old
        ids = self.pairing.ids.take(pa.array(read.rows.numpy())).cast(pa.string())
        changed = DataError(f"{file.path} was changed while it was aligned; align it again.")
        left = len(ids)
        for keys, vectors in file.blocks():
            places = pc.index_in(keys.cast(pa.string()), value_set=ids)
            found = torch.from_numpy(places.is_valid().to_numpy(zero_copy_only=False))
            at = torch.from_numpy(places.drop_null().to_numpy().astype(np.int64))
            left -= len(at)
            if not torch.equal(vectors[found].float(), known[at]):
                raise changed
            yield keys, vectors
        if left:
            raise changed

    def overlap(self) -> dict[str, Any]:
        """Return object counts as JSON, with the same keys as a trained version's."""
        held = int(self.groups.held.sum())
        return {
            "common": len(self.pairing),
            "fitted": len(self.pairing) - held,
            "held_out": held,
            "held_out_share": self.settings.held_out,
            "small": self.small,
        }

    def report(self) -> dict[str, Any]:
        """Return pair counts, the transform and its errors as JSON."""
        overlap, chance = self.overlap(), self.chance
        back, ridge = self.fitted.transform, self.fitted.ridge
        beaten = {"deviations": chance.deviations, "beaten": chance.is_beaten}
        return {
            "pairs": {
                **{name: overlap[name] for name in ("common", "fitted", "held_out")},
                "only_old": self.pairing.only_old,
                "only_new": self.pairing.only_new,
                "common_share": overlap["common"] / min(self.old.rows, self.new.rows),
                "needed": pairs_needed(self.settings.transform, *self.dims, self.rank),
                "by_row_number": not (self.old.has_ids or self.new.has_ids),
            },
            "dims": dict(zip(("old", "new"), self.dims, strict=True)),
            "transform": {"kind": back.kind, **back.options, "ridge": ridge},
            "neighbours": dict(self.neighbours),
            "held_out": dict(self.readings),
            "chance": {"ratio": chance.ratio, **beaten},
        }


def align(
    old: EmbeddingFile | int,
    new: EmbeddingFile,
    lineage: Lineage,
    settings: AlignSettings = DEFAULT,
    *,
    max_error: float | None = None,
    max_loss: float | None = None,
    promote: bool = True,
    progress: Progress = QUIET,
    strict_probes: bool = False,
) -> dict[str, Any]:
    """Publish `new` as the next version of `lineage`, with its backward transform to `old`.

    An empty lineage first gets `old` as version 0. Otherwise `old` must contain the newest
    version's vectors, and the map minimizes the multi-step loss if the chain is affine.

    Args:
        old: a file, or the newest version's number to read its stored vectors.
        max_error: largest relative error on held-out objects. The map must also be better than
            chance, unless this is infinite.
        max_loss, promote, strict_probes: as for `evergram.publish`.
    Returns: the version's metrics as JSON, see docs/align.md.
    Raises: DataError: too few common objects, only one file has ids, or a file is unusable.
        LineageError: the lineage was trained, its newest vectors differ from `old`, or a file has
        another version's fingerprint. DegradationError: the error or a probe exceeds its limit or
        cannot be measured; nothing is published.
    """
    if strict_probes:
        refuse_untried(lineage)
    before = checked_past(old, new, lineage)
    alignment = FileAlignment(before, new, lineage, settings, progress)
    error = alignment.readings["transformed"]["relative_error"]
    names = before.path, new.path
    refuse_error(error, alignment.chance, alignment.objects, max_error, names)
    recorded = {**asdict(settings), "old": str(before.path), "new": str(new.path)}
    if settings.transform == "low_rank":
        recorded["rank"] = alignment.rank
    ids = alignment.pairing.ids
    kept = ids.take(pa.array(canary_rows(ids, torch.from_numpy(id_hashes(ids))).numpy()))
    first = first_version(before, {"align": {**recorded, **facts_of(before)}}, canaries=kept)
    first = replace(first, embeddings={SIDE: lambda: alignment.blocks(before)})
    if not lineage.versions:
        # Refuse unusable new vectors before publishing the old ones.
        for _ in RowSample(SIDE, *alignment.dims).through(alignment.blocks(new)):
            pass
        lineage.publish(first)
    recipe = {"align": {**recorded, **facts_of(new)}}
    artefact = _next_version(alignment, lineage, recipe)
    limits: dict[str, Any] = {"max_loss": max_loss, "strict_probes": strict_probes}
    published = publish(lineage, artefact, promote=promote, **limits)
    return dict(published.metrics)


def _next_version(
    alignment: FileAlignment, lineage: Lineage, recipe: Mapping[str, Any]
) -> Artefact:
    """Return the artefact of an aligned file, with its certificates."""
    number, new = lineage.next_version, alignment.new
    chain = lineage.chain.extended(alignment.fitted.transform)
    errors = {**lineage.step_errors, number: alignment.error}
    certificates = {j: certify(chain, errors, number, j) for j in lineage.readable}
    report = alignment.report()
    report["certificate"] = {str(j): asdict(c) for j, c in certificates.items() if c is not None}
    metrics = {"version": number, "dim": new.dim, "metrics": {"model": {}}}
    return Artefact(
        dim=new.dim,
        embeddings={SIDE: lambda: alignment.blocks(new)},
        transform=alignment.fitted.transform,
        metrics={**metrics, "overlap": alignment.overlap(), "alignment": report},
        recipe=recipe,
        error=alignment.error,
        follows=lineage.manifest(lineage.newest).fingerprint,
        text_encoder=text_encoder_of(new),
    )


def _metric(lineage: Lineage) -> Tensor | None:
    """Return the loss's metric S of the past versions; None if it is I or the chain not affine."""
    chain = lineage.active_chain
    if not chain.newest or not chain.is_affine(chain.newest, 0):
        return None
    steps = [chain.matrix(n, n - 1) for n in range(1, chain.newest + 1)]
    return history_metric(steps, chain.dim(0))


def _published(fitted: ClosedForm) -> tuple[Tensor, Tensor | None]:
    """Return the transform's affine map in float32, as published."""
    affine = fitted.transform.requires_grad_(False).affine()
    assert affine is not None
    return affine
