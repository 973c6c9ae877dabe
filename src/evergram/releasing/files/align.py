"""The way from one file of vectors back to another, fitted in closed form from one pass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.alignment_loss import history_metric
from evergram.compatibility.certificate import StepError, certify
from evergram.compatibility.closed_form_fit import KINDS, ClosedForm, fit_closed_form, pairs_needed
from evergram.compatibility.second_moments import SecondMoments
from evergram.errors import DataError
from evergram.evaluation.chance import Chance, beside_chance
from evergram.evaluation.map_quality import chance_reading, mapping_readings
from evergram.lineage.artefact import Artefact, Block
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.alignment_gate import refuse_degenerate, refuse_error
from evergram.releasing.files.moments_pass import PairReading, read_pairs
from evergram.releasing.files.pair_split import (
    Groups,
    canary_rows,
    id_hashes,
    pair_groups,
    refuse_few,
    sampled_rows,
)
from evergram.releasing.files.past_file import SIDE, checked_past
from evergram.releasing.publish import publish, refuse_untried
from evergram.training.progress import Progress
from evergram.vector_files.open_embeddings import EmbeddingFile
from evergram.vector_files.pairing import Pairing

QUIET = Progress(quiet=True)
log = logging.getLogger(__name__)
# Of low_rank, where nothing is said.
RANK = 32


@dataclass(frozen=True)
class Settings:
    """How to align.

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
                f"{', '.join(KINDS)} can."
            )
        if not 0 < self.held_out < 1:
            raise DataError(f"held_out is {self.held_out}; it is a share between 0 and 1.")
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
        """The rank that a map between these dims has, where it is of low rank."""
        return min(self.rank or RANK, old_dim, new_dim)


@dataclass(frozen=True)
class Alignment:
    """Two files, and the map from the new vectors to the old ones.

    Args:
        pairing: the objects that they have in common, and `groups` what these are for.
        small: whether they are few, and that was allowed.
        read: what the one pass over them has learnt.
        fitted: to all pairs but the held-out ones; `ideal` to those too.
        chance: how much better it is than one that knows nothing.
        readings: what it keeps on held-out objects, see `mapping_readings`.
        neighbours: how many of these were looked up, and among how many.
        canaries: rows whose vectors are kept for ever.
    """

    old: EmbeddingFile
    new: EmbeddingFile
    settings: Settings
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
    def error(self) -> StepError:
        """On the held-out objects."""
        held = self.read.held
        return StepError(held.sigma(*_published(self.fitted)), held.count, held.power)

    def overlap(self) -> dict[str, Any]:
        """JSON of how much there was to align and to measure, as of a trained version."""
        held = int(self.groups.held.sum())
        return {
            "common": len(self.pairing),
            "fitted": len(self.pairing) - held,
            "held_out": held,
            "held_out_share": self.settings.held_out,
            "small": self.small,
        }

    def report(self) -> dict[str, Any]:
        """JSON of what the map keeps."""
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
            "chance": {"ratio": self.chance.ratio, "deviations": self.chance.deviations},
        }


def align(
    old: EmbeddingFile | int,
    new: EmbeddingFile,
    lineage: Lineage,
    settings: Settings = Settings(),
    *,
    max_error: float | None = None,
    promote: bool = True,
    progress: Progress = QUIET,
    strict_probes: bool = False,
    warn: Callable[[str], None] = log.warning,
) -> dict[str, Any]:
    """Publish `new` as the next version of `lineage`, with its way back to `old`.

    A lineage without versions gets `old` as version 0 first. One that has versions must have the
    vectors of `old` as its newest; then the loss is the multi-step one where the chain is affine.

    Args:
        old: a file, or the number of the newest version, whose stored vectors are then read.
        max_error: the most that the relative error on held-out objects may be, infinite for no
            limit; None for one that random vectors never meet.
        promote, strict_probes, warn: as for `evergram.publish`.
    Returns: JSON of what the mapping keeps on held-out objects, as docs/align.md says.
    Raises: DataError: the files have too few objects in common, one of them alone has ids, or they
        cannot be used. LineageError: the lineage is not one of files, or its newest vectors are
        others; or a file carries the fingerprint of another version. DegradationError: the error
        or a probe is past its limit, or cannot be measured; nothing is then published.
    """
    if strict_probes:
        refuse_untried(lineage)
    before = checked_past(old, new, lineage)
    found = _aligned(before, new, lineage, settings, progress)
    error = found.readings["transformed"]["relative_error"]
    refuse_error(error, found.chance, found.error.objects, max_error, (before.path, new.path))
    canaries = found.read.sample.take(found.canaries)
    ids = found.pairing.ids.take(pa.array(found.canaries.numpy())).cast(pa.string())
    said = asdict(settings)
    if settings.transform == "low_rank":
        said["rank"] = settings.rank_of(before.dim, new.dim)
    said |= {"old": str(before.path), "new": str(new.path)}
    if not lineage.versions:
        recipe = {"align": {**said, "has_ids": before.has_ids}}
        lineage.publish(first_version(before, (ids, canaries.old), recipe))
    number = lineage.next_version
    chain = lineage.chain.extended(found.fitted.transform)
    errors = {**lineage.step_errors, number: found.error}
    certificates = {j: certify(chain, errors, number, j) for j in lineage.readable}
    report = found.report()
    report["certificate"] = {str(j): asdict(c) for j, c in certificates.items() if c is not None}
    artefact = Artefact(
        dim=new.dim,
        embeddings={SIDE: lambda: new.blocks()},
        transform=found.fitted.transform,
        metrics={
            "version": number,
            "dim": new.dim,
            "metrics": {"model": {}},
            "overlap": found.overlap(),
            "alignment": report,
        },
        recipe={"align": {**said, "has_ids": new.has_ids}},
        canaries={SIDE: (ids, canaries.new)},
        error=found.error,
    )
    published = publish(lineage, artefact, strict_probes=strict_probes, promote=promote, warn=warn)
    return dict(published.metrics)


def first_version(file: EmbeddingFile, canaries: Block, recipe: Mapping[str, Any]) -> Artefact:
    """Version 0 of a lineage of files."""
    return Artefact(
        dim=file.dim,
        embeddings={SIDE: lambda: file.blocks()},
        transform=None,
        metrics={"version": 0, "dim": file.dim, "metrics": {"model": {}}},
        recipe=recipe,
        canaries={SIDE: canaries},
    )


def _aligned(
    old: EmbeddingFile, new: EmbeddingFile, lineage: Lineage, settings: Settings, progress: Progress
) -> Alignment:
    """Read both files and fit the map. Raises: DataError: they cannot be aligned."""
    pairing = Pairing(old, new)
    dims = old.dim, new.dim
    rank = settings.rank_of(*dims)
    hashes = id_hashes(pairing.ids)
    groups = pair_groups(hashes, settings.held_out)
    allow = settings.allow_small_overlap
    small = refuse_few(groups, dims, settings.transform, rank, allow_small=allow)
    queries, catalogue = sampled_rows(hashes, groups.held, settings.seed)
    past = lineage.canaries(lineage.newest).get(SIDE, (None,))[0] if lineage.versions else None
    kept = canary_rows(pairing.ids, hashes, groups.held, past)
    rows = torch.cat([queries, catalogue, kept])
    read = read_pairs(pairing, dims, groups, rows, progress)
    whole = read.whole
    refuse_degenerate(old.path, new.path, whole, read.zeros)
    metric = _metric(lineage) if lineage.versions else None

    def fit(some: SecondMoments, choosing: SecondMoments | None) -> ClosedForm:
        kind, scaled = settings.transform, settings.scaled
        return fit_closed_form(kind, some, choosing, metric, rank=rank, scaled=scaled)

    fitted, ideal = fit(read.seen, read.chosen), fit(whole, None)
    fitted.transform.requires_grad_(False).eval()
    found = _published(fitted)
    chance = beside_chance(read.held, *found)
    readings = mapping_readings(
        {"transformed": found, "in_sample": _published(ideal)},
        read.held,
        read.sample.take(queries),
        read.sample.take(catalogue),
    )
    readings["chance"] = chance_reading(found, chance, read.sample.take(queries), len(catalogue))
    return Alignment(
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


def _metric(lineage: Lineage) -> Tensor | None:
    """S of the versions that are there; None where it is I, or a step is not affine."""
    chain = lineage.active_chain
    if not chain.newest or not chain.is_affine(chain.newest, 0):
        return None
    steps = [chain.matrix(n, n - 1) for n in range(1, chain.newest + 1)]
    return history_metric(steps, chain.dim(0))


def _published(fitted: ClosedForm) -> tuple[Tensor, Tensor | None]:
    """The affine map of the transform itself, in its float32."""
    found = fitted.transform.requires_grad_(False).affine()
    assert found is not None
    return found
