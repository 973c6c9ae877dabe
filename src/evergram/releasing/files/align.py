"""Align a file of vectors to an older one: a backward transform in closed form, from one pass."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.alignment_loss import history_metric
from evergram.compatibility.certificate import LEAST_OBJECTS, StepError, certify
from evergram.compatibility.chance import LEAST_DEVIATIONS, MOST_OF_CHANCE, Chance, beside_chance
from evergram.compatibility.closed_form_fit import KINDS, ClosedForm, fit_closed_form, pairs_needed
from evergram.compatibility.degenerate import degenerate_side
from evergram.compatibility.second_moments import SecondMoments
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, DegradationError
from evergram.evaluation.version_distance import chance_reading, mapping_readings
from evergram.lineage.artefact import Artefact, Block
from evergram.lineage.canary_check import canary_rows
from evergram.lineage.lineage import Lineage
from evergram.lineage.publication import beginning
from evergram.releasing.files.pair_moments import (
    Groups,
    PairReading,
    id_hashes,
    pair_groups,
    read_pairs,
    refuse_few,
    sampled_rows,
)
from evergram.releasing.files.past_file import (
    SIDE,
    checked_past,
    facts_of,
    first_version,
    past_file,
    text_encoder_of,
)
from evergram.releasing.publish import publish, refuse_untried
from evergram.training.distributed.process_group import join_processes
from evergram.training.progress import Progress
from evergram.vector_files.open_embeddings import EmbeddingFile
from evergram.vector_files.pairing import Pairing

# Of low_rank, if no rank is set.
RANK = 32


@dataclass(frozen=True)
class AlignSettings:
    """The kind of a transform between two files, and the objects it is measured on.

    Args:
        transform: linear, affine, orthogonal or low_rank.
        rank: of low_rank, and of it alone; 32 where it is absent.
        scaled: whether an orthogonal map, and it alone, may stretch.
        held_out: share of the common objects, by a hash of their ids, that is measured on and never
            fitted to.
        seed: draws the catalogue in which neighbours are looked up.
        allow_small_overlap: go on with fewer objects in common than the transform needs, or than
            its error can be measured on.
    """

    transform: str = "linear"
    rank: int | None = None
    scaled: bool = False
    held_out: float = 0.1
    seed: int = 0
    allow_small_overlap: bool = False

    def __post_init__(self) -> None:
        if self.transform not in KINDS:
            raise DataError(
                f"The transform {self.transform!r} cannot be fitted to files; "
                f"{', '.join(KINDS)} can{did_you_mean(self.transform, KINDS)}."
            )
        if not 0 < self.held_out < 1:
            raise DataError(
                f"held_out (--held-out) is {self.held_out}; it is a share between 0 and 1."
            )
        if self.rank is not None and self.rank < 1:
            raise DataError(f"rank is {self.rank}; it is at least 1.")
        if self.rank is not None and self.transform != "low_rank":
            raise DataError(
                f"rank is of the transform low_rank, not of {self.transform}; leave it out."
            )
        if self.scaled and self.transform != "orthogonal":
            raise DataError(
                f"scaled is of the transform orthogonal, not of {self.transform}; leave it out."
            )

    def rank_of(self, old_dim: int, new_dim: int) -> int:
        """Return the rank of a low-rank map between these dims."""
        return min(self.rank or RANK, old_dim, new_dim)


# The share of the mean square that is the mean's, from which the mean is "far from zero".
FAR = 0.5


def refuse_degenerate(old: Path, new: Path, moments: SecondMoments, zeros: tuple[int, int]) -> None:
    """Raises: DataError: the vectors of one of the files cannot be aligned; see `vectors_problem`.

    Args:
        moments: of all pairs.
        zeros: how many vectors of the old and of the new file are zero.
    """
    degenerate = degenerate_side(moments, zeros)
    if degenerate is not None:
        side, problem = degenerate
        raise DataError(
            f"{old if side == 'old' else new} has no vectors that could be aligned: of the "
            f"{moments.count} objects in common, {problem}; look at how it was made."
        )


def refuse_error(
    error: float,
    chance: Chance,
    held: int,
    limit: float | None,
    names: tuple[Path, Path],
    *,
    far: Sequence[str] = (),
) -> None:
    """Raises: DegradationError: the error on held-out objects is past the limit, no better than
    chance, or was measured on too few. DataError: the limit is no number.

    Args:
        error: relative.
        held: on how many objects it was measured.
        limit: of the relative error; `chance` must be beaten too, unless the limit is infinite.
        names: of the old and of the new file.
        far: those of them, as text, whose mean is far from zero, where the map has no offset.
    """
    if limit is not None and not limit >= 0:
        raise DataError(f"max_error is {limit}; it is a number such as 0.5, or inf for no limit.")
    if limit is not None and math.isinf(limit):
        return
    start = "The new version was not published: "
    other = "another limit is set by --max-error, and none by --max-error inf"
    if held < LEAST_OBJECTS or math.isnan(error):
        raise DegradationError(
            f"{start}its error would be measured on {held} objects, and {LEAST_OBJECTS} are needed "
            f"to hold it to a limit; raise --held-out or give more objects in common ({other})."
        )
    if limit is not None and error > limit:
        raise DegradationError(
            f"{start}on {held} held-out objects the relative error is {error:.4g}, past the limit "
            f"of {limit:g}; {other}."
        )
    if not chance.is_beaten:
        raise DegradationError(
            f"{start}{names[1]} says next to nothing of {names[0]}: on {held} held-out objects "
            f"the relative error is {error:.4g}, {chance.ratio:.0%} of what it is with the objects "
            f"mixed up and {chance.deviations:.1f} standard deviations below that; at most "
            f"{MOST_OF_CHANCE:.0%} and at least {LEAST_DEVIATIONS:g} deviations are needed. "
            f"{_advice(far)} (--max-error inf publishes it all the same)."
        )


def far_means(old: Path, new: Path, moments: SecondMoments, *, has_offset: bool) -> list[str]:
    """Return the files, as text, whose mean vector is far from zero, which a map without an offset
    cannot follow; none if it has one."""
    if has_offset:
        return []
    squares = moments.second()
    sides = ((old, squares[2], moments.mean_old), (new, squares[0], moments.mean_new))
    return [
        str(path)
        for path, square, mean in sides
        if float(mean.double().square().sum()) > FAR * float(square.trace())
    ]


def _advice(far: Sequence[str]) -> str:
    if far:
        return (
            f"The mean vector of {' and of '.join(far)} is far from zero: try --transform affine, "
            "and see whether the same id is the same object in both files"
        )
    return (
        "See whether the same id is the same object in both files, and whether some vectors are "
        "much longer than others"
    )


QUIET = Progress(quiet=True)
log: logging.Logger = logging.getLogger(__name__)
DEFAULT = AlignSettings()
CPU = torch.device("cpu")


@dataclass(frozen=True)
class FileAlignment:
    """Two files, and the map from the new vectors to the old ones.

    Args:
        pairing: the objects that they have in common, and `groups` what these are for.
        small: whether they are few, and that was allowed.
        read: moments and a sample, from one pass over both files.
        fitted: to all pairs but the held-out ones; `ideal` to those too.
        chance: its error compared with the same map on mixed-up objects.
        readings: its errors and shared neighbours on held-out objects, see `mapping_readings`.
        neighbours: the number of objects whose neighbours were looked up, and of the catalogue.
        canaries: rows whose vectors are kept for ever.
    """

    old: EmbeddingFile
    new: EmbeddingFile
    settings: AlignSettings
    pairing: Pairing
    groups: Groups
    small: bool
    read: PairReading
    fitted: ClosedForm
    chance: Chance
    readings: Mapping[str, Mapping[str, float]]
    neighbours: Mapping[str, int]
    canaries: Tensor

    @property
    def objects(self) -> int:
        """The different new vectors that are held out: copies of one text are one object."""
        return _different(self.read, self.groups)

    @property
    def error(self) -> StepError:
        """The transform's error on the held-out objects."""
        held = self.read.held
        return StepError(held.sigma(*_published(self.fitted)), self.objects, held.power)

    def overlap(self) -> dict[str, Any]:
        """Return how many objects were aligned and measured, as JSON; the keys are a trained
        version's."""
        held = int(self.groups.held.sum())
        return {
            "common": len(self.pairing),
            "fitted": len(self.pairing) - held,
            "held_out": held,
            "held_out_share": self.settings.held_out,
            "small": self.small,
        }

    def report(self) -> dict[str, Any]:
        """Return the counts of pairs, the transform and its errors, as JSON."""
        dims = self.old.dim, self.new.dim
        settings, overlap = self.settings, self.overlap()
        rank = settings.rank_of(*dims)
        return {
            "pairs": {
                "common": overlap["common"],
                "only_old": self.pairing.only_old,
                "only_new": self.pairing.only_new,
                "common_share": overlap["common"] / min(self.old.rows, self.new.rows),
                "fitted": overlap["fitted"],
                "held_out": overlap["held_out"],
                "needed": pairs_needed(settings.transform, *dims, rank),
                "by_row_number": not (self.old.has_ids or self.new.has_ids),
            },
            "dims": {"old": dims[0], "new": dims[1]},
            "transform": {
                "kind": self.fitted.transform.kind,
                **self.fitted.transform.options,
                "ridge": self.fitted.ridge,
            },
            "neighbours": dict(self.neighbours),
            "held_out": dict(self.readings),
            "chance": {
                "ratio": self.chance.ratio,
                "deviations": self.chance.deviations,
                "beaten": self.chance.is_beaten,
            },
        }


def align(
    old: EmbeddingFile | int,
    new: EmbeddingFile,
    lineage: Lineage,
    settings: AlignSettings = DEFAULT,
    *,
    max_error: float | None = None,
    promote: bool = True,
    progress: Progress = QUIET,
    strict_probes: bool = False,
    warn: Callable[[str], None] = log.warning,
) -> dict[str, Any]:
    """Publish `new` as the next version of `lineage`, with its backward transform to `old`.

    A lineage without versions gets `old` as version 0 first. One that has versions must have the
    vectors of `old` as its newest; then the loss is the multi-step one where the chain is affine.
    Of several processes the first calls it, and the others `take_part_in_alignment`.

    Args:
        old: a file, or the number of the newest version, whose stored vectors are then read.
        max_error: the most that the relative error on held-out objects may be. With or without
            it the map must be better than chance, which random vectors never are; infinite lifts
            both.
        promote, strict_probes, warn: as for `evergram.publish`.
    Returns: the version's metrics as JSON, see docs/align.md.
    Raises: DataError: the files have too few objects in common, one of them alone has ids, or they
        cannot be used. LineageError: the lineage is not one of files, or its newest vectors are
        others; or a file carries the fingerprint of another version. DegradationError: the error
        or a probe is past its limit, or cannot be measured; nothing is then published.
    """
    if strict_probes:
        refuse_untried(lineage)
    before = checked_past(old, new, lineage)
    alignment = _aligned(before, new, lineage, settings, progress)
    error = alignment.readings["transformed"]["relative_error"]
    has_offset = _published(alignment.fitted)[1] is not None
    refuse_error(
        *(error, alignment.chance, alignment.error.objects, max_error, (before.path, new.path)),
        far=far_means(before.path, new.path, alignment.read.held, has_offset=has_offset),
    )
    canaries = alignment.read.sample.take(alignment.canaries)
    ids = alignment.pairing.ids.take(pa.array(alignment.canaries.numpy())).cast(pa.string())
    recorded = asdict(settings)
    if settings.transform == "low_rank":
        recorded["rank"] = settings.rank_of(before.dim, new.dim)
    recorded |= {"old": str(before.path), "new": str(new.path)}
    recipe = {"align": {**recorded, **facts_of(before)}}
    first = first_version(before, (ids, canaries.old), recipe)
    with nullcontext() if lineage.versions else beginning(lineage, first):
        recipe = {"align": {**recorded, **facts_of(new)}}
        artefact = _next_version(alignment, lineage, recipe, (ids, canaries.new))
        strict = strict_probes
        published = publish(lineage, artefact, strict_probes=strict, promote=promote, warn=warn)
    return dict(published.metrics)


def _next_version(
    alignment: FileAlignment, lineage: Lineage, recipe: Mapping[str, Any], canaries: Block
) -> Artefact:
    """Return the artefact of an aligned file, with its certificates."""
    number, new = lineage.next_version, alignment.new
    chain = lineage.chain.extended(alignment.fitted.transform)
    errors = {**lineage.step_errors, number: alignment.error}
    certificates = {j: certify(chain, errors, number, j) for j in lineage.readable}
    report = alignment.report()
    report["certificate"] = {str(j): asdict(c) for j, c in certificates.items() if c is not None}
    return Artefact(
        dim=new.dim,
        embeddings={SIDE: lambda: new.blocks()},
        transform=alignment.fitted.transform,
        metrics={
            "version": number,
            "dim": new.dim,
            "metrics": {"model": {}},
            "overlap": alignment.overlap(),
            "alignment": report,
        },
        recipe=recipe,
        canaries={SIDE: canaries},
        error=alignment.error,
        follows=lineage.manifest(lineage.newest).fingerprint,
        text_encoder=text_encoder_of(new),
    )


class _Sampled(NamedTuple):
    """A reading of both files, with rows of the pairing whose vectors were kept."""

    groups: Groups
    small: bool
    read: PairReading
    queries: Tensor
    catalogue: Tensor
    canaries: Tensor


def _read(
    pairing: Pairing,
    files: tuple[EmbeddingFile, EmbeddingFile],
    lineage: Lineage,
    settings: AlignSettings,
    progress: Progress,
) -> _Sampled:
    """Read both files; twice, if a vector is both fitted to and held out. Raises: DataError."""
    old, new = files
    dims = old.dim, new.dim
    hashes = id_hashes(pairing.ids)
    past = lineage.canaries(lineage.newest).get(SIDE, (None,))[0] if lineage.versions else None
    groups = pair_groups(hashes, settings.held_out)
    few = partial(refuse_few, dims=dims, kind=settings.transform, rank=settings.rank_of(*dims))
    small = few(groups, allow_small=settings.allow_small_overlap)
    kept = canary_rows(pairing.ids, hashes, past)

    def read_once(groups: Groups) -> tuple[PairReading, Tensor, Tensor]:
        queries, catalogue = sampled_rows(hashes, groups.held, settings.seed)
        rows = torch.cat([queries, catalogue, kept])
        read = read_pairs(pairing, dims, groups, rows, progress, join_processes(CPU))
        return read, queries, catalogue

    read, queries, catalogue = read_once(groups)
    refuse_degenerate(old.path, new.path, read.whole, read.zeros)
    if (apart := read.apart(groups)) is not None:
        groups = apart
        read, queries, catalogue = read_once(groups)
    small |= few(groups, allow_small=settings.allow_small_overlap, vectors=read.hashes)
    return _Sampled(groups, small, read, queries, catalogue, kept)


def _aligned(
    old: EmbeddingFile,
    new: EmbeddingFile,
    lineage: Lineage,
    settings: AlignSettings,
    progress: Progress,
) -> FileAlignment:
    """Read both files and fit the map. Raises: DataError: they cannot be aligned."""
    pairing, dims = Pairing(old, new), (old.dim, new.dim)
    if settings.rank is not None and settings.rank > min(dims):
        raise DataError(
            f"rank is {settings.rank}, and a map from {new.dim} to {old.dim} dims has "
            f"{min(dims)} at most; give a lower one."
        )
    sampled = _read(pairing, (old, new), lineage, settings, progress)
    groups, small, read, queries, catalogue, kept = sampled
    metric = _metric(lineage) if lineage.versions else None

    def fit(some: SecondMoments, choosing: SecondMoments | None) -> ClosedForm:
        kind, scaled, rank = settings.transform, settings.scaled, settings.rank_of(*dims)
        return fit_closed_form(kind, some, choosing, metric, rank=rank, scaled=scaled)

    fitted, ideal = fit(read.seen, read.chosen), fit(read.whole, None)
    fitted.transform.requires_grad_(False).eval()
    affine = _published(fitted)
    chance = beside_chance(read.held, *affine, objects=_different(read, groups))
    readings = mapping_readings(
        {"transformed": affine, "in_sample": _published(ideal)},
        read.held,
        read.sample.take(queries),
        read.sample.take(catalogue),
    )
    readings["chance"] = chance_reading(affine, chance, read.sample.take(queries), len(catalogue))
    return FileAlignment(
        old=old,
        new=new,
        settings=settings,
        pairing=pairing,
        groups=groups,
        small=small,
        read=read,
        fitted=fitted,
        chance=chance,
        readings=readings,
        neighbours={"queries": len(queries), "catalogue": len(catalogue)},
        canaries=kept,
    )


def _different(read: PairReading, groups: Groups) -> int:
    return len(torch.unique(read.hashes[groups.held]))


def _metric(lineage: Lineage) -> Tensor | None:
    """Return S of the past versions; None if it is I, or if a transform is not affine."""
    chain = lineage.active_chain
    if not chain.newest or not chain.is_affine(chain.newest, 0):
        return None
    steps = [chain.matrix(n, n - 1) for n in range(1, chain.newest + 1)]
    return history_metric(steps, chain.dim(0))


def _published(fitted: ClosedForm) -> tuple[Tensor, Tensor | None]:
    """Return the transform's affine map, in its float32."""
    affine = fitted.transform.requires_grad_(False).affine()
    assert affine is not None
    return affine


def take_part_in_alignment(
    old: EmbeddingFile | int,
    new: EmbeddingFile,
    lineage: Lineage | None = None,
    settings: AlignSettings = DEFAULT,
) -> None:
    """Do this process's share of an `align` that the first process calls, which publishes.

    Args:
        lineage: needed only where `old` is the number of a version.
    Raises: DataError, LineageError: as `align`. TrainingError: another process has ended.
    """
    if isinstance(old, int):
        if lineage is None:
            raise DataError(
                f"The old vectors are those of version {old}, and no lineage is given; give it too."
            )
        old = past_file(old, lineage)
    pairing = Pairing(old, new)
    groups = pair_groups(id_hashes(pairing.ids), settings.held_out)
    nothing, dims = torch.zeros(0, dtype=torch.int64), (old.dim, new.dim)
    read = read_pairs(pairing, dims, groups, nothing, QUIET, join_processes(CPU))
    if (apart := read.apart(groups)) is not None:
        read_pairs(pairing, dims, apart, nothing, QUIET, join_processes(CPU))
